#!/usr/bin/env bash
# segments.sh DTRAIN GAME
# Windows that are run in segments (model.segment) train, evaluate and predict as whole windows do: with documents, over
# micro-batches and ranks, with carried state and in mixtures, and with the bits of reproducible sums. They learn a task
# that truncated gradients do not. Also `auto`, and lengths that do not fit.
game=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
sed -i "s/n_layer = 2/&\nattn_window = 48/; s/^every = 1/&\neval_every = 6/" small.ini
long=(data.seq_len=300 data.batch=4 data.reset_token=46)

run() { # name, overrides …
    local name=$1
    shift
    check "$name" "$dtrain" small.ini run.name="$name" "$@" >"$name.log" 2>&1
}

# The last segment has 300 - 256 = 44 positions, or 300 - 2 * 128.
for layers in "mamba mamba" "mamba2 mamba2" "gru lstm" "mamba attention mlp"; do
    name=${layers//[^a-z0-9]/-}
    run "$name" "${long[@]}" model.layers="$layers"
    for segment in 64 128; do
        run "$name-$segment" "${long[@]}" model.layers="$layers" model.segment=$segment
        same_training "$layers in segments of $segment" "$name" "$name-$segment"
    done
done
seeing=("${long[@]}" model.layers="attention mamba" model.attn_window=300)
run seeing "${seeing[@]}"
run seeing-64 "${seeing[@]}" model.segment=64
same_training "attention that sees the whole window, in segments" seeing seeing-64
run mamba-512 "${long[@]}" model.segment=512
check "a segment as long as a window changes no bit" diff <(train_lines runs/mamba-mamba/metrics.jsonl) <(train_lines runs/mamba-512/metrics.jsonl)
run recompute "${long[@]}" model.segment=64 model.recompute=block
same_training "with model.recompute = block" mamba-mamba recompute

check "two ranks" ranks 2 small.ini run.name=ranks "${long[@]}" data.micro_batch=1 model.segment=64 >ranks.log 2>&1
same_training "two ranks, micro-batches" mamba-mamba ranks
for n in 1 2; do
    check "reproducible sums on $n ranks" ranks $n small.ini run.name=tree-$n "${long[@]}" data.micro_batch=1 model.segment=64 \
        comm.reduce=reproducible >tree-$n.log 2>&1
done
same_training "reproducible sums" mamba-mamba tree-1
check "their bits" diff <(train_lines runs/tree-1/metrics.jsonl) <(train_lines runs/tree-2/metrics.jsonl)

carry=("${long[@]}" data.shuffle=false data.carry_state=true data.block=1)
run carry "${carry[@]}" model.layers="mamba lstm"
run carry-64 "${carry[@]}" model.layers="mamba lstm" model.segment=64
same_training "carried state" carry carry-64

mix=("${long[@]}" "data.train=data/train-*.h5:0.7 data/val-*.h5:0.3" data.val= log.eval_every=0)
run mixture "${mix[@]}"
run mixture-64 "${mix[@]}" model.segment=64
check "losses of a mixture's sources" near <(slots mixture) <(slots mixture-64) 1e-6

for segment in 0 64; do
    check "eval, $segment" "$dtrain" eval small.ini run.name=mamba-attention-mlp model.layers="mamba attention mlp" "${long[@]}" model.segment=$segment --positions --documents >eval-$segment.json 2>eval.log
done
by_position() {
    sed 's/.*"loss_by_position"//' "eval-$1.json"
}
check "losses by position: the same bits" cmp <(by_position 0) <(by_position 64)

check "the plan" "$dtrain" --check small.ini "${long[@]}" model.segment=64 >check.log 2>&1
check "the plan has segments" grep -q '^segments: 5 of 64 tokens a window' check.log
check "the plan has their states" grep -q '^  border states ' check.log
huge=(data.train=synthetic:random data.val= log.eval_every=0 data.seq_len=16777216 data.batch=1 model.d_model=1024)
"$dtrain" --check small.ini "${huge[@]}" >whole.log 2>&1
check "a window that does not fit: exit code 3" test $? -eq 3
check "a hint: $(tail -n 1 whole.log)" grep -qE 'model.segment = [0-9]+ needs [0-9.]+ GiB' whole.log
for reduce in fast reproducible; do
    two=("${huge[@]/data.batch=1/data.batch=2}" data.micro_batch=1 optim.shard=gradients comm.reduce=$reduce)
    check "--propose, $reduce" ranks 2 --check --propose small.ini "${two[@]}" >$reduce.log 2>&1
    ranks 2 --check small.ini "${two[@]}" >>$reduce.log 2>&1
    check "no memory, $reduce: exit code 3" test $? -eq 3
done
"$dtrain" --check --propose small.ini "${huge[@]}" >alone.log 2>&1
budget() { # output of --propose: the GiB that a rank may use
    sed -n 's/.*: \([0-9.]*\) GiB for training.*/\1/p' "$1"
}
check "two ranks of a machine have half of its memory each: $(budget alone.log), $(budget fast.log) GiB" awk -v alone="$(budget alone.log)" -v half="$(budget fast.log)" \
    'BEGIN { d = alone - 2 * half; exit !(half > 0 && d <= 0.151 && d >= -0.151) }' # each is rounded to 0.1 GiB
check "segments are named where they may run" test "$(grep -c 'model.segment = ' fast.log)" -gt 3
check "and only there: $(grep 'model.segment = ' reproducible.log)" test "$(grep -c 'model.segment = ' reproducible.log)" -eq 0
check "auto" "$dtrain" --check small.ini "${huge[@]}" model.segment=auto >auto.log 2>&1
check "auto chose a segment: $(grep segment auto.log)" grep -qE '^segments: [0-9]+ of [0-9]+ tokens' auto.log
check "auto runs a window that fits whole" "$dtrain" --check small.ini "${long[@]}" model.segment=auto >auto.log 2>&1
check "auto leaves it whole" test "$(grep -c '^segments:' auto.log)" -eq 0
override() { # what, pattern, overrides …
    refused "$1" "$2" "$dtrain" small.ini run.name=bad "${long[@]}" "${@:3}"
}
override "no whole chunks" 'model.segment: 100 is not a multiple of 64, the chunk of the scans on cpu' model.segment=100
override "auto with reproducible sums" 'model.segment: auto follows the memory, .*needs a number' model.segment=auto comm.reduce=reproducible \
    data.micro_batch=1

# A task that can only be learned with a gradient through the whole row. Guessing among four answers has a loss of ln 4
# = 1.386.
check "rows of a latch" "$dtrain" pack latch -o latch --rows 52 --length 512 --vocab 6 --items 16 --val 0.16 >pack.log 2>&1
: >latch.ini
latch=(latch.ini data.train=latch/train-*.h5 data.val=latch/val-*.h5 model.vocab_size=6 model.d_model=16 model.d_state=4 model.n_layer=1
    model.dt_init_min=8e-4 data.batch=4 data.shuffle=false data.block=1 data.carry_state=true optim.lr=1e-2 optim.max_skipped=32
    run.precision=fp32 run.threads=1)
check "the task in segments" "$dtrain" "${latch[@]}" run.name=exact data.seq_len=512 model.segment=64 run.steps=200 log.eval_every=200 >exact.log 2>&1
check "the task in windows that carry state" "$dtrain" "${latch[@]}" run.name=truncated data.seq_len=64 run.steps=1600 log.eval_every=1600 \
    >truncated.log 2>&1
check "segments learn what truncated gradients do not: $(evals exact) $(evals truncated)" awk 'NR == 1 { exact = $2 } NR == 2 { truncated = $2 }
    END { exit !(exact < 1 && truncated > 1.38) }' <(evals exact) <(evals truncated)

mkdir policies && cd policies || exit 1
game_policy "$game" pools.ini data.seq_len=150 data.batch=4 \
    model.heads='buttons:bernoulli*8/max main_x:categorical*17 shoulder:categorical*5@2/mean c_y:regression/last'
for segment in 0 64; do
    check "a policy, $segment" "$dtrain" pools.ini run.name=pools-$segment model.segment=$segment >pools.log 2>&1
done
same_training "heads that pool" pools-0 pools-64
check "their scores" near <(scores pools-0) <(scores pools-64) 1e-4
alone=(pools.ini model.heads='shoulder:categorical*5@2/mean buttons:bernoulli*8/last')
check "heads that pool alone" "$dtrain" "${alone[@]}" run.name=alone-0 >alone.log 2>&1
check "in segments, gradients sharded" ranks 2 "${alone[@]}" run.name=alone-64 model.segment=64 optim.shard=gradients >alone.log 2>&1
same_training "heads that pool alone" alone-0 alone-64
finish
