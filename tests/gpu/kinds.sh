#!/usr/bin/env bash
# Every kind of block on a CUDA device: the loss curve of the CPU; the same bits with and without CUDA
# graphs. Skipped without a device.
# Arguments: dtrain, and whole (100 steps, each kind by itself) or small (a few steps of all kinds in one model, for
# simulated devices).
# shellcheck source=tests/gpu/lib.sh
. "$(dirname "$0")/lib.sh"
small_run
sed -i "/^n_layer/d" small.ini # the pattern says it
case $2 in
whole)
    models=("mamba2*2" "attention mlp" "gru mlp" "lstm mlp" "mamba attention mlp mamba2")
    steps=100 precisions="fp32 bf16"
    size=(model.d_model=96 data.seq_len=200 data.batch=8 optim.warmup_steps=20)
    ;;
small)
    models=("mamba2 attention mlp gru lstm")
    steps=3 precisions=fp32
    size=(model.d_model=16 model.d_state=8 model.head_dim=8 data.seq_len=20 data.batch=4 optim.warmup_steps=2)
    ;;
*)
    echo "usage: kinds.sh dtrain whole|small" >&2
    exit 2
    ;;
esac
size+=(data.val= run.steps="$steps" log.every=50 data.reset_token=10)
last=checkpoints/step-$(printf %08d "$steps")

# As in train.sh; bf16 operands of products are rounded where the CPU keeps fp32.
declare -A first_within=([fp32]=1e-5 [bf16]=2e-3) curve_within=([fp32]=1e-4 [bf16]=1e-2)
for layers in "${models[@]}"; do
    for precision in $precisions; do
        name=$(tr -cs 'a-z0-9\n' '-' <<<"$layers-$precision")
        same=("${size[@]}" model.layers="$layers" run.precision="$precision")
        check "$layers, $precision, on the CPU" train "cpu-$name" "${same[@]}" run.device=cpu
        check "$layers, $precision" train "cuda-$name" "${same[@]}" run.device=cuda
        check "$layers, $precision, without graphs" train "plain-$name" "${same[@]}" run.device=cuda run.cuda_graph=false
        check "$layers, $precision: the first loss is the CPU's" same_losses <(first_step "cuda-$name") \
            <(first_step "cpu-$name") "${first_within[$precision]}"
        check "$layers, $precision: the curve is the CPU's" same_losses "$(curve "cuda-$name")" "$(curve "cpu-$name")" \
            "${curve_within[$precision]}"
        check "$layers, $precision: graphs keep every bit" same_bits "runs/cuda-$name/$last" "runs/plain-$name/$last"
    done
done
finish
