#!/usr/bin/env bash
# Checkpoints are written while training continues. What is saved is the state after its step, whatever the disk does. A
# part that fails on one rank causes a warning that names the rank; a save that is due while the disk is busy comes
# later; a write that hangs ends the job.
#   slow_disk.sh DTRAIN INTERPOSE
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
# The model is large enough to be sharded over two ranks.
common=(small.ini model.d_model=128 optim.schedule=constant optim.ema=0.9 data.val= checkpoint.every=20 checkpoint.keep=0)
faulty() { # settings of FAULT, n, arguments …
    FAULT="$1" LD_PRELOAD="$library" ranks "${@:2}"
}
checkpoint() { # run, step
    echo "runs/$1/checkpoints/step-$(printf %08d "$2")"
}
same_files() { # checkpoint A, checkpoint B
    diff <(cd "$1" && ls) <(cd "$2" && ls) && for file in "$1"/*.safetensors; do cmp "$file" "$2/${file##*/}" || return 1; done
}
events() { # run: "step, last step trained before the line" of each checkpoint
    sed -n 's/.*"event":"\([a-z]*\)","step":\([0-9]*\).*/\1 \2/p' "runs/$1/metrics.jsonl" | awk '
        $1 == "train" { trained = $2 }
        $1 == "checkpoint" { print $2, trained }'
}

for shard in false true; do
    for steps in 20 40; do
        check "$steps steps" ranks 2 "${common[@]}" run.steps=$steps optim.shard=$shard run.name=$shard-$steps >$shard.log 2>&1
    done
    name=slow-$shard
    check "$name: a run" faulty "call=fsync path=/.step- times=0 at=1 do=60" 2 "${common[@]}" run.steps=60 optim.shard=$shard \
        run.name=$name >$name.log 2>&1
    check "$name: training goes on while it writes: $(events $name | tr '\n' ';')" test "$(events $name |
        awk '$2 > $1')" = "$(events $name | head -n 2)"
    for steps in 20 40; do
        check "$name: what is saved is the state after step $steps" same_files "$(checkpoint $name $steps)" \
            "$(checkpoint $shard-$steps $steps)"
    done
done
check "the parts give the average of one rank" cmp "$(checkpoint true-40 40)/ema.safetensors" "$(checkpoint false-40 40)/ema.safetensors"

name=part
check "$name: one rank's part fails" faulty "call=fsync path=step-00000020 rank=1 at=1 do=enospc" 2 "${common[@]}" run.steps=60 \
    optim.shard=true run.name=$name >$name.log 2>&1
check "$name: … a warning names it: $(grep warning $name.log)" grep -q "warning: the checkpoint of step 20 is not saved: rank 1 on \
.*: cannot write .*optimizer-00002-of-00002.safetensors: No space left on device" $name.log
check "$name: … it is not there, the next is, and nothing temporary: $(ls -A runs/$name/checkpoints)" test \
    "$(ls -A runs/$name/checkpoints | tr '\n' ' ')" = "step-00000040 step-00000060 "
check "$name: … with the right bits" same_files "$(checkpoint $name 40)" "$(checkpoint true-40 40)"

name=busy
FAULT="call=fsync path=/.step-000000 times=0 at=1 do=500" LD_PRELOAD=$library "$dtrain" "${common[@]}" run.steps=20000 run.name=$name >$name.log 2>&1 &
job=$!
check "$name: two saves" wait_until eval '[ "$(grep -c checkpoint $name.log)" -ge 2 ]'
kill -USR1 $job
wait $job
check "$name: exit code $?, not 0" test $? -eq 0
second=$(ls runs/$name/checkpoints | sed -n 2p)
check "$name: the save that was due at step 40 waited for the disk, not training for it: $second" test $((10#${second##*-})) -gt 40
check "$name: all are whole" "$dtrain" verify runs/$name/checkpoints/* >verify.log 2>&1

# With rising rates the loss falls until step 2, whose checkpoint is lost, and then jumps. The best checkpoint is then
# again that of step 1, two evaluations before step 3. That holds for data that are numbers as text.
mkdir numbers
seq 60000 >numbers/text
"$dtrain" pack -o counted --val 0.1 numbers >pack.log 2>&1 || { cat pack.log >&2; exit 1; }
name=best
FAULT="call=fsync path=step-00000002 at=1 do=enospc" LD_PRELOAD=$library "$dtrain" small.ini run.name=$name run.steps=20 \
    'data.train=counted/train-*.h5' 'data.val=counted/val-*.h5' checkpoint.best=true checkpoint.every=3 checkpoint.keep=0 \
    log.eval_every=1 log.eval_batches=2 optim.lr=1 optim.warmup_steps=19 optim.schedule=constant optim.grad_clip=0 >$name.log 2>&1
check "$name: the best checkpoint is not saved" grep -q 'warning: the checkpoint of step 2 is not saved' $name.log
for is in '"best_step":\s*1' '"evaluations_since_best":\s*2'; do
    check "$name: … the one before counts: $is" grep -qE "$is,?\$" "$(checkpoint $name 3)/trainer.json"
done

for steps in 20 20000; do
    name=hung-$steps
    faulty "call=fsync path=step-00000020 rank=0 at=1 do=60000" 2 "${common[@]}" run.steps=$steps comm.timeout_s=3 run.name=$name \
        >$name.log 2>&1
    check "$name: exit code $?, not 3" test $? -eq 3
    [ $steps = 20 ] && said='rank 0 .* is stalled at step 20 during saving a checkpoint' ||
        said='writing the checkpoint .*step-00000020: no progress for comm.timeout_s = 3 s'
    check "$name: named: $(grep -a error $name.log)" grep -qa "^dtrain: error: .*$said" $name.log
done
finish
