#!/usr/bin/env bash
# Nothing is lost: a killed job resumes from its last checkpoint and ends with the bits of a job that was not killed; on
# another number of ranks, with the same losses. Signals save and end the job with exit code 0. With `short` as the
# third argument the model is smaller.
#   resume.sh DTRAIN INTERPOSE [short]
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
# A larger model, so that the run is long enough to be interrupted.
common=(small.ini run.steps=40 model.d_model=$([ "${3:-}" = short ] && echo 40 || echo 96) data.seq_len=96 checkpoint.every=5)
last=checkpoints/step-00000040

ranks 2 "${common[@]}" run.name=whole >whole.log 2>&1 || { cat whole.log >&2; exit 1; }

name=killed
slow_start "$library" $name 14 2 "${common[@]}" run.name=$name
check "training is under way" wait_for_step $name 13
kill -KILL "$job" "$(rank_pid 0)" "$(rank_pid 1)" # at once
wait $job 2>/dev/null
check "it was killed before its end" test "$(steps_done $name)" -lt 40
printf '{"event":"train","step":9' >>runs/$name/metrics.jsonl # a torn line
check "the same command resumes" ranks 2 "${common[@]}" run.name=$name >$name-2.log 2>&1
check "… and says from where" grep -q "resuming from runs/$name/checkpoints/step-000000[12]" $name-2.log
check "the bits are those of the whole run" same_bits runs/$name/$last runs/whole/$last
check "one step has one line" test "$(train_lines runs/$name/metrics.jsonl | wc -l)" -eq 40
check "curves are the same" cmp <(train_lines runs/$name/metrics.jsonl) <(train_lines runs/whole/metrics.jsonl)

name=signalled
slow_start "$library" $name 8 2 "${common[@]}" run.name=$name
check "training is under way" wait_for_step $name 7
# Signal handlers must not run inside a library.
blocked=$(sed -n 's/^SigBlk:\s*/0x/p' "/proc/$(rank_pid 0)/status")
check "the thread that trains blocks SIGUSR1, SIGINT and SIGTERM, not only $blocked" test $((blocked & 0x4202)) -eq $((0x4202))
kill -USR1 "$(rank_pid 1)" # this rank alone
wait $job
check "SIGUSR1: exit code 0" test $? -eq 0
check "SIGUSR1: state.json says stopped" grep -q '"state":"stopped"' runs/$name/state.json
check "SIGUSR1: it stopped before its end" test "$(steps_done $name)" -lt 40
check "it resumes on four ranks" ranks 4 "${common[@]}" run.name=$name >$name-2.log 2>&1
check "another number of ranks: the same losses" same_losses runs/$name/metrics.jsonl runs/whole/metrics.jsonl 1e-5
check "state.json says complete" grep -q '"state":"complete"' runs/$name/state.json

# The same command after the end does nothing; other changes on resume are reported.
cp runs/whole/metrics.jsonl whole.jsonl
check "a complete run again" ranks 2 "${common[@]}" run.name=whole >again.log 2>&1
check "… adds no line" cmp runs/whole/metrics.jsonl whole.jsonl
check "… and reports no change" test "$(grep -c ' was ' again.log)" -eq 0
check "… validates once, before its last checkpoint" test "$(sed -n 's/.*"event":"\([a-z]*\)","step":40.*/\1/p' whole.jsonl |
    tr '\n' ' ')" = "train eval checkpoint "
cp -r runs/whole runs/changed
check "a longer run" ranks 1 "${common[@]/run.steps=40/run.steps=42}" run.name=changed optim.lr=1e-3 >changed.log 2>&1
check "… reports the new learning rate" grep -q "optim.lr was '3e-3', now it is '1e-3' (command line)" changed.log
check "… and counts its time from its own first step" eval 'grep -q "step 41/42 " changed.log && ! grep "step 41/42 " changed.log | grep -q ETA'
check "… and every change, nothing else: $(grep ' was ' changed.log)" test "$(grep -c ' was ' changed.log)" -eq 3

alone=("${local_mpirun[@]}")
for signal in TERM INT; do
    name=script-$signal
    local_mpirun=("$repository/launch/run.sh")
    slow_start "$library" $name 8 2 "${common[@]}" run.name=$name
    local_mpirun=("${alone[@]}")
    check "training is under way" wait_for_step $name 7
    kill -$signal $job
    wait $job
    check "SIG$signal to launch/run.sh: exit code 0" test $? -eq 0
    check "SIG$signal: state.json says stopped, and by what: $(cat runs/$name/state.json)" \
        grep -qE '"state":"stopped",.*"reason":"(SIGTERM|Ctrl-C)"' runs/$name/state.json
    check "SIG$signal: the rest gives the bits of the whole run" ranks 2 "${common[@]}" run.name=$name >>$name.log 2>&1
    check "SIG$signal: same bits" same_bits runs/$name/$last runs/whole/$last
done

# The storage type stays, even if a new run would use another one.
name=storage
small=(small.ini run.name=$name optim.warmup_steps=1)
check "a run in bf16" ranks 1 "${small[@]}" run.steps=2 run.precision=bf16 >$name.log 2>&1
check "auto keeps bf16" env DTRAIN_MAX_ISA=plain "$dtrain" "${small[@]}" run.steps=4 run.precision=auto >$name.log 2>&1
check "… and says so" grep -q 'auto keeps bf16, as in .*step-00000002; a new run here would use fp32' $name.log
check "… training in bf16" grep -q 'parameters, bf16,' $name.log
check "another precision is used" "$dtrain" "${small[@]}" run.steps=6 run.precision=fp32 >$name.log 2>&1
check "… and logged" grep -q 'run.precision = fp32: .*step-00000004 was trained in bf16' $name.log
check "… and kept from there" "$dtrain" "${small[@]}" run.steps=8 run.precision=auto >$name.log 2>&1
check "… whatever the machine" grep -q 'parameters, fp32,' $name.log

# The order stays as well: it is that of the checkpoint unless data.block gives another one.
name=block
sed '/^block = /d' small.ini >open.ini
small=(optim.schedule=constant)
check "a run with blocks of 64" ranks 1 small.ini data.block=64 "${small[@]}" run.name=$name-whole run.steps=8 >$name.log 2>&1
check "… the first half of it" ranks 1 small.ini data.block=64 "${small[@]}" run.name=$name run.steps=4 >$name.log 2>&1
cp -r runs/$name runs/$name-named
check "a configuration without the key resumes it" ranks 2 open.ini "${small[@]}" run.name=$name run.steps=8 >$name.log 2>&1
check "… says what it keeps, and from where" test "$(grep -c \
    "data.block = auto keeps 64, as in runs/$name/checkpoints/step-00000004; a new run would use 1" $name.log)" -eq 1
check "… and reports no change of it" bash -c "! grep -q 'data.block was' $name.log"
check "… the losses are those of the whole run" same_losses runs/$name/metrics.jsonl runs/$name-whole/metrics.jsonl 1e-5
check "… config.resolved.ini names the checkpoint" grep -q "^block = 64 .*# runs/$name/checkpoints/step-00000004" \
    runs/$name/config.resolved.ini
sed '/^\[model\]/,/^\[/{/=/d}' small.ini >bare.ini
check "a model that only a checkpoint describes" ranks 2 bare.ini run.name=from run.steps=4 run.init_from=runs/$name/checkpoints/step-00000008 model.layers= >from.log 2>&1
for value in 'd_model = 32' 'n_layer = 2' 'vocab_size = 256' 'layers = mamba\*2' 'd_state = 16'; do
    check "… is in config.resolved.ini: $value" grep -q "^$value .*# runs/$name/checkpoints/step-00000008" runs/from/config.resolved.ini
done
check "dtrain order prints the order of the run" cmp <("$dtrain" order open.ini run.name=$name --steps 1:3 2>/dev/null) \
    <("$dtrain" order small.ini data.block=64 --steps 1:3)
check "a new run has blocks of 1" cmp <("$dtrain" order open.ini --steps 1:3) <("$dtrain" order small.ini data.block=1 --steps 1:3)
refused "another block that is named" 'data.block is 1, the checkpoint has 64' \
    "$dtrain" open.ini "${small[@]}" run.name=$name-named run.steps=8 data.block=1

# If the newest checkpoint is damaged, the run resumes from the one before and says so.
cp -r runs/whole runs/damaged
rm -rf runs/damaged/$last
printf X | dd of=runs/damaged/checkpoints/step-00000035/model.safetensors bs=1 seek=2000 conv=notrunc status=none
check "a damaged checkpoint is skipped" ranks 2 "${common[@]}" run.name=damaged >damaged.log 2>&1
check "… and named" grep -q 'step-00000035' damaged.log
check "… and the run ends with the same bits" same_bits runs/damaged/$last runs/whole/$last
finish
