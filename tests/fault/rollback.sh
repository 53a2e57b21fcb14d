#!/usr/bin/env bash
# optim.rollback: after several bad steps, skipped or spiking, the run returns to the checkpoint before them and ends
# with the bits of a run that never saw their batches, also if it is killed meanwhile.
#   rollback.sh DTRAIN SHARD_TOOL INTERPOSE
shard_tool=$(realpath "$2") library=$3
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
T=48 S=120

# Slot k trains row k*S + s at step s + 1. Batches 60 to 62 have other labels, or none that count.
"$shard_tool" pairs odd.h5 8 $T $S 60 63 odd || exit 1
"$shard_tool" pairs ignored.h5 8 $T $S 60 63 ignored || exit 1
"$shard_tool" pairs without.h5 8 $T $S 60 63 absent || exit 1
cat >>small.ini <<'EOF'
[checkpoint]
every = 25
keep = 0
EOF
sed -i 's/^steps = .*/steps = 110/' small.ini
common=(small.ini data.val= data.shuffle=false model.vocab_size=128 optim.rollback=3 optim.spike=2.5 optim.lr=1e-2
    optim.schedule=constant)
last=checkpoints/step-00000110

check "a run without these batches" ranks 1 "${common[@]}" data.train=without.h5 run.name=without >without.log 2>&1
check "… has no spike" test "$(grep -c spiked without.log)" -eq 0
without=$(train_lines runs/without/metrics.jsonl)

for kind in odd ignored; do
    check "$kind labels" ranks 1 "${common[@]}" data.train=$kind.h5 run.name=$kind >$kind.log 2>&1
    check "$kind: three bad steps are reported" test "$(grep -Ec 'warning: step 6[123] (spiked|skipped)' $kind.log)" -eq 3
    check "$kind: the rollback is reported: $(grep 'were bad' $kind.log)" grep -q \
        'steps 61 to 63 were bad: training continues from step 50 without their batches' $kind.log
    check "$kind: … and logged" grep -q '{"event":"rollback","step":50,"from":63,"left_out":"60:63"}' runs/$kind/metrics.jsonl
    check "$kind: one step has one line, with the losses of the run without them" test \
        "$(train_lines runs/$kind/metrics.jsonl)" = "$without"
    check "$kind: the bits are those of the run without them" same_bits runs/$kind/$last runs/without/$last
    check "$kind: checkpoints record what is left out" grep -Eq '"left_out":\s*"60:63"' runs/$kind/checkpoints/step-00000050/trainer.json \
        runs/$kind/$last/trainer.json
    check "$kind: the order of the steps has batch 63 after 59" test "$("$dtrain" order "${common[@]}" data.train=$kind.h5 \
        run.name=$kind --steps 60:61 | awk '$2 == 3 { print $4 - 3 * S }' S=$S | xargs)" = "59 63"
    check "$kind: … and that there was one" grep -Eq '"rollbacks":\s*1,' runs/$kind/$last/trainer.json
done
check "loss_z is logged from the 21st step on" test "$(grep -c '"loss_z":null' runs/without/metrics.jsonl)" -eq 20

check "spikes where nothing returns" ranks 1 "${common[@]/rollback=3/rollback=0}" data.train=odd.h5 run.name=unasked run.steps=64 >unasked.log 2>&1
check "… are not reported" test "$(grep -c spiked unasked.log)" -eq 0
check "a checkpoint at each step" ranks 1 "${common[@]/rollback=3/rollback=4}" data.train=odd.h5 run.name=each run.steps=64 checkpoint.every=1 >each.log 2>&1
check "… but those that may be returned from: $(ls runs/each/checkpoints | tail -n 3 | xargs)" test "$(ls runs/each/checkpoints | tail -n 2 | xargs)" = "step-00000060 step-00000064"

# The save of the step that it returned to fails; its start, 25 and 50 were saved before.
if ! is_sanitized; then # which must be loaded first
    FAULT="call=fsync path=checkpoints/.step-00000050 at=7 times=0 do=eio" LD_PRELOAD=$library "$dtrain" "${common[@]}" data.train=odd.h5 run.name=unsaved >unsaved.log 2>&1
    check "unsaved: exit code $?" test $? -eq 3
    check "unsaved: state.json has the step: $(cat runs/unsaved/state.json)" grep -q '"state":"failed","step":50,' runs/unsaved/state.json
fi

# It is killed after the rollback and resumed from it on two ranks; and stopped in the middle of the bad steps.
name=killed
slow_start "$library" $name 64 1 "${common[@]}" data.train=odd.h5 run.name=$name
check "the rollback happened" wait_until grep -qs rollback runs/$name/metrics.jsonl
kill -KILL "$job" "$(rank_pid 0)"
wait $job 2>/dev/null
check "it was killed before its end" test "$(steps_done $name)" -lt 110
check "killed: the same command" ranks 1 "${common[@]}" data.train=odd.h5 run.name=$name >$name-2.log 2>&1
check "killed: one step has one line" test "$(train_lines runs/$name/metrics.jsonl)" = "$without"
check "killed: the bits are those of the run without the batches" same_bits runs/$name/$last runs/without/$last
check "killed: there is one rollback" test "$(grep -c '"event":"rollback"' runs/$name/metrics.jsonl)" -eq 1

name=in-the-middle # after the second bad step, two ranks
check "$name: a run that ends there" ranks 2 "${common[@]}" data.train=odd.h5 run.name=$name run.steps=62 checkpoint.keep=1 >$name.log 2>&1
check "$name: it is continued" ranks 2 "${common[@]}" data.train=odd.h5 run.name=$name >$name-2.log 2>&1
check "$name: the third bad step returns to step 50" grep -q 'steps 61 to 63 were bad: .* from step 50' $name-2.log
check "$name: the checkpoint of a bad step is gone" test ! -e runs/$name/checkpoints/step-00000062
check "$name: a whole run" ranks 2 "${common[@]}" data.train=odd.h5 run.name=$name-whole >$name-3.log 2>&1
check "$name: the same bits" same_bits runs/$name/$last runs/$name-whole/$last

name=due # a checkpoint is due at the second bad step, and no longer after the rollback
check "$name: a run" ranks 1 "${common[@]}" data.train=odd.h5 run.name=$name checkpoint.every=31 run.steps=118 >$name.log 2>&1
check "$name: it saves when it is due: $(echo runs/$name/checkpoints/*)" test "$(cd runs/$name/checkpoints && echo step-*)" = \
    "step-00000000 step-00000031 step-00000062 step-00000093 step-00000118"
check "$name: the second epoch begins after all batches, of which three are left out" test \
    "$(grep -m 1 '"epoch":1,' runs/$name/metrics.jsonl | grep -o '"step":[0-9]*')" = "\"step\":$((S - 3 + 1))"

# A model that stays bad.
"$shard_tool" pairs bad.h5 8 $T $S 60 100 ignored || exit 1
name=bad
ranks 2 "${common[@]}" data.train=bad.h5 run.name=$name optim.max_skipped=6 >$name.log 2>&1
check "bad batches without end: exit code 2" test $? -eq 2
check "bad batches without end: the error says how many: $(grep 'dtrain: error' $name.log)" grep -q \
    'dtrain: error: .*9 bad batches in a row, 60 to 68, are more than optim.max_skipped = 6' $name.log
check "bad batches without end: two rollbacks before" test "$(grep -c 'were bad' $name.log)" -eq 2

# Bad steps before the first checkpoint that is due, and from the very first step: the run returns to its start.
check "bad steps before any checkpoint" ranks 1 "${common[@]}" data.train=odd.h5 run.name=early checkpoint.every=100 >early.log 2>&1
check "early: the run returns to its start" grep -q 'steps 61 to 63 were bad: training continues from step 0 ' early.log
check "early: the bits are those of the run without them" same_bits runs/early/$last runs/without/$last
"$shard_tool" pairs first.h5 8 $T $S 0 3 ignored || exit 1
"$shard_tool" pairs without-first.h5 8 $T $S 0 3 absent || exit 1
check "a run without the first batches" ranks 1 "${common[@]}" data.train=without-first.h5 run.name=without-first >without-first.log 2>&1
name=first
slow_start "$library" $name 5 1 "${common[@]}" data.train=first.h5 run.name=$name checkpoint.every=100
wait_for_step $name 4
kill -KILL "$job" "$(rank_pid 0)"
wait $job 2>/dev/null
check "$name: the run returned to its start: $(grep 'were bad' $name.log)" grep -q \
    'steps 1 to 3 were bad: training continues from step 0 ' $name.log
check "$name: killed: the same command" ranks 1 "${common[@]}" data.train=first.h5 run.name=$name checkpoint.every=100 >$name-2.log 2>&1
check "$name: it resumes from the start: $(grep resuming $name-2.log)" grep -q 'resuming from .*/step-00000000 at step 0' $name-2.log
check "$name: which is not saved again" test "$(grep -c '"event":"checkpoint","step":0,' runs/$name/metrics.jsonl)" -eq 0
check "$name: the bits are those of the run without the first batches" same_bits runs/$name/$last runs/without-first/$last

# A new branch counts only bad steps that it can return from.
check "a run that ends in bad steps" ranks 1 "${common[@]}" data.train=odd.h5 run.name=trunk run.steps=62 >trunk.log 2>&1
check "a branch from there" ranks 1 "${common[@]/rollback=3/rollback=1}" data.train=odd.h5 run.name=branch \
    run.resume=runs/trunk/checkpoints/step-00000062 >branch.log 2>&1
check "branch: it returns to its start: $(grep 'was bad' branch.log)" grep -q \
    'step 63 was bad: training continues from step 62 without its batch' branch.log

# optim.rollback is added to a run whose only checkpoint is after a bad step.
later=("${common[@]/rollback=3/rollback=0}" data.train=ignored.h5 run.name=later checkpoint.every=100)
refused "a run without optim.rollback that ends in bad steps" 'the last [23] steps of the run were all skipped' ranks 1 "${later[@]}" run.steps=62
check "later: it has one checkpoint, of a bad step: $(ls runs/later/checkpoints)" test "$(ls runs/later/checkpoints)" = step-00000062
check "later: with optim.rollback" ranks 2 "${later[@]/rollback=0/rollback=1}" >later-2.log 2>&1
check "later: it returns to its start: $(grep 'was bad' later-2.log)" grep -q \
    'step 63 was bad: training continues from step 62 without its batch' later-2.log
finish
