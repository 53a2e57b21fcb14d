#!/usr/bin/env bash
# Memory stays flat over 3,000 steps with validation and checkpoints.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
if ldd "$dtrain" | grep -Eq 'lib[at]san'; then
    echo "skipped: sanitizers keep freed memory" >&2
    exit 77
fi
small_run

median() { # of a run's memory_mb from step a to step b
    sed -n 's/.*"event":"train","step":\([0-9]*\),.*"memory_mb":\([0-9.]*\).*/\1 \2/p' "runs/$1/metrics.jsonl" |
        awk -v a="$2" -v b="$3" '$1 >= a && $1 <= b { print $2 }' | sort -n |
        awk '{ x[NR] = $1 } END { print NR ? x[int((NR + 1) / 2)] : "none" }'
}
# 0.4 MB: a leak of one metrics line (270 bytes) per step would be 0.46 MB in 1,700 steps, and so would a leak of 6 KB
# in each of 72 validations or checkpoints. Pages first touched late were 0.06 to 0.15 MB, the last of them at step
# 1,224 of 12,000; on a busy machine 0.6 MB at step 276.
tolerance_mb=0.4
for n in 1 2; do
    check "3000 steps on $n ranks" ranks $n small.ini run.name=flat-$n run.steps=3000 run.threads=1 model.d_model=16 \
        model.n_layer=1 data.seq_len=16 log.eval_every=25 log.eval_batches=4 checkpoint.every=25 checkpoint.keep=2 \
        >flat-$n.log 2>&1
    early=$(median flat-$n 1000 1200)
    late=$(median flat-$n 2800 3000)
    check "memory on $n ranks: $early MB early, $late MB late" awk -v a="$early" -v b="$late" -v tolerance=$tolerance_mb \
        'BEGIN { exit !(a > 1 && b > 1 && b - a <= tolerance) }'
    echo "$n ranks: median $early MB in steps 1000-1200, $late MB in steps 2800-3000"
done
finish
