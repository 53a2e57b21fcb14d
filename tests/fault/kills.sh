#!/usr/bin/env bash
# A run is killed N times at random (one rank, all ranks, or mpirun; at any instant from its start) and resumed each
# time on another random number of ranks, which may share windows, with another random optim.shard. No checkpoint may be
# lost. With comm.reduce = reproducible the run must end with the curve and the bits of a run that was not killed, and
# with `fast` with the same losses.
#   kills.sh DTRAIN INTERPOSE N [SEED [REDUCE [RANKS:CONTEXT …]]]     a seed of 0: a random one
library=$2 kills=$3 seed=${4:-0} reduce=${5:-reproducible}
[ "$seed" != 0 ] || seed=$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')
splits=("${@:6}")
[ ${#splits[@]} -gt 0 ] || splits=(1:1 2:1 4:1)
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
export OMPI_MCA_odls_base_sigkill_timeout=1
echo "seed $seed"
RANDOM=$seed
small_run
every=5 steps=$((kills * 25 + 50))
cat >>small.ini <<END
[checkpoint]
every = $every
keep = 3
END
# Four norm blocks, so that each of four ranks has one to hold.
sed -i -e 's/^d_model = .*/d_model = 136/;s/^seq_len = .*/seq_len = 16/' -e "s/^steps = .*/&0/;s/^precision = .*/&\nthreads = 1/" -e "s/^batch = .*/&\nmicro_batch = 2/" -e "s/^every = 1$/every = 1\neval_every = 50\neval_batches = 1/" small.ini
name=killed levels=(false states gradients weights)
settings=(small.ini comm.reduce="$reduce")
if printf '%s\n' "${splits[@]}" | grep -qv ':1$'; then
    # An odd length in four segments. Differences of rounding grow over the steps and with the rate.
    steps=$((kills * 12 + 50))
    settings+=(data.seq_len=250 data.batch=4 data.micro_batch=1 model.segment=64 optim.lr=3e-4)
    [ "$reduce" = fast ] || levels=(false states) # segments allow no other levels with these sums
fi
settings+=(run.steps=$steps)
"$dtrain" "${settings[@]}" run.name=whole >whole.log 2>&1 || { tail -n 5 whole.log >&2; exit 1; }
# Every write takes a while, so that the run is slow and many kills come in the middle of a save.
slowly=(env FAULT="call=write path=runs/killed/ at=1 times=0 do=8" LD_PRELOAD="$library")
fast_mpirun=("${local_mpirun[@]}")
local_mpirun=("${slowly[@]}" "${fast_mpirun[@]}")

newest() { # step of the newest checkpoint, 0: none
    local last
    last=$(ls -d runs/killed/checkpoints/step-* 2>/dev/null | tail -n 1)
    echo "$((10#0${last##*-}))"
}
begin() { # sets n, split, shard and the command's arguments at random
    split=${splits[RANDOM % ${#splits[@]}]}
    n=${split%:*}
    shard=${levels[RANDOM % ${#levels[@]}]}
    start "$n" "${settings[@]}" run.name=killed "optim.shard=$shard" "comm.context=${split#*:}"
}
reaches() { # step: waits for the console's lines, because the curve still has steps that the run will repeat
    for _ in $(seq 600); do
        local line
        line=$(grep -a 'step [0-9]*/' killed.log | tail -n 1)
        line=${line#*step }
        [ "${line%%/*}" ] && [ "${line%%/*}" -ge "$1" ] && return
        sleep 0.05
    done
}
has_saved() {
    [ "$(newest)" -gt "$from" ]
}
kill_at_random() { # kills processes of $job at random and prints which
    local pids what=$((RANDOM % 3))
    mapfile -t pids < <(pgrep -P "$job")
    if [ $what = 0 ] || [ ${#pids[@]} -eq 0 ]; then
        echo "mpirun" && kill -KILL "$job"
    elif [ $what = 1 ]; then
        echo "all ranks" && kill -KILL "${pids[@]}"
    else
        echo "one rank" && kill -KILL "${pids[RANDOM % ${#pids[@]}]}"
    fi
}

saved=0
for i in $(seq "$kills"); do
    from=$(newest)
    begin
    if [ $((i % 3)) = 0 ]; then # every third kill comes after a save, however slow the disk is, so that the run progresses
        wait_until has_saved
    elif [ $((RANDOM % 4)) = 0 ]; then # during start-up, mostly
        sleep 0.$((RANDOM % 10))
    else
        reaches $((from + 1 + RANDOM % (4 * every))) && sleep 0.0$((RANDOM % 10))
    fi
    mapfile -t pids < <(pgrep -P "$job")
    who=$(kill_at_random 2>/dev/null)
    for _ in $(seq 100); do # without mpirun the ranks end by themselves
        ps -o stat= -p "$(tr ' ' , <<<"${pids[*]:-1}")" | grep -qv '^Z' || break
        [ ${#pids[@]} -gt 0 ] || break
        sleep 0.1
    done
    # PMIx sometimes deadlocks when mpirun ends a job whose ranks died while they started.
    for _ in $(seq 200); do
        ps -o stat= -p "$job" | grep -qv '^Z' || break
        sleep 0.1
    done
    kill -KILL "$job"
    wait "$job"
    now=$(newest)
    echo "kill $i: $who of $n, split $split, shard $shard, at step $(steps_done killed), newest checkpoint $now"
    check "kill $i ($who of $n): the checkpoint of step $from was lost, the newest is $now" test "$now" -ge "$from"
    check "kill $i: the start before it resumed from step $from: $(grep -a resuming killed.log)" \
        eval '[ "$from" = 0 ] || ! grep -aq "step [0-9]*/" killed.log || grep -q "resuming from .*at step $from$" killed.log'
    check "kill $i: the run ended before its time" test "$now" -lt "$steps"
    saved=$((saved + (now > from)))
done 2>/dev/null
check "the run got on between kills: $saved times" test $saved -ge $((kills / 3))
local_mpirun=("${fast_mpirun[@]}")
begin
wait "$job"
check "the same command completes" test $? -eq 0
last=checkpoints/step-$(printf %08d "$steps")/model.safetensors
if [ "$reduce" = fast ]; then
    check "the losses of a run that was left alone" same_losses runs/whole/metrics.jsonl runs/killed/metrics.jsonl 1e-6
else
    check "the final weights have the bits of a run that was left alone" cmp "runs/killed/$last" "runs/whole/$last"
    check "so has the curve" cmp <(train_lines runs/killed/metrics.jsonl) <(train_lines runs/whole/metrics.jsonl)
fi
check "so is its validation" near <(evals whole) <(evals killed) 1e-6
for checkpoint in runs/killed/checkpoints/step-*; do
    check "$checkpoint is whole" "$dtrain" verify "$checkpoint" >verify.log 2>&1
done
finish
