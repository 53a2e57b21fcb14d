#!/usr/bin/env bash
# optim.shard = gradients and weights: a rank keeps only those of its pieces, and nothing else changes. Through all
# levels, numbers of ranks and resumes, the bits are those of one rank, which has everything. The model is so deep that
# layers share slots.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
size=${2:-whole} # short: fewer layers, and only sums in the order of a tree
small_run
layers=12
[ "$size" != short ] || layers=6
sed -i 's/^steps = .*/steps = 6/; s/^d_model = .*/d_model = 136/; s/^n_layer = .*/n_layer = '$layers'/; s/^seq_len = .*/seq_len = 16/' small.ini
printf '[checkpoint]\nevery = 2\nkeep = 0\n' >>small.ini
last=checkpoints/step-00000006

same() { # a, b: weights, averages, carried states and losses
    local file
    for file in model ema carried; do
        [ ! -e "runs/$2/$last/$file.safetensors" ] || check "$1 and $2: the same $file" cmp "runs/$1/$last/$file.safetensors" "runs/$2/$last/$file.safetensors"
    done
    check "$1 and $2 have the same losses" cmp <(train_lines runs/$1/metrics.jsonl) <(train_lines runs/$2/metrics.jsonl)
}
path() { # name, key=value …: two steps each on four ranks with weights, two with states, two with gradients
    local name=$1
    shift
    train "$name" 4 optim.shard=weights "$@"
    rm -r runs/$name/checkpoints/step-0000000[46]
    train "$name" 2 optim.shard=states "$@"
    rm -r "runs/$name/$last"
    train "$name" 2 optim.shard=gradients "$@"
    check "$name resumes each time" grep -q 'resuming from .*step-00000004' "$name.log"
}

tree=(comm.reduce=reproducible data.micro_batch=1 run.precision=bf16 run.threads=1 optim.ema=0.9 data.shuffle=false data.carry_state=true
    log.eval_every=3 log.eval_batches=2)
train tree 1 "${tree[@]}"
path tree-path "${tree[@]}"
same tree-path tree
muon=(comm.reduce=reproducible data.micro_batch=2 data.val= optim.name=muon)
train muon 1 "${muon[@]}"
train muon-path 4 "${muon[@]}" optim.shard=gradients
rm -r "runs/muon-path/$last"
train muon-path 2 "${muon[@]}" optim.shard=weights comm.verify_replicas=1
same muon-path muon
# Sums over ranks are made for each micro-batch, in another order. The project promises 1e-5 relative.
if [ "$size" != short ]; then
    train fast 2 data.micro_batch=2 data.val=
    train fast-rings 2 data.micro_batch=2 data.val= optim.shard=weights
    check "micro-batches summed over ranks one by one" same_losses runs/fast-rings/metrics.jsonl runs/fast/metrics.jsonl 1e-5
fi

# In segments too, of which each sends its own.
check "segments" ranks 2 small.ini run.name=segments data.micro_batch=2 data.val= model.segment=64 data.seq_len=80 optim.shard=weights >segments.log 2>&1
check "whole windows" ranks 2 small.ini run.name=windows data.micro_batch=2 data.val= data.seq_len=80 >windows.log 2>&1
check "segments summed over ranks one by one" same_losses runs/segments/metrics.jsonl runs/windows/metrics.jsonl 1e-5
refused "segments in a reproducible order" "model.segment: with optim.shard = weights the gradients of segments" env messages=1 \
    "${local_mpirun[@]}" -np 2 "$dtrain" --check small.ini model.segment=64 data.seq_len=80 data.micro_batch=2 comm.reduce=reproducible optim.shard=weights

# The plan has rows for the slots and for this rank's pieces, as many as of each optimizer state.
row() { # of a plan, file
    sed -n "s/^  $1  *\([0-9.]*\) MiB/\1/p" "$2"
}
for shard in false states gradients weights; do
    check "--check" ranks 4 --check small.ini model.n_layer=12 optim.shard=$shard >$shard.txt 2>&1
done
gradients=$(row gradients gradients.txt) own=$(row 'own gradients' gradients.txt)
check "gradients of a rank: $gradients and $own MiB of $(row gradients false.txt)" awk -v ring="$gradients" -v own="$own" \
    -v whole="$(row gradients false.txt)" -v states="$(row 'optimizer states' gradients.txt)" \
    'BEGIN { exit !(ring + own < whole && 2 * own - states <= 0.15 && states - 2 * own <= 0.15) }' # of rounding
check "weights of a rank: $(row weights weights.txt) and $(row 'own weights' weights.txt) MiB of $(row weights false.txt)" \
    awk -v ring="$(row weights weights.txt)" -v own="$(row 'own weights' weights.txt)" -v whole="$(row weights false.txt)" \
    -v gradients="$gradients" -v other="$own" 'BEGIN { exit !(ring + own < whole && ring == gradients && own == other) }'
check "… less than with states alone" awk -v a="$(row total gradients.txt)" -v b="$(row total states.txt)" 'BEGIN { exit !(a < b) }'
refused "a level that is none" "optim.shard: 'moments' is not one of the choices .*false | true | states | gradients | weights" "$dtrain" --check small.ini optim.shard=moments
finish
