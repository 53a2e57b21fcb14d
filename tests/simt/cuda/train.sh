#!/usr/bin/env bash
# Training through the whole CUDA path on the simulated device has the losses of the CPU, with and without graphs, in
# every order of threads and streams, on one rank and several, with simulated NCCL and with MPI; so do resumed runs, and
# runs that validate and save between steps. With `short` as the last argument, for sanitizers, each part of the path
# runs once, on one layer; the whole test shows what runs must have in common.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../../lib.sh"
tool=$2 make_episodes=$(realpath "$3") plain=$(realpath "$4") size=${5:-whole}
export SIMT_COUNT=1 # counts allocations
small_run
sed -i 's/^d_model = .*/d_model = 16/; s/^seq_len = .*/seq_len = 11/; s/^batch = .*/batch = 4/' small.ini
sed -i 's/^every = 1/every = 1\neval_batches = 1/' small.ini
[ "$size" = whole ] || sed -i 's/^n_layer = .*/n_layer = 1/' small.ini
steps=6
last=checkpoints/step-0000000$steps

train() { # name, ranks, arguments …: on the simulated device
    local name=$1 n=$2
    shift 2
    check "$name" ranks "$n" small.ini run.name="$name" run.steps=$steps run.device=cuda "$@" >"$name.log" 2>&1
}

alike() { # a, b: the same bits, and the same losses to the last digit
    check "$1 and $2 end in the same bits" same_bits "runs/$1/$last" "runs/$2/$last"
    check "$1 and $2 have the same losses" same_losses "runs/$1/metrics.jsonl" "runs/$2/metrics.jsonl" 0
}

close() { # a, b, relative tolerance
    check "$1 has the losses of $2" same_losses "runs/$1/metrics.jsonl" "runs/$2/metrics.jsonl" "$3"
}

# Proposals for a GPU that is not here: a build without CUDA plans with the CPU's workspaces, which are a few percent of
# the total.
window() { # dtrain, layers: of --propose
    "$1" --check --propose --device a100-40 small.ini run.device=cpu model.layers="$2" model.d_model=768 |
        sed -n 's/^  data.seq_len = \([0-9]*\) .*/\1/p'
}
for layers in 'mamba*24' 'mamba2*20 attention*4'; do
    check "--propose is alike in both builds: $(window "$dtrain" "$layers" | xargs), $(window "$plain" "$layers" | xargs)" \
        eval 'paste <(window "$dtrain" "$layers") <(window "$plain" "$layers") |
            awk "{ d = \$1 / \$2 - 1; bad += d > 0.05 || d < -0.05 } END { exit bad || NR < 3 }"'
done

check "on the CPU" ranks 1 small.ini run.name=cpu run.steps=$steps run.device=cpu >cpu.log 2>&1
train plain 1 run.cuda_graph=false
# fp32 sums have another order and other exponentials: differences of an ulp each, over six steps.
close plain cpu 1e-5
train graph 1
alike graph plain
for order in random descending warp; do
    [ $order = random ] || [ "$size" = whole ] || continue
    SIMT_ORDER=$order train $order 1
    alike $order plain
done

# Micro-batches: the first, middle and last passes have their own graphs.
train micro 1 data.micro_batch=1
close micro plain 1e-5
train reset 1 data.reset_token=10 data.micro_batch=2
check "… on the CPU" ranks 1 small.ini run.name=reset-cpu run.steps=$steps data.reset_token=10 run.device=cpu \
    >reset-cpu.log 2>&1
close reset reset-cpu 1e-5
if [ "$size" = whole ]; then
    train micro-plain 1 data.micro_batch=1 run.cuda_graph=false
    alike micro micro-plain
    for recompute in scan block; do
        train $recompute 1 model.recompute=$recompute
        alike $recompute plain
    done
fi

# A model of every other kind of block.
kinds=(model.layers="mamba2 attention gru mlp lstm" model.n_layer=5 model.head_dim=8 model.n_head=2 data.reset_token=10)
check "every kind of block on the CPU" ranks 1 small.ini run.name=kinds-cpu run.steps=$steps run.device=cpu "${kinds[@]}" \
    >kinds-cpu.log 2>&1
train kinds 1 "${kinds[@]}"
close kinds kinds-cpu 1e-5
if [ "$size" = whole ]; then
    SIMT_ORDER=random train kinds-plain 1 "${kinds[@]}" run.cuda_graph=false
    alike kinds-plain kinds
fi

# Images stay bytes until the device, which computes the numbers that the loader makes of floats.
image=(model.layers=gru model.n_layer=1 'model.heads=buttons:bernoulli*2 stick:categorical*5' data.targets=actions
    data.inputs="obs/a $(printf 'obs/img %.0s' {1..16}) obs/a[1]" run.precision=bf16)
for type in bytes floats; do
    "$make_episodes" robomimic $type.h5 0 13 $([ $type = bytes ] || echo floats)
    cp $type.h5 $type-val.h5
    train image-$type 1 "${image[@]}" data.train=$type.h5 data.val=$type-val.h5
done
alike image-bytes image-floats

# Several ranks. Two summands have the same sum in both orders, so MPI and NCCL give the same bits.
export SIMT_DEVICES=4
train nccl 2 comm.verify_replicas=6
close nccl plain 1e-5
if [ "$size" = whole ]; then
    SIMT_ORDER=random train nccl-random 2 run.cuda_graph=false comm.bucket_mb=0.005
    alike nccl-random nccl
fi
# Steps that are traced use no graphs; there are tracks of the device and of the host.
train traced 2 log.trace_steps=4:5
alike traced nccl
check "the trace" "$tool" runs/traced/trace-4-5.json 2 host:forward compute:forward compute:scan_backward \
    "compute:between steps" communication:all-reduce "input:filling a batch" checkpoint:
check "ops were timed in the second step and the traced ones" grep -q 'timed in 3 of' runs/traced/profile.txt
check "every range that was begun has ended" test "$(grep -cx 'simt: [1-9][0-9]* ranges, 0 open' traced.log)" -eq 2
# Checkpoints and replica checks at every step allocate and pin nothing.
SIMT_ORDER=random train often 2 checkpoint.every=1 comm.verify_replicas=1
alike often nccl
cp -r runs/often runs/cut # the step after a save did not change what was saved
rm -r runs/cut/checkpoints/step-0000000{5,6}
train cut 2
check "from step 4" grep -q 'resuming from .*step-00000004' cut.log
alike cut nccl
allocations() { grep ' pinned allocations$' "$1" | sort; }
check "as many allocations with six checkpoints and comparisons as with one" cmp <(allocations often.log) <(allocations nccl.log)
check "… of both ranks" test "$(allocations often.log | wc -l)" -eq 2
train mpi 2 comm.backend=mpi
alike mpi nccl
if [ "$size" = whole ]; then
    SIMT_DEVICES=1 train shared 2 run.share_device=true comm.bucket_mb=0.005
    alike shared nccl
fi
train wire 2 comm.dtype=bf16 comm.bucket_mb=0.005
# bf16 keeps 8 bits of a gradient.
close wire plain 5e-3
# A model with about 5 GB of gradients has larger buckets between GPUs, but not through the host.
plan_large() { ranks 2 --check --all small.ini run.device=cuda run.precision=fp32 model.d_model=2048 model.n_layer=48 "$@" 2>&1; }
export SIMT_MEMORY=100000000000
check "larger buckets between GPUs" grep -q '^bucket_mb = 50 ' <(plan_large)
check "… not through the host" grep -q '^bucket_mb = 25 ' <(plan_large comm.backend=mpi)
check "… nor in place of a number" grep -q '^bucket_mb = 7 ' <(plan_large comm.bucket_mb=7)
unset SIMT_MEMORY
# While buckets are under way, products have algorithms with other bits, on two ranks or more: the same algorithms at
# the same places of a step, whatever is done first. Reproducible sums do not have that, see below.
export SIMT_CUBLASLT_NARROW=1
train narrow 2
close narrow plain 1e-5
check "products give collectives their multiprocessors" eval '! same_bits runs/narrow/$last runs/nccl/$last'
if [ "$size" = whole ]; then
    SIMT_ORDER=random train narrow-random 2 run.cuda_graph=false
    alike narrow-random narrow
fi
train tree-narrow 2 comm.reduce=reproducible data.micro_batch=1
unset SIMT_CUBLASLT_NARROW
# Sharded optimizer states, in graphs, by NCCL and by MPI: a norm block for each rank, and a rest. Steps gather bf16
# copies, and fp32 weights where they read those.
wide=(run.precision=bf16 model.d_model=128 model.n_layer=1 data.seq_len=8 data.val= checkpoint.every=2)
wide_alike() {
    check "$1 and wide end in the same weights" cmp "runs/$1/$last/model.safetensors" "runs/wide/$last/model.safetensors"
    check "$1 and wide have the same losses" same_losses "runs/$1/metrics.jsonl" runs/wide/metrics.jsonl 0
}
train wide 2 "${wide[@]}"
train shard 2 "${wide[@]}" optim.shard=true comm.verify_replicas=2
wide_alike shard
check "each rank writes its states" test -e "runs/shard/$last/optimizer-00002-of-00002.safetensors"
rm -r "runs/shard/$last"
train shard 2 "${wide[@]}" optim.shard=gradients
wide_alike shard
rm -r "runs/shard/$last"
SIMT_ORDER=random train shard 2 "${wide[@]}" optim.shard=true comm.backend=mpi
wide_alike shard
if [ "$size" = whole ]; then
    rm -r "runs/shard/$last"
    train shard 2 "${wide[@]}" run.cuda_graph=false
    wide_alike shard
    train shard-average 2 "${wide[@]/data.val=/data.val=data/val-*.h5}" optim.shard=true optim.ema=0.9 log.eval_every=3
    wide_alike shard-average
fi
# The same bits on any number of ranks, by NCCL and by MPI, with and without graphs.
tree=(comm.reduce=reproducible data.micro_batch=1)
train tree-2 2 "${tree[@]}"
SIMT_DEVICES=1 train tree-1 1 "${tree[@]}" run.cuda_graph=false
alike tree-2 tree-1
alike tree-narrow tree-1
if [ "$size" = whole ]; then
    train tree-4 4 "${tree[@]}" comm.bucket_mb=0.005 comm.verify_replicas=2
    alike tree-4 tree-1
    train tree-mpi 2 "${tree[@]}" comm.backend=mpi
    alike tree-mpi tree-1
    train mpi-micro 2 comm.backend=mpi data.micro_batch=1 comm.verify_replicas=2
    close mpi-micro plain 1e-5
    train wire-mpi 2 comm.dtype=bf16 comm.backend=mpi
    close wire-mpi plain 5e-3
    train four 4 comm.verify_replicas=2
    close four plain 1e-5
    # NCCL does not use NVLS unless the user asks for it.
    SIMT_NCCL_NVLS=1 train nvls 4
    alike nvls four
    check "no message about NVLS" eval '! grep -q NVLS nvls.log'
    SIMT_NCCL_NVLS=1 NCCL_ALGO=NVLS train asked 4
    check "one warning about NVLS" test "$(grep -c 'dtrain: warning: NCCL_ALGO .* NVLS' asked.log)" -eq 1
fi
check "collectives by MPI and by NCCL" ranks 2 bench --comm --device cuda --last 16K --factor 64 --seconds 0.001 --json \
    >comm.json 2>comm.log
check "… without a wrong value" test "$(grep '"backend":"nccl"' comm.json | grep -c '"wrong":0,')" -eq 12
unset SIMT_DEVICES

# Work between steps, and resuming from a checkpoint.
train pauses 1 log.eval_every=2 checkpoint.every=3 comm.verify_replicas=4
alike pauses plain
check "validation during the run" grep -q '"event":"eval","step":2,' runs/pauses/metrics.jsonl
# Copies of a save that are done as late as possible: the next update waits for them, and the save has this step's
# weights.
SIMT_COPIES=late train late 1 checkpoint.every=3
check "what was saved in mid-run is the state after its step" same_bits runs/{late,pauses}/checkpoints/step-00000003
rm -r "runs/pauses/$last"
train pauses 1
alike pauses plain
cp -r runs/pauses runs/moved
rm -r "runs/moved/$last"
SIMT_DEVICES=2 train moved 2 comm.verify_replicas=1
close moved plain 1e-5
check "bf16 on the CPU" ranks 1 small.ini run.name=bf16-cpu run.steps=$steps run.precision=bf16 run.device=cpu \
    >bf16-cpu.log 2>&1
train bf16 1 run.precision=bf16
# bf16 rounds activations at the same places, but sums before it in other orders.
close bf16 bf16-cpu 2e-3
# Segments, the last of which is short: those of a micro-batch are one graph.
cut=(data.seq_len=150 data.batch=2 data.micro_batch=1 data.reset_token=10)
check "whole windows on the CPU" ranks 1 small.ini run.name=segments-cpu run.steps=$steps "${cut[@]}" run.device=cpu >segments-cpu.log 2>&1
train segments 1 "${cut[@]}" model.segment=128
close segments segments-cpu 1e-5
train segments-plain 1 "${cut[@]}" model.segment=128 run.cuda_graph=false
alike segments-plain segments
# Carried state, the moving average and the best checkpoint: two steps are in flight, steps are graphs.
carry=(data.shuffle=false data.carry_state=true optim.ema=0.9 log.eval_every=3 checkpoint.best=true)
states() { # a, b: files that only these runs have
    for file in carried ema; do
        check "$1 and $2 have the same $file" cmp "runs/$1/$last/$file.safetensors" "runs/$2/$last/$file.safetensors"
    done
}
check "carried state on the CPU" ranks 1 small.ini run.name=carry-cpu run.steps=$steps "${carry[@]}" run.device=cpu \
    >carry-cpu.log 2>&1
train carry 1 "${carry[@]}"
close carry carry-cpu 1e-5
train carry-plain 1 "${carry[@]}" run.cuda_graph=false checkpoint.every=2 # as many checkpoints as there is room for
alike carry-plain carry
states carry-plain carry
if [ "$size" = whole ]; then
    train carry-micro 1 "${carry[@]}" data.micro_batch=2
    close carry-micro carry 1e-5
    SIMT_DEVICES=2 train carry-two 2 "${carry[@]}"
    close carry-two carry 1e-5
fi
rm -r "runs/carry-plain/$last"
train carry-plain 1 "${carry[@]}"
alike carry-plain carry
states carry-plain carry

# A step that cannot be captured: the error names the GEMM, and the capture ends.
SIMT_CUBLASLT_FAIL=captured ranks 1 small.ini run.name=broken run.steps=$steps run.device=cuda >broken.log 2>&1
code=$?
check "a failed capture: exit code $code" test $code -eq 3
check "a failed capture: the error names the GEMM" grep -q 'dtrain: error: cublasLtMatmul failed for the GEMM' broken.log
check "a failed capture is ended" eval '! grep -q "simt: a capture was never ended" broken.log'
check "a sample" "$dtrain" sample --tokens 4 --device cuda runs/plain >sample.txt 2>&1
check "an evaluation" "$dtrain" eval small.ini run.name=plain run.device=cuda >eval.txt 2>&1
finish
