#!/usr/bin/env bash
# both.sh DTRAIN GAME: models that read both ways: the same losses on any ranks and in any micro-batches, every bit with
# reproducible sums, through a resume on other ranks and with sharded optimizer states; the plan; evaluation and
# predictions; what is refused, by the key's name.
game=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
heads='buttons:bernoulli*8 main_x:categorical*17 shoulder:categorical*5/mean'
game_policy "$game" both.ini model.direction=both model.heads="$heads" model.layers='mamba gru mamba2 mlp lstm' model.n_layer=5 model.d_state=4
last=checkpoints/step-00000008
for tied in true false; do
    common=(both.ini model.tie_directions=$tied)
    for variant in "1" "1 data.micro_batch=2 model.recompute=block" "2 data.micro_batch=2 model.recompute=scan" "4"; do
        read -ra words <<<"$variant"
        name=$tied-${variant//[^a-z0-9]/-}
        check "$name: trains" ranks "${words[0]}" "${common[@]}" "${words[@]:1}" run.name="$name" >"$name.log" 2>&1
        check "$name: the losses of one rank" same_losses runs/$tied-1/metrics.jsonl "runs/$name/metrics.jsonl" 1e-6
    done
    tree=("${common[@]}" comm.reduce=reproducible data.micro_batch=2)
    check "$tied: reproducible" ranks 1 "${tree[@]}" run.name=tree-$tied-1 >tree.log 2>&1
    check "$tied: … on two ranks, sharded" ranks 2 "${tree[@]}" run.name=tree-$tied-2 optim.shard=true >tree.log 2>&1
    check "$tied: … the same bits" same_bits runs/tree-$tied-1/$last runs/tree-$tied-2/$last
    check "$tied: … half of it" ranks 1 "${tree[@]}" run.name=tree-$tied-4 checkpoint.every=4 >tree.log 2>&1
    rm -r runs/tree-$tied-4/$last
    check "$tied: … the rest on four ranks" ranks 4 "${tree[@]}" run.name=tree-$tied-4 >tree.log 2>&1
    check "$tied: … resumes to the same bits" same_bits runs/tree-$tied-1/$last runs/tree-$tied-4/$last
done
weights() { grep -ao '"backbone.layers.0.mixer[^"]*in_proj.weight"' "runs/$1/$last/model.safetensors" | xargs; }
check "shared projections are stored once" test "$(weights true-1)" = backbone.layers.0.mixer.mamba_fwd.in_proj.weight
check "others twice: $(weights false-1)" test "$(weights false-1 | wc -w)" = 2
loss_of() { grep '"event":"eval"' "$1" | tail -n 1 | grep -o '"loss":[0-9.]*' | head -n 1 | cut -c1-16; }
check "eval" "$dtrain" eval both.ini run.name=true-1 >eval.json 2>eval.log
check "eval has the loss of training" test "$(loss_of eval.json)" = "$(loss_of runs/true-1/metrics.jsonl)"
for n in 1 2; do
    check "predicts on $n ranks" ranks $n predict both.ini run.name=true-1 --output predicted-$n.h5 >predict-$n.log 2>&1
done
check "… the same file" cmp predicted-1.h5 predicted-2.h5
check "… each window by itself" grep -q 'context: each window by itself, read both ways' predict-1.log

rejected() { # pattern, override …
    refused "${*:2}" "$1" "$dtrain" both.ini run.name=refused "${@:2}"
}
rejected 'data.carry_state: true, but model.direction = both' data.carry_state=true data.shuffle=false
rejected "model.direction: 'sideways' is not one of the choices \(allowed: forward \| both\)" model.direction=sideways
rejected 'model.direction: forward, but the model in runs/true-1/.* has both' run.init_from=runs/true-1/$last model.direction=forward
rejected 'model.tie_directions: false, but the model in runs/true-1/.* has true' run.init_from=runs/true-1/$last model.tie_directions=false
mkdir lm && cd lm || exit
small_run
refused "the next token" 'model.direction is both, but model.heads is lm, which predicts the next token' \
    "$dtrain" small.ini model.direction=both
finish
