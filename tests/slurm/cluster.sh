# A real Slurm on this machine, which the tests of label `slurm` source in place of lib.sh: a controller with munge, and
# nodes n1, n2, …, each in its own network, host name, process, mount and IPC namespaces with its own /dev/shm and two
# made-up GPUs. The test itself runs in namespaces, so its end, even by SIGKILL, ends and removes everything. Logs stay
# in the test's folder. If this machine cannot do that, the exit code is 77 and the reason is printed.
# shellcheck shell=bash
skip() {
    echo "SKIPPED: $*" >&2
    exit 77
}

namespaces=(unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc)
if [ -z "${DTRAIN_TEST_CLUSTER:-}" ]; then
    [ "$(id -u)" -eq 0 ] || skip "a Slurm of one's own needs root"
    [ "$(nproc)" -ge 2 ] || skip "its nodes have two CPUs, this machine one"
    for program in munged slurmctld slurmd sbatch srun mpirun unshare nsenter ip; do
        command -v $program >/dev/null || skip "$program is not installed: launch/setup.sh --tests installs it"
    done
    "${namespaces[@]}" ip link add dt0 type veth peer name dt1 2>/dev/null ||
        skip "this machine does not allow namespaces with a network of their own"
    DTRAIN_TEST_CLUSTER=1 exec "${namespaces[@]}" bash "$0" "$@"
fi
# shellcheck source=tests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# Jobs inherit the environment. Settings for mpirun on one machine do not apply to them, and what they leave is removed
# with the node.
unset OMPI_MCA_plm_rsh_agent OMPI_MCA_btl_vader_single_copy_mechanism
export TMPDIR=/dev/shm
state=/run/slurm
export SLURM_CONF=$PWD/slurm.conf

nodes=4
configure() {
    local i
    # A requeued job starts again after cred_expire + 1 s. Slurm's default is 120 s.
    cat >slurm.conf <<END
ClusterName=dtrain
SlurmctldHost=login(10.77.0.254)
SlurmUser=root
SlurmdUser=root
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2,sched_min_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=20
KillWait=15
GresTypes=gpu
StateSaveLocation=$state/state
SlurmdSpoolDir=$state/spool.%n
TmpFS=/dev/shm
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.%n.pid
NodeName=n[1-$nodes] NodeAddr=10.77.0.[1-$nodes] CPUs=2 Gres=gpu:2
PartitionName=plain Nodes=n[1-2] Default=YES PriorityTier=1 PreemptMode=OFF OverSubscribe=FORCE:4
PartitionName=spare Nodes=n[1-2] PriorityTier=1 PreemptMode=REQUEUE GraceTime=40 OverSubscribe=FORCE:4
PartitionName=urgent Nodes=n[1-2] PriorityTier=9 PreemptMode=OFF
PartitionName=far Nodes=n[3-$nodes] PreemptMode=OFF
END
    echo "NodeName=n[1-$nodes] Name=gpu File=$state/gpu[0-1]" >gres.conf
    for i in 0 1; do mknod $state/gpu$i c 1 3; done
    {
        echo "127.0.0.1 localhost"
        echo "10.77.0.254 login"
        for i in $(seq $nodes); do echo "10.77.0.$i n$i"; done
    } >hosts
    [ -e /etc/hosts ] || : >/etc/hosts # a bare root has none, and an empty one means the same
    mount --bind hosts /etc/hosts
}

# Shows the output of the jobs, and what Slurm says about them, to the reader of a failure.
explain() {
    [ "$failures" -gt 0 ] || return
    squeue --states=all --format='%i %P %j %T %r %N'
    for log in *.log; do
        printf '\n== %s\n' "$log"
        grep -v '^dtrain: step [0-9]*/' "$log" | tail -n 25
    done
} >&2
trap explain EXIT

# The namespaces of a node live as long as the process ${node[i]}, as seen from here.
node=()
start_node() { # i
    local i=$1
    # shellcheck disable=SC2016
    "${namespaces[@]}" bash -c '
        hostname "n$1"
        mount -t tmpfs tmpfs /dev/shm
        ip link set lo up
        until ip link set eth0 up 2>/dev/null; do sleep 0.02; done
        ip address add "10.77.0.$1/24" dev eth0
        slurmd -D -N "n$1" &
        wait' node "$i" >"n$i.log" 2>&1 &
    local unshare=$!
    until node[i]=$(pgrep -P $unshare); do sleep 0.02; done
    # A node that starts again keeps its hardware address, which the others remember. Its old link may still be
    # disappearing.
    until ip link add "n$i" type veth peer name eth0 address "02:00:0a:4d:00:0$i" netns "${node[i]}" 2>/dev/null; do
        sleep 0.02
    done
    ip link set "n$i" master nodes up
}

# Submits launch/train.sbatch for both nodes. The job's number is stored in ${job[NAME]}, and its output goes to
# NAME.log.
declare -A job
submit() { # NAME, options of sbatch …, arguments of dtrain …; run.name is NAME
    local name=$1 options=()
    shift
    while [[ $1 == -* ]]; do
        options+=("$1")
        shift
    done
    job[$name]=$(DTRAIN=$dtrain sbatch --parsable --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --job-name="$name" \
        --output=%x.log "${options[@]}" "$repository/launch/train.sbatch" "$@" run.name="$name")
}

job_is() { # name, states …
    local state
    state=$(squeue --noheader --states=all --jobs="${job[$1]}" --format=%T)
    [[ " ${*:2} " == *" $state "* ]]
}

restarts() { # name
    scontrol show job "${job[$1]}" | sed -n 's/.* Restarts=\([0-9]*\).*/\1/p'
}

pids() { # name: the processes of dtrain that run it on all nodes
    pgrep -f "^$dtrain .*run.name=$1( |\$)"
}

pid_on() { # node, name: the process of the rank on that node
    # shellcheck disable=SC2046 # process numbers
    with_variable "SLURMD_NODENAME=$1" $(pids "$2")
}

has_ended() { # name: it ended and is not requeued
    ! job_is "$1" PENDING CONFIGURING RUNNING COMPLETING REQUEUED PREEMPTED
}

ends_as() { # name, state
    wait_until has_ended "$1" && job_is "$1" "$2"
}

says() { # name, pattern: in the job's output
    grep -Eq -- "$2" "$1.log" 2>/dev/null
}

on_node() { # i, command …: in the node's namespaces
    local i=$1
    shift
    nsenter --all --root --target "${node[$i]}" "$@"
}

start_cluster() {
    local i
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /dev/shm
    mkdir -p /run/munge $state/{state,spool}
    configure
    hostname login
    ip link set lo up
    ip link add nodes type bridge
    ip address add 10.77.0.254/24 dev nodes
    ip link set nodes up
    (umask 077 && head -c 128 /dev/urandom >$state/munge.key)
    munged --force --key-file=$state/munge.key --log-file="$PWD/munged.log" --pid-file=$state/munged.pid \
        --seed-file=$state/munge.seed
    for i in $(seq $nodes); do start_node "$i"; done
    slurmctld -D >>slurmctld.log 2>&1 &
    for ((SECONDS = 0; SECONDS < 30;)); do
        [ "$(sinfo --noheader --Node --states=idle --format=%N 2>/dev/null | sort -u | wc -l)" -eq $nodes ] && return
        sleep 0.1
    done
    failures=1
    echo "FAILED: the cluster did not start" >&2
    exit 1
}
