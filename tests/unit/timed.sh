#!/usr/bin/env bash
# tests/timed.sh repeats a failed test only if the machine stalled. The stall is simulated by stopping the witness for a
# while.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
cat >stalls <<'EOF_STALLS'
for pid in $(pgrep -P $PPID); do
    [ $pid -eq $$ ] || witness=$pid
done
sleep 0.2 # time for the witness to begin
kill -STOP $witness
sleep 1.5
kill -CONT $witness
sleep 0.3
EOF_STALLS
timed() { # name, exit code, runs, lines of the test: the command must end with that code after so many runs
    local name=$1 code=$2 runs=$3 status
    shift 3
    printf '%s\n' "echo run >>$name.runs" "$@" >test.sh
    "$repository/tests/timed.sh" bash test.sh 2>"$name.log"
    status=$?
    check "$name: exit code $status" test $status -eq "$code"
    check "$name: ran $(wc -l <"$name.runs") times" test "$(wc -l <"$name.runs")" -eq "$runs"
}
timed passes 0 1 'exit 0'
timed fails 3 1 'exit 3'
timed skips 77 1 '. ./stalls' 'exit 77'
# shellcheck disable=SC2016 # expanded by the test
timed stalls-once 0 2 '[ "$(wc -l <stalls-once.runs)" -eq 1 ] || exit 0' '. ./stalls' 'exit 3'
check "stalls-once: says so: $(cat stalls-once.log)" grep -qE 'stood still for 1\.[0-9] s meanwhile: again' stalls-once.log
timed stalls-always 3 3 '. ./stalls' 'exit 3'
check "nothing is left of the witness" test ! -e .witness
finish
