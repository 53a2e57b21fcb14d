#!/usr/bin/env bash
# The folder of a run stays consistent. The curve is on disk before the checkpoint of its last step is published, and a
# gap in it is reported. A folder that vanishes ends the run, a closed terminal stops it, and closed streams do no harm.
#   run_folder.sh DTRAIN INTERPOSE
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
last=checkpoints/step-00000012

FAULT="call=fsync,rename" FAULT_LOG=$PWD/sync.log LD_PRELOAD=$library "$dtrain" small.ini run.name=synced checkpoint.every=4 >synced.log 2>&1
check "a run with logged syncs" test $? -eq 0
check "three checkpoints were published" test "$(grep -c ' rename .*/checkpoints/step-' sync.log)" -eq 3
check "a checkpoint's folder is synced after its MANIFEST and before it gets its name, then the folder of checkpoints" awk '
    / fsync .*\.tmp-[0-9a-f]*\/MANIFEST$/ { whole = 1 }
    / fsync .*\.tmp-[0-9a-f]*$/ { synced = whole }
    / rename .*\/checkpoints\/step-/ { bad += !synced || named; named = 1; whole = synced = 0 }
    / fsync .*\/checkpoints$/ { named = 0 }
    END { exit bad > 0 || named }' sync.log
check "the curve and TensorBoard's events were synced before each of them" awk '
    / fsync .*\/metrics.jsonl$/ { curve = 1 }
    / fsync .*\/events.out.tfevents/ { events = 1 }
    / rename .*\/checkpoints\/step-/ { bad += !curve || !events; curve = events = 0 }
    END { exit bad > 0 }' sync.log
check "an export" env FAULT="call=fsync" FAULT_LOG="$PWD/export.log" LD_PRELOAD="$library" "$dtrain" export runs/synced exported
check "… its files, their folder and the folder's name last: $(cut -d' ' -f2- export.log)" test "$(sed 's|.*/||' export.log | tr '\n' ' ')" = \
    "config.json model.safetensors exported ${PWD##*/} "
FAULT="call=fsync at=2 do=eio" LD_PRELOAD=$library "$dtrain" export runs/synced failed >failed.log 2>&1
check "one that fails: exit code 3" test $? -eq 3
check "… and leaves nothing: $(cat failed.log)" test ! -e failed

# A disk so slow that rank 1 waits for a save longer than comm.timeout_s: rank 0 is working, not stalled.
check "a save longer than comm.timeout_s" env FAULT="call=fsync at=1 times=0 do=600" \
    FAULT_LOG="$PWD/slow.log" LD_PRELOAD="$library" "${local_mpirun[@]}" -np 2 "$dtrain" small.ini run.name=slow run.steps=4 comm.timeout_s=3 >slow.txt 2>&1
check "… its syncs alone last longer" test "$(sed '1,/metrics.jsonl/d' slow.log | grep -c ' fsync')" -gt 5

# A checkpoint with files that cannot be read is an error of the machine (exit code 3); the files are not reported as
# missing.
unreadable() { # call, path, command …
    local fault=$1 path=$2
    shift 2
    FAULT="call=$fault path=$path at=1 times=0 do=eio" LD_PRELOAD=$library "$@" >unreadable.log 2>&1
    check "$fault of $path fails: exit code 3 of $*" test $? -eq 3
    check "$fault of $path fails: $(cat unreadable.log)" grep -q "Input/output error" unreadable.log
}
for call in stat,open open; do
    unreadable $call MANIFEST "$dtrain" small.ini run.name=other run.resume=runs/synced/$last
    unreadable $call config.json "$dtrain" small.ini run.name=other run.init_from=runs/synced/$last
    unreadable $call config.json "$dtrain" verify runs/synced/$last
    unreadable $call checkpoints/step "$dtrain" small.ini run.name=synced run.steps=13
done
unreadable open synced/.lock "$dtrain" small.ini run.name=synced run.steps=13

# The state after a power failure without those syncs.
cp -r runs/synced runs/gap
rm -r runs/gap/$last
sed -i '/"step":\([78]\|9\|1[0-2]\),/d' runs/gap/metrics.jsonl
check "a run whose curve has a gap resumes" "$dtrain" small.ini run.name=gap >gap.log 2>&1
check "… and says so: $(grep warning gap.log)" grep -q \
    'runs/gap/metrics.jsonl ends at step 6, but the checkpoint is at step 8' gap.log
rm runs/gap/metrics.jsonl runs/gap/$last -r
mkfifo runs/gap/metrics.jsonl
timeout 60 "$dtrain" small.ini run.name=gap >fifo.log 2>&1
check "a FIFO as metrics.jsonl: exit code" test $? -eq 2
check "… and the error names it" grep -q 'runs/gap/metrics.jsonl is not a regular file' fifo.log
rm runs/gap/metrics.jsonl
mkfifo runs/gap/{state.json,profile.txt,profile.json,config.resolved.ini}.tmp
check "FIFOs with the names of temporary files make way" timeout 60 "$dtrain" small.ini run.name=gap >fifo.log 2>&1
check "… and none is left: $(ls runs/gap)" test "$(find runs/gap -name '*.tmp' | wc -l)" -eq 0
check "… in the place of a file: $(cat runs/gap/state.json)" grep -q '"state":"complete"' runs/gap/state.json

# The last steps of a killed run are far from the start of its long metrics.jsonl and after its last save.
mkdir -p runs/long
echo '{"state":"running","step":3,"reason":""}' >runs/long/state.json
for ((i = 1; i <= 700; i++)); do echo "{\"event\":\"train\",\"step\":$i,\"loss\":2.5,\"tokens\":$((384 * i))}"; done >runs/long/metrics.jsonl
check "a long run that was killed starts again" "$dtrain" small.ini run.name=long run.steps=1 optim.warmup_steps=0 >long.log 2>&1
check "… and hears where it was: $(grep warning long.log)" grep -q 'ended without a message at step 700:' long.log

check "the resolved configuration of a run resumes it" \
    "$dtrain" runs/synced/config.resolved.ini run.steps=14 optim.lr=0.003 >resolved.log 2>&1
check "… from its checkpoint: $(tail -1 resolved.log)" grep -q "resuming from runs/synced/$last at step 12" resolved.log
check "… and reports no change of a number that is only written in another way" eval '! grep -q "lr was" resolved.log'
check "no warning without a gap" eval '! grep -q "has a gap" resolved.log'

# The folder is removed, or moved and replaced, during the run.
for what in "rm -rf" "mv -t moved"; do
    name=gone-${what%% *}
    mkdir -p moved
    "$dtrain" small.ini run.name=$name run.steps=20000 >$name.log 2>&1 &
    job=$!
    check "$name: training is under way" wait_for_step $name 5
    kill -STOP $job
    $what runs/$name
    [ "$what" = "rm -rf" ] || { mkdir runs/$name && : >runs/$name/metrics.jsonl; }
    kill -CONT $job
    wait $job
    check "$name: exit code 3" test $? -eq 3
    check "$name: $(grep '^dtrain: error' $name.log)" grep -q "runs/$name/metrics.jsonl was removed or replaced" $name.log
done

# If standard streams are closed at the start, no file that is opened later may take their place.
"$dtrain" small.ini run.name=closed run.steps=1000000 checkpoint.every=0 checkpoint.minutes=0.001 <&- >&- 2>&- &
job=$!
check "closed streams: training is under way" wait_for_step closed 5
for fd in 0 1 2; do
    check "closed streams: $fd is $(readlink /proc/$job/fd/$fd)" test "$(readlink /proc/$job/fd/$fd)" = /dev/null
done
check "closed streams: a checkpoint every checkpoint.minutes" wait_until grep -q '"event":"checkpoint"' runs/closed/metrics.jsonl
kill -USR1 $job
wait $job
check "closed streams: exit code" test $? -eq 0

# The first Ctrl-C asks for a save and a stop, the second one ends the process whatever that waits for.
FAULT="call=fsync path=step- at=1 do=60000" FAULT_LOG=$PWD/hung.log LD_PRELOAD=$library "$dtrain" small.ini run.name=twice \
    run.steps=20000 checkpoint.every=0 comm.timeout_s=600 >twice.log 2>&1 &
job=$!
check "Ctrl-C: training is under way" wait_for_step twice 5
kill -INT $job
check "Ctrl-C: a save hangs" wait_until test -s hung.log
kill -INT $job
wait $job
check "Ctrl-C twice: exit code $?, not 130" test $? -eq 130

# The reader of the log ends: the log is lost, the run continues.
"$dtrain" small.ini run.name=unread log.every=1 2> >(:)
check "an unread log: exit code $?" grep -q '"state":"complete"' runs/unread/state.json
check "… and state.json is one whole line" test "$(wc -l <runs/unread/state.json)" -eq 1

# A closed terminal: the kernel sends SIGHUP to the script, and every write to the terminal fails.
if script -qec true /dev/null >/dev/null 2>&1; then
    for launched in "$repository/launch/run.sh -np 2 $(printf %q "$dtrain")" "exec $(printf %q "$dtrain")"; do
        name=terminal-$$-$([ "${launched:0:4}" = exec ] && echo alone || echo script)
        # shellcheck disable=SC2086
        script -qec "$launched small.ini run.name=$name run.steps=20000" /dev/null >/dev/null 2>&1 &
        terminal=$!
        check "$name: training is under way" wait_for_step $name 5
        kill -KILL $terminal
        wait $terminal 2>/dev/null
        wait_until eval '! grep -q "\"state\":\"running\"" runs/$name/state.json'
        check "$name: stopped: $(cat runs/$name/state.json)" grep -qE '"state":"stopped",.*"reason":"SIG(HUP|USR1)"' \
            runs/$name/state.json
        stopped=$(printf 'step-%08d' "$(steps_done $name)")
        check "$name: saved its last step, $stopped" "$dtrain" verify "runs/$name/checkpoints/$stopped" >$name.log 2>&1
        check "$name: no process is left" wait_until eval '! pgrep -f "run.name=$name " >/dev/null'
    done
fi
nohup "$dtrain" small.ini run.name=nohup run.steps=20000 checkpoint.every=0 checkpoint.on_signal=false >nohup.log 2>&1 </dev/null &
job=$!
check "nohup: training is under way" wait_for_step nohup 5
kill -HUP $job
check "nohup: SIGHUP is ignored" wait_for_step nohup $(($(steps_done nohup) + 20))
kill -USR1 $job
wait $job
check "nohup: SIGUSR1 stops it" grep -q '"reason":"SIGUSR1"' runs/nohup/state.json
check "nohup: checkpoint.on_signal = false: nothing is saved" test -z "$(ls runs/nohup/checkpoints)"
finish
