#!/usr/bin/env bash
# optim.name = muon: with comm.reduce = reproducible ten steps on 1, 2 and 4 ranks, sharded or not, have the same bits,
# also when a run resumes in another of these forms, in bf16, with an average and with µP. Also rates by name, and what
# is refused.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
# Large enough that matrices are spread over ranks, and cut by their pieces.
sed -i 's/^steps = .*/steps = 10/; s/^d_model = .*/d_model = 128/; s/^n_layer = .*/n_layer = 3/; s/^seq_len = .*/seq_len = 16/
    s/^batch = .*/batch = 8\nmicro_batch = 2/; /^val = /d; s/^lr = .*/lr = 3e-3\nname = muon/' small.ini
printf '[comm]\nreduce = reproducible\n[checkpoint]\nevery = 5\nkeep = 0\n' >>small.ini
half=checkpoints/step-00000005 last=checkpoints/step-00000010

same() { # a, b: where states are in different files, the losses of later steps compare them
    check "$1 has the weights of $2" cmp "runs/$1/$last/model.safetensors" "runs/$2/$last/model.safetensors"
    check "… and its losses" cmp <(train_lines "runs/$1/metrics.jsonl") <(train_lines "runs/$2/metrics.jsonl")
}
differ() { # a, b
    ! cmp -s "runs/$1/$last/model.safetensors" "runs/$2/$last/model.safetensors"
}

train one 1
train two 2
train shard-2 2 optim.shard=true comm.verify_replicas=1
train shard-4 4 optim.shard=true
for name in two shard-2 shard-4; do
    same $name one
done
check "two ranks write two files" test "$(find runs/shard-2/$last -name 'optimizer-*' | wc -l)" -eq 2
train adamw 1 optim.name=adamw
check "AdamW gives other weights, so these tests can fail" differ adamw one
mkdir -p runs/path/checkpoints
cp -r runs/shard-4/$half runs/path/checkpoints/
cp runs/shard-4/metrics.jsonl runs/path/
train path 2
check "it resumes" grep -q 'resuming from .*step-00000005' path.log
same path one
check "… and its states" same_bits runs/path/$last runs/one/$last

# Muon keeps no squares for matrices. Checkpoints that have them, from older versions or AdamW, can be continued; the
# opposite cannot.
squares() { cat "runs/$1/$last"/optimizer-* | grep -aoE 'exp_avg_sq\.[a-z0-9_.]*(in_proj.weight|A_log)' | sort -u; }
check "squares of A_log, not of matrices: $(squares one)" test "$(squares one | sed 's/.*mixer.//' | sort -u)" = A_log
check "AdamW has both" test "$(squares adamw | sed 's/.*mixer.//' | sort -u | wc -l)" -eq 2
mkdir -p runs/older/checkpoints runs/newer/checkpoints
cp -r runs/adamw/$half runs/older/checkpoints/
cp -r runs/one/$half runs/newer/checkpoints/
train older 2 optim.shard=true
check "a checkpoint with squares of matrices is continued" grep -q 'resuming from .*step-00000005' older.log
check "… and written without" test -z "$(squares older | grep in_proj)"
refused "AdamW after Muon" 'or the optim.name that it was' "$dtrain" small.ini run.name=newer optim.name=adamw
check "… naming what is missing" grep -q 'exp_avg_sq.backbone.layers.0.mixer.in_proj.weight is missing' refused.log

mixed=(run.precision=bf16 optim.ema=0.9 model.mup_base=64 'optim.lr[*.out_proj.weight]=0.5x')
train mixed-1 1 "${mixed[@]}"
train mixed-4 4 "${mixed[@]}" optim.shard=true
same mixed-4 mixed-1
check "… and its average" cmp runs/mixed-4/$last/ema.safetensors runs/mixed-1/$last/ema.safetensors
check "the echo has the groups" grep -q '^lr_groups = \*.out_proj.weight:0.5x .*# command line' runs/mixed-1/config.resolved.ini

# Rates by name: a rate of 0 keeps a tensor as it is, a plain number is a rate, and later patterns win.
frozen=(optim.weight_decay=0.5 'optim.lr[*.in_proj.weight]=0' 'optim.lr[*.layers.1.*]=3e-3')
train frozen 1 "${frozen[@]}"
train whole 1 optim.weight_decay=0.5
tensor() { # run, step, name
    local file=runs/$1/checkpoints/step-$2/model.safetensors header range
    header=$((8 + $(od -An -tu8 -N8 "$file")))
    range=$(head -c $header "$file" | grep -ao "\"$3\":{[^}]*\"data_offsets\":\[[0-9]*,[0-9]*" | grep -o '[0-9]*,[0-9]*$')
    tail -c +$((header + ${range%,*} + 1)) "$file" | head -c $((${range#*,} - ${range%,*})) | sha256sum
}
in_proj=backbone.layers.0.mixer.in_proj.weight
check "a rate of 0 keeps a tensor" test "$(tensor frozen 00000005 $in_proj)" = "$(tensor frozen 00000010 $in_proj)"
check "… which else changes" test "$(tensor whole 00000005 $in_proj)" != "$(tensor whole 00000010 $in_proj)"
in_proj=backbone.layers.1.mixer.in_proj.weight
check "a later line wins" test "$(tensor frozen 00000005 $in_proj)" != "$(tensor frozen 00000010 $in_proj)"
refused "a pattern that matches nothing" 'optim.lr_groups: optim.lr\[\*.inproj.weight\] matches no name of this model' \
    "$dtrain" --check small.ini 'optim.lr[*.inproj.weight]=1'
check "… with the names" grep -q 'backbone.embeddings.weight, backbone.layers.\*.' refused.log
refused "a value that is none" "optim.lr\[\*.A_log\]: 'often' is no number from 0 to 1000" "$dtrain" --check small.ini 'optim.lr[*.A_log]=often'
refused "a width that the model cannot have" 'model.mup_base: ' "$dtrain" --check small.ini model.mup_base=-1
check "--check" "$dtrain" --check small.ini >check.txt 2>&1
check "… plans the iterations' memory" grep -qE '^  muon +[0-9.]+ MiB' check.txt
finish
