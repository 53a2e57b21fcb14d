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
# A leak grows in both of two spans of 900 steps, by 0.2 MB or more: one metrics line (270 bytes) per step would be
# 0.24 MB, and so would 7 KB in each of 36 validations or checkpoints. Pages first touched late were 0.06 to 0.15 MB; on a
# busy machine a thread that saves may start late for the first time, 0.5 MB at once.
tolerance_mb=0.2
for n in 1 2; do
    check "3000 steps on $n ranks" ranks $n small.ini run.name=flat-$n run.steps=3000 run.threads=1 model.d_model=16 \
        model.n_layer=1 data.seq_len=16 log.eval_every=25 log.eval_batches=4 checkpoint.every=25 checkpoint.keep=2 \
        >flat-$n.log 2>&1
    memory="$(median flat-$n 1000 1200) $(median flat-$n 1900 2100) $(median flat-$n 2800 3000)"
    check "memory on $n ranks does not grow: $memory MB" awk -v memory="$memory" -v tolerance=$tolerance_mb \
        'BEGIN { exit !(split(memory, m) == 3 && m[1] + 0 > 1 && (m[2] - m[1] <= tolerance || m[3] - m[2] <= tolerance)) }'
    echo "$n ranks: median $memory MB in steps 1000-1200, 1900-2100 and 2800-3000"
done
finish
