#!/usr/bin/env bash
# What launch/train.sbatch does after its ranks ended, with a made-up Slurm: it requeues what can continue, and nothing
# else. (slurm_jobs uses a real one.)
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
mkdir bin run
printf '#!/bin/bash\necho "$PWD/run"\n' >bin/dtrain
printf '#!/bin/bash\ncp state.json run/\nexit "$(cat code)"\n' >bin/srun
printf '#!/bin/bash\n[ "$1" = show ] && echo "JobId=7 JobState=$STATE Reason=None" || echo "$*" >>requeued\n' >bin/scontrol
chmod +x bin/*
after() { # requeues or ends, exit code of the ranks, state and reason of state.json, NAME=value … of the job
    local what=$* status
    rm -f requeued
    echo "$2" >code
    echo "{\"state\":\"$3\",\"step\":9,\"reason\":\"$4\"}" >state.json
    env PATH="$PWD/bin:$PATH" DTRAIN="$PWD/bin/dtrain" SLURM_JOB_ID=7 STATE=RUNNING "${@:5}" \
        "$repository/launch/train.sbatch" small.ini >out 2>err
    status=$?
    check "$what: exit code $status: $(cat err)" test $status -eq "$2"
    check "$what: $(cat err)" test "$(cat requeued 2>/dev/null)" = "$([ "$1" != requeued ] || echo "requeue 7")"
}
after ends 0 complete ''
after ends 0 stopped 'the validation loss has not improved'
after ends 2 failed 'a mistake'
for reason in SIGUSR1 SIGTERM Ctrl-C 'a signal to another rank'; do
    after requeued 0 stopped "$reason"
    after ends 0 stopped "$reason" STATE=CANCELLED
done
after requeued 3 failed 'a rank died'
after ends 3 failed 'a rank died' STATE=COMPLETING
after requeued 3 failed 'a rank died' SLURM_RESTART_COUNT=19
after ends 3 failed 'a rank died' SLURM_RESTART_COUNT=20
after requeued 3 failed 'a rank died' DTRAIN_MAX_RESTARTS=2 SLURM_RESTART_COUNT=1
after ends 3 failed 'a rank died' DTRAIN_MAX_RESTARTS=2 SLURM_RESTART_COUNT=2
after ends 3 failed 'a rank died' DTRAIN_MAX_RESTARTS=0
after requeued 0 stopped SIGTERM DTRAIN_MAX_RESTARTS=2 SLURM_RESTART_COUNT=2
printf '[checkpoint]\non_signal = false\n' >run/config.resolved.ini
after ends 0 stopped SIGTERM
after requeued 3 failed 'a rank died'
finish
