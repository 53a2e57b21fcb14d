#!/usr/bin/env bash
# comm.reduce = reproducible: losses, norms, validation, weights and optimizer states have the same bits on 1, 2, 4 and
# 8 ranks, with any number of threads, in fp32 and bf16, and through kills and resumes on other numbers of ranks. With
# `short` as the third argument: fp32 on one rank and on four, and what is refused.
#   reproducible.sh DTRAIN INTERPOSE [short]
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
size=${3:-whole}
small_run
precisions=(fp32 bf16) counts=(1 2 4 8)
[ "$size" = whole ] || precisions=(fp32) counts=(1 4)
sed -i 's/^batch = .*/batch = 16\nmicro_batch = 2/; s/^steps = .*/steps = 6/' small.ini
printf '[comm]\nreduce = reproducible\n' >>small.ini
last=checkpoints/step-00000006

curves() { # run: its lines of training and validation without times
    sed -nE 's/,"(step_ms|stall_ms)".*//; s/.*"event":"(train|eval)",//p' "runs/$1/metrics.jsonl"
}
differ() { # checkpoint A, checkpoint B
    ! same_bits "$@" >/dev/null
}
alike() { # run, run it must be like, last checkpoint
    check "$1 has every bit of $2" same_bits "runs/$1/$3" "runs/$2/$3"
    check "… of its moving average" cmp "runs/$1/$3/ema.safetensors" "runs/$2/$3/ema.safetensors"
    check "… of its losses, norms and validation" cmp <(curves "$1") <(curves "$2")
    check "… which are there" test "$(curves "$1" | wc -l)" -ge 6
}

# Rows are larger and smaller than a norm block, and no block divides their sizes; buckets hold one row or many.
sizes=(model.d_model=40 model.d_state=5 model.dt_rank=3 model.d_conv=3 data.seq_len=37 model.vocab_size=2003)
for precision in "${precisions[@]}"; do
    common=(small.ini "${sizes[@]}" "run.precision=$precision" optim.ema=0.9 log.eval_every=3 log.eval_batches=3
        comm.verify_replicas=3)
    one=$precision-1
    for n in "${counts[@]}"; do
        name=$precision-$n
        check "$precision on $n ranks" ranks "$n" "${common[@]}" run.threads=$((1 + (n == 1))) run.name="$name" \
            comm.bucket_mb=0.$((n * 3)) >"$name.log" 2>&1
        [ "$name" = "$one" ] || alike "$name" "$one" $last
    done
    [ "$size" = whole ] || continue
    name=$precision-threads
    check "two ranks of two threads" ranks 2 "${common[@]}" run.threads=2 run.name="$name" >"$name.log" 2>&1
    alike "$name" "$one" $last
done
if [ "$size" = whole ]; then
    check "another micro-batch gives other bits" ranks 1 "${common[@]}" data.micro_batch=4 run.name=other >other.log 2>&1
    check "… so these tests can fail" differ runs/other/$last runs/bf16-1/$last

    # Killed on one rank, then on four, at the end on two.
    common=(small.ini run.steps=40 model.d_model=96 data.seq_len=96 checkpoint.every=3 optim.ema=0.9)
    check "a whole run" ranks 2 "${common[@]}" run.name=whole >whole.log 2>&1
    name=killed
    for n in 1 4; do
        slow_start "$library" $name $((n == 1 ? 6 : 10)) $n "${common[@]}" run.name=$name
        check "training on $n ranks is under way" wait_for_step $name $((n == 1 ? 5 : 20))
        mapfile -t pids < <(for rank in 0 1 2 3; do rank_pid $rank; done)
        kill -KILL "$job" "${pids[@]}" # at once
        wait $job 2>/dev/null
        check "it was killed before its end" test "$(steps_done $name)" -lt 40
    done
    check "the rest on two ranks" ranks 2 "${common[@]}" run.name=$name >$name.log 2>&1
    check "… resumes" grep -q 'resuming from runs/killed/checkpoints/step-0000' $name.log
    alike killed whole checkpoints/step-00000040

    # Carried state, and validation with its own command.
    carry=(small.ini data.shuffle=false data.carry_state=true optim.ema=0.9)
    check "carried state on one rank" ranks 1 "${carry[@]}" run.name=carry-1 >carry-1.log 2>&1
    check "carried state on four" ranks 4 "${carry[@]}" run.name=carry-4 >carry-4.log 2>&1
    alike carry-4 carry-1 $last
    check "… of the states" cmp runs/carry-4/$last/carried.safetensors runs/carry-1/$last/carried.safetensors
    check "dtrain eval on one rank" ranks 1 eval "${carry[@]}" run.name=carry-1 >eval-1.txt 2>eval-1.log
    check "… and on four" ranks 4 eval "${carry[@]}" run.name=carry-1 >eval-4.txt 2>eval-4.log
    check "… the same line" cmp eval-1.txt eval-4.txt
fi

refused "three ranks" 'comm.reduce: reproducible needs a power of two of ranks, not 3: start 2 or 4' ranks 3 small.ini run.name=refused

# The plan includes the arenas of partial sums: log2 of a rank's eight micro-batches.
sums=$("$dtrain" --check small.ini | sed -n 's/^ *gradient sums *\([0-9.]*\) MiB/\1/p')
gradients=$("$dtrain" --check small.ini | sed -n 's/^ *gradients *\([0-9.]*\) MiB/\1/p')
check "--check plans gradient sums of $sums MiB, gradients of $gradients" awk -v s="$sums" -v g="$gradients" \
    'BEGIN { d = s - 3 * g; exit !(g > 0 && d < 0.2 && d > -0.2) }'
finish
