#!/usr/bin/env bash
# policies.sh DTRAIN GAME: the ready configuration launch/policy.ini trains on frames of 287 numbers with each kind of block,
# and, smaller, with the same losses on two ranks and in micro-batches; launch/backbones.sh makes its table.
game=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mkdir data
"$game" data/policy 287 20 7 >game.log || { cat game.log >&2; exit 1; }
"$game" again 287 20 7 >/dev/null
check "the game is the same for the same seed" diff -r data/policy again
check "a frame has room for what is seen" test "$("$game" bad 3 2>&1 >/dev/null; echo $?)" != 0

small=(run.steps=3 optim.warmup_steps=1 model.d_model=32 data.batch=4 data.seq_len=20 data.stride=20 run.precision=fp32
    log.eval_every=3 log.eval_batches=2)
for kind in mamba mamba2 attention gru lstm mlp; do
    config=("$repository/launch/policy.ini" model.layers="$kind*2")
    [ $kind != attention ] || config[1]="model.layers=attention mlp attention mlp"
    check "$kind: --check" "$dtrain" --check "${config[@]}" >$kind.plan 2>&1
    check "$kind: frames of 287 numbers are found" grep -q 287 $kind.plan
    for variant in "1" "2" "1 data.micro_batch=1"; do
        read -r n override <<<"$variant"
        name=$kind-${variant//[^a-z0-9]/-}
        check "$kind: training on $variant" ranks "$n" "${config[@]}" run.dir="$name" "${small[@]}" ${override:+"$override"} \
            >"$name.log" 2>&1
        # fp32 sums in another order: 1e-5 relative is what the project promises.
        check "$kind: losses on $variant" same_losses "$name/metrics.jsonl" "$kind-1/metrics.jsonl" 1e-5
    done
    check "$kind: validation has an accuracy" grep -q '"event":"eval".*"accuracy":' "$kind-1/metrics.jsonl"
done

export DTRAIN=$dtrain GAME=$game
check "backbones.sh" "$repository/launch/backbones.sh" --steps 4 --width 16 --kinds "gru mlp" --out "$PWD/backbones" \
    >backbones.log 2>&1
check "its table has a row a kind, every figure in it" awk '
    NR > 1 { rows++; for (i = 2; i <= 6; i++) if (!($i > 0)) exit 1 } END { exit rows != 2 }' backbones/table.txt
finish
