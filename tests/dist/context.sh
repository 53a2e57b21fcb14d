#!/usr/bin/env bash
# context.sh DTRAIN GAME [short]
# Ranks that share each window (comm.context) train and validate as one rank does in the same segments, with every kind
# of block, documents, odd lengths, groups, micro-batches, sharded weights, mixtures and pooled heads, and resume on
# other numbers of ranks. What does not fit is refused. short: four steps of every kind of block, of sharded groups and
# of heads that pool.
game=$(realpath "$2") size=${3:-whole}
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
sed -i "s/n_layer = 2/&\nattn_window = 48/; s/^every = 1/&\neval_every = 6/" small.ini
sed -i "s/^seq_len = .*/seq_len = 460/; s/^batch = .*/batch = 4/" small.ini
long=(data.reset_token=46) # 7 chunks of 64 and 12 positions

run() { # name, ranks, overrides …
    local name=$1 n=$2
    shift 2
    check "$name" ranks "$n" small.ini run.name="$name" "${long[@]}" "$@" >"$name.log" 2>&1
}
models=("mamba mamba2" "gru lstm" "mamba attention mlp") levels=(states gradients weights) contexts=(2 4)
if [ "$size" = short ]; then
    sed -i "s/^steps = .*/steps = 4/; s/^eval_every = .*/eval_every = 4/" small.ini
    models=("mamba mamba2 gru lstm attention mlp") levels=(weights) contexts=(2)
fi
for layers in "${models[@]}"; do
    name=${layers//[^a-z0-9]/-}
    run "$name" 1 model.layers="$layers" model.segment=64
    run "$name-2" 2 model.layers="$layers" model.segment=64 comm.context=2
    same_training "$layers, context 2" "$name" "$name-2"
    [ "$size" = short ] && continue
    run "$name-4" 4 model.layers="$layers" comm.context=4 # a segment of 128 each
    same_training "$layers, context 4" "$name" "$name-4"
done
first=${models[0]//[^a-z0-9]/-}
common=(model.layers="${models[0]}" model.segment=64)
for level in "${levels[@]}"; do
    run "shard-$level" 4 "${common[@]}" comm.context=2 optim.shard="$level"
    same_training "optim.shard = $level" "$first" "shard-$level"
done
# With reproducible sums, the bits are those of one rank with two micro-batches, on any ranks and with any context.
last=checkpoints/step-00000004
tree=(comm.reduce=reproducible data.micro_batch=2 model.layers="mamba attention mlp gru" model.segment=64 optim.shard=states checkpoint.every=4)
results() { # run: losses and norms of its steps as they were printed
    grep -o '"step":.*"grad_norm":[^,]*' "runs/$1/metrics.jsonl"
}
same_tree() { # what, run, run
    check "$1: losses and norms" cmp <(results "$2") <(results "$3")
    check "$1: the same bits" same_bits "runs/$2/$last" "runs/$3/$last"
}
run tree 1 "${tree[@]}" run.steps=4
for split in 2:2 4:2 4:4; do
    run "tree-$split" "${split%:*}" "${tree[@]}" run.steps=4 comm.context="${split#*:}"
    same_tree "reproducible, ranks:context $split" tree "tree-$split"
done

mkdir policies && cd policies || exit 1
game_policy "$game" pools.ini data.seq_len=250 data.batch=4 model.segment=64 \
    model.heads='buttons:bernoulli*8/max main_x:categorical*17 shoulder:categorical*5@2/mean c_y:regression/last'
[ "$size" != short ] || sed -i "s/^steps = .*/steps = 4/; s/^eval_every = .*/eval_every = 4/" pools.ini
for n in 1 "${contexts[@]}"; do
    check "a policy, context $n" ranks "$n" pools.ini run.name="pools-$n" comm.context="$n" >pools.log 2>&1
done
for n in "${contexts[@]}"; do
    same_training "heads that pool, context $n" pools-1 "pools-$n"
    check "their scores, context $n" near <(scores pools-1) <(scores "pools-$n") 1e-4
done
if [ "$size" != short ]; then
    for split in 1:1 2:2 4:2; do
        check "heads that pool, reproducible, $split" ranks "${split%:*}" pools.ini run.name="tree-$split" run.steps=4 comm.context="${split#*:}" \
            comm.reduce=reproducible data.micro_batch=2 >tree.log 2>&1
        [ $split = 1:1 ] || same_tree "heads that pool, ranks:context $split" tree-1:1 "tree-$split"
    done
fi
cd .. || exit 1
[ "$size" != short ] || finish

for keys in optim.name=muon run.precision=bf16; do
    for split in 1:1 4:2; do
        run "$keys-$split" "${split%:*}" "${tree[@]}" run.steps=4 comm.context="${split#*:}" "$keys"
    done
    same_tree "reproducible, $keys" "$keys-1:1" "$keys-4:2"
done

run groups 4 "${common[@]}" comm.context=2 data.micro_batch=1
same_training "two groups of two, micro-batches" $first groups
run recompute 2 "${common[@]}" comm.context=2 model.recompute=block
same_training "with model.recompute = block" $first recompute
run split 2 "${common[@]}" comm.context=2 checkpoint.every=6
rm -r runs/split/checkpoints/step-*12
run split 4 "${common[@]}" comm.context=4 optim.shard=weights checkpoint.every=6
check "it resumed" grep -q 'resuming from .*step-00000006' split.log
same_training "half on two ranks, the rest on four" $first split

seeing=(model.layers="attention mamba" model.attn_window=460 model.segment=64)
run seeing 1 "${seeing[@]}"
run seeing-4 4 "${seeing[@]}" comm.context=4
same_training "attention that sees the whole window" seeing seeing-4

mix=("${common[@]}" "data.train=data/train-*.h5:0.7 data/val-*.h5:0.3" data.val= log.eval_every=0)
run mixture 1 "${mix[@]}"
run mixture-2 2 "${mix[@]}" comm.context=2
check "losses of a mixture's sources" near <(slots mixture) <(slots mixture-2) 1e-6

check "the plan" ranks 2 --check small.ini "${long[@]}" "${common[@]}" comm.context=2 >check.log 2>&1
check "the plan has them: $(grep ^segments check.log)" grep -q '^segments: 8 of 64 tokens a window, shared by 2 ranks, ' check.log
check "eval by one rank" "$dtrain" eval small.ini run.name=$first-2 "${long[@]}" "${common[@]}" comm.context=2 >eval.json 2>eval.log

reports_fates small.ini "${long[@]}" "${common[@]}" comm.context=2 comm.timeout_s=3

rejected() { # what, pattern, ranks, overrides …
    messages=1 refused "$1" "$2" ranks "$3" small.ini run.name=bad "${long[@]}" "${@:4}"
}
rejected "three ranks" 'comm.context: 2 ranks cannot share each window among 3 ranks' 3 data.batch=3 comm.context=2
rejected "odd segments" 'comm.context: 2 ranks cannot share equally the 3 segments of a window \(data.seq_len = 460, 192 positions each\)' 2 \
    comm.context=2 model.segment=192
rejected "too short" 'comm.context: 4 ranks cannot share equally the 3 segments of a window' 4 comm.context=4 data.seq_len=130
rejected "carried state" 'comm.context: 2 ranks share a window, and no rank has its last state' 2 comm.context=2 data.carry_state=true \
    data.shuffle=false
rejected "reproducible sums of three" 'comm.context: 3 ranks share each window, and .* needs a power of two of them' 3 comm.context=3 \
    comm.reduce=reproducible data.micro_batch=1
check "auto" ranks 2 --check small.ini "${long[@]}" comm.context=2 model.segment=auto >auto.log 2>&1
check "auto gives each rank a segment: $(grep '^segments' auto.log)" grep -q '^segments: 2 of 256 tokens a window' auto.log
huge=(data.train=synthetic:random data.val= log.eval_every=0 data.seq_len=16777216 data.batch=2 data.micro_batch=1 model.d_model=1024)
check "auto, a window that does not fit" ranks 2 --check small.ini "${huge[@]}" comm.context=2 model.segment=auto >auto.log 2>&1
check "auto gives ranks as many segments: $(grep '^segments' auto.log)" \
    awk '/^segments: / { found = $2 > 2 && $2 % 2 == 0 } END { exit !found }' auto.log
finish
