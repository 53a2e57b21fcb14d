#!/usr/bin/env bash
# Memory, descriptors and threads stay as they are over 3,000 steps with validation and checkpoints.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
if [[ $(ldd "$dtrain") =~ lib[at]san ]]; then
    echo "skipped: sanitizers keep freed memory" >&2
    exit 77
fi
small_run

memory() { # of a run: the median of memory_mb in each 200 steps from 1000 on
    sed -n 's/.*"event":"train","step":\([0-9]*\),.*"memory_mb":\([0-9.]*\).*/\1 \2/p' "runs/$1/metrics.jsonl" |
        awk '$1 > 1000 { print int(($1 - 1) / 200), $2 }' | sort -k1,1n -k2,2n |
        awk '{ n[$1]++; x[$1, n[$1]] = $2 } END { for (k = 5; k < 15; k++) print x[k, int((n[k] + 1) / 2)] }'
}
# From one of these ten numbers to the next, a leak of one line of metrics (270 bytes) in each step adds 0.054 MB, and
# so does one of 7 KB in each of 8 validations or checkpoints: 0.43 MB in eight of the nine spans. Pages that are first
# used late added up to 0.03 MB in all. On a busy machine the thread that saves may start late, which adds 0.5 MB once,
# so the largest jump does not count.
tolerance_mb=0.15 most_at_once_mb=1
fewest() { # fd or task: the fewest that rank 0 has within a moment, in which a save may have more
    for _ in $(seq 10); do
        ls "/proc/$pid/$1" 2>/dev/null | wc -l
        sleep 0.01
    done | sort -n | head -n 1
}
for n in 1 2; do
    name=flat-$n
    start $n small.ini run.name=$name run.steps=3000 run.threads=1 model.d_model=16 \
        model.n_layer=1 data.seq_len=16 log.eval_every=25 log.eval_batches=4 checkpoint.every=25 checkpoint.keep=2
    wait_for_step $name 200
    pid=$(rank_pid 0)
    files=$(fewest fd) threads=$(fewest task)
    wait_for_step $name 1500
    more_files=$(fewest fd) more_threads=$(fewest task)
    wait "$job"
    check "3000 steps on $n ranks" test $? -eq 0
    check "descriptors on $n ranks: $files, later $more_files" test "$files" -gt 3 -a "$more_files" -gt 3 -a "$more_files" -le "$files"
    check "threads on $n ranks: $threads, later $more_threads" test "$threads" -gt 0 -a "$more_threads" -gt 0 -a "$more_threads" -le "$threads"
    memory=$(memory flat-$n | tr '\n' ' ')
    check "memory on $n ranks does not grow: $memory MB" awk -v memory="$memory" -v tolerance=$tolerance_mb -v most=$most_at_once_mb '
        BEGIN {
            n = split(memory, m)
            for (i = 2; i <= n; i++) { if (m[i] - m[i - 1] > jump) jump = m[i] - m[i - 1] }
            exit !(n == 10 && m[1] > 1 && jump <= most && m[n] - m[1] - jump <= tolerance)
        }'
    echo "$n ranks: median $memory MB of 200 steps each"
done
finish
