#!/usr/bin/env bash
# If NCCL fails, the job ends in time and never hangs. Every rank writes its last collectives, and the last words say
# who, where, when and what to do.
#   nccl_faults.sh DTRAIN NCCL_VICTIM
victim=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../../lib.sh"
export OMPI_MCA_odls_base_sigkill_timeout=1
host=$(uname -n)

run() { # name, ranks, arguments of the victim …
    name=$1
    local n=$2
    shift 2
    mkdir "$name"
    SIMT_DEVICES=$n timeout 60 "${local_mpirun[@]}" --wdir "$PWD/$name" -np "$n" "$victim" "$@" >$name.log 2>&1
    code=$? took=$(seconds_since $name/fate)
}
ends() { # exit code, most seconds from the fault to the end, pattern of the last line, pattern of the last words
    failed $code "$1" $took "$2" "$3" "$4"
}
record() { # rank, pattern of a line of its record
    check "$name: the record of rank $1 lacks '$2'" grep -qE "$2" <(sed -n \
        "/^nccl: rank $1 on $host, step 11, backward: the last collectives/,/^[^ ]/{/^nccl/p;/^  /p}" $name.log)
}
# There are two sums of 3000 fp32 in a step, so step 11 begins with the 21st.
sum='all-reduce 1 of 2, call 11, 12000 bytes of fp32:'
when='at step 11 during backward'
dies="died $when; the job ends\. Resume with the same command"

says_nothing() { # nothing except that MPI was slow to start on a busy machine
    check "$name: exit code $code" test $code -eq 0
    check "$name: says $(cat $name.log)" eval '! grep -qv "^dtrain: warning: MPI took" $name.log'
}
run well 2 none 0
says_nothing
run late 2 late 1 60
says_nothing
run idle 2 idle 1 2 # longer than the time-out, but a sum that begins afterwards has its own time
says_nothing

# Runs beside the others, since it takes a while, in which a peer's death could be found.
(SIMT_NCCL_ERROR=21@1 run error 2 none 0 && echo $code $took >error.ended) &

SIMT_NCCL_STALL=21@1 run stall 2 none 0 2
ends 3 12 "a collective of all ranks, $when, timed out after comm.timeout_s = 2 s" 'network between the hosts'
for rank in 0 1; do
    record $rank 'all-reduce 2 of 2, call 10, 12000 bytes of fp32: done'
    record $rank "$sum running for [12]\.[0-9] s"
    record $rank 'all-reduce 2 of 2, call 11, 12000 bytes of fp32: not started'
done

# The second sum was called two times more often than the first.
SIMT_NCCL_STALL=23@1 run uneven 2 uneven 0 2
ends 3 12 "a collective of all ranks, $when, timed out after comm.timeout_s = 2 s" 'network between the hosts'
for rank in 0 1; do
    check "uneven: the record of rank $rank has each sum in its order" test "$(sed -n "/^nccl: rank $rank /,/^[^ ]/s/^  \(all-reduce [12] of 2, call [0-9]*\),.*: \([a-z]*\).*/\1 \2/p" uneven.log)" = \
        "all-reduce 2 of 2, call 12 done
all-reduce 1 of 2, call 11 running
all-reduce 2 of 2, call 13 not
all-reduce 1 of 2, call 12 not"
done

for deaf in "" 1; do
    [ -n "$deaf" ] && export SIMT_NCCL_DEAF=1
    run killed$deaf 4 kill 1
    ends 137 10 "rank 1 on host $host \(pid [0-9]+\) $dies" .
    for rank in 0 2 3; do
        record $rank "$sum running"
    done
done
unset SIMT_NCCL_DEAF
SIMT_NCCL_STALL=21 run killed-within 2 kill-within 0
ends 137 10 "rank 0 on host $host \(pid [0-9]+\) $dies" .
record 1 "$sum running"

run stopped 4 stop 1 2
ends 3 12 "rank 1 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $when: .*timeout_s = 2 s" 'resume with the same command'
for rank in 0 2 3; do
    record $rank "$sum running"
done
run asleep 2 sleep 0 2
ends 3 12 "rank 0 on host $host \(pid [0-9]+\) is stalled $when: .*timeout_s = 2 s" 'resume with the same command'
record 0 "$sum not started"
record 1 "$sum running"

run mute 3 mute 1 2
ends 3 12 "rank 1 on host $host \(pid [0-9]+\) is stalled $when: .*timeout_s = 2 s" 'resume with the same command'
record 0 'receive 3 of 3, call 1, 4 bytes of fp32: running'

# In a message that goes round three ranks; a call of NCCL between two ranks came before the first.
run ring-well 3 ring-none 0
says_nothing
for deaf in "" 1; do
    [ -n "$deaf" ] && export SIMT_NCCL_DEAF=1
    run ring-killed$deaf 3 ring-kill 1
    ends 137 10 "rank 1 on host $host \(pid [0-9]+\) $dies" .
    record 0 'send 3 of 6, call 11: running'
    record 2 'receive 5 of 6, call 11: running'
done
unset SIMT_NCCL_DEAF
SIMT_NCCL_STALL=12 run ring-killed-within 3 ring-kill-within 1
ends 137 10 "rank 1 on host $host \(pid [0-9]+\) $dies" .
record 2 'receive 5 of 6, call 11: running'
run ring-stopped 3 ring-stop 1 2
ends 3 12 "rank 1 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $when: .*timeout_s = 2 s" 'resume with the same command'
run ring-asleep 3 ring-sleep 1 2
ends 3 12 "rank 1 on host $host \(pid [0-9]+\) is stalled $when: .*timeout_s = 2 s" 'resume with the same command'

run fails 2 fail 1
ends 3 10 "rank 1 on $host, step 11, backward: the disk is full" 'hint: free some space'

# Failures at the start, and during a call.
run killed-opening 2 kill-opening 1
ends 137 10 "rank 1 on host $host \(pid [0-9]+\) died before the first step, during start-up; the job ends" .
SIMT_NCCL_HANG=2 run hang 2 none 0 2
ends 3 12 "a collective of all ranks, before the first step, .*timeout_s = 2 s" 'network between the hosts'
SIMT_NCCL_HANG=2@1 run hangs 2 none 0 2
ends 3 12 "rank 1 on host $host \(pid [0-9]+\) is stalled before the first step, .*timeout_s = 2 s" 'resume with the same command'
SIMT_UUID=same run shared 2 none 0
ends 3 10 "rank 0 on $host \(and 1 other rank\): ncclCommInitRankConfig failed: invalid usage" 'hint: give each rank its own GPU'
mkdir broken
: >broken/libnccl.so.2 # a real library is not found instead, if there is one
LD_LIBRARY_PATH=$PWD/broken:$LD_LIBRARY_PATH run missing 2 none 0
ends 2 10 "NCCL cannot be loaded: .*libnccl.so.2" 'hint: install NCCL .*comm.backend = mpi'
wait
name=error
read -r code took <error.ended
ends 3 12 "rank 1 on $host, step 11, backward: a collective between GPUs failed: unhandled system error" 'hint: set NCCL_DEBUG=WARN'
record 0 "$sum (running|not started)" # the device may reach it later
record 1 "$sum running"
finish
