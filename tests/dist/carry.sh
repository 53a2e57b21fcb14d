#!/usr/bin/env bash
# Carried state: windows have the losses of one pass over the whole sequence, in training and in validation. The carried
# state has the same bits after a resume, also on other ranks.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
shard() { # folder, tokens
    seq 5000 | head -c "$2" >"$1.txt"
    "$dtrain" pack --val 0 -o "$1" "$1.txt" >"$1.log" 2>&1 || { cat "$1.log" >&2; exit 1; }
}
shard short 12289 # 384 windows of 32
shard parts 513   # eight windows of 64, two of 256
carry=(data.shuffle=false data.carry_state=true)

check "a trained model" "$dtrain" small.ini run.name=base run.steps=60 >base.log 2>&1
base=runs/base/checkpoints/step-00000060

losses() { # run: of its train lines
    train_lines "runs/$1/metrics.jsonl" | cut -d' ' -f2
}
mean() {
    awk '{ sum += $1 } END { print sum / NR }'
}
near() { # a, b, relative tolerance
    awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(a > 0 && d <= t * b && -d <= t * b) }'
}
# Losses of a model that does not change, since the learning rate is tiny.
frozen() { # run, overrides …
    local name=$1
    shift
    "$dtrain" small.ini run.name="$name" run.init_from=$base optim.lr=1e-30 optim.warmup_steps=0 data.val= \
        data.shuffle=false "$@" >"$name.log" 2>&1
}

# Eight windows of 64 tokens, one after the other and all at once. fp32 sums have another order; for bf16, which keeps 8
# bits, the mean of 512 losses is compared.
for reset in -1 10; do # a document starts at every newline
    for precision in fp32 bf16; do
        name=$precision-$reset
        tolerance=1e-5
        [ $precision = fp32 ] || tolerance=2e-3
        common=(run.precision=$precision data.batch=1 data.reset_token=$reset)
        check "$name: windows" frozen "$name-windows" "${common[@]}" data.carry_state=true data.seq_len=64 run.steps=8
        check "$name: one pass" frozen "$name-pass" "${common[@]}" data.carry_state=true data.seq_len=512 run.steps=1
        windows=$(losses "$name-windows" | mean) pass=$(losses "$name-pass" | mean)
        check "$name: windows give $windows, one pass $pass" near "$windows" "$pass" $tolerance
    done
done
check "windows without carried state" frozen apart data.batch=1 data.seq_len=64 run.steps=8
check "… give other losses" eval '! same_losses runs/apart/metrics.jsonl runs/fp32--1-windows/metrics.jsonl 1e-4 >apart.txt'
check "… but the same in the first window" bash -c '! grep "^step 1:" apart.txt'

# A small shard, so that epochs end: each of seven slots reads a part of it, from a state of zeros at the start of each
# epoch.
small=(data.train="short/*.h5" data.seq_len=32 data.batch=7 data.carry_state=true)
S=$("$dtrain" --check small.ini "${small[@]}" data.shuffle=false data.val= | sed -n 's/^steps: [0-9]*, \([0-9]*\) per.*/\1/p')
check "steps of an epoch: $S" test "${S:-0}" -gt 20
check "more than an epoch" frozen epochs "${small[@]}" run.steps=$((S + 2))
check "the second epoch starts from zeros" cmp <(losses epochs | sed -n 1,2p) <(losses epochs | sed -n $((S + 1)),$((S + 2))p)

# In validation, rows read parts of the shard; a batch of one row is one pass over it.
evaluate() { # n, overrides …
    local n=$1
    shift
    ranks "$n" eval small.ini run.name=base run.resume=$base "${carry[@]}" "$@" | eval_loss
}
read -r windows n <<<"$(evaluate 1 data.batch=1 data.seq_len=64 log.eval_batches=8)"
read -r pass m <<<"$(evaluate 1 data.batch=1 data.seq_len=512 log.eval_batches=1)"
check "validation of $n tokens in windows gives $windows, of $m in one pass $pass" near "$windows" "$pass" 1e-5
check "… the same tokens" test "$n" = 512 -a "$m" = 512
rows=$(evaluate 1 data.val="parts/*.h5" data.batch=2 data.seq_len=64)
wide=$(evaluate 1 data.val="parts/*.h5" data.batch=2 data.seq_len=256)
check "two rows walk two halves: $rows, $wide" near "${rows% *}" "${wide% *}" 1e-5
check "… the same tokens" test "${rows#* }" = 512 -a "${wide#* }" = 512
alone=$(evaluate 1) micro=$(evaluate 1 data.micro_batch=2) together=$(evaluate 2)
check "validation with micro-batches: $alone, $micro" near "${micro% *}" "${alone% *}" 1e-5
check "validation on two ranks: $alone, $together" near "${together% *}" "${alone% *}" 1e-5

# Training: the same losses on 1, 2 and 4 ranks, with any micro-batch.
S=48 # steps of an epoch
run=(small.ini "${carry[@]}" data.train="short/*.h5" data.seq_len=32 run.steps=$((S + 4)) checkpoint.every=9 checkpoint.keep=0
    log.eval_every=9 log.eval_batches=3)
last=checkpoints/$(printf 'step-%08d' $((S + 4)))
for variant in "1" "2" "4" "1 data.micro_batch=2" "2 data.micro_batch=1"; do
    read -r n override <<<"$variant"
    name=carried-${variant//[^a-z0-9]/-}
    check "training on $variant" ranks "$n" "${run[@]}" run.name="$name" ${override:+"$override"} >"$name.log" 2>&1
    check "losses on $variant are those of one rank" same_losses "runs/$name/metrics.jsonl" runs/carried-1/metrics.jsonl 1e-5
done
# A validation begins with a zero state and does not change that of training.
logged=$(sed -n 's/.*"event":"eval","step":45,"loss":\([^,]*\),.*/\1/p' runs/carried-1/metrics.jsonl)
again=$("$dtrain" eval "${run[@]}" run.name=carried-1 run.resume=runs/carried-1/checkpoints/step-00000045 | eval_loss)
check "validation in training and by dtrain eval: $logged, $again" near "$logged" "${again% *}" 1e-6
for recompute in scan block; do
    check "recompute = $recompute" "$dtrain" "${run[@]}" run.name=$recompute model.recompute=$recompute >$recompute.log 2>&1
    check "recompute = $recompute keeps every bit" same_bits runs/$recompute/$last runs/carried-1/$last
done

same_state() {
    same_bits "$1" "$2" && cmp "$1/carried.safetensors" "$2/carried.safetensors"
}
resume() { # name, from step, n, overrides …: the run again from that checkpoint
    local name=$1 step n=$3
    step=$(printf 'step-%08d' "$2")
    shift 3
    mkdir -p "runs/$name/checkpoints"
    cp -r "runs/$source/checkpoints/$step" "runs/$name/checkpoints"
    ranks "$n" "${run[@]}" run.name="$name" "$@" >"$name.log" 2>&1
}
source=carried-2
check "resuming" resume resumed 9 2
check "… gives the same bits" same_state runs/resumed/$last runs/carried-2/$last
check "resuming on four ranks" resume on-four 18 4
check "… gives the same losses" same_losses runs/on-four/metrics.jsonl \
    <(grep -E '"step":(19|2[0-9]|[3-9][0-9])' runs/carried-2/metrics.jsonl) 1e-5
source=carried-4
check "resuming on one rank in micro-batches" resume on-one 27 1 data.micro_batch=4
check "… gives the same losses" same_losses runs/on-one/metrics.jsonl \
    <(grep -E '"step":(2[89]|[3-9][0-9])' runs/carried-4/metrics.jsonl) 1e-5
check "a run in bf16" ranks 2 "${run[@]}" run.name=bf16 run.precision=bf16 >bf16.log 2>&1
source=bf16
check "resuming in bf16" resume bf16-resumed 9 2 run.precision=bf16
check "… gives the same bits" same_state runs/bf16-resumed/$last runs/bf16/$last
check "resuming in fp32" resume bf16-to-fp32 9 1 run.precision=fp32
check "… reads the states, too" grep -q 'step-00000009 was trained in bf16' bf16-to-fp32.log

# One model with every kind of block, each with its own state: the same losses on any ranks and with any micro-batch,
# and the same bits from every level of recompute and after a resume, in bf16 too. A sample gives text.
sed 's/^n_layer.*/layers = mamba mamba2 attention gru lstm mlp\nattn_window = 40\nn_head = 2\nn_kv_head = 1\nhead_dim = 16/' small.ini >kinds.ini
check "a model of all kinds" "$dtrain" kinds.ini run.name=kinds run.steps=30 >kinds.log 2>&1
for precision in fp32 bf16; do
    tolerance=1e-5
    [ $precision = fp32 ] || tolerance=2e-3
    for length in 64 512; do
        check "$precision, all kinds: windows of $length" "$dtrain" kinds.ini run.name=kinds-$precision-$length \
            run.init_from=runs/kinds/checkpoints/step-00000030 optim.lr=1e-30 optim.warmup_steps=0 data.val= "${carry[@]}" \
            run.precision=$precision data.batch=1 data.seq_len=$length run.steps=$((512 / length)) >$precision-$length.log 2>&1
    done
    check "$precision, all kinds: windows are as one pass" near "$(losses kinds-$precision-64 | mean)" \
        "$(losses kinds-$precision-512 | mean)" $tolerance
done
run[0]=kinds.ini
for variant in "1" "2" "1 data.micro_batch=2" "2 data.micro_batch=2" "1 model.recompute=scan" "1 model.recompute=block"; do
    read -r n override <<<"$variant"
    name=kinds-${variant//[^a-z0-9]/-}
    check "all kinds on $variant" ranks "$n" "${run[@]}" run.name="$name" ${override:+"$override"} >"$name.log" 2>&1
    case $variant in
    *recompute*) check "… every bit of one without" same_state "runs/$name/$last" "runs/kinds-1/$last" ;;
    *) check "… have the losses of one" same_losses "runs/$name/metrics.jsonl" runs/kinds-1/metrics.jsonl 1e-4 ;; # twice 50 steps
    esac
done
source=kinds-2-data-micro-batch-2
check "resuming all kinds" resume kinds-resumed 18 2 data.micro_batch=2
check "… gives the same bits" same_state runs/kinds-resumed/$last runs/$source/$last
check "a sample of all kinds" "$dtrain" sample runs/kinds-1 --tokens 40 --temperature 0 >kinds.txt 2>kinds.log
check "… has text" test "$(wc -c <kinds.txt)" -ge 40
run[0]=small.ini

name=killed
start 2 "${run[@]}" run.name=$name model.d_model=96
check "training is under way" wait_for_step $name 13
kill -KILL "$job" "$(rank_pid 0)" "$(rank_pid 1)" # at once
wait $job 2>/dev/null
check "the same command resumes" ranks 2 "${run[@]}" run.name=$name model.d_model=96 >$name-2.log 2>&1
check "a run that was not killed" ranks 2 "${run[@]}" run.name=whole model.d_model=96 >whole.log 2>&1
check "… has the same bits" same_state runs/$name/$last runs/whole/$last

# What is refused, and what is said.
check "the plan counts it" grep -q '^  carried state ' <("$dtrain" --check "${run[@]}" run.name=other)
ranks 1 "${run[@]/carry_state=true/carry_state=false}" run.name=resumed >refused.log 2>&1
check "a run does not stop carrying: exit code" test $? -eq 2
check "… and says so" grep -q 'data.carry_state is false, the checkpoint has true' refused.log
check "a checkpoint without carried states is damaged" bash -c '
    sed -i /carried/d runs/on-one/'$last'/MANIFEST
    rm runs/on-one/'$last'/carried.safetensors
    ! '"$(printf '%q ' "$dtrain" "${run[@]}")"' run.name=on-one run.resume=runs/on-one/'$last' >lacks.log 2>&1'
check "… and named" grep -q 'MANIFEST lacks .*carried.safetensors' lacks.log
finish
