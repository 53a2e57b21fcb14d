#!/usr/bin/env bash
# columns.sh DTRAIN: training on columns of other rows, chunks of targets, flags, a shared table, weights, missing
# targets and the ends of a range has the losses and gradient norms of the float64 reference in columns.py, on any
# number of ranks.
golden=$(realpath "$(dirname "$0")/columns")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
cp "$golden/data.h5" .
policy_ini columns.ini run.steps=10 model.d_model=8 model.n_layer=1 model.layers=mlp model.d_mlp=6 model.mlp_gated=false \
    'model.heads=move:gmm(2,-1,1)*16 grip:huber*1@0.5 level:regression*2' data.train=data.h5 data.val= data.shuffle=false data.seq_len=6 data.batch=4 \
    data.inputs='frames@-2:0:valid action@-1:valid stage:id*5=s@-1:valid stage:id*5=s' \
    data.targets='action@0:8 label[2] label[0:2]@+1' data.weights='weight hurry:grip' \
    optim.lr=1e-3 optim.schedule=constant optim.warmup_steps=0
check "a model to start from" "$dtrain" columns.ini run.name=first run.steps=1 >first.log 2>&1 || cat first.log >&2
start=$(newest runs/first)
rm "$start/MANIFEST"
cp "$golden/start.model" "$start/model.safetensors"
for n in 1 2 4; do
    check "$n ranks train" ranks $n columns.ini run.name=n$n run.init_from="$start" >n$n.log 2>&1 || cat n$n.log >&2
    check "$n ranks: losses and gradient norms within 1e-5, as fp32 is promised to be" \
        same_losses runs/n$n/metrics.jsonl "$golden/steps.jsonl" 1e-5 1e-5
done
finish
