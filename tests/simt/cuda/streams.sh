#!/usr/bin/env bash
# Work on several streams waits for what it reads and for what it overwrites: the loader's copies, the step, buckets
# that are sent, copies for a checkpoint, validation. The smallest model with everything that has its own stream ends
# with the same bits whether the device runs the oldest stream first, the newest first, or copies to the host as late as
# possible. If a wait is missing, the bits differ in one of these orders.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../../lib.sh"
write_ini small.ini run.steps=4 model.d_model=16 'model.layers=mamba mlp' model.d_mlp=300 model.d_state=2 model.expand=1 \
    model.stem=frames model.frame_size=7 'model.heads=a:categorical*5 b:huber*2 c:categorical*3/max' \
    data.train=synthetic:frames data.val=synthetic:frames data.seq_len=5 data.batch=8 data.micro_batch=2 \
    data.normalize=false data.shuffle=false data.carry_state=true optim.lr=3e-3 optim.ema=0.9 comm.bucket_mb=0.05 \
    comm.verify_replicas=3 checkpoint.every=2 checkpoint.keep=0 checkpoint.best=true log.eval_every=2 log.eval_batches=1
export SIMT_DEVICES=2

losses() { grep -v '"event":"checkpoint"' "runs/$1/metrics.jsonl" | grep -oE '"(event|step|loss|ema_loss|grad_norm|auc|mae)":[^,}]*'; }
same_run() { # run, run: every file of every checkpoint, and the losses, validation's too
    local file
    for file in runs/"$1"/checkpoints/step-*/*.safetensors; do
        cmp "$file" "runs/$2/${file#runs/"$1"/}" || return
    done
    [ -e "${file%/*}/ema.safetensors" ] && cmp <(losses "$1") <(losses "$2")
}

in_all_orders() { # name, ranks, arguments …
    local name=$1 n=$2 order
    shift 2
    for order in ascending descending late; do
        SIMT_ORDER=${order/late/ascending} SIMT_COPIES=$order check "$name, $order" \
            ranks "$n" small.ini run.name="$name-$order" run.device=cuda "$@" >"$name-$order.log" 2>&1
        check "$name: $order as ascending" same_run "$name-ascending" "$name-$order"
    done
}

in_all_orders alone 1
check "without graphs" ranks 1 small.ini run.name=plain run.device=cuda run.cuda_graph=false >plain.log 2>&1
check "graphs keep every bit" same_run alone-ascending plain
check "on the CPU" ranks 1 small.ini run.name=cpu run.device=cpu >cpu.log 2>&1
check "the losses of the CPU" same_losses runs/alone-ascending/metrics.jsonl runs/cpu/metrics.jsonl 1e-5

# Two steps are in flight at a time. Each takes the time by which the run advances, and no longer.
check "steps one after another" ranks 1 small.ini run.name=times run.device=cuda run.steps=129 log.eval_batches=3 checkpoint.every=0 \
    checkpoint.best=false log.eval_every=0 comm.verify_replicas=0 >times.log 2>&1
sum() { awk -F"\"$1\":" '/"event":"train"/ { split($2, value, ","); sum += value[1] } END { print sum / 1000 }' runs/times/metrics.jsonl; }
row() { sed -n "s/^  $1  *[0-9]*  *\([0-9.]*\) .*/\1/p" runs/times/profile.txt | head -n 1; }
steps=$(sum step_ms) whole=$(sed -n '1s/.*, \([0-9.]*\) s;.*/\1/p' runs/times/profile.txt) waited=$(row 'waiting for the device')
check "steps of $steps s in a run of $whole s that waited for $waited s" awk -v steps="$steps" -v whole="$whole" -v waited="$waited" \
    'BEGIN { exit !(waited > 0 && steps >= 0.98 * waited && steps <= whole) }'
check "the device is idle between steps: $(sum idle_ms) s, $(row 'between steps') s" awk -v idle="$(sum idle_ms)" -v between="$(row 'between steps')" \
    'BEGIN { exit !(idle > 0 && between <= idle + 1e-4 && between >= idle - 1e-4) }'
# Ops are timed in the second step and in every 128th step after it, and scaled to all steps. With one rank the mean
# rank is also the slowest. An op shorter than the resolution of events has zero seconds.
check "one rank is the mean and the slowest" awk 'function value(of) { return match($0, "\"" of "\":[^,]*") ? substr($0, RSTART + length(of) + 3, RLENGTH - length(of) - 3) + 0 : 0 }
    /"lane":"op"/ { mean = value("seconds"); most = value("max_seconds"); rows += mean > 0; if (!(mean >= 0 && most >= mean * 0.999 && most <= mean * 1.001)) { print; bad = 1 } }
    END { exit bad || rows < 8 }' <(tr -d '\n\t' <runs/times/profile.json | tr '{' '\n')
check "ops of training" grep -qF 'ops of training steps (timed in 1 of 129, scaled)' runs/times/profile.txt
check "… are scaled to all" grep -qE '^  adamw +129 ' runs/times/profile.txt
# The average is validated too. In each of three batches of four micro-batches, the first one is timed.
check "ops of validation" grep -qF 'ops of validation batches (timed in 2 of 6, scaled)' runs/times/profile.txt
check "… are scaled to all" grep -qE '^  scan_forward +24 ' <(sed -n '/^ops of validation/,/^$/p' runs/times/profile.txt)
# The embedding, which is the last row, is larger than a bucket: there is memory for what a tree sums at once.
check "sums by a tree of a row above a bucket" ranks 2 small.ini run.name=tree run.device=cuda run.steps=2 model.{stem=tokens,heads=lm,frame_size=auto,vocab_size=300} \
    data.{train,val}=synthetic:random comm.reduce=reproducible comm.bucket_mb=0.01 >tree.log 2>&1
in_all_orders nccl 2 model.d_model=128 optim.shard=true
in_all_orders nccl-rings 2 model.d_model=128 optim.shard=gradients
in_all_orders mpi 2 model.d_model=128 optim.shard=true comm.backend=mpi comm.dtype=bf16
finish
