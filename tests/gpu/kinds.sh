#!/usr/bin/env bash
# Every kind of block on a CUDA device, in language models and in policies over frames, and windows in segments have the
# loss curve of the CPU. They have the same bits with and without CUDA graphs, and with images as bytes and as floats.
# Skipped without a device.
# Arguments: dtrain, the programs data/game and tests/episodes/make_episodes, and whole (100 steps, each kind by
# itself) or small (a few steps of all kinds in one model, for simulated devices).
game=$(realpath "$2") make_episodes=$(realpath "$3")
# shellcheck source=tests/gpu/lib.sh
. "$(dirname "$0")/lib.sh"
small_run
sed -i '/^n_layer/d' small.ini # given by the patterns below
case $4 in
whole)
    languages=("mamba2*2" "attention mlp" "gru mlp" "lstm mlp" "mamba attention mlp mamba2")
    policies=("mamba*2" "mamba2*2" "attention mlp" "gru" "lstm" "mlp*2")
    steps=100 precisions="fp32 bf16"
    size=(model.d_model=96 data.batch=8 optim.warmup_steps=20)
    length=200 frame=287 episodes=64
    sed -i '/^d_model/a n_head = 3' small.ini # needed where there is attention
    ;;
small)
    languages=("mamba2 attention mlp gru lstm")
    policies=("mamba mamba2 attention mlp gru lstm")
    steps=3 precisions=fp32
    size=(model.d_model=16 model.d_state=8 model.head_dim=8 data.batch=4 optim.warmup_steps=2)
    length=20 frame=19 episodes=8
    ;;
*)
    echo "usage: kinds.sh dtrain game make_episodes whole|small" >&2
    exit 2
    ;;
esac
size+=(data.val= run.steps="$steps" log.every=50)
last=checkpoints/step-$(printf %08d "$steps")
"$game" game $frame $episodes >game.log 2>&1 || { cat game.log >&2; exit 1; }
heads="buttons:bernoulli*8 main_x:categorical*17 main_y:categorical*17 c_x:categorical*17 c_y:categorical*17"
heads+=" shoulder:categorical*5"

# The tolerances are those of train.sh; some products round operands to bf16 that the CPU keeps in fp32.
declare -A first_within=([fp32]=1e-5 [bf16]=2e-3) curve_within=([fp32]=1e-4 [bf16]=1e-2)
compare() { # name, key=value …
    local name=$1 precision
    shift
    for precision in $precisions; do
        local run=$name-$precision same=("${size[@]}" "$@" run.precision="$precision")
        train "cpu-$run" "${same[@]}" run.device=cpu & # side by side, since starting takes most of the time
        local cpu=$!
        train "plain-$run" "${same[@]}" run.device=cuda run.cuda_graph=false &
        local plain=$!
        check "$run" train "cuda-$run" "${same[@]}" run.device=cuda
        check "$run on the CPU" wait $cpu
        check "$run without graphs" wait $plain
        check "$run: the first loss is the CPU's" same_losses <(first_step "cuda-$run") <(first_step "cpu-$run") \
            "${first_within[$precision]}"
        check "$run: the curve is the CPU's" same_losses "$(curve "cuda-$run")" "$(curve "cpu-$run")" \
            "${curve_within[$precision]}"
        check "$run: graphs keep every bit" same_bits "runs/cuda-$run/$last" "runs/plain-$run/$last"
    done
}

named() { # text: makes a name of it
    tr -cs 'a-z0-9\n' '-' <<<"$1"
}

for layers in "${languages[@]}"; do
    compare "language-$(named "$layers")" model.layers="$layers" data.seq_len=$length data.reset_token=10
done
# Windows in segments, forward and both ways. The last segment has 12 positions; 128 is a chunk of mamba2 on GPUs.
segments=(data.seq_len=140 data.reset_token=10 model.segment=128)
compare segments "${segments[@]}" model.layers="mamba attention mamba2 gru" model.attn_window=20
compare both "${segments[@]}" model.layers="mamba attention mamba2 lstm" data.micro_batch=1 model.direction=both model.heads=mlm model.vocab_size=257 \
    model.mask_token=256
sed -i '/^vocab_size/d; s|^train = .*|train = game/train-*.h5|' small.ini
for layers in "${policies[@]}"; do
    compare "policy-$(named "$layers")" model.layers="$layers" model.heads="$heads" data.seq_len=60
done
compare conditioned model.layers="${policies[0]}" model.heads="$heads" model.autoregressive=true data.seq_len=60

# Bytes stay bytes until the device normalises them: 64 by wide accesses, and 64 after 3 floats one by one. The numbers
# must be those that the loader computes from floats.
images=$(printf 'obs/img %.0s' {1..16})
image=(model.layers="${policies[0]}" 'model.heads=buttons:bernoulli*2 stick:categorical*5' data.targets=actions
    data.inputs="$images obs/a $images obs/a[1]" data.seq_len=16)
"$make_episodes" robomimic bytes.h5 0 13 && "$make_episodes" robomimic floats.h5 0 13 floats || exit 1
compare bytes "${image[@]}" data.train=bytes.h5
check "the images are bytes" grep -q "bytes uint8 x 128," \
    <("$dtrain" --check small.ini run.name=other "${size[@]}" "${image[@]}" data.train=bytes.h5)
for precision in $precisions; do
    check "floats-$precision" train floats-"$precision" "${size[@]}" "${image[@]}" data.train=floats.h5 \
        run.precision="$precision" run.device=cuda
    check "bytes-$precision has the bits of floats" same_bits runs/{cuda-bytes,floats}-"$precision/$last"
done
finish
