#!/usr/bin/env bash
# Training with model.quantize = int8, its export, and inference with the result.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"

small_run
int8="model.quantize=int8 run.steps=40 log.every=1 run.device=cpu run.threads=1"
last_loss() { sed -nE 's/.*"event":"train".*"loss":([0-9.]+).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }
for micro in 1 4; do
    # shellcheck disable=SC2086
    check "int8 training, micro-batch $micro" "$dtrain" small.ini $int8 run.dir=run-$micro data.micro_batch=$micro >train.log 2>&1
done
first=$(sed -nE 's/.*"event":"train".*"loss":([0-9.]+).*/\1/p' run-4/metrics.jsonl | head -n 1)
check "int8 training learns: $first to $(last_loss run-4)" awk "BEGIN { exit !($(last_loss run-4) < $first - 0.5) }"
check "micro-batches: $(last_loss run-1) and $(last_loss run-4)" \
    awk "BEGIN { d = $(last_loss run-1) - $(last_loss run-4); exit !(d < 0.02 && d > -0.02) }"

checkpoint=$(echo run-4/checkpoints/step-*)
check "config.json keeps it" grep -q '"quantize":	"int8"' "$checkpoint/config.json"
check "export to int8" "$dtrain" export "$checkpoint" int8 --int8
check "export to fp32" "$dtrain" export "$checkpoint" fp32
check "int8 tensors and scales" grep -qa 'in_proj.weight_scale' int8/model.safetensors
check "int8 is smaller" [ $((3 * $(wc -c <int8/model.safetensors))) -lt $((2 * $(wc -c <fp32/model.safetensors))) ]
for model in "$checkpoint" int8 fp32; do
    check "$model plays" "$dtrain" sample "$model" --tokens 50 --seed 3 --device cpu >"text-$(basename "$model")" 2>sample.log
done
check "the export plays as the checkpoint does" cmp "text-$(basename "$checkpoint")" text-int8
check "and so does an fp32 export" cmp text-fp32 text-int8

check "training without int8" "$dtrain" small.ini run.steps=4 run.dir=plain run.device=cpu run.threads=1 >train.log 2>&1
check "its export to int8" "$dtrain" export plain/checkpoints/step-* plain-int8 --int8
check "is played as int8" grep -q '"quantize":	"int8"' plain-int8/config.json

refused "a folder that exists" 'int8 exists' "$dtrain" export "$checkpoint" int8
refused "no model" 'nosuch' "$dtrain" export nosuch other
check "nothing is left" [ ! -e other ]
LC_ALL=C sed -i 's/in_proj.weight_scale/in_proj.weight_scalf/g' int8/model.safetensors
refused "a missing scale" 'weight_scale is missing' "$dtrain" sample int8
finish
