#!/usr/bin/env bash
# Compares backbones on one task: simulates a small game in which an expert needs memory (data/game.c),
# trains the small controller policy of launch/policy.ini on it with each kind of block, all with the same steps on
# the same frames, lets each play the game (data/game --play), and prints a table. A few minutes per kind on two cores.
#
#   launch/backbones.sh [--steps N] [--width D] [--kinds "gru lstm"] [--previous] [--delay K] [--chunk N] [--out DIR]
#
#   --steps N     training steps of each (default 3000)
#   --width D     width of the models (default 64)
#   --kinds LIST  which kinds (default: mamba mamba2 attention gru lstm mlp)
#   --previous    the models also read the buttons and the stick of the frame before
#   --delay K     what a model does is done K frames later, and it is trained for that (default 0)
#   --chunk N     the models predict the buttons and the stick of N frames (at most 16) at once, and nothing else; all
#                 N are played before the next prediction
#   --out DIR     data, runs and table.txt (default runs/backbones); data and finished runs are kept
#
# mlp has no memory: it can use only what the current frame shows, and is the floor of the table. The score of play says
# more than accuracy: a model that repeats its last action is right in most frames, and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=3000 width=64 kinds="mamba mamba2 attention gru lstm mlp" out=runs/backbones config=launch/policy.ini
delay=0 chunk=0 inputs=frames numbers=16 variant=
usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' launch/backbones.sh
}
while [ $# -gt 0 ]; do
    case $1 in
    --previous)
        inputs="frames targets/buttons@-1 targets/main_x@-1" numbers=25 variant+=-previous
        shift
        ;;
    --steps | --width | --kinds | --delay | --chunk | --out)
        [ $# -ge 2 ] || { echo "backbones.sh: $1 needs a value" >&2; exit 2; }
        declare "${1#--}=$2"
        shift 2
        ;;
    -h | --help) usage; exit 0 ;;
    *) { echo "backbones.sh: unknown option $1"; usage; } >&2; exit 2 ;;
    esac
done
for number in "--steps $steps" "--width $width"; do
    [[ ${number#* } =~ ^[1-9][0-9]{0,8}$ ]] || { echo "backbones.sh: $number: must be a positive whole number" >&2; exit 2; }
done
[[ $delay =~ ^([0-9]|[1-5][0-9]|6[0-4])$ ]] || { echo "backbones.sh: --delay $delay: must be from 0 to 64 frames" >&2; exit 2; }
[[ $chunk =~ ^([0-9]|1[0-6])$ ]] || { echo "backbones.sh: --chunk $chunk: must be from 1 to 16 frames, or 0 for none" >&2; exit 2; }
[ "$delay" = 0 ] || variant+=-delay$delay
[ "$chunk" = 0 ] || variant+=-chunk$chunk
for kind in $kinds; do
    [[ $kind =~ ^(mamba|mamba2|attention|gru|lstm|mlp)$ ]] || { echo "backbones.sh: unknown kind $kind" >&2; exit 2; }
done
dtrain=${DTRAIN:-build/dtrain} game=${GAME:-build/data/game}
if ! [ -x "$dtrain" ] || ! [ -x "$game" ]; then
    { cmake --preset cpu-release && cmake --build --preset cpu-release --target dtrain game; } >&2
fi

mkdir -p "$out"
[ -f "$out/data/val.h5" ] || "$game" "$out/data"

# Value of a key in the configuration.
key() { sed -n "s/^$1 = \([^;]*[^; ]\).*/\1/p" $config; }

layers() { # kind
    [ "$1" = attention ] && echo "attention mlp attention mlp" || echo "$1*2"
}

# The heads, and their datasets in the frames that an action is done in. A bernoulli head has the bits of all rows of a
# chunk, a categorical one those of one row.
heads() {
    [ "$chunk" != 0 ] || { key heads; return; }
    local row all
    all=buttons:bernoulli*$((8 * chunk))\ main_x:categorical*17
    for ((row = 1; row < chunk; row++)); do all+=" main_x_$row:categorical*17"; done
    echo "$all"
}
targets() {
    local head
    [ "$chunk" = 0 ] || { echo "targets/buttons@$delay:$((delay + chunk)) targets/main_x@$delay:$((delay + chunk))"; return; }
    for head in $(key heads); do echo "targets/${head%%:*}@$delay"; done | xargs
}

train() { # kind
    local transformer=()
    [ "$1" != attention ] || transformer=(model.d_mlp=$((2 * width)) model.n_head=4)
    "$dtrain" $config run.dir="$out/$1$variant" run.steps="$steps" run.patience=0 model.layers="$(layers "$1")" \
        model.d_model="$width" model.heads="$(heads)" data.inputs="$inputs" data.targets="$(targets)" \
        data.train="$out/data/train-*.h5" data.val="$out/data/val.h5" optim.lr=3e-3 optim.warmup_steps=$((steps / 50)) optim.ema=0 \
        checkpoint.every=0 log.every=500 log.eval_every=$(((steps + 3) / 4)) log.eval_batches=100 "${transformer[@]}"
}

# The field of the last line of an event, and the mean of all fields of that name in it.
last() { grep "\"event\":\"$2\"" "$1" | tail -n 1; }
field() { grep -o "\"$1\":[0-9.e+-]*" | cut -d: -f2; }
mean() { awk '{ sum += $1 } END { if (NR) printf "%.4f", sum / NR }'; }
median() { sort -g | awk '{ at[NR] = $1 } END { if (NR) printf "%.1f", at[int((NR + 1) / 2)] }'; }

row() { # kind
    local run=$out/$1$variant metrics play score
    metrics=$run/metrics.jsonl
    play=$("$dtrain" bench --play --json --layers "$(layers "$1")" --d-model "$width" --heads "$(heads)" \
        --frame-size $numbers --seq-len "$(key seq_len)" --precision fp32)
    "$game" --play "$(ls -d "$run"/checkpoints/step-* | tail -n 1)" 16 64 1 "$delay" $((chunk > 0 ? chunk : 1)) >"$run/play.txt"
    score=$(awk '$1 == "model" { print $2, "+-", $4 }' "$run/play.txt")
    printf '%-10s %10.4f %9.4f %14s %14.4f %8.2f   %s\n' "$1" \
        "$(last "$metrics" eval | field loss | head -n 1)" \
        "$(last "$metrics" eval | field accuracy | mean)" \
        "$(grep '"event":"train"' "$metrics" | field step_ms | median)" \
        "$(echo "$play" | field step_us | awk '{ print $1 / 1000 }')" \
        "$(echo "$play" | field model_mb)" "$score"
}

for kind in $kinds; do
    printf '\n== %s\n' "$kind"
    train "$kind"
done
{
    printf '%-10s %10s %9s %14s %14s %8s   %s\n' backbone "val loss" accuracy "ms/train step" "ms/play step" MB "score of play"
    for kind in $kinds; do
        row "$kind"
    done
    # The same whichever model played beside them.
    sed -n 's/^\(expert\|random\) \(.*\) near.*/\1: score \2/p' "$out/${kinds%% *}$variant/play.txt" | tr -s ' '
} | tee "$out/table$variant.txt"
