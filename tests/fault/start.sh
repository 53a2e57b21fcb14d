#!/usr/bin/env bash
# The first second of a job: signals, ranks that do not find each other, launchers that do not fit, and names that two
# runs share.
#   start.sh DTRAIN INTERPOSE
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
export OMPI_MCA_odls_base_sigkill_timeout=1
small_run
train=("$dtrain" small.ini log.every=1000)
launching=$(launch_seconds)

# Signals. The program starts itself again with OMP_WAIT_POLICY set, so its environment shows that it has reached main,
# long before MPI is open.
reached_main() { # pattern of its command line: its processes that have reached main
    # shellcheck disable=SC2046 # process numbers
    with_variable OMP_WAIT_POLICY=passive $(pgrep -f "$1")
}
stopped_at_once() { # name, ranks, signal
    local name=$1 n=$2 signal=$3 reason=SIG$3 pids="" run=(timeout $((60 + launching))) status
    [ "$n" -eq 1 ] || run+=("${local_mpirun[@]}" -np "$n")
    env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT "${run[@]}" "${train[@]}" run.name="$name" run.steps=100000 >"$name.log" 2>&1 &
    local job=$!
    for _ in $(seq 2000); do
        pids=$(reached_main "^[^ ]*dtrain small.ini .*run.name=$name run" )
        [ "$(wc -w <<<"$pids")" -ge "$n" ] && break
    done
    kill -"$signal" "${pids%%$'\n'*}"
    wait $job
    status=$?
    check "$name: exit code $status of a run that SIG$signal stopped: $(tail -n 3 "$name.log")" test $status -eq 0
    [ "$signal" != INT ] || reason=Ctrl-C
    check "$name: its state" grep -q "\"state\":\"stopped\",.*\"reason\":\"$reason\"" "runs/$name/state.json"
}
for signal in USR1 TERM HUP INT; do
    stopped_at_once "early-$signal" 1 $signal
done
stopped_at_once early-2 2 USR1
check "stopped before its first step" grep -q 'after step 0 of .*: the same command starts it' early-2.log
check "… without a checkpoint" test -z "$(ls runs/early-2/checkpoints)"
check "an early SIGINT ends other commands" bash -c "env --block-signal=INT bash -c 'kill -INT \$\$; exec \"$dtrain\" --check small.ini' \
    >check.log 2>&1; test \$? -eq 130"

# Ranks that never meet end in time, and one of them names its rank, host, what it waited for and what to do.
no_start() { # what, pattern, command …
    local what=$1 pattern=$2 status
    shift 2
    date >begun
    timeout $((60 + launching)) "$@" >out 2>err
    status=$?
    check "$what: exit code $status" test $status -eq 3
    check "$what: $(seconds_since begun) s until the end" test "$(seconds_since begun)" -le $((12 + launching))
    check "$what: the last words: $(grep -a '^dtrain: error' err)" grep -qE "^dtrain: error: $pattern timed out after comm.start_timeout_s = 2 s" err
    check "$what: $(grep -ac '^dtrain: error' err) ranks spoke" test "$(grep -ac '^dtrain: error' err)" -eq 1
    check "$what: what to do" grep -q 'btl_tcp_if_include' err
}
no_start "a rank that never starts" "rank 0 on $(uname -n), start-up: MPI_Init_thread" \
    "${local_mpirun[@]}" -np 1 "${train[@]}" run.name=alone comm.start_timeout_s=2 : -np 1 sleep 60

# Two hosts that reach each other through the network of the launcher but not that of MPI: each has its own network
# namespace, and the interface "data" leads nowhere.
space=dt$$
two_hosts() {
    ip netns add ${space}a && ip netns add ${space}b &&
        ip link add ctl netns ${space}a type veth peer name ctl netns ${space}b || return 1
    local n here=1 there=2
    for n in ${space}a ${space}b; do
        # shellcheck disable=SC2086 # words without blanks
        ip -n $n link set lo up && ip -n $n addr add 10.9.1.$here/24 dev ctl && ip -n $n link set ctl up &&
            ip -n $n link add data type veth peer name nowhere && ip -n $n link set nowhere up &&
            ip -n $n addr add 10.9.2.$here/24 dev data && ip -n $n link set data up &&
            ip -n $n neigh add 10.9.2.$there lladdr 02:00:00:00:00:01 dev data nud permanent || return 1
        here=2 there=1
    done
    printf '#!/bin/bash\nshift\nexec ip netns exec %s unshare --uts bash -c "hostname hostb; $*"\n' ${space}b >agent
    chmod +x agent
}
if [ "$(id -u)" -eq 0 ] && command -v ip unshare hostname >/dev/null && two_hosts 2>netns.log; then
    no_start "hosts that do not reach each other" 'rank 0 on hosta, start-up: the first message from rank 1' \
        ip netns exec ${space}a unshare --uts bash -c 'hostname hosta; exec "$@"' bash \
        env OMPI_MCA_plm_rsh_agent="$PWD/agent" OMPI_MCA_plm=rsh mpirun --mca btl self,tcp --mca btl_tcp_if_include 10.9.2.0/24 \
        --mca oob_tcp_if_include 10.9.1.0/24 -H 10.9.1.1,10.9.1.2 -np 2 "$dtrain" "$PWD/small.ini" comm.start_timeout_s=2
else
    echo "two hosts: not tried: $(head -n 1 netns.log 2>/dev/null || echo 'needs root, ip, unshare and hostname')" >&2
fi
ip netns del ${space}a 2>/dev/null
ip netns del ${space}b 2>/dev/null

# MPI takes longer to start than a stalled rank may wait: no error, and one message.
late=(bash -c 'sleep "$0" && exec "$@"')
check "a start that takes longer than comm.timeout_s" "${local_mpirun[@]}" -np 3 "${train[@]}" run.name=late run.steps=4 \
    comm.timeout_s=3 : -np 1 "${late[@]}" 4 "${train[@]}" run.name=late run.steps=4 comm.timeout_s=3 2>late.log
check "… is reported once, with its time: $(cat late.log)" test "$(grep -c 'warning: MPI took [0-9.]* s to start' late.log)" -eq 1
: >empty
if unshare --mount mount --bind empty /etc/hosts 2>/dev/null; then
    nameless=(unshare --mount bash -c 'mount --bind empty /etc/hosts && mount --bind empty /etc/resolv.conf && exec "$@"' bash)
    check "a slow start without a line for localhost" "${local_mpirun[@]}" -np 1 "${nameless[@]}" "${train[@]}" run.name=nameless \
        run.steps=4 : -np 1 "${late[@]}" 2.2 "${train[@]}" run.name=nameless run.steps=4 2>nameless.log
    check "… says what to add: $(cat nameless.log)" grep -q 'warning: MPI took .* add the line "127.0.0.1 localhost"' nameless.log
else
    echo "a start without a line for localhost: not tried: needs root" >&2
fi

# Launchers that do not fit are refused once, however many processes there are.
step_of_two() { # pattern, NAME=value … of both processes
    local pattern=$1 i
    shift
    rm -f err
    for i in 0 1; do
        env SLURM_PROCID=$i SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 "$@" "${train[@]}" run.name=step >out 2>>err
        check "$pattern: exit code of process $i" test $? -eq 2
    done
    check "$pattern: $(cat err)" grep -qE "^dtrain: error: $pattern" err
    check "$pattern: said $(grep -c '^dtrain: error' err) times" test "$(grep -c '^dtrain: error' err)" -eq 1
    check "$pattern: nothing but that and its hint" test "$(wc -l <err)" -eq 2
    check "$pattern: what to do" grep -q 'srun --mpi=pmix' err
}
step_of_two '2 processes were started, but .* sees only this one'
if grep -q 'MCA pmix: s[12]' <(ompi_info 2>/dev/null); then
    echo "srun --mpi=pmi2: not tried: this Open MPI supports it" >&2
else
    step_of_two 'the launcher offers PMI-1 or PMI-2' PMI_FD=9
fi
refused "the mpirun of another MPI" '2 processes were started, but .* sees only this one' env OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_RANK=0 "${train[@]}" run.name=step
# In the batch script of a job with several tasks, without srun.
export SLURM_PROCID=0 SLURM_NTASKS=4
check "--check in a batch script of four tasks" "$dtrain" --check small.ini >out
check "order in a batch script of four tasks" "$dtrain" order small.ini --steps 1:2 >out
check "training as one process of four tasks is refused" bash -c '"$@" 2>err; test $? -eq 2' bash "${train[@]}" run.name=batch
check "… saying why" grep -q 'this Slurm job has 4 tasks, but training was started as one process' err
check "… while one launched alone trains" env SLURM_STEP_NUM_TASKS=1 "${train[@]}" run.name=batch run.steps=4 2>err
unset SLURM_PROCID SLURM_NTASKS

# A small stack is raised if the limit allows it, even where the program does not start itself again; else it is
# refused.
stack=(bash -c 'ulimit -S -s 64 && exec "$@"' bash)
for waiting in '' passive; do
    check "a stack of 64 KiB that may grow, OMP_WAIT_POLICY='$waiting'" env ${waiting:+OMP_WAIT_POLICY=$waiting} \
        "${local_mpirun[@]}" -np 2 "${stack[@]}" "${train[@]}" run.name="stack-$waiting" run.steps=4 2>stack.log
done
stack[2]='ulimit -s 64 && exec "$@"'
for launched in "" "${local_mpirun[*]} -np 2"; do
    # shellcheck disable=SC2086 # words without blanks
    refused "a stack of 64 KiB that may not grow" 'error: the stack is limited to 64 KiB \(ulimit -s\): .* need 1024 KiB' \
        $launched "${stack[@]}" "${train[@]}" run.name=little
    check "… said once, with what to do" test "$(grep -c '^dtrain: error' refused.log) $(grep -c 'ulimit -s 8192' refused.log)" = "1 1"
done
check "… before anything is written" test ! -e runs/little

# A run that continues with other settings writes them down with its first step, not before.
check "a run to continue" "${train[@]}" run.name=goes-on run.steps=4 2>goes-on.log
cp runs/goes-on/config.resolved.ini before.ini
env --block-signal=USR1 bash -c 'kill -USR1 $$; exec "$@"' bash "${train[@]}" run.name=goes-on run.steps=9 optim.lr=1e-3 2>goes-on.log
check "stopped before it went on" grep -q 'stopped by SIGUSR1 after step 4 of 9: .* resumes from there' goes-on.log
check "… it has trained nothing with these" cmp before.ini runs/goes-on/config.resolved.ini
check "then it goes on" "${train[@]}" run.name=goes-on run.steps=9 optim.lr=1e-3 2>goes-on.log
check "… and has" grep -q '^lr = 1e-3' runs/goes-on/config.resolved.ini

# The map of ranks is logged once; a build for CPUs in a job with GPUs; two builds in one job.
check "two ranks" env SLURM_JOB_ID=77 SLURM_RESTART_COUNT=1 SLURM_JOB_GPUS=0,1 "${local_mpirun[@]}" -np 2 "${train[@]}" \
    run.name=map run.steps=4 2>map.log
check "the map names the job once" test "$(grep -c 'Slurm job 77, restart 1$' map.log)" -eq 1
check "… and host, ranks, device and CPUs" test "$(grep -cE ": ranks 0-1 on .+, CPUs [0-9]" map.log)" -eq 1
check "the start names the device" grep -qE 'map: .*, 2 ranks on .+, 4 steps' map.log
if ! grep -q 'device *cuda' <("$dtrain" info); then
    check "GPUs without use" grep -q 'warning: this job has GPUs (SLURM_JOB_GPUS=0,1), but trains on CPUs: .*has no CUDA' map.log
fi
if objcopy --remove-section .note.gnu.build-id "$dtrain" other-build 2>/dev/null; then
    "${local_mpirun[@]}" -np 1 "${train[@]}" run.name=mixed : -np 1 ./other-build small.ini run.name=mixed 2>mixed.log
    check "two builds in one job: exit code" test $? -eq 2
    check "… which rank" grep -q 'rank 1 on .* runs another build of dtrain' mixed.log
fi

# Unequal nodes are refused with their differences unless they are allowed.
unequal() { # what, pattern, mpirun's words for the ranks …
    check "$1: --check refuses them" bash -c '"$@" >out 2>err; test $? -eq 2' bash "${local_mpirun[@]}" "${@:3}"
    check "$1: what differs: $(cat err)" grep -qE "^  $2\$" err
    check "$1: said once, with the key" test "$(grep -c '^dtrain: error: the nodes of this job are unequal:$' err) \
$(grep -c 'run.allow_unequal_nodes = true' err)" = "1 1"
}
ranks_here=("$dtrain" --check small.ini data.batch=12)
other_isa=(env DTRAIN_MAX_ISA=plain)
unequal "two kinds of CPU" "$(uname -n) \(rank 1\) has plain x86-64, $(uname -n) \(rank 0\) has [^(]*$" \
    -np 1 "${ranks_here[@]}" : -np 1 "${other_isa[@]}" "${ranks_here[@]}"
if unshare --uts true 2>/dev/null; then
    other_host=(unshare --uts bash -c 'hostname other && exec "$@"' bash)
    unequal "three ranks on two hosts" "other has 1 rank, $(uname -n) has 2 ranks" \
        -np 2 "${ranks_here[@]}" : -np 1 "${other_host[@]}" "${ranks_here[@]}"
    check "as many on each host are fine" "${local_mpirun[@]}" -np 1 "${ranks_here[@]}" : -np 1 "${other_host[@]}" "${ranks_here[@]}" >out
else
    echo "three ranks on two hosts: not tried: needs root" >&2
fi
allowed=("${train[@]}" run.name=unequal run.steps=4 run.allow_unequal_nodes=true)
"${local_mpirun[@]}" -np 1 "${train[@]}" run.name=refused : -np 1 "${other_isa[@]}" "${train[@]}" run.name=refused 2>err
check "training refuses them: exit code $?" grep -q 'error: the nodes of this job are unequal' err
check "… before it touches the run's folder" test ! -e runs/refused
check "allowed" "${local_mpirun[@]}" -np 1 "${other_isa[@]}" "${allowed[@]}" : -np 1 "${allowed[@]}" 2>allowed.log
check "… with a warning" grep -q 'warning: the nodes of this job are unequal' allowed.log

# A resume on another CPU is reported once.
for check in 1 0; do
    check "resuming on another CPU" "${train[@]}" run.name=unequal run.steps=$((8 - 2 * check)) 2>other.log
    check "… the first resume says so: $(cat other.log)" test "$(grep -cE 'warning: the checkpoint was trained with plain x86-64, this job runs with ' other.log)" -eq $check
done

# One bit of what rank 1 contributes to a sum of the self-test is wrong, which is found if the test is requested.
check "collectives are tested" "${local_mpirun[@]}" -np 2 "${train[@]}" run.name=tested run.steps=4 comm.selftest=true 2>tested.log
check "… and said to be" grep -q 'comm.selftest' tested.log
faulty=(env FAULT="call=sum path=211 rank=1 at=1 do=flip" LD_PRELOAD="$library" "${local_mpirun[@]}" -np 2 "${train[@]}" run.steps=4)
"${faulty[@]}" run.name=wrong comm.selftest=true 2>wrong.log
check "a wrong value: exit code $?" test $? -eq 3
check "… is found before training: $(grep -a '^dtrain: error' wrong.log)" grep -qa \
    '^dtrain: error: .*communication self-test: all-reduce of fp32 by mpi.* rank 1 on ' wrong.log
check "… and training does not begin" eval '! grep -qa "step 1/" wrong.log'
for key in comm.selftest=false run.name=by-default; do # on one host
    check "without the self-test nothing is looked at, $key" "${faulty[@]}" "$key" >untested.log 2>&1
done
finish
