#!/usr/bin/env bash
# A rank dies, stalls or reads bad data during a run. The job must end in time, dtrain's last words must say who, where,
# when and what to do, no process may remain, the last checkpoint must be whole, and the same command must resume.
#   rank_dies.sh DTRAIN SHARD_TOOL INTERPOSE
shard_tool=$(realpath "$2") library=$3
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

# As if launched by hand: mpirun kills one second after SIGTERM.
export OMPI_MCA_odls_base_sigkill_timeout=1
host=$(uname -n)
# In memory if possible, because a rank that waits for a slow disk looks stalled.
memory=$(mktemp -d -p /dev/shm 2>/dev/null) && trap 'rm -rf "$memory" "$temporary"' EXIT && ln -s "$memory" runs
T=48 S=420 batch=8
# Slot 4, the first of rank 2, starts at token 4*S*T. A checksum covers 16384 tokens. No other slot reads the first
# block of them after that place at step 27; the reader is ahead by a block of 4 windows and 2 batches.
bad_step=27
bad_token=$(((4 * S + bad_step - 1) * T + 40))
bad_hash=$((bad_token / 16384 * 16384))

tokens=$((S * batch * T + 1))
mkdir -p raw
"$shard_tool" tokens raw/plain.h5 $tokens || exit 1
head -c $tokens /dev/zero | tr '\0' 'a' >raw/bytes # a shard with checksums of the same size
"$dtrain" pack --format u8 --vocab 128 --val 0 -o packed raw/bytes >pack.log 2>&1 || { cat pack.log >&2; exit 1; }
cp packed/train-00000.h5 raw/hashed.h5

cat >job.ini <<END
[run]
steps = 200
precision = fp32
threads = 1
[model]
d_model = 48
n_layer = 3
vocab_size = 128
[data]
seq_len = $T
batch = $batch
block = 4
shuffle = false
[optim]
lr = 3e-3
[checkpoint]
every = 5
keep = 2
END

alive() { # processes: is one of them alive, not a zombie?
    ps -o stat= -p "$(tr ' ' , <<<"$*")" | grep -qv '^Z'
}

# Waits for the end of the job and checks what it left.
ends() { # exit code, seconds, pattern of the last line, pattern of the last words (what to do)
    local start=$SECONDS
    wait "$job"
    failed $? "$1" $((SECONDS - start)) "$2" "$3" "$4"
    check "$name: state.json has not step and reason: $(cat runs/$name/state.json)" grep -qE \
        "^\{\"state\":\"failed\",\"step\":[1-9][0-9]*,\"reason\":\".*$3" runs/$name/state.json
    check "$name: a process is left" wait_until eval '! alive "${pids[@]}"'
    check "$name: the newest checkpoint is whole" "$dtrain" verify "$(newest "runs/$name")" >$name.verify 2>&1
}
resumes() { # arguments: the same command, with good data again
    local from
    from=$(basename "$(newest "runs/$name")")
    check "$name: the same command completes" ranks 4 job.ini run.name="$name" "$@" >$name.again 2>&1
    check "$name: … from $from" grep -q "resuming from runs/$name/checkpoints/$from" $name.again
    check "$name: … says how the previous job failed" grep -qE "the previous job failed at step [1-9][0-9]*: .*rank" $name.again
    check "$name: … and says complete" grep -q '"state":"complete","step":200' runs/$name/state.json
    check "$name: one step has one line" test "$(train_lines runs/$name/metrics.jsonl | cut -d' ' -f1 | sort -nu | wc -l) \
$(train_lines runs/$name/metrics.jsonl | wc -l)" = "200 200"
}
begin() { # name, arguments …
    name=$1
    shift
    start 4 job.ini run.name="$name" "$@"
    check "$name: four ranks" wait_until eval 'mapfile -t pids < <(pgrep -P "$job") && [ ${#pids[@]} -eq 4 ]'
}
signal_rank() { # signal, rank: sends the signal when the run is at step 11
    check "$name: training is under way" wait_for_step $name 11
    kill "-$1" "$(rank_pid "$2")"
}

resume='the job ends\. Resume with the same command'
when='at step [1-9][0-9]+ during [a-z ]+'
for rank in 2 0; do
    begin killed-$rank data.train=raw/plain.h5
    signal_rank KILL $rank
    # 128 + SIGKILL is mpirun's own exit code for a killed rank.
    ends 137 10 "rank $rank on host $host \(pid [0-9]+\) died $when" "$resume"
    resumes data.train=raw/plain.h5
done

# The rank that reports is slow, as a file system may be, and its patience ends meanwhile. The slow write is that of its
# last words, since no checkpoint is reported within hundreds of steps.
export FAULT="call=write path=pipe: rank=0 when=$PWD/slow at=1 do=500" LD_PRELOAD=$library
begin slow-words data.train=raw/plain.h5 log.every=20000 checkpoint.every=300 run.steps=20000
unset FAULT LD_PRELOAD
check "$name: its checkpoint was reported" wait_until grep -q 'checkpoint .*step-00000300' $name.log
touch slow
kill -KILL "$(rank_pid 2)"
ends 137 10 "rank 2 on host $host \(pid [0-9]+\) died $when" "$resume"

# All heartbeats of rank 3 go through these two ranks. It would report as well, and has time to.
OMPI_MCA_odls_base_sigkill_timeout=3 begin pair data.train=raw/plain.h5 run.steps=20000
check "$name: training is under way" wait_for_step $name 11
kill -KILL "$(rank_pid 1)" "$(rank_pid 2)"
ends 137 10 "rank [12] on host $host \(pid [0-9]+\)( \(and 1 other\))? died $when" "$resume"

begin all-killed data.train=raw/plain.h5
check "$name: training is under way" wait_for_step $name 11
kill -KILL "$job" "${pids[@]}"
wait "$job" 2>/dev/null
step=$(steps_done $name)
check "$name: the same command completes" ranks 4 job.ini run.name=$name data.train=raw/plain.h5 >$name.again 2>&1
check "$name: … and says how the previous job ended: $(head -n 3 $name.again)" grep -qE \
    "warning: the previous job \(process [0-9]+ on host $host\) ended without a message at step $step: it was killed" $name.again

begin stopped data.train=raw/plain.h5 comm.timeout_s=3
signal_rank STOP 1
ends 3 13 "rank 1 on host $host \(pid [0-9]+\) is suspended \(SIGSTOP\) $when: .*timeout_s = 3 s" 'resume with the same command'
resumes data.train=raw/plain.h5 comm.timeout_s=3

# A token outside the vocabulary that only one rank reads, in a shard without checksums and with verify off.
outside="rank 2 on $host, step $bad_step, reading data: .*/tokens at offset $bad_token is 200, outside the vocabulary of 128"
mkdir data
for verify in true false; do
    kind=$([ $verify = true ] && echo plain || echo hashed)
    cp raw/$kind.h5 data/$kind.h5
    "$shard_tool" poke data/$kind.h5 $bad_token 200 || exit 1
    begin token-$kind data.train=data/$kind.h5 data.verify=$verify
    check "$name: training is under way" wait_for_step $name 20
    ends 2 10 "$outside" 'hint: set model.vocab_size'
    check "$name: the steps before it were trained" test "$(steps_done $name)" -eq $((bad_step - 1))
    cp raw/$kind.h5 data/$kind.h5
    again=(data.train=data/$kind.h5 data.verify=$verify)
    if [ $kind = plain ]; then # without checksums a repair looks like any other change
        check "$name: a repaired shard is refused" eval '! ranks 4 job.ini run.name=$name "${again[@]}" 2>$name.again'
        check "$name: … and what allows it is named" grep -q 'plain.h5, has different data (if it was repaired, data.allow_changed = true' $name.again
        again+=(data.allow_changed=true)
    fi
    resumes "${again[@]}"
done

# What rank 0 is about to log comes before the last words of rank 2.
"$shard_tool" poke data/plain.h5 $bad_token 200 || exit 1
export FAULT="call=write path=pipe: rank=0 at=1 times=0 do=60" LD_PRELOAD=$library
begin slow-log data.train=data/plain.h5 log.every=1
unset FAULT LD_PRELOAD
check "$name: training is under way" wait_for_step $name 20
ends 2 10 "$outside" 'hint: set model.vocab_size'

"$shard_tool" poke data/hashed.h5 $bad_token 100 || exit 1
begin checksum data.train=data/hashed.h5
check "$name: training is under way" wait_for_step $name 15
ends 2 10 "rank 2 on $host, step 2[0-9], reading data: .*data/hashed.h5.*$bad_hash" 'hint: .*'
check "$name: the steps before it were trained" test "$(steps_done $name)" -ge 20
cp raw/hashed.h5 data/hashed.h5
resumes data.train=data/hashed.h5
finish
