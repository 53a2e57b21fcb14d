#!/usr/bin/env bash
# dtrain with one more kind of reader, stem, block and head, and nothing else changed, does all that dtrain does: it
# learns, saves, resumes with the bits of a run that was not interrupted, evaluates, and refuses what these kinds cannot
# do.
# $2: that program; $3: the tool that writes its shards.
plain=$(realpath "$1") kinds=$(realpath "$2") make_samples=$(realpath "$3")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
dtrain=$kinds
mkdir data
check "shards" "$make_samples" data/train-0.h5 1 4000
check "shards" "$make_samples" data/train-1.h5 2 3000
check "shards" "$make_samples" data/val-0.h5 3 1001
write_ini samples.ini run.steps=24 model.d_model=16 'model.layers=dense mamba*2 dense' 'data.train=data/train-*.h5' \
    'data.val=data/val-*.h5' data.seq_len=20 data.batch=8 data.micro_batch=2 data.block=3 optim.lr=1e-2 log.every=1 \
    log.eval_every=8
last=checkpoints/step-00000024

for n in 1 2; do
    for precision in fp32 bf16; do
        run=$precision-$n
        common=(samples.ini run.precision=$precision checkpoint.every=9)
        check "$run: trains" ranks $n "${common[@]}" run.name=whole-$run >whole-$run.log 2>&1
        check "$run: the loss falls" test "$(train_lines runs/whole-$run/metrics.jsonl |
            awk 'NR == 1 { first = $2 } END { print NR == 24 && $2 < 0.5 * first }')" = 1
        # The run's folder as after a save at step 9 and a kill at step 13.
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
refused "an unknown block" "command line: model.layers: unknown kind 'mambo': did you mean 'mamba'\? \(known: dense, mamba, gain, leak\)" \
    "$dtrain" --check samples.ini model.layers='dense mambo'
refused "another number of layers" 'samples.ini:[0-9]+: model.layers has 4 layers, but model.n_layer is 3' "$dtrain" --check samples.ini model.n_layer=3
refused "data without the arrays" 'reads an array targets of fp32, 3 values per position; data.train' \
    "$dtrain" --check samples.ini data.train=synthetic:random data.val= log.eval_every=0
refused "dtrain itself knows other layers only" "unknown kind 'dense' \(known: mamba, " \
    "$plain" --check samples.ini data.train=synthetic:random data.val= log.eval_every=0
refused "dtrain itself reads no such shard" '/samples|a shard holds' "$plain" --check samples.ini \
    model.layers=mamba*4 model.vocab_size=9

# A block kind with its own field, initial values and model type.
sed 's/^layers.*/layers = gain*2\ngain_start = 0.75/; s/^\[data\]/&\nformat = samples/' samples.ini >gain.ini
gains=(gain.ini checkpoint.every=9)
check "gain: trains" ranks 2 "${gains[@]}" run.name=gain >gain.log 2>&1
cp -r runs/gain runs/gain-cut
rm -r runs/gain-cut/checkpoints/step-0000001* runs/gain-cut/$last
check "gain: resumes" ranks 2 "${gains[@]}" run.name=gain-cut >gain-cut.log 2>&1
check "gain: the bits are those of the whole run" same_bits runs/gain-cut/$last runs/gain/$last
check "gain: the loss falls" test "$(train_lines runs/gain/metrics.jsonl |
    awk 'NR == 1 { first = $2 } END { print NR == 24 && $2 < first }')" = 1
check "gain: the echo has its field" grep -q '^gain_start = 0.75' runs/gain/config.resolved.ini
config=runs/gain/$last/config.json
check "gain: config.json has its type, member and field" test \
    "$(grep -cE '"model_type":.*"gain"|"gain_count":.*2|"gain_start":.*0.75|"GainModel"' "$config")" = 4
check "gain: its type says what the layers are" test "$(grep -c '"layers"' "$config")" = 0
check "gain: eval" "$dtrain" eval samples.ini model.layers= run.init_from=runs/gain/$last >gain-eval.log 2>&1
cp -r runs/gain/$last foreign
rm foreign/MANIFEST
sed -i '/gain_start/d' foreign/config.json
check "gain: without the field the type's default holds" \
    "$dtrain" --check samples.ini model.layers= run.init_from=foreign model.gain_start=0.25 >foreign.log 2>&1
sed -i 's/"gain_count":.*2/"gain_count": 3/' foreign/config.json
refused "a member that does not fit" 'foreign/config.json: gain_count is 3; .*num_hidden_layers = 2' \
    "$dtrain" --check samples.ini model.layers= run.init_from=foreign
refused "a value out of range" 'model.gain_start: 3 is out of range' "$dtrain" --check gain.ini model.gain_start=3
refused "fields that do not fit" 'model.gain_start is 2 in 5 layers' \
    "$dtrain" --check gain.ini model.gain_start=2 model.layers=gain*5
refused "a field of no part of the model" 'model.gain_start: read by gain only' \
    "$dtrain" --check samples.ini model.gain_start=1
refused "another value on resume" 'model.gain_start' \
    "$dtrain" "${gains[@]}" run.name=gain run.steps=30 model.gain_start=0.5
refused "the field without its kind" "unknown key 'gain_start'" "$plain" --check samples.ini model.gain_start=1
refused "a schema that the shards do not have" 'it is not tokens, as data.format says' \
    "$dtrain" --check samples.ini data.format=tokens
refused "an unknown schema" "data.format: 'sample' is not one .* mean 'samples'\? \(allowed: auto \| samples \| tokens \| pairs\)" "$dtrain" --check samples.ini data.format=sample
refused "other layers on resume" 'model.layers' "$dtrain" samples.ini run.name=whole-fp32-1 run.steps=30 model.layers='dense*2 mamba*2'

# Packed documents: dtrain's own layers keep them separate, and a layer that does not is found.
mkdir text
for name in a b c d e f; do
    head -c 300 /dev/urandom | base64 >text/$name
done
check "packs documents" "$plain" pack -o packed --val 0 text
write_ini packed.ini run.steps=1 run.precision=fp32 model.stem=tokens model.heads=lm 'model.layers=mamba*2' model.d_model=16 \
    model.vocab_size=256 'data.train=packed/train-*.h5' data.seq_len=512 data.batch=1 optim.lr=1e-3
isolation() { "$dtrain" verify --isolation packed.ini "$@"; }
check "documents are isolated" isolation >isolation.log
check "… in numbers" grep -qE '^good  5 documents in [0-9]+ windows of data.train, [0-9]+ tokens, fp32: ' isolation.log
code=0
isolation model.layers='mamba leak mamba' >leak.log 2>&1 || code=$?
check "a leak ends with code 3" test $code = 3
check "… at the first position of a document" grep -qE \
    'packed/train-00000.h5: window 0, position ([0-9]+): in the document that starts at position \1 the loss of this token is .* in the pack' leak.log
refused "windows without documents" 'no document starts inside the first .* windows of data.train' isolation data.seq_len=2
refused "isolation of shards alone" 'verify --isolation needs a configuration' "$dtrain" verify --isolation packed/train-00000.h5
refused "isolation of frames" 'documents share windows of tokens, but this model reads samples' "$dtrain" verify --isolation samples.ini
finish
