#!/usr/bin/env bash
# dtrain with one more kind of reader, stem, block and head, and nothing else changed, is all of dtrain: it learns,
# saves, resumes with the bits of a run that was not interrupted, evaluates, and refuses what these kinds cannot do.
# $2: that program; $3: the tool that writes its shards.
plain=$(realpath "$1") kinds=$(realpath "$2") make_samples=$(realpath "$3")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
dtrain=$kinds
mkdir data
check "shards" "$make_samples" data/train-0.h5 1 4000
check "shards" "$make_samples" data/train-1.h5 2 3000
check "shards" "$make_samples" data/val-0.h5 3 1001
cat >samples.ini <<'EOF'
[run]
steps = 24
[model]
d_model = 16
layers = dense mamba*2 dense
[data]
train = data/train-*.h5
val = data/val-*.h5
seq_len = 20
batch = 8
micro_batch = 2
block = 3
[optim]
lr = 1e-2
[log]
every = 1
eval_every = 8
EOF
last=checkpoints/step-00000024

for n in 1 2; do
    for precision in fp32 bf16; do
        run=$precision-$n
        common=(samples.ini run.precision=$precision checkpoint.every=9)
        check "$run: trains" ranks $n "${common[@]}" run.name=whole-$run >whole-$run.log 2>&1
        check "$run: the loss falls" test "$(train_lines runs/whole-$run/metrics.jsonl |
            awk 'NR == 1 { first = $2 } END { print NR == 24 && $2 < 0.5 * first }')" = 1
        # As it was when it had been saved at step 9 and killed at 13.
        cp -r runs/whole-$run runs/cut-$run
        rm -r runs/cut-$run/checkpoints/step-0000001* runs/cut-$run/$last
        check "$run: resumes" ranks $n "${common[@]}" run.name=cut-$run >cut-$run.log 2>&1
        check "$run: from step 9" grep -q 'resuming from runs/cut-.*/checkpoints/step-00000009' cut-$run.log
        check "$run: the bits are those of the whole run" same_bits runs/cut-$run/$last runs/whole-$run/$last
        check "$run: so are the curves" cmp <(train_lines runs/whole-$run/metrics.jsonl) \
            <(train_lines runs/cut-$run/metrics.jsonl)
    done
done
check "two ranks have the losses of one" same_losses runs/whole-fp32-1/metrics.jsonl runs/whole-fp32-2/metrics.jsonl 1e-5
config=runs/whole-fp32-1/$last/config.json
check "its positions are samples" grep -q '24 steps of 160 samples' whole-fp32-1.log
check "config.json names the kinds" grep -q '"layers":.*"dense\*1 mamba\*2 dense\*1"' "$config"
check "… the stem" grep -q '"stem":.*"samples"' "$config"
check "… the head" grep -q '"heads":.*"squares"' "$config"
check "eval" "$dtrain" eval samples.ini run.init_from=runs/whole-fp32-1/$last >eval.log 2>&1
check "verify" "$dtrain" verify runs/whole-fp32-1/$last >verify.log 2>&1
check "--check lists the arrays' shards" "$dtrain" --check samples.ini >check.log 2>&1

refused "text of a model of samples" 'the model in .* reads samples, not tokens' "$dtrain" sample runs/whole-fp32-1/$last
refused "an unknown block" "command line: model.layers: unknown kind 'mambo': did you mean 'mamba'\? \(known: dense, mamba\)" \
    "$dtrain" --check samples.ini model.layers='dense mambo'
refused "another number of layers" 'samples.ini:[0-9]+: model.layers has 4 layers, but model.n_layer is 3' "$dtrain" --check samples.ini model.n_layer=3
refused "data without the arrays" 'reads an array targets of fp32, 3 values per position; data.train' \
    "$dtrain" --check samples.ini data.train=synthetic:random data.val= log.eval_every=0
refused "dtrain itself knows other layers only" "unknown kind 'dense' \(known: mamba, " \
    "$plain" --check samples.ini data.train=synthetic:random data.val= log.eval_every=0
refused "dtrain itself reads no such shard" '/samples|a shard holds' "$plain" --check samples.ini \
    model.layers=mamba*4 model.vocab_size=9
refused "other layers on resume" 'model.layers' "$dtrain" samples.ini run.name=whole-fp32-1 run.steps=30 model.layers='dense*2 mamba*2'
finish
