#!/usr/bin/env bash
# The disk fills up or becomes read-only during a run. If a checkpoint cannot be written, a warning names path and
# reason, and the save is tried again. At the end of the run, or if the curve cannot be written, the exit code is 3 with
# one message. The last checkpoint is whole, and nothing is half-written. With space again the same command resumes and
# ends with the bits of a run without the fault. A limit on file sizes (ulimit -f) needs no privilege; where mounting is
# allowed a small tmpfs is used as well.
if [ -z "${DTRAIN_TEST_MOUNTS+set}" ]; then
    unshare -m mount -t tmpfs none /mnt 2>/dev/null && DTRAIN_TEST_MOUNTS=yes exec unshare -m bash "$0" "$@"
    DTRAIN_TEST_MOUNTS=
fi
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
# A constant learning rate: 20 steps resumed to 120 equal 120 steps.
common=(small.ini optim.schedule=constant checkpoint.keep=2)
first=(run.steps=20 checkpoint.every=10)
curve=(run.steps=120 log.tensorboard=false) # without a checkpoint before the end only metrics.jsonl grows
weights=(run.steps=120 checkpoint.every=30) # checkpoints are written while there is room for the curve
last=checkpoints/step-00000120

for n in 1 2; do
    ranks $n "${common[@]}" "${weights[@]}" run.dir=whole-$n >whole.log 2>&1 || { cat whole.log >&2; exit 1; }
done

fails() { # run (of 20 steps so far), pattern of the message, command …
    local run=$1 pattern=$2 status
    shift 2
    "$@" >out.log 2>err.log
    status=$?
    check "$run: exit code $status, not 3: $(tail -n 3 err.log)" test $status -eq 3
    check "$run: one message, not $(grep -ac '^dtrain: error' err.log)" test "$(grep -ac '^dtrain: error' err.log)" -eq 1
    check "$run: '$(grep -a '^dtrain: error' err.log)' is not '$pattern'" grep -Eq "^dtrain: error: .*$pattern" err.log
    check "$run: a hint" grep -q '^  hint: ' err.log
    check "$run: the last checkpoint is whole" "$dtrain" verify "$run"/checkpoints/step-00000020 >verify.log 2>&1
    check "$run: only whole checkpoints: $(ls -A "$run/checkpoints")" test "$(ls -A "$run/checkpoints")" = \
        "$(printf 'step-00000010\nstep-00000020')"
    check "$run: state.json holds the reason: $(cat "$run/state.json")" grep -Eq \
        '^\{"state":"failed","step":[1-9][0-9]*,"reason":".*cannot ' "$run/state.json"
    check "$run: nothing temporary is left" test -z "$(find "$run" -name '*.tmp*')"
}
resumes() { # run, n, arguments: the same command, with space again
    local run=$1 n=$2
    shift 2
    check "$run: the same command completes" ranks "$n" "${common[@]}" run.dir="$run" "$@" >again.log 2>&1
    check "$run: … from its last checkpoint" grep -q "resuming from $run/checkpoints/step-00000020" again.log
    check "$run: … with the right bits" same_bits "$run/$last" "whole-$n/$last"
    check "$run: … and the right curve" cmp <(train_lines "$run/metrics.jsonl") <(train_lines "whole-$n/metrics.jsonl")
}
prepare() { # run, n
    check "$1: twenty steps" ranks "$2" "${common[@]}" "${first[@]}" run.dir="$1" >first.log 2>&1
}

# On one rank without mpirun, to which the limit would apply too.
prepare limited-weights 1
fails limited-weights 'cannot write limited-weights/checkpoints/.*/(model|optimizer).*safetensors: File too large' \
    limited 64 "${common[@]}" run.dir=limited-weights "${weights[@]}"
resumes limited-weights 1 "${weights[@]}"
prepare limited-curve 1
fails limited-curve 'cannot write limited-curve/metrics.jsonl: File too large' \
    limited 16 "${common[@]}" run.dir=limited-curve "${curve[@]}"
check "limited-curve: the last line is torn, as this test needs" test -n "$(tail -c 1 limited-curve/metrics.jsonl)"
resumes limited-curve 1 "${curve[@]}"

if [ -z "$DTRAIN_TEST_MOUNTS" ]; then
    echo "mounting is not allowed: full file systems are not tested" >&2
    finish
fi

mkdir disk
mount -t tmpfs -o size=8m none disk || exit 1
fill() { # KiB left free
    cat /dev/zero >disk/ballast 2>/dev/null
    truncate -s -"$1"K disk/ballast
}
prepare disk/weights 2
fill 200 # of the 350 KiB of a checkpoint
fails disk/weights 'cannot write disk/weights/checkpoints/.*: No space left on device' \
    ranks 2 "${common[@]}" run.dir=disk/weights "${weights[@]}"
check "disk/weights: earlier saves were warnings: $(grep -c warning err.log)" test "$(grep -c \
    '^dtrain: warning: the checkpoint of step [0-9]* is not saved: cannot write .*: No space left' err.log)" -eq 3
rm disk/ballast
resumes disk/weights 2 "${weights[@]}"

# Space comes back during the run, and the next save succeeds.
prepare disk/again 2
before=$(newest disk/again)
fill 300
name=disk/again
start 2 "${common[@]}" run.dir=$name run.steps=20000 checkpoint.every=5
check "$name: a save fails" wait_until grep -q 'warning: the checkpoint of step .* No space left' $name.log
check "$name: the last checkpoint is whole" "$dtrain" verify "$before" >verify.log 2>&1
rm disk/ballast
is_newer() { [ "$(newest disk/again)" != "$before" ]; }
check "$name: a later one succeeds" wait_until is_newer
check "$name: … without a restart" kill -USR1 $job
wait $job
check "$name: exit code $?, not 0" test $? -eq 0
check "$name: every checkpoint is whole" "$dtrain" verify $name/checkpoints/step-* >verify.log 2>&1
check "$name: nothing temporary is left" test -z "$(find $name -name '*.tmp*')"
rm -r $name

prepare disk/curve 2
fill 12 # three pages
fails disk/curve 'rank 0 on .*, step [0-9]+, .*: cannot write disk/curve/metrics.jsonl: No space left on device' \
    ranks 2 "${common[@]}" run.dir=disk/curve "${curve[@]}"
# If the disk is full to the last byte, the run does not start and says so.
fill 0
fails disk/curve 'cannot write disk/curve/.*: No space left on device' ranks 2 "${common[@]}" run.dir=disk/curve "${curve[@]}"
rm disk/ballast
resumes disk/curve 2 "${curve[@]}"

# The file system becomes read-only by a mount over the folder of checkpoints.
read_only() {
    local status
    "$dtrain" "${common[@]}" run.dir=disk/readonly run.steps=20000 checkpoint.every=0 &
    wait_until eval '[ "$(train_lines disk/readonly/metrics.jsonl | wc -l)" -gt 25 ]'
    mount -t tmpfs -o ro none disk/readonly/checkpoints
    kill -USR1 $! # requests a save
    wait $!
    status=$?
    umount disk/readonly/checkpoints
    return $status
}
prepare disk/readonly 1
fails disk/readonly 'cannot create folder disk/readonly/checkpoints/.*: Read-only file system' read_only
umount disk
finish
