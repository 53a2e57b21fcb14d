#!/usr/bin/env bash
# Training on a CUDA device has the loss curve of the CPU, and the same bits twice, with and without CUDA graphs, and
# after a resume. Skipped without a device.
# Arguments: dtrain, and whole (200 steps) or small (a few of a tiny model, for simulated devices).
# shellcheck source=tests/gpu/lib.sh
. "$(dirname "$0")/lib.sh"
small_run
case $2 in
whole)
    steps=200
    size=(model.d_model=96 model.n_layer=4 data.seq_len=128 data.batch=16 optim.lr=1e-3 optim.warmup_steps=20)
    ;;
small)
    steps=6
    size=(model.d_model=16 model.n_layer=1 data.seq_len=16 data.batch=4 optim.warmup_steps=2)
    ;;
*)
    echo "usage: train.sh dtrain whole|small" >&2
    exit 2
    ;;
esac
size+=(data.val= run.steps="$steps" log.every=50 checkpoint.every=$((steps / 2)))
last=checkpoints/step-$(printf %08d "$steps") half=checkpoints/step-$(printf %08d $((steps / 2)))

for precision in fp32 bf16; do
    for device in cpu cuda; do
        check "$precision on $device" train $device-$precision "${size[@]}" run.device=$device run.precision=$precision
    done
done

# The losses of the first step differ by the roundings of one forward pass. Training amplifies a
# difference: on one CPU, 200 steps of this model with gradients summed in another order
# (data.micro_batch = 4) differ by 3e-8 in fp32 and 2.4e-4 in bf16, relative. On a GPU every op rounds
# differently and uses another exponential. In fp32 an op differs by some 1e-6 instead of 1e-8; in bf16 by at
# most one rounding, as on the CPU.
check "fp32: the first loss is the CPU's" same_losses <(first_step cuda-fp32) <(first_step cpu-fp32) 1e-5
check "bf16: the first loss is the CPU's" same_losses <(first_step cuda-bf16) <(first_step cpu-bf16) 2e-3
check "fp32: the curve is the CPU's" same_losses "$(curve cuda-fp32)" "$(curve cpu-fp32)" 1e-4
check "bf16: the curve is the CPU's" same_losses "$(curve cuda-bf16)" "$(curve cpu-bf16)" 5e-3
if [ "$2" = whole ]; then # over six steps of 64 tokens the loss may also rise
    # shellcheck disable=SC2016
    check "the loss falls" awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first) }' \
        <(train_lines "$(curve cuda-bf16)")
fi

for precision in fp32 bf16; do
    same=("${size[@]}" run.device=cuda run.precision="$precision")
    check "$precision again" train again-$precision "${same[@]}"
    check "$precision: the same bits twice" same_bits runs/again-$precision/"$last" runs/cuda-$precision/"$last"
    for graph in true false; do
        check "$precision, cuda_graph = $graph" train graph-$graph-$precision "${same[@]}" run.cuda_graph=$graph
        check "$precision: cuda_graph = $graph keeps every bit" same_bits runs/graph-$graph-$precision/"$last" \
            runs/cuda-$precision/"$last"
    done
    # Makes the run's folder look as if the run had been killed after its first checkpoint.
    cp -r runs/cuda-$precision runs/resumed-$precision
    rm -r runs/resumed-$precision/"$last"
    check "$precision resumes from the middle" train resumed-$precision "${same[@]}"
    check "… and says so" grep -q "resuming from runs/resumed-$precision/$half" resumed-$precision.log
    check "$precision: a resume keeps every bit" same_bits runs/resumed-$precision/"$last" runs/cuda-$precision/"$last"
done
finish
