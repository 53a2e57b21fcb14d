# One of four ranks dies, stalls or fails while the others wait for it in an all-reduce or an exchange. The job must end
# in time with the right exit code and no stray process, and dtrain's last line must name rank, host, step, phase and
# what to do.
#   comm.sh DTRAIN VICTIM sum | exchange | hand-on | swap
victim=$2 mode=$3
# shellcheck source=tests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

alive() { # processes of job $1, not zombies
    ps -eo stat=,args= | grep -F " $PWD/$1/victim " | grep -v '^Z' | grep -vq 'mpirun\|comm\.sh\|grep'
}

last_line() { # of job $1, ignoring that MPI was slow to start on a busy machine
    grep -a '^dtrain: ' "$1/err" | grep -av 'warning: MPI took' | tail -1
}

# Starts a job in its own folder. Jobs mostly wait, so two run at a time.
jobs=0 wants=() patterns=() fates=()
fate() { # expected exit code, expected last line (a pattern of grep -E), arguments of the victim
    local job=$((++jobs))
    wants[job]=$1 patterns[job]=$2 fates[job]=${*:3}
    mkdir $job
    ln -s "$victim" $job/victim
    [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n
    (
        cd $job || exit
        timeout 60 mpirun --oversubscribe --bind-to none -np 4 "$PWD/victim" "$mode" "${@:3}" >out 2>err
        echo $? >code
        seconds_since fate >took
    ) &
}

verdict() { # job
    local want=${wants[$1]} pattern=${patterns[$1]} fate=${fates[$1]} code took most=10
    code=$(cat "$1/code") took=$(cat "$1/took")
    [[ $fate != "busy "* ]] || most=14
    check "$fate: exit code $code, not $want" test "$code" -eq "$want"
    check "$fate: took $took s from its fate to the end" test "$took" -le $most
    check "$fate: last line '$(last_line "$1")' is not '$pattern'" grep -qE "$pattern" <<<"$(last_line "$1")"
    check "$fate: $(grep -ac '^dtrain: error' "$1/err") ranks spoke" test \
        "$(grep -ac '^dtrain: error' "$1/err")" -eq "$([ "$pattern" != '^$' ] && echo 1 || echo 0)"
    check "$fate: a process is left" wait_until eval "! alive $1"
}

# As if launched by hand: mpirun kills one second after SIGTERM, which a longer delay would hide.
export OMPI_MCA_odls_base_sigkill_timeout=1
host=$(uname -n)
resume='the job ends\..* with the same command'
at='at step 8 during backward'
fate 0 '^$' none 0
fate 0 '^$' late 1
fate 0 '^$' term 0
fate 0 '^$' busy 0 2 # it takes longer than the time-out, but reports that it is busy
fate 2 "rank 1 on $host: the shard is broken" agree 1
fate 3 "rank 2 on $host, step 8, backward: the disk is full" fail 2
fate 3 "rank 0 on $host, step 8, backward: the disk is full" fail 0
# mpirun's exit code for a killed rank is 128 + SIGKILL
fate 137 "rank 1 on host $host \(pid [0-9]+\) died $at; $resume" kill 1
fate 137 "rank 0 on host $host \(pid [0-9]+\) died $at; $resume" kill 0
fate 3 "rank 1 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $at: .* = 2 s for it; $resume" stop 1 2
fate 3 "rank 1 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $at: .* = 2 s for it; $resume" within 1 2
fate 3 "rank 0 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $at: .* = 2 s for it; $resume" within 0 2
fate 3 "rank 0 on host $host \(pid [0-9]+\) is stalled $at: .* = 2 s for it; $resume" busy-hang 0 2
and=' \(and 1 other\)'
[[ $mode != hand-on && $mode != swap ]] || and= # nobody waits for rank 3 yet
fate 3 "rank 2 on host $host \(pid [0-9]+\)$and is stalled $at: .* = 2 s for it; $resume" sleep 2 2
if [[ $mode == exchange || $mode == hand-on ]]; then # a rank that lies
    got="rank $([ $mode = exchange ] && echo 2 || echo 0) on $host, step 8, backward: receive: rank 1 sent"
    fate 3 "$got 300000 bytes instead of 600000" short 1
    fate 3 "$got more than 600000 bytes" long 1
    fate 3 "$got other data than this rank expects: signature 7 instead of 8" other 1
fi
wait
for ((job = 1; job <= jobs; job++)); do verdict $job; done
finish
