#!/bin/bash
# gpu.sh DTRAIN [RESULTS.jsonl]: the same training step in dtrain, PyTorch and JAX on a CUDA device, one after another,
# and all of that again; then tables of tokens/s and peak device memory against the best peer. $PYTHON (or python3)
# needs torch; with mamba_ssm and causal_conv1d (official.py builds them) the official kernels take part, with jax[cuda]
# JAX. What is missing is said in the table. $SIZES: other sizes than `--model 130m;--model 370m` of `dtrain bench`, 16
# sequences a step. $ROUNDS (2), $LIMIT seconds for each variant (300), $BUDGET seconds for all, $DEVICE (cuda; cpu to
# try the script). Give it an idle device.
set -u
[ $# -ge 1 ] || { sed -n 2,7p "$0" >&2; exit 2; }
dtrain=$(realpath "$1")
results=${2:-gpu-peers.jsonl}
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/peers/lib.sh
. "$here/lib.sh"
python=${PYTHON:-python3}
limit=${LIMIT:-300}
device=${DEVICE:-cuda}
IFS=';' read -ra sizes <<<"${SIZES:---model 130m;--model 370m}"

dtrain_variants=(
    "--precision bf16"
    "--precision bf16 --micro-batch 4"
)
# Without --compile, Triton generates no code.
torch_variants=(
    "--scan official --compile --bf16"
    "--scan official --compile --bf16 --micro-batch 4"
    "--scan official --bf16"
    "--scan official-scan --compile --bf16"
    "--scan chunked --compile --chunk 16 --bf16"
    "--scan chunked --compile --chunk 16 --bf16 --micro-batch 4"
    "--scan chunked --chunk 16 --bf16 --micro-batch 4"
)
jax_variants=(
    "--scan associative --chunk 64 --bf16 --micro-batch 4"
)

# shellcheck disable=SC2086
race() { # SIZE
    local variant
    for variant in "${dtrain_variants[@]}"; do
        one dtrain "$1 $variant" "$dtrain" bench --step --json --device "$device" $1 $variant
    done
    for variant in "${torch_variants[@]}"; do
        one torch "$1 $variant" "$python" "$here/torch_peer.py" --device "$device" --warm-up 3 --steps 10 $1 $variant
    done
    for variant in "${jax_variants[@]}"; do
        one jax "$1 $variant" "$python" "$here/jax_peer.py" --device "$device" --warm-up 3 --steps 10 $1 $variant
    done
}

: >"$results"
for size in "${sizes[@]}"; do
    for ((round = 0; round < ${ROUNDS:-2}; round++)); do
        race "$size"
    done
done
table
