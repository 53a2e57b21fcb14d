#!/usr/bin/env bash
# memory.sh DTRAIN: a process uses what --check plans and a constant for the program and its libraries, at any length
# and width, whole and in segments, on one rank and on two. Skipped with sanitizers, which use memory themselves.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
if is_sanitized; then exit 77; fi
small_run
sed -i '/^seq_len/d; /^batch/d; /^train/d; /^val/d' small.ini
for bytes in 200000 800000; do
    words $bytes >$bytes.txt
    check "data" "$dtrain" pack -o data-$bytes --val 0 $bytes.txt >pack.log 2>&1
done

program() { # ranks, name, keys …: sets $program to what rank 0 has that is not planned, in MiB
    local n=$1 name=$2
    shift 2
    set -- small.ini run.name="$name" run.steps=2 run.threads=1 data.val= data.block=1 "$@"
    check "$name: a plan" ranks "$n" --check "$@" >"$name.txt" 2>&1
    check "$name: trains" ranks "$n" "$@" >"$name.log" 2>&1
    program=$(awk -v mb="$(sed -n 's/.*"step":2,.*"memory_mb":\([0-9.]*\).*/\1/p' "runs/$name/metrics.jsonl")" \
        '$1 == "total" { print mb * 1e6 / 1048576 - $2 }' "$name.txt")
}
same() { # ranks, name, keys …: what is not planned is that of a short run, up to 2 MiB a rank for what malloc and MPI keep
    program "$@"
    check "$2 on $1 ranks: $program MiB are not planned, of a short run $short" \
        awk -v a="$program" -v b="$short" -v most=$((2 * $1)) 'BEGIN { exit !(a > 0 && a - b < most && b - a < most) }'
}
mixture="data.train=data-800000/*.h5:0.7 data-200000/*.h5:0.3"
for n in 1 2; do
    program $n short-$n data.train='data-800000/*.h5' data.batch=$n data.seq_len=1024
    short=$program
    same $n long-$n data.train='data-800000/*.h5' data.batch=$n data.seq_len=16384
    same $n wide-$n data.train='data-800000/*.h5' data.batch=$n data.seq_len=1024 model.d_model=256 optim.ema=0.9
    same $n segments-$n "$mixture" data.batch=8 data.micro_batch=1 data.seq_len=16384 model.n_layer=1 model.d_state=64 model.segment=128 comm.context=$n
done
finish
