#!/usr/bin/env bash
# bf16 trains like fp32: the loss curves of the quick-start model differ by at most 1 % over 200 steps, on two ranks.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mkdir text
words 1100000 >text/words.txt
"$dtrain" pack --val 0 -o data text >pack.log 2>&1 || { cat pack.log >&2; exit 1; }
for precision in fp32 bf16; do
    check "200 steps in $precision" ranks 2 "$repository/launch/quickstart.ini" run.dir=$precision run.steps=200 \
        run.precision=$precision data.train='data/train-*.h5' log.eval_every=0 checkpoint.every=0 >$precision.log 2>&1
done
check "both have 200 steps" test "$(train_lines fp32/metrics.jsonl | wc -l) $(train_lines bf16/metrics.jsonl | wc -l)" = "200 200"
check "the loss falls far" awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < 0.6 * first) }' \
    <(train_lines fp32/metrics.jsonl)
check "the losses of bf16 differ from those of fp32" eval \
    '! cmp -s <(train_lines fp32/metrics.jsonl) <(train_lines bf16/metrics.jsonl)'

# Means of ten steps are compared: both runs train the same batches, but the loss of a single step varies more with
# its batch than with the precision. 1 % is what the project promises.
paste -d' ' <(train_lines fp32/metrics.jsonl) <(train_lines bf16/metrics.jsonl) | awk '
    { a += $2; b += $5 }
    NR % 10 == 0 {
        d = (b - a) / a; d = d < 0 ? -d : d
        if (d > worst) { worst = d; at = NR }
        a = b = 0
    }
    END { printf "%.5f %d\n", worst, at }' >worst.txt
read -r worst at <worst.txt
echo "largest difference of means of ten steps: $worst of the loss, up to step $at"
check "the curves stay within 1 %: $worst up to step $at" awk -v worst="$worst" 'BEGIN { exit !(worst < 0.01) }'
finish
