#!/usr/bin/env bash
# policies.sh DTRAIN GAME: launch/policy.ini trains on frames of 287 numbers with each kind of block and, in a smaller
# form, has the same losses on two ranks and in micro-batches. launch/backbones.sh prints its table.
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
check "its table has a row a kind, every figure in it: $(cat backbones/table.txt)" awk '
    /^(gru|mlp) / { rows++; for (i = 2; i <= 7; i++) if (!($i > 0)) exit 1 } END { exit rows != 2 }' backbones/table.txt
check "… and those of the expert and of random play" \
    test "$(grep -cE '^(expert|random): score [0-9.]+ \+- [0-9.]+' backbones/table.txt)" = 2
check "backbones.sh --previous --delay" "$repository/launch/backbones.sh" --steps 4 --width 16 --kinds gru --previous --delay 3 --out "$PWD/backbones" \
    >previous.log 2>&1
check "its table: $(cat previous.log)" grep -qE '^gru .* [0-9.]+ \+- [0-9.]+$' backbones/table-previous-delay3.txt
check "backbones.sh --chunk" "$repository/launch/backbones.sh" --steps 4 --width 16 --kinds gru --previous --delay 3 --chunk 3 --out "$PWD/backbones" \
    >chunk.log 2>&1
check "its table: $(cat chunk.log)" grep -qE '^gru .* [0-9.]+ \+- [0-9.]+$' backbones/table-previous-delay3-chunk3.txt
chunk=$(newest backbones/gru-previous-delay3-chunk3)
for n in 1 2 3; do "$game" --play "$chunk" 16 4 1 3 $n >rows-$n.txt; done
check "other games by one and by three rows of a prediction" test "$(cmp -s rows-1.txt rows-3.txt; echo $?)" = 1
check "the table is of three rows" test "$("$game" --play "$chunk" 16 64 1 3 3)" = "$(cat backbones/gru-previous-delay3-chunk3/play.txt)"
check "aggregate.sh" "$repository/launch/aggregate.sh" --rounds 1 --steps 4 --games 2 --width 8 --out "$PWD/aggregate" >aggregate.log 2>&1
check "its curve has a row a round, and what it is compared with: $(cat aggregate/curve.txt)" \
    test "$(grep -cE '^([01] +(0|600) +[0-9.]+ \+- [0-9.]+|(expert|random): score [0-9.]+ .*)$' aggregate/curve.txt)" = 4
check "the second round has the frames of the first" grep -q 'train = .*train-round-0.h5' aggregate/round-1/config.resolved.ini
check "a finished round is kept" "$repository/launch/aggregate.sh" --rounds 1 --steps 4 --games 2 --width 8 --out "$PWD/aggregate" >again.log 2>&1
# The same games are played in the same way, whatever other streams play at the same time.
policy=$(newest aggregate/round-0)
"$game" --play "$policy" 16 5 7 >one.txt
"$game" --relabel labels.h5 "$policy" 16 5 7 >two.txt
check "games are the same for the same seed" cmp one.txt two.txt
check "relabelled frames are a shard" grep -q 'labels.h5: 1500 frames, .*episodes: 5, targets: 13' <("$dtrain" verify labels.h5)
check "the expert's score: $(cat one.txt)" awk '$1 == "expert" { exit !($2 > 85 && $NF == 1) }' one.txt
check "a delay changes a model's play, not the expert's" \
    test "$("$game" --play "$policy" 16 5 7 6 | diff - one.txt | grep -c '^< expert')-$("$game" --play "$policy" 16 5 7 6 | diff - one.txt | grep -c '^<')" = 0-2
messages=0
refused "a model of another game" 'game: .*: a player has the heads' "$game" --play "$policy" 17
refused "no model" 'game: cannot open nowhere/config.json' "$game" --play nowhere
refused "more rows than a prediction has" 'game: action_steps is 4, not in 1 … 3' "$game" --play "$chunk" 16 4 1 3 4
refused "no chunk" 'game: action_steps is 2, not in 1 … 1' "$game" --play "$policy" 16 4 1 3 2
refused "too long a chunk" 'chunk 17: must be from 1 to 16 frames' "$repository/launch/backbones.sh" --chunk 17
refused "no games" '0: not a whole number from 1' "$game" --play "$policy" 16 0
finish
