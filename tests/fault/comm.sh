# One rank of four dies, stalls or fails: the job ends in time, with the right exit code and no stray process, and
# dtrain's last line names rank, host, step, phase and what to do.
#   comm.sh DTRAIN VICTIM
victim=$2
# shellcheck source=tests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

alive() { # processes of this job, not zombies
    ps -eo stat=,args= | grep -F " $victim " | grep -v '^Z' | grep -vq 'mpirun\|comm\.sh\|grep'
}

last_line() { # but that MPI was slow to start, on a busy machine
    grep -a '^dtrain: ' err | grep -av 'warning: MPI took' | tail -1
}

fate() { # expected exit code, expected last line (a pattern of grep -E), arguments of the victim
    local want=$1 pattern=$2 code took
    shift 2
    rm -f fate
    timeout 60 mpirun --oversubscribe --bind-to none -np 4 "$victim" "$@" >out 2>err
    code=$?
    took=$(seconds_since fate)
    check "$*: exit code $code, not $want" test "$code" -eq "$want"
    check "$*: took $took s from its fate to the end" test "$took" -le $((10 + ${lasts:-0}))
    check "$*: last line '$(last_line)' is not '$pattern'" grep -qE "$pattern" <<<"$(last_line)"
    check "$*: $(grep -ac '^dtrain: error' err) ranks spoke" test \
        "$(grep -ac '^dtrain: error' err)" -eq "$([ -n "$pattern" ] && [ "$pattern" != '^$' ] && echo 1 || echo 0)"
    check "$*: a process is left" wait_until eval '! alive'
}

# As launched by hand, where mpirun kills one second after SIGTERM; it would sleep through a longer delay.
export OMPI_MCA_odls_base_sigkill_timeout=1
host=$(uname -n)
resume='the job ends\..* with the same command'
at='at step 41 during backward'
fate 0 '^$' none 0
fate 0 '^$' late 1
fate 0 '^$' term 0
lasts=6 fate 0 '^$' busy 0 2 # longer than the time-out, and says that it is at work
fate 2 "rank 1 on $host: the shard is broken" agree 1
fate 3 "rank 2 on $host, step 41, backward: the disk is full" fail 2
fate 3 "rank 0 on $host, step 41, backward: the disk is full" fail 0
# 128 + SIGKILL is mpirun's own code for a rank that was killed
fate 137 "rank 1 on host $host \(pid [0-9]+\) died $at; $resume" kill 1
fate 137 "rank 0 on host $host \(pid [0-9]+\) died $at; $resume" kill 0
fate 3 "rank 1 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $at: .* = 2 s for it; $resume" stop 1 2
fate 3 "rank 1 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $at: .* = 2 s for it; $resume" within 1 2
fate 3 "rank 0 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $at: .* = 2 s for it; $resume" within 0 2
fate 3 "rank 0 on host $host \(pid [0-9]+\) is stalled $at: .* = 2 s for it; $resume" busy-hang 0 2
fate 3 "rank 2 on host $host \(pid [0-9]+\) \(and 1 other\) is stalled $at: .* = 2 s for it; $resume" sleep 2 2
fate 3 "rank 2 on host $host \(pid [0-9]+\) is stalled $at: .* = 2 s for it; $resume" mute 2 2
finish
