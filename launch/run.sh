#!/usr/bin/env bash
# mpirun for dtrain on one machine: as root too, threads left to dtrain, and time after SIGTERM or
# Ctrl-C to finish the step and save (Open MPI's own delay is one second).
#
#   launch/run.sh -np 4 build/dtrain config.ini [section.key=value …]
set -euo pipefail
# shellcheck source=launch/environment.sh
. "$(dirname "$0")/environment.sh"

# A process group of its own: Ctrl-C in a terminal reaches this script alone.
set -m
# mpirun passes SIGUSR1 on to the ranks, which save and exit 0; SIGTERM and SIGINT would end it at
# once, so they become that signal.
"${local_mpirun[@]}" "$@" &
child=$!
trap 'kill -USR1 $child 2>/dev/null' USR1 TERM INT
status=0
wait $child || status=$?
while kill -0 $child 2>/dev/null; do # a signal ended the wait, not the job
    status=0
    wait $child || status=$?
done
exit $status
