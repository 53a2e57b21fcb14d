#!/usr/bin/env bash
# A mixture of two sources has the same windows on any number of ranks, in the proportions of the weights, through kills
# and resumes. Other weights apply only from a step on. Losses by source add up to the total. Wrong mixtures are
# refused.
#   mixture.sh DTRAIN INTERPOSE
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
mkdir numbers
words 40000 | tr a-z 0-90-90-90 >numbers.txt
split -n l/10 numbers.txt numbers/
"$dtrain" pack -o code --val 0.1 numbers >pack.log 2>&1 || { cat pack.log >&2; exit 1; }
mix='data.train=data/train-*.h5:0.7 code/train-*.h5:0.3'
bare=(small.ini 'data.val=data/val-*.h5:0.7 code/val-*.h5:0.3' checkpoint.every=6 data.micro_batch=2 comm.reduce=reproducible run.threads=1)
common=("${bare[@]}" "$mix" run.steps=24)
last=checkpoints/step-00000024

shares() { # order lines: the total of windows of code/
    awk '$3 ~ /^code/ { n++ } END { print n + 0 }' "$1"
}
for n in 1 2 4; do
    check "order on $n ranks" ranks "$n" order "${common[@]}" --steps 1:1000 >order-$n.txt 2>order.log
done
check "the order is the same on 1, 2 and 4 ranks" test "$(cat order-[124].txt | wc -l) $(md5sum <order-1.txt)" = "24000 $(md5sum <order-2.txt)"
check "… on 4" cmp order-1.txt order-4.txt
check "of 8000 windows $(shares order-1.txt) are of code: 2400, give or take one" test $(($(shares order-1.txt) - 2400)) -ge -1 -a $(($(shares order-1.txt) - 2400)) -le 1
check "--check" "$dtrain" --check "${common[@]}" >check.log 2>&1
check "--check says weights and epochs of each source: $(grep '^mixture' check.log)" \
    test "$(grep -cE '^mixture: (data|code)/train-\*.h5 (70|30) %, [0-9.]+ epochs over the run' check.log)" -eq 2

check "a run" ranks 2 "${common[@]}" run.name=whole >whole.log 2>&1
name=killed
slow_start "$library" $name 14 2 "${common[@]}" run.name=$name
check "training is under way" wait_for_step $name 13
kill -KILL "$job" "$(rank_pid 0)" "$(rank_pid 1)"
wait $job 2>/dev/null
check "the same command resumes it, on 4 ranks" ranks 4 "${common[@]}" run.name=$name >$name-2.log 2>&1
check "the bits are those of the whole run" same_bits runs/$name/$last runs/whole/$last
check "trainer.json states the mixture" grep -q '"mixture":[[:space:]]*"shards 1 1, from 0: 7 3"' runs/whole/$last/trainer.json

# Losses by source: they add up to the whole, at a step and in validation, whatever the ranks.
adds_up() { # metrics.jsonl, event, tolerance: the sum of losses times tokens of the sources is that of all
    sed -nE 's/.*"event":"'"$2"'".*"loss":([^,]*),.*"tokens":([0-9]*),.*"sources":\{"data[^{]*\{"loss":([^,]*),"tokens":([0-9]*)[^{]*\{"loss":([^,]*),"tokens":([0-9]*).*/\1 \2 \3 \4 \5 \6/p;
        s/.*"event":"'"$2"'".*"loss":([^,]*),.*"tokens":([0-9]*),"sources":\{"data[^{]*\{"loss":([^,]*),"tokens":([0-9]*)[^{]*\{"loss":([^,]*),"tokens":([0-9]*).*/\1 \2 \3 \4 \5 \6/p' "$1" |
        awk -v tolerance="$3" '{ mean = ($3 * $4 + $5 * $6) / ($4 + $6); d = mean - $1; if (!(d < tolerance && -d < tolerance) || $4 == 0 || $6 == 0) bad = 1 }
            END { exit bad || NR == 0 }'
}
by_source() {
    sed -n 's/.*"event":"\(train\|eval\)","step":\([0-9]*\).*"sources":/\1 \2 /p' "runs/$1/metrics.jsonl"
}
check "losses by source add up to those of steps" adds_up runs/whole/metrics.jsonl train 1e-5
check "… and to the validation loss" adds_up runs/whole/metrics.jsonl eval 1e-5
for seed in 1 2; do
    "$dtrain" pack -o data-$seed --val 0 --rows 64 --length 48 --vocab 256 --items 4 --seed $seed mqar >pack.log 2>&1 || { cat pack.log >&2; exit 1; }
done
check "rows of which few tokens have a label" ranks 2 small.ini 'data.train=data-1/train-*.h5:0.5 data-2/train-*.h5:0.5' data.val= run.steps=4 run.name=pairs >pairs.log 2>&1
check "… and whose losses add up, too: $(by_source pairs | head -n 1)" adds_up runs/pairs/metrics.jsonl train 1e-5
check "tokens by source are those of the order" cmp \
    <(sed -nE 's/.*"event":"train","step":([0-9]*).*"sources":.*"tokens":([0-9]*),"epochs":[^}]*\}\}\}/\1 \2/p' runs/whole/metrics.jsonl) \
    <(head -n $((24 * 8)) order-1.txt | awk '$3 ~ /^code/ { n[$1] += 48 } END { for (i = 1; i <= 24; i++) print i, n[i] + 0 }')
# The position in a source's epochs, shown by the first sequence of a batch, includes the step itself.
check "the first step is part of an epoch: $(by_source whole | head -n 1)" awk -F'[:,}]' 'NR == 1 { for (i = 1; i < NF; i++) if ($i ~ /"epochs"/)
    begun += $(i + 1) > 0 } END { exit begun != 1 }' <(by_source whole)
check "eval of code alone" ranks 1 eval small.ini "$mix" data.val='code/val-*.h5' run.name=whole data.micro_batch=2 >eval.json 2>eval.log
check "… is its loss in the validation of both: $(eval_loss <eval.json)" awk -v alone="$(eval_loss <eval.json | cut -d' ' -f1)" '
    match($0, /"code[^}]*/) && /"event":"eval"/ { sub(/.*"loss":/, "", $0); split($0, part, ","); d = part[1] / alone - 1; found = d < 1e-5 && -d < 1e-5 }
    END { exit !found }' runs/whole/metrics.jsonl
check "24 steps and a validation have them" test "$(by_source whole | wc -l)" -eq 25
check "their bits are the same on 2 and 4 ranks" cmp <(by_source whole) <(by_source killed)

# Other weights.
cp -r runs/whole runs/changed
resumed=("${bare[@]}" run.name=changed run.steps=30)
changed=("${resumed[@]}" 'data.train=data/train-*.h5:1 code/train-*.h5:1')
refused "other weights" "data.train has other weights than the checkpoint" "$dtrain" "${changed[@]}"
refused "weights that would have counted before" "data.mixture_from is 20, but the checkpoint" "$dtrain" "${changed[@]}" data.mixture_from=20
check "weights from step 24 on" ranks 2 "${changed[@]}" data.mixture_from=24 >changed.log 2>&1
check "… are stated" grep -q '"mixture":[[:space:]]*"shards 1 1, from 0: 7 3, from 24: 1 1"' runs/changed/checkpoints/step-00000030/trainer.json
check "… and the order before them stays" "$dtrain" order "${changed[@]}" data.mixture_from=24 --steps 1:1000 >changed.txt 2>order.log
check "… step by step" cmp <(head -n $((24 * 8)) changed.txt) <(head -n $((24 * 8)) order-1.txt)
check "… then half is code" test "$(tail -n +$((24 * 8 + 1)) changed.txt | head -n 800 | awk '$3 ~ /^code/' | wc -l)" -eq 400
refused "one source in place of two" "it is one source; in the checkpoint shards of its sources: 1 . 1" \
    "$dtrain" "${resumed[@]}" 'data.train=data/train-*.h5,code/train-*.h5'
refused "data.mixture_from in a new run" "data.mixture_from: 5 changes the weights of a mixture that is resumed" "$dtrain" "${common[@]}" data.mixture_from=5

# One clear message each.
while IFS='|' read -r train pattern; do
    refused "data.train = $train" "$pattern" "$dtrain" "${bare[@]}" run.steps=24 run.name=refused data.train="$train"
done <<'END'
data/train-*.h5:0.7 code/train-*.h5:-0.3|'-0.3' is not a weight
data/train-*.h5:nan code/train-*.h5:1|'nan' is not a weight
data/train-*.h5:0 code/train-*.h5:0|all weights of the mixture are 0
data/train-*.h5:0.7e code/train-*.h5:1e|'0.7e' is not a whole number of epochs
data/train-*.h5:0.7 none/*.h5:0.3|no shard matches none/\*.h5
data/train-*.h5:0.7 code/train-*.h5|code/train-\*.h5 has no weight
data/train-*.h5:0.7 */train-*.h5:0.3|train-00000.h5 is in two sources
END
refused "carried state" "data.carry_state: true needs windows that follow" "$dtrain" "${common[@]}" run.name=refused data.shuffle=false data.carry_state=true
check "epochs: the run reads each source so often" "$dtrain" --check "${bare[@]}" run.epochs=1 \
    'data.train=data/train-*.h5:1e code/train-*.h5:3e' >check.log 2>&1
check "… $(grep '^mixture' check.log)" grep -qE '^mixture: code/train-\*.h5 .*, (3|2.9[0-9]) epochs over the run' check.log
finish
