#!/usr/bin/env bash
# Faults of the machine at every write, sync and rename of a checkpoint: dtrain is killed there, or the call fails. The
# last good checkpoint stays whole, nothing half-written counts as one, an error says what could not be written and why,
# and the same command ends with the bits of a run without faults.
#   save.sh DTRAIN INTERPOSE
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
run=("$dtrain" small.ini model.n_layer=1 data.val= checkpoint.every=4)
faulty() { # settings of FAULT, command …
    env FAULT="$1" LD_PRELOAD="$library" "${@:2}"
}
checkpoint() { # folder, step
    echo "$1/checkpoints/step-$(printf %08d "$2")"
}
completes() { # folder, command …: it ends with the right bits and leaves nothing behind
    local folder=$1
    shift
    check "$folder: the same command completes" "$@" >again.log 2>&1
    check "$folder: … with the right bits" same_bits "$(checkpoint "$folder" 12)" "$(checkpoint whole 12)"
    check "$folder: … and the right curve" cmp <(train_lines "$folder/metrics.jsonl") <(train_lines whole/metrics.jsonl)
    check "$folder: nothing temporary is left" test -z "$(find "$folder" -name '*.tmp*')"
}

FAULT_LOG=$PWD/points.log faulty "call=write,fsync,rename path=checkpoints/" "${run[@]}" run.dir=whole >whole.log 2>&1 || { cat whole.log >&2; exit 1; }
# Every fault happens in the save of step 8, in a job that resumes from step 4.
cp -r whole first
rm -r "$(checkpoint first 8)" "$(checkpoint first 12)"
grep 'step-00000008' points.log >of_8.log
points=$(wc -l <of_8.log) renamed=$(grep -n ' rename .*/step-00000008$' of_8.log | cut -d: -f1)
check "a save has points: $points, the rename is $renamed" test "${renamed:-0}" -gt 10

# The remains of a killed job stay in the folder of the next one.
cp -r first killed
for at in $(seq "$points"); do
    newest=$(newest killed)
    faulty "call=write,fsync,rename path=step-00000008 at=$at do=kill" "${run[@]}" run.dir=killed >killed.log 2>&1
    status=$?
    check "killed at $at, $(sed -n "s|/.*checkpoints/||;${at}p" of_8.log): exit code $status" test $status -eq 137
    check "killed at $at: from the last checkpoint" grep -q "resuming from $newest at" killed.log
    [ "$at" -ne 2 ] || check "at step 8 or later, not at the last checkpoint: $(grep previous killed.log)" grep -qE \
        'ended without a message at step ([89]|1[0-2]): it was killed' killed.log
    check "killed at $at: the newest checkpoint is whole" same_bits "$(newest killed)" "whole/${newest#killed/}"
done 2>/dev/null # the shell's "Killed"
check "the next start says so: $(grep previous killed.log)" grep -qE 'ended without a message at step [0-9]+: it was killed' killed.log
completes killed "${run[@]}" run.dir=killed

# Only the last lines of this long curve are read.
cp -r first long
echo '{"state":"running","step":4,"reason":""}' >long/state.json
for step in $(seq 13 400); do echo "{\"event\":\"train\",\"step\":$step,\"loss\":3.14159265,\"grad_norm\":2.71828183}"; done >>long/metrics.jsonl
check "the next start finds the last step of a long curve" "${run[@]}" run.dir=long >long.log 2>&1
check "… $(grep previous long.log)" grep -q 'ended without a message at step 400: it was killed' long.log

# A call fails once: the save is tried again, or the job ends with the reason and resumes.
texts=(eio "Input/output error" enospc "No space left on device" short "No space left on device")
kind=0
while read -r at call path; do
    what=${texts[$((kind % 6))]} text=${texts[$((kind % 6 + 1))]} folder=failed-$call-$at
    [ "$call" = write ] || [ "$what" != short ] || what=eio text="Input/output error"
    kind=$((kind + 2))
    cp -r first "$folder"
    faulty "call=$call path=step-00000008 at=$at do=$what" "${run[@]}" run.dir="$folder" >failed.log 2>&1
    status=$?
    check "$what at $call $at of $path: exit code $status" test $status -eq 0 -o $status -eq 3
    check "… the reason: $(grep -aE "error|warning" failed.log)" grep -qE "^dtrain: (error|warning): .*cannot .*$folder/checkpoints.*: $text" failed.log
    check "… the last good checkpoint is whole" same_bits "$(checkpoint "$folder" 4)" "$(checkpoint whole 4)"
    completes "$folder" "${run[@]}" run.dir="$folder"
done < <(awk '{ n[$2]++; key = $2 $3; sub(/tmp-[0-9]*/, "", key); if (!seen[key]++) print n[$2], $2, $3 }' of_8.log)

# Everything is read-only from then on.
cp -r first readonly
faulty "call=open,rename path=checkpoints/. at=3 times=0 do=erofs" "${run[@]}" run.dir=readonly >readonly.log 2>&1
check "read-only: exit code 3" test $? -eq 3
check "… the reason: $(grep error readonly.log)" grep -qE '^dtrain: error: .*cannot .*readonly/checkpoints.*: Read-only file system' readonly.log
check "… also in state.json" grep -qE '"state":"failed".*Read-only file system' readonly/state.json
completes readonly "${run[@]}" run.dir=readonly
finish
