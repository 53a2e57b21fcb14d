#!/usr/bin/env bash
# Ranks on two hosts (namespaces of this machine, joined by veth, with a launch agent in place of ssh) that reach each
# other over TCP alone: a rank dies, the network is cut, or MPI hangs while a rank dies. The ranks end in time, the last
# words name rank and host, and state.json has them, whichever rank died.
#   hosts.sh DTRAIN INTERPOSE
namespaces=(unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc)
if [ -z "${DTRAIN_TEST_HOST+set}" ]; then
    for program in unshare nsenter ip; do
        command -v $program >/dev/null || { echo "skipped: needs $program" >&2; exit 77; }
    done
    "${namespaces[@]}" ip link add dt0 type veth peer name dt1 2>/dev/null ||
        { echo "skipped: needs root and network namespaces" >&2; exit 77; }
    DTRAIN_TEST_HOST=a exec "${namespaces[@]}" bash "$0" "$@"
fi
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
hostname a
mount -t tmpfs tmpfs /dev/shm
"${namespaces[@]}" bash -c 'hostname b && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec sleep 3600' &
wait_until eval 'other=$(pgrep -x sleep)' || exit 1
ip link add dt0 type veth peer name dt1 netns "$other" || exit 1
ip addr add 10.77.0.1/24 dev dt0
ip link set lo up
ip link set dt0 up
nsenter -t "$other" -n ip addr add 10.77.0.2/24 dev dt1
nsenter -t "$other" -n ip link set dt1 up
cat >agent <<END
#!/usr/bin/env bash
shift # the host: there is one
exec nsenter -t $other -a -r sh -c "cd '$PWD' && \$*"
END
chmod +x agent
export OMPI_MCA_odls_base_sigkill_timeout=1 OMPI_MCA_btl=self,tcp
mkdir -p runs
small_run
sed -i 's/^every = 1$/every = 100/' small.ini
host_mpirun=(mpirun --oversubscribe --bind-to none --mca plm_rsh_agent "$PWD/agent" -H a:1,b:1)

begin() { # name, command before dtrain …
    name=$1
    shift
    "${host_mpirun[@]}" -np 2 "$@" "$dtrain" small.ini run.name="$name" run.steps=20000 checkpoint.every=20 \
        comm.timeout_s=4 >"$name.log" 2>&1 &
    job=$!
    check "$name: training is under way" wait_for_step "$name" 30
}
rank_on() { # rank: its process as this host sees it
    # shellcheck disable=SC2046 # process numbers
    with_variable "OMPI_COMM_WORLD_RANK=$1" $(pgrep -x dtrain)
}
alive() { # ranks, without zombies: nothing reaps those on the other host
    pgrep -r R,S,D,T -cx dtrain
}
ends() { # pattern of the words, seconds
    local code since=$SECONDS
    for _ in $(seq $(($2 * 10))); do
        [ "$(alive)" = 0 ] && break
        sleep 0.1
    done
    check "$name: $(alive) ranks are left after $2 s" test "$(alive)" = 0
    [ $name != cut ] || kill -KILL "$job" # mpirun waits for the other host for ever; launch/train.sbatch ends it
    wait "$job" 2>/dev/null
    code=$?
    check "$name: exit code $code after $((SECONDS - since)) s" test $code -eq 137
    check "$name: one rank spoke here" test "$(grep -ac '^dtrain: error' $name.log)" -eq 1
    check "$name: $(last_line) is not '$1'" grep -qE "^dtrain: error: .*$1" <(last_line)
    check "$name: $(cat runs/$name/state.json)" grep -qE '"state":"failed","step":[1-9][0-9]*,"reason":"rank [01] on host [ab]' \
        runs/$name/state.json
}

died='died at step [1-9][0-9]* during [a-z ]+, or its host cannot be reached; the job ends'
for rank in 1 0 unheard; do
    begin killed-$rank
    if [ $rank = unheard ]; then # the launcher is late, or silent as srun: the time-out comes before the silence is noticed
        rank=0 victim=$(rank_on 0)
        kill -STOP "$job"
        kill -KILL "$victim"
        wait_until grep -q '"failed"' runs/$name/state.json
        kill -CONT "$job"
    else
        kill -KILL "$(rank_on $rank)"
    fi
    ends "rank $rank on host $([ $rank = 0 ] && echo a || echo b) \(pid [0-9]+\) $died" 8
done
# Open MPI 4 would pass its warning to mpirun and wait for it.
[[ $(mpirun --version) != *"Open MPI) 4."* ]] || check "a warning of Open MPI's is logged as one line" grep -qa \
    '^dtrain: warning: Open MPI says: .*peer' killed-1.log

# The communication thread of one rank hangs inside MPI, and the other rank dies: the guard reports it.
hangs=(env FAULT="call=mpi rank=0 when=$PWD/hang at=1 do=60000" FAULT_LOG="$PWD/hung.log" LD_PRELOAD="$library")
hang() { # waits until the thread hangs
    rm -f hung.log
    touch hang
    check "$name: rank 0 hangs inside MPI" wait_until test -s hung.log
}
for place in local distant; do
    [ $place = distant ] || { many=("${host_mpirun[@]}") && host_mpirun=(mpirun --oversubscribe --bind-to none); }
    begin hung-$place "${hangs[@]}"
    [ $place = distant ] || host_mpirun=("${many[@]}")
    victim=$(rank_on 1)
    hang
    kill -KILL "$victim"
    rm hang
    ends "rank 1 on host $([ $place = local ] && echo a || echo b) \(pid [0-9]+\) died at step [1-9]" 8
done

# The same with a silent launcher, as srun with --kill-on-bad-exit=0: the guard reports it at the time-out.
begin hung-unheard "${hangs[@]}"
victim=$(rank_on 1)
kill -STOP "$job"
hang
kill -KILL "$victim"
wait_until grep -q '"failed"' runs/$name/state.json # mpirun would pass the words on, but they are also in the run's folder
rm hang
kill -CONT "$job"
ends "rank 1 on host b \(pid [0-9]+\) died at step [1-9]" 8

begin cut
ip link set dt0 down
ends "rank 1 on host b \(pid [0-9]+\) $died" 16
ip link set dt0 up
check "after the cut the same command resumes" "${host_mpirun[@]}" -np 2 "$dtrain" small.ini run.name=cut \
    run.steps=$(($(steps_done cut) + 20)) >again.log 2>&1
check "… and says how the previous job ended" grep -q 'the previous job failed at step .*: rank [01] on host' again.log
finish
