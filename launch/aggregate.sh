#!/usr/bin/env bash
# Dataset aggregation [Ross et al. 2011]: a policy that was trained on the frames that an expert came to meets others
# when it plays. Each round lets it play the simulated game (data/game.c), has the expert say what it would have done in
# those frames, adds these to the data, and trains on. Prints the score of play after each round.
#
#   launch/aggregate.sh [--rounds N] [--steps N] [--games N] [--kind gru] [--width D] [--out DIR]
#
#   --rounds N    how often the policy plays and learns from it (default 5)
#   --steps N     training steps before the first round, and after each (default 1000)
#   --games N     games of 300 frames a round (default 64)
#   --kind KIND   of the two layers (default gru)
#   --width D     of the model (default 64)
#   --out DIR     data, runs and curve.txt (default runs/aggregate); finished rounds are kept
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=5 steps=1000 games=64 kind=gru width=64 out=runs/aggregate
usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' launch/aggregate.sh
}
while [ $# -gt 0 ]; do
    case $1 in
    --rounds | --steps | --games | --kind | --width | --out)
        [ $# -ge 2 ] || { echo "aggregate.sh: $1 needs a value" >&2; exit 2; }
        declare "${1#--}=$2"
        shift 2
        ;;
    -h | --help) usage; exit 0 ;;
    *) { echo "aggregate.sh: unknown option $1"; usage; } >&2; exit 2 ;;
    esac
done
for number in "--rounds $rounds" "--steps $steps" "--games $games" "--width $width"; do
    [[ ${number#* } =~ ^[1-9][0-9]{0,8}$ ]] || { echo "aggregate.sh: $number: must be a positive whole number" >&2; exit 2; }
done
dtrain=${DTRAIN:-build/dtrain} game=${GAME:-build/data/game}
if ! [ -x "$dtrain" ] || ! [ -x "$game" ]; then
    { cmake --preset cpu-release && cmake --build --preset cpu-release --target dtrain game; } >&2
fi

mkdir -p "$out"
[ -f "$out/data/val.h5" ] || "$game" "$out/data" 16 400

newest() { ls -d "$out/round-$1"/checkpoints/step-* | tail -n 1; }
train() { # round: from the weights of the one before, on all data so far
    local from=() shards=$out/data/train-[0-3].h5
    for ((before = 0; before < $1; before++)); do shards+=,$out/data/train-round-$before.h5; done
    [ "$1" = 0 ] || from=(run.init_from="$(newest $(($1 - 1)))")
    "$dtrain" launch/policy.ini run.dir="$out/round-$1" run.steps="$steps" run.patience=0 model.layers="$kind*2" model.d_model="$width" \
        data.train="$shards" data.val="$out/data/val.h5" optim.lr=3e-3 optim.warmup_steps=$((steps / 20)) optim.ema=0 \
        checkpoint.every=0 checkpoint.best=false log.every=500 log.eval_every="$steps" log.eval_batches=100 "${from[@]}"
}

for ((round = 0; round <= rounds; round++)); do
    printf '\n== round %d\n' $round
    train $round
    "$game" --play "$(newest $round)" >"$out/round-$round/play.txt"
    shard=$out/data/train-round-$round.h5
    [ $round = "$rounds" ] || [ -f "$shard" ] || # other games than those that are scored
        { "$game" --relabel "$shard.part" "$(newest $round)" 16 "$games" $((1000 + round)) >/dev/null && mv "$shard.part" "$shard"; }
done
{
    printf '%-6s %14s   %s\n' round "new frames" "score of play"
    for ((round = 0; round <= rounds; round++)); do
        printf '%-6s %14s   %s\n' $round $((round > 0 ? games * 300 : 0)) "$(awk '$1 == "model" { print $2, "+-", $4 }' "$out/round-$round/play.txt")"
    done
    sed -n 's/^\(expert\|random\) \(.*\) near.*/\1: score \2/p' "$out/round-0/play.txt" | tr -s ' '
} | tee "$out/curve.txt"
