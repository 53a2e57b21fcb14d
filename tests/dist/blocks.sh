#!/usr/bin/env bash
# Every kind of block as a language model, alone or in a hybrid: the same losses on one and two ranks and with any
# micro-batch, the same bits from every level of recompute and after a resume, with carried state; text from a sample.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
same_state() {
    same_bits "$1" "$2" && cmp "$1/carried.safetensors" "$2/carried.safetensors"
}
last=checkpoints/step-00000012

blocks() { # name, pattern of model.layers, overrides …
    local name=$1 variant n override
    local run=(small.ini "model.layers=$2" "model.n_layer=$(wc -w <<<"$2")" run.steps=12 data.shuffle=false data.carry_state=true
        checkpoint.every=6 "${@:3}")
    for variant in "1" "2" "1 data.micro_batch=2" "1 model.recompute=scan" "1 model.recompute=block"; do
        read -r n override <<<"$variant"
        check "$name: training on $variant" ranks "$n" "${run[@]}" run.name="$name-${variant//[^a-z0-9]/-}" \
            ${override:+"$override"} >"$name.log" 2>&1
    done
    for variant in 2 1-data-micro-batch-2; do
        check "$name: losses on $variant" same_losses "runs/$name-$variant/metrics.jsonl" "runs/$name-1/metrics.jsonl" 1e-5
    done
    for variant in scan block; do
        check "$name: bits with recompute = $variant" same_state "runs/$name-1-model-recompute-$variant/$last" "runs/$name-1/$last"
    done
    mkdir -p "runs/$name-resumed/checkpoints"
    cp -r "runs/$name-1/checkpoints/step-00000006" "runs/$name-resumed/checkpoints"
    check "$name: resuming" ranks 1 "${run[@]}" run.name="$name-resumed" >"$name.log" 2>&1
    check "$name: bits after resuming" same_state "runs/$name-resumed/$last" "runs/$name-1/$last"
    check "$name: bf16" ranks 1 "${run[@]}" run.name="$name-bf16" run.precision=bf16 >"$name.log" 2>&1
    check "$name: a sample" "$dtrain" sample "runs/$name-1" --tokens 40 --temperature 0 >"$name.txt" 2>"$name.log"
    check "$name: … has text" test "$(wc -c <"$name.txt")" -ge 40
}
blocks hybrid "mamba attention mamba" model.n_head=2 model.n_kv_head=1 model.attn_window=45
blocks attention "attention attention"
blocks recurrent "gru mlp lstm"
finish
