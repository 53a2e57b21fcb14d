#!/usr/bin/env bash
# predict.sh DTRAIN PREDICT_TOOL MAKE_EPISODES SHARD_TOOL PLAY_TOOL: for every layout and kind of block, and for tokens
# and pairs, predictions equal those of one forward pass over each episode, with the same bits on 1, 2 and 4 ranks. Also
# tests what is refused.
tool=$(realpath "$2") make_episodes=$(realpath "$3") shard_tool=$(realpath "$4") play_tool=$(realpath "$5")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
policy_ini policy.ini run.steps=12
# The longest episode has 60 frames.
predicts() { # name, data, inputs, arguments of dtrain predict …: checks them against one pass and on any number of ranks
    local name=$1 data=$2 inputs=$3
    shift 3
    for n in ${ranks:-1 2}; do
        check "$name on $n ranks" ranks "$n" predict "$@" -o "$name-$n.h5" >"$name-$n.log" 2>&1
        check "$name: $n ranks have the bits of one" cmp "$name-1.h5" "$name-$n.h5"
    done
    check "$name: nothing temporary is left" test ! -e "$name-1.h5.part"
    check "$name: the outputs of one pass" "$tool" "$(newest "runs/$name")" "$data" 64 "$name-1.h5" "$inputs" actions >tool.log 2>&1
    check "$name: … $(cat tool.log)" grep -qE '^[1-9][0-9]{2,} ' tool.log
}

declare -A inputs=([episodes]='frames img[1:3] b:id*7' [robomimic]='obs/a obs/img[1:3] obs/b:id*7'
    [minari]='observations/a observations/img[1:3] observations/b:id*7' [d4rl]='observations img[1:3] b:id*7')
for layout in episodes robomimic minari d4rl; do
    "$make_episodes" $layout $layout.h5 0 13 && cp $layout.h5 train.h5 || exit 1
    lines=(data.train=train.h5 data.val=$layout.h5 data.inputs="${inputs[$layout]}" data.targets=actions)
    check "$layout trains" "$dtrain" policy.ini "${lines[@]}" run.name=$layout >train.log 2>&1
    ranks="1 2 4" predicts $layout $layout.h5 "${inputs[$layout]}" runs/$layout --hidden
done

check "what is held out of the training data" "$dtrain" predict runs/d4rl data.val= data.val_fraction=0.3 --check -o held.h5 >plan.txt 2>&1
check "… some episodes: $(cat plan.txt)" grep -qE 'data: 1 file \(d4rl\), [34] episodes of ' plan.txt

# Every kind of block passes its state on. Heads that depend on others read the targets of the data. A huge window is a
# single pass.
lines=(data.train=robomimic.h5 data.val=robomimic.h5 data.inputs='obs/a' data.targets=actions)
for kind in mamba mamba2 attention gru lstm mlp chained numbers pooled; do
    layers="$kind*2"
    more=(model.layers="$layers")
    [ $kind != attention ] || more=(model.layers="attention mlp" model.attn_window=16)
    [ $kind != chained ] || more=(model.autoregressive=true)
    [ $kind != numbers ] || more=(model.heads='place:gmm(3,-1,2)*1 load:quantile(0.1,0.5,0.9)*1 stick:regression*1')
    [ $kind != pooled ] || more=(model.heads='buttons:bernoulli*2/max stick:categorical*5')
    check "$kind trains" "$dtrain" policy.ini "${lines[@]}" "${more[@]}" run.name=$kind >train.log 2>&1 || cat train.log >&2
    predicts $kind robomimic.h5 obs/a policy.ini "${lines[@]}" "${more[@]}" run.name=$kind data.val_mask=valid
done
check "windows of another length" "$dtrain" predict runs/gru data.seq_len=7 -o seven.h5 >seven.log 2>&1
check "… give the same" "$tool" "$(newest runs/gru)" robomimic.h5 64 seven.h5 obs/a actions >tool.log 2>&1
# With model.segment each pass has one segment, whose state goes on to the next: the results are equal in the memory of
# a segment.
check "segments of 7 frames" "$dtrain" predict runs/gru data.seq_len=1048576 model.segment=7 -o segments.h5 >segments.log 2>&1
check "… give what windows of 7 give" cmp segments.h5 seven.h5
check "… 7 frames at a time" grep -q '^passes: .* 7 frames at a time' <("$dtrain" predict runs/gru data.seq_len=1048576 model.segment=7 --check -o x.h5)
check "all episodes of --data" "$dtrain" predict runs/gru --data robomimic.h5 --check -o all.h5 >plan.txt 2>&1
check "the plan: $(cat plan.txt)" grep -q '1 file (robomimic), 13 episodes of 317 frames' plan.txt
check "… an eighth of them side by side" grep -q '^passes: 2 side by side, 16 frames at a time, in 7 groups, on 1 rank$' plan.txt
check "the plan has every array" grep -q 'output: all.h5, 52 arrays, 17.3 KiB' plan.txt
check "the plan says what training saw" grep -q 'in training it was zero at the start of each window of 16' plan.txt
check "a training that carries it, too" "$dtrain" predict runs/gru --data robomimic.h5 data.{carry_state=true,shuffle=false} --check -o all.h5 >plan.txt 2>&1
check "… has nothing to say of that: $(cat plan.txt)" eval 'grep -q "carried through it" plan.txt && ! grep -q "in training" plan.txt'
check "--check writes nothing" test ! -e all.h5 -a ! -e all.h5.part
check "a checkpoint of a run" "$dtrain" predict "$(newest runs/gru)" -o one.h5 >one.log 2>&1
check "… is that of the run" cmp one.h5 gru-1.h5
cp robomimic.h5 again.h5
check "two files" "$dtrain" predict runs/gru --data 'robomimic.h5,again.h5' -o two.h5 --check >plan.txt 2>&1
check "two files have groups of their names: $(cat plan.txt)" grep -q ' /again.h5/data/demo_0/buttons/logits \[5, 2\]' plan.txt

# Draws depend on a seed, not on ranks. At temperature 0 the most likely values are drawn. Heads that depend on others
# read them.
for name in gru chained; do
    for draw in "1 5" "1 5 2" "1 6" "0 5"; do
        read -r temperature seed n <<<"$draw"
        check "$name draws $draw" ranks "${n:-1}" predict runs/$name --draw --temperature "$temperature" --seed "$seed" \
            -o "$name-${draw// /-}.h5" >draw.log 2>&1
    done
    check "$name: draws on two ranks" cmp $name-1-5.h5 $name-1-5-2.h5
    check "$name: another seed" test "$(cmp -s $name-1-5.h5 $name-1-6.h5; echo $?)" = 1
done
check "draws leave logits alone" "$tool" "$(newest runs/gru)" robomimic.h5 64 gru-1-6.h5 obs/a actions >tool.log 2>&1
check "conditioned heads see what is drawn" test "$("$tool" "$(newest runs/chained)" robomimic.h5 64 chained-1-5.h5 obs/a actions >tool.log 2>&1; echo $?)" = 1

# Only held-out episodes of those that share datasets: rows of the others are NaN.
"$dtrain" policy.ini data.train=d4rl.h5 data.val= data.val_fraction=0.4 data.inputs=observations data.targets=actions run.name=held >train.log 2>&1
check "held-out episodes are predicted" "$dtrain" predict runs/held -o held.h5 >held.log 2>&1
check "all of them" "$dtrain" predict runs/held --data d4rl.h5 -o held-all.h5 >held-all.log 2>&1
check "… as among all others: $(cat held.log)" "$tool" "$(newest runs/held)" d4rl.h5 64 held-all.h5 observations actions held.h5 >tool.log 2>&1

# Data without targets.
for name in gru chained; do
    "$dtrain" predict runs/$name data.targets=nothing --draw -o $name-none.h5 >none.log 2>&1
    check "$name needs no targets to draw: $(cat none.log)" "$dtrain" predict runs/$name --draw -o $name-some.h5 >some.log 2>&1
    check "$name: the numbers are those with targets: only the key of 8 bytes differs" \
        test "$(stat -c %s $name-none.h5) $(cmp -l $name-none.h5 $name-some.h5 | awk 'END { print (NR > 0 && NR <= 8) }')" = "$(stat -c %s $name-some.h5) 1"
done
refused "conditioned heads without targets" 'conditioned on the targets .* robomimic.h5 has none' \
    "$dtrain" predict runs/chained data.targets=nothing -o x.h5

# Some inputs are earlier actions: libdtrain_step feeds them back as training read them.
for run in "previous obs/a actions@-1" "two obs/a actions@-2:0:valid"; do
    read -r name words <<<"$run"
    check "$name trains" "$dtrain" policy.ini data.{train,val}=robomimic.h5 data.inputs="$words" data.targets=actions run.name="$name" >train.log 2>&1
done
for name in previous two; do
    check "$name is predicted" "$dtrain" predict runs/$name -o $name.h5 >predict.log 2>&1
    check "$name is played with what is predicted" "$play_tool" "$(newest runs/$name)" robomimic.h5 $name.h5 >play.log 2>&1
done

# Tokens: as in one pass of 8,000 positions, and with the loss that eval reports for the same tokens.
small_run
"$dtrain" small.ini run.name=tokens data.carry_state=true data.shuffle=false data.batch=1 >train.log 2>&1 || cat train.log >&2
shard=$(echo data/val-*.h5)
for n in 1 2; do
    check "tokens on $n ranks" ranks "$n" predict runs/tokens --hidden -o "tokens-$n.h5" >tokens.log 2>&1
done
check "tokens: two ranks have the bits of one" cmp tokens-1.h5 tokens-2.h5
check "tokens: the log-probabilities of one pass" "$tool" "$(newest runs/tokens)" "$shard" 16384 tokens-1.h5 >tool.log 2>&1
"$dtrain" eval small.ini run.name=tokens data.carry_state=true data.shuffle=false data.batch=1 >eval.json 2>eval.log
check "tokens: their mean, $(cat tool.log), is the loss of eval, $(cat eval.json)" awk '
    NR == FNR { n = $1; sum = $2; next } { exit !((-sum / n / $1 - 1) ^ 2 < 1e-6) }' tool.log <(eval_loss <eval.json)

# Logits of hundreds and thousands, whose exponentials do not fit a double; an output that is not finite, at the end of
# a row.
weights() { # run, new folder, tensor, first, how many, bytes of each, configuration …: predicts with these weights changed
    overwrite "$(newest "runs/$1")" "${@:2:5}"
    "$dtrain" predict "${@:7}" run.name=none run.init_from="$2" -o "$2.h5" >"$2.log" 2>&1
}
of_tokens=(small.ini data.carry_state=true data.shuffle=false data.batch=1)
of_gru=(policy.ini "${lines[@]}" model.layers='gru*2' data.val_mask=valid)
weights tokens steep-tokens backbone.norm_f.weight 0 24 '\x00\x40\x1c\x46' "${of_tokens[@]}" # 10000
check "steep tokens: the log-probabilities of one pass" "$tool" steep-tokens "$shard" 16384 steep-tokens.h5 >tool.log 2>&1
weights gru steep-gru backbone.norm_f.weight 0 24 '\x00\x40\x1c\x46' "${of_gru[@]}"
check "steep heads: the probabilities of one pass" "$tool" steep-gru robomimic.h5 64 steep-gru.h5 obs/a actions >tool.log 2>&1
weights gru last-gru heads.weight $((6 * 24)) 24 '\x99\x76\x61\x7f' "${of_gru[@]}"
check "an output that is not finite: exit code $?, not 3" test $? -eq 3
check "… is named: $(tail -n 3 last-gru.log)" grep -qE 'the prediction "stick" for row 0 of the segment at .*demo_[0-9]+.* is -?(inf|nan)' last-gru.log
# 72,000 tokens: windows are read for 32,768 rows at a time.
check "many tokens" "$dtrain" predict runs/tokens --data data/train-00000.h5 -o many.h5 >many.log 2>&1
check "many tokens: the log-probabilities of one pass" "$tool" "$(newest runs/tokens)" data/train-00000.h5 98304 many.h5 >tool.log 2>&1
head -c 253 words.txt >few.txt
"$dtrain" pack -o few --val 0 few.txt >pack.log 2>&1
check "253 tokens" "$dtrain" predict runs/tokens --data few/train-00000.h5 --check -o few.h5 >plan.txt 2>&1
check "… have 1012 bytes, less than a KiB: $(cat plan.txt)" grep -q 'output: few.h5, 1 array, 1012 bytes' plan.txt
refused "draws of tokens" '--draw is for the heads of a policy' "$dtrain" predict runs/tokens --draw -o x.h5
"$shard_tool" pairs pairs.h5 8 24 3 0 1 ignored
cp pairs.h5 same.h5
sed 's/^vocab_size = .*/vocab_size = 128/; s/^seq_len = .*/seq_len = 24/; s/^block = .*/block = 1/' small.ini >pairs.ini
check "pairs train" "$dtrain" pairs.ini data.train=same.h5 data.val=pairs.h5 run.name=pairs >train.log 2>&1 || cat train.log >&2
check "pairs" "$dtrain" predict runs/pairs -o pairs-1.h5 >pairs.log 2>&1
check "pairs: the log-probabilities of each row" "$tool" "$(newest runs/pairs)" pairs.h5 24 pairs-1.h5 >tool.log 2>&1

# Rows longer than a segment, and tokens.
check "pairs in segments" "$dtrain" predict runs/pairs model.segment=8 -o pairs-8.h5 >pairs.log 2>&1
check "pairs in segments: the log-probabilities of each row" "$tool" "$(newest runs/pairs)" pairs.h5 24 pairs-8.h5 >tool.log 2>&1
check "tokens in segments" "$dtrain" predict runs/tokens data.seq_len=1048576 model.segment=64 -o tokens-64.h5 >tokens.log 2>&1
check "tokens in segments: the log-probabilities of one pass" "$tool" "$(newest runs/tokens)" "$shard" 16384 tokens-64.h5 >tool.log 2>&1

refused "a file that exists" 'gru-1.h5 exists' "$dtrain" predict runs/gru -o gru-1.h5
check "--force replaces it" "$dtrain" predict runs/gru -o gru-1.h5 --force >force.log 2>&1
check "… with the same" cmp gru-1.h5 one.h5
ln -s robomimic.h5 link.h5
refused "the data itself" 'link.h5 is data that is to be predicted' "$dtrain" predict runs/gru -o link.h5 --force
refused "a folder" 'data is a folder' "$dtrain" predict runs/gru -o data --force
refused "a run without a checkpoint" 'no checkpoint in runs/none' "$dtrain" predict policy.ini "${lines[@]}" run.name=none -o x.h5
refused "no data" 'data.val is empty' "$dtrain" predict runs/gru data.val= -o x.h5
refused "a folder that is no run" 'there is no data/config.resolved.ini' "$dtrain" predict data -o x.h5
refused "synthetic data" 'synthetic:frames is not a file' "$dtrain" predict runs/gru --data synthetic:frames -o x.h5
refused "data that is not there" 'nothing.h5' "$dtrain" predict runs/gru --data nothing.h5 -o x.h5
refused "a folder that is not there" 'cannot create no/x.h5.part' "$dtrain" predict runs/gru -o no/x.h5
refused "other columns" 'data.inputs: word 2 is obs.img.1:3., the model has nothing' "$dtrain" predict runs/gru data.inputs='obs/a obs/img[1:3]' -o x.h5
"$dtrain" policy.ini "${lines[@]}" run.name=hidden model.heads=hidden:huber*3 run.steps=1 >train.log 2>&1 || cat train.log >&2
refused "a head that is called hidden" 'a head is called hidden, as the dataset of --hidden is' "$dtrain" predict runs/hidden --hidden -o x.h5
(
    flock 9
    refused "another job's output" 'another job is writing busy.h5.part' "$dtrain" predict runs/gru -o busy.h5
    exit $failures
) 9>busy.h5.part || failures=$((failures + 1))
refused "two files of one name" 'have the same name' "$dtrain" predict runs/gru --data robomimic.h5,./robomimic.h5 -o x.h5
check "nothing is left of what was refused" test ! -e x.h5 -a ! -e x.h5.part
finish
