#!/usr/bin/env bash
# mpirun for dtrain on one machine. On SIGTERM, Ctrl-C or a closed terminal the ranks finish their step and
# save; a second signal ends them at once. (mpirun alone kills ranks after one second; a longer delay would
# also delay the end of every failed job.)
#
#   launch/run.sh -np 4 build/dtrain config.ini [section.key=value …]
set -euo pipefail
usage="usage: launch/run.sh -np RANKS build/dtrain config.ini [section.key=value …]"
[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
case $1 in -h | --help) echo "$usage"; exit 0 ;; esac
# shellcheck source=launch/environment.sh
. "$(dirname "$0")/environment.sh"

# mpirun gets its own process group: Ctrl-C in a terminal reaches this script alone.
set -m
# mpirun forwards SIGUSR1 to the ranks, which save and exit 0; SIGTERM and SIGINT would end mpirun at
# once, so they are turned into SIGUSR1.
export DTRAIN_ASKED_BY # a file with the name of what they were, for the ranks
DTRAIN_ASKED_BY=$(mktemp)
trap 'rm -f "$DTRAIN_ASKED_BY"' EXIT
"${local_mpirun[@]}" "$@" &
child=$!
# A closed terminal (SIGHUP) also asks for a stop. Kernel and shell may both send it, so it is not counted.
trap 'kill -USR1 $child 2>/dev/null' USR1
trap 'echo SIGHUP >"$DTRAIN_ASKED_BY"; kill -USR1 $child 2>/dev/null' HUP
trap 'kill -USR2 $child 2>/dev/null' USR2 # asks for the profile so far
asked=0
# shellcheck disable=SC2317
end() { # what asked for it
    asked=$((asked + 1))
    [ "$asked" -gt 1 ] || echo "run.sh: $1: finish the step, save and stop; once more ends the ranks at once" >&2
    if [ "$asked" -eq 1 ]; then echo "$1" >"$DTRAIN_ASKED_BY" && kill -USR1 "$child"; else kill -TERM "$child"; fi 2>/dev/null
}
trap 'end SIGTERM' TERM
trap 'end Ctrl-C' INT
status=0
wait $child || status=$?
while kill -0 $child 2>/dev/null; do # a signal ended the wait, not the job
    status=0
    wait $child || status=$?
done
exit $status
