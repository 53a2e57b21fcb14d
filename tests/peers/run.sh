#!/bin/bash
# run.sh DTRAIN [RESULTS.jsonl]: the same training step in dtrain, PyTorch and JAX, one after another on the
# same cores, and a table of tokens/s and peak memory against the best peer. $PYTHON (or python3) needs torch
# and jax. $THREADS cores (2), $LIMIT seconds for each variant (240). Give it a quiet machine.
set -u
[ $# -ge 1 ] || { sed -n 2,4p "$0" >&2; exit 2; }
dtrain=$(realpath "$1")
results=${2:-peers.jsonl}
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/peers/lib.sh
. "$here/lib.sh"
python=${PYTHON:-python3}
threads=${THREADS:-2}
limit=${LIMIT:-240}

torch_variants=(
    "--scan manual --compile --chunk 16 --bf16 --micro-batch 2"
    "--scan manual --compile --chunk 16 --bf16 --micro-batch 4"
    "--scan manual --compile --chunk 16 --bf16 --micro-batch 16"
    "--scan manual --compile --chunk 32 --bf16 --micro-batch 4"
    "--scan manual --compile --chunk 16 --micro-batch 4"
    "--scan manual --chunk 16 --micro-batch 4"
    "--scan sequential --compile --chunk 16 --micro-batch 4"
    "--scan sequential --micro-batch 4"
    "--scan logspace --compile --chunk 16 --micro-batch 4"
    "--scan doubling --compile --chunk 16 --micro-batch 4"
)
jax_variants=(
    "--scan scan --micro-batch 16"
    "--scan scan --micro-batch 4"
    "--scan scan --unroll 8 --micro-batch 4"
    "--scan remat --chunk 16 --micro-batch 16"
    "--scan remat --chunk 32 --unroll 8 --micro-batch 4"
    "--scan remat --chunk 16 --bf16 --micro-batch 4"
    "--scan scan --bf16 --micro-batch 4"
    "--scan associative --chunk 16 --micro-batch 4"
    "--scan associative --chunk 64 --micro-batch 4"
    "--scan associative --chunk 512 --micro-batch 4"
)
dtrain_variants=(
    "--precision bf16"
    "--precision bf16 --micro-batch 2"
    "--precision fp32"
    "--precision fp32 --micro-batch 2"
)

: >"$results"
export OMP_NUM_THREADS=$threads
# In each layer PyTorch allocates hundreds of MiB anew. glibc would return them to the kernel each time, and page faults
# would cost more than the arithmetic. So glibc keeps them here, as the allocators that PyTorch advises do.
for variant in "${torch_variants[@]}"; do
    one torch "$variant" env MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 \
        "$python" "$here/torch_peer.py" --threads "$threads" $variant
done
for variant in "${jax_variants[@]}"; do
    one jax "$variant" taskset -c "0-$((threads - 1))" "$python" "$here/jax_peer.py" --threads "$threads" $variant
done
for variant in "${dtrain_variants[@]}"; do
    one dtrain "$variant" "$dtrain" bench --step --json --d-model 256 --n-layer 4 --seq-len 512 --batch 16 \
        --vocab 256 --threads "$threads" $variant
done
table
