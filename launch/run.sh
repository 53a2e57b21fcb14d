#!/usr/bin/env bash
# mpirun for dtrain on one machine: as root too, threads left to dtrain, and on SIGTERM, Ctrl-C or a closed
# terminal the ranks finish their step and save; the second time they end at once. (mpirun alone kills them one
# second later; to raise that delay would delay the end of a failed job by as much.)
#
#   launch/run.sh -np 4 build/dtrain config.ini [section.key=value …]
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: launch/run.sh -np RANKS build/dtrain config.ini [section.key=value …]" >&2; exit 2; }
# shellcheck source=launch/environment.sh
. "$(dirname "$0")/environment.sh"

# A process group of its own: Ctrl-C in a terminal reaches this script alone.
set -m
# mpirun passes SIGUSR1 on to the ranks, which save and exit 0; SIGTERM and SIGINT would end it at
# once, so they become that signal.
"${local_mpirun[@]}" "$@" &
child=$!
# A terminal that closes (SIGHUP) asks for the same, from the kernel and the shell alike: it does not count.
trap 'kill -USR1 $child 2>/dev/null' USR1 HUP
asked=0
# shellcheck disable=SC2317
end() { # the second time in earnest
    asked=$((asked + 1))
    if [ "$asked" -eq 1 ]; then kill -USR1 "$child"; else kill -TERM "$child"; fi 2>/dev/null
}
trap end TERM INT
status=0
wait $child || status=$?
while kill -0 $child 2>/dev/null; do # a signal ended the wait, not the job
    status=0
    wait $child || status=$?
done
exit $status
