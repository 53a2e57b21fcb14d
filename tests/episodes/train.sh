#!/usr/bin/env bash
# A policy trains on episodes of every layout with three lines of configuration, equally on two ranks and on one. Also
# what commands print about such data, and what is refused with exit code 2. $2 is the tool that writes the layouts.
make_episodes=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
policy_ini policy.ini run.steps=90 data.block=4 log.eval_every=30
loss() { # of a run at a step
    train_lines "runs/$1/metrics.jsonl" | awk "\$1 == $2 { print \$2 }"
}
three_lines() { # layout, inputs instead of its own; sets the array `lines`
    case $1 in
    episodes) inputs='frames img[1:3] b:id*7' ;;
    robomimic) inputs='obs/a obs/img[1:3] obs/b:id*7' ;;
    minari) inputs='observations/a observations/img[1:3] observations/b:id*7' ;;
    d4rl) inputs='observations img[1:3] b:id*7' ;;
    groups) inputs='obs/a obs/img[1:3] obs/b:id*7' ;;
    esac
    lines=(data.train=train.h5 data.inputs="${2:-$inputs}" data.targets=actions)
    [ "$1" != groups ] || lines+=(data.episodes='subject_*/trial_?')
}

for layout in episodes robomimic minari d4rl groups; do
    "$make_episodes" $layout train.h5 0 13 && cp train.h5 val.h5 || exit 1
    three_lines $layout
    for n in 1 2; do
        check "$layout on $n ranks trains" ranks $n policy.ini "${lines[@]}" run.name=$layout-$n >$layout-$n.log 2>&1
    done
    check "$layout: the loss falls" awk "BEGIN { exit !($(loss $layout-1 90) < 0.7 * $(loss $layout-1 1)) }"
    check "$layout: two ranks have the losses of one" \
        same_losses runs/$layout-1/metrics.jsonl runs/$layout-2/metrics.jsonl 1e-4
    check "$layout: --check" "$dtrain" --check policy.ini "${lines[@]}" run.name=other >check.log 2>&1
    frames=$([ $layout = robomimic ] && echo 9 || echo 13)
    check "$layout: it shows frames: $(cat check.log)" \
        grep -q "$frames episodes, a window every 16 frames (data.stride); a frame has 5 values and 1 id (tables of 7), the targets 3" check.log
    check "$layout: by its name" "$dtrain" --check policy.ini "${lines[@]}" run.name=other data.format=$layout >check.log 2>&1
    check "$layout: verify reads it by the configuration's rules: $("$dtrain" verify policy.ini "${lines[@]}")" \
        grep -q "^good  train.h5: .* ($layout), values per frame: 5, episodes: $frames, targets: 3, no checksums, data.train$" \
        <("$dtrain" verify policy.ini "${lines[@]}")
    refused "$layout: verify with too few classes" '2 of 2 failed' "$dtrain" verify policy.ini "${lines[@]}" \
        model.heads='buttons:bernoulli*2 stick:categorical*3'
    check "$layout: … names the class" grep -q '^bad   val.h5: .* is not a whole number in \[0, 3) for the head stick' \
        <("$dtrain" verify policy.ini "${lines[@]}" model.heads='buttons:bernoulli*2 stick:categorical*3' 2>&1)
    check "$layout: order" "$dtrain" order policy.ini "${lines[@]}" --steps 1:3 >order.log
    check "$layout: a line a window" test "$(grep -c . order.log)" = 24
done
"$make_episodes" groups one.h5 0 1 # of five frames
for after in 0 1 2; do # rows after a frame that its target is: so many frames at the end have none
    missing=$([ $after = 0 ] || echo "frames with a target missing: $after, ")
    check "verify counts $after frames without a target" grep -q "^good  one.h5: 5 frames, .* targets: 3, ${missing}no checksums, data.train$" \
        <("$dtrain" verify policy.ini "${lines[1]}" "${lines[3]}" data.train=one.h5 data.val= log.eval_every=0 data.batch=1 data.targets=actions@$after 2>&1)
done
refused "verify where no target is" 'all targets of data.train are missing' "$dtrain" verify policy.ini \
    "${lines[@]/targets=actions/targets=actions@5000}"
check "verify of datasets that it does not know" grep -q '^bad   train.h5 has neither .*; dtrain verify CONFIG checks other datasets' \
    <("$dtrain" verify train.h5 2>&1)

# Images of bytes stay bytes until the device, with the bits of the same numbers stored as floats. So do those of a run
# that validates on floats or is resumed.
image="obs/a $(printf 'obs/img %.0s' {1..20}) obs/b:id*7 obs/a[0] obs/img[1]"
for type in bytes floats; do
    "$make_episodes" robomimic $type.h5 0 13 $([ $type = bytes ] || echo floats)
    cp $type.h5 $type-val.h5
    lines=(data.train=$type.h5 data.val=$type-val.h5 data.inputs="$image" data.targets=actions run.steps=6 log.eval_every=3)
    for variant in 1 "1 data.carry_state=true data.shuffle=false" "2 run.precision=bf16 model.quantize=int8" \
        "1 run.precision=bf16 data.micro_batch=2 data.stride=9 optim.ema=0.9 model.recompute=block data.normalize=false"; do
        read -r n overrides <<<"$variant"
        name=$type-${variant//[^a-z0-9]/}
        # shellcheck disable=SC2086
        check "$name trains" ranks "$n" policy.ini "${lines[@]}" run.name="$name" checkpoint.every=3 $overrides >"$name.log" 2>&1
    done
    "$dtrain" --check policy.ini "${lines[@]}" run.name=other >$type.txt 2>&1
done
for name in runs/bytes-*; do
    floats=${name/bytes/floats}
    check "${name#runs/} has the losses of floats" same_losses "$name"/metrics.jsonl "$floats"/metrics.jsonl 0
    check "${name#runs/} has the bits of floats" same_bits {"$name","$floats"}/checkpoints/step-00000006
done
check "carried states have the bits of floats" \
    cmp runs/{bytes,floats}-1datacarrystatetruedatashufflefalse/checkpoints/step-00000006/carried.safetensors
check "--check names the bytes: $(cat bytes.txt)" grep -q \
    'arrays: frames fp32 x 5, bytes uint8 x 80, ids int32 x 1, targets fp32 x 3, mask uint8 x 1; a batch has 14.6 KiB per rank' bytes.txt
check "--check names the stored types" grep -q '  bytes.h5  fp32, fp64, uint8, int64 x ' bytes.txt
check "--check names the floats: $(cat floats.txt)" grep -q 'arrays: frames fp32 x 85, ids .* a batch has 44.6 KiB' floats.txt
lines[0]=data.train=bytes.h5
check "validation on floats" "$dtrain" policy.ini "${lines[@]}" run.name=floats-val >val.log 2>&1
check "validation on floats: the same losses" same_losses runs/{floats-val,bytes-1}/metrics.jsonl 0
lines[1]=data.val=bytes-val.h5
cp -r runs/bytes-1 runs/again
rm -r runs/again/checkpoints/step-00000006
check "bytes: resumes" "$dtrain" policy.ini "${lines[@]}" run.name=again checkpoint.every=3 >again.log 2>&1
check "bytes: with the bits of the whole run" same_bits runs/{again,bytes-1}/checkpoints/step-00000006

# Frames in any unit give the same training: the units are powers of two, so the bits are equal.
for unit in 1 0x1p-70 0x1p70 0x1p124; do
    "$make_episodes" robomimic unit.h5 0 13 unit $unit && cp unit.h5 unit-val.h5 || exit 1
    check "frames of $unit train" "$dtrain" policy.ini data.train=unit.h5 data.val=unit-val.h5 data.inputs=obs/a data.targets=actions \
        run.name=unit-$unit run.steps=20 optim.warmup_steps=2 log.eval_every=20 >unit-$unit.log 2>&1
    check "frames of $unit: the losses of any unit" same_losses runs/unit-{$unit,1}/metrics.jsonl 0
    check "frames of $unit: the validation of any unit" cmp <(grep -o 'validation loss.*' unit-$unit.log) <(grep -o 'validation loss.*' unit-1.log)
done
# Without normalisation their sums overflow. A run of three skipped steps has trained nothing, and fails.
"$make_episodes" robomimic unit.h5 0 13 unit 0x1.ap124 || exit 1
refused "frames of 3e38" 'every step of the run was skipped' "$dtrain" policy.ini data.train=unit.h5 data.val= log.eval_every=0 data.inputs=obs/a data.targets=actions \
    data.normalize=false model.d_model=128 run.name=large run.steps=3 optim.warmup_steps=0
check "… and state.json says so" grep -q '"state":"failed"' runs/large/state.json
"$make_episodes" robomimic still.h5 0 13 unit 0
check "constant columns are named" "$dtrain" policy.ini data.train=still.h5 data.val= log.eval_every=0 data.inputs='obs/a obs/b' data.targets=actions \
    run.name=still run.steps=2 optim.warmup_steps=0 >still.log 2>&1
check "… in the log: $(cat still.log)" grep -q '3 of 4 columns of the frames are constant' still.log

"$make_episodes" robomimic train.h5 0 13 && cp train.h5 val.h5
three_lines robomimic 'obs/a obs/img[0:2] obs/b:id*7'
for n in 1 2 4; do # with a learning rate of 0 the weights are the initial ones, with the statistics of the frames
    check "$n ranks start" ranks $n policy.ini "${lines[@]}" run.name=start-$n run.steps=1 optim.lr=1e-60 >start.log 2>&1
    check "$n ranks normalise with the bits of one" \
        cmp runs/start-{1,$n}/checkpoints/step-00000001/model.safetensors
done
refused "text from a model of frames" 'the model in .* reads frames, not tokens' "$dtrain" sample runs/robomimic-1 --prompt '1 2'
three_lines robomimic obs//
check "slashes at the end of a group" "$dtrain" --check policy.ini "${lines[@]}" >check.txt
three_lines robomimic 'obs/b:id*7'
check "ids alone" "$dtrain" policy.ini "${lines[@]}" run.name=ids checkpoint.every=30 >ids.log 2>&1
check "ids alone: verify" "$dtrain" verify policy.ini "${lines[@]}" >verify.log 2>&1
check "ids alone: the loss falls" test "$(awk "BEGIN { print $(loss ids 90) < 0.97 * $(loss ids 1) }")" = 1
cp -r runs/ids runs/cut
rm -r runs/cut/checkpoints/step-00000090
check "ids alone: resumes" "$dtrain" policy.ini "${lines[@]}" run.name=cut checkpoint.every=30 >cut.log 2>&1
check "ids alone: with the bits of the whole run" same_bits runs/{cut,ids}/checkpoints/step-00000090
check "ids alone: eval" "$dtrain" eval policy.ini "${lines[@]}" run.name=ids >eval.json 2>eval.log
three_lines robomimic 'obs/a obs/b:id*7'
refused "numbers for a model of ids" 'frames of 3 numbers .*\(model.frame_size, model.ids\) has 0 and \[7\]' \
    "$dtrain" policy.ini "${lines[@]}" run.init_from=runs/ids/checkpoints/step-00000090 run.name=other
three_lines robomimic
check "order names episodes" grep -q ' train.h5 /data/demo_[0-9]*:[0-9]*$' <("$dtrain" order policy.ini "${lines[@]}" --steps 1:3)
check "verify" grep -q 'good  train.h5: 317 frames, fp32, fp64, uint8, int64 (robomimic), values per frame: 8, episodes: 13, targets: 3' <("$dtrain" verify train.h5)
"$make_episodes" robomimic train.h5 0 13 /data/demo_8/obs/a 41
refused "a frame that is not finite" 'train.h5: /data/demo_8/obs/a, row 41, column 0: nan is not a finite float32' \
    "$dtrain" policy.ini "${lines[@]}" run.name=bad
check "nothing is left of it" test ! -e runs/bad/checkpoints/step-00000090
refused "verify finds it" 'row 41, column 0: nan is not a finite float32' "$dtrain" verify train.h5
# One number of thousands, far from the ends, in a file of the same size; then the old one.
for value in 0 1 0; do
    "$make_episodes" robomimic train.h5 0 13 /data/demo_8/actions 42 $value
    case $value-$(ls runs/number/checkpoints 2>/dev/null | wc -l) in
    1-*) refused "one other number on resume" 'shard 1, train.h5, has different data' "$dtrain" policy.ini "${lines[@]}" run.name=number run.steps=6 ;;
    0-0) check "a run on the first number" "$dtrain" policy.ini "${lines[@]}" run.name=number run.steps=4 >number.log 2>&1 ;;
    *) check "the first number again: resumes" "$dtrain" policy.ini "${lines[@]}" run.name=number run.steps=6 >number.log 2>&1 ;;
    esac
done
# Data for training must not be used for validation: that is refused, unless lists or data.val_fraction hold them out.
"$make_episodes" episodes train.h5 0 13 && "$make_episodes" robomimic masked.h5 0 13 && ln -f masked.h5 hard.h5 && ln -sf train.h5 soft.h5
three_lines episodes
refused "validation on training data" 'data.val: soft.h5 is also a shard of data.train' \
    "$dtrain" policy.ini "${lines[@]}" data.val=soft.h5 run.name=leak
check "… but a checkpoint may be evaluated on it" "$dtrain" eval policy.ini "${lines[@]}" data.val=soft.h5 run.name=episodes-1 >eval.json 2>eval.log
check "… with a warning: $(cat eval.log)" grep -q 'soft.h5 is a shard of data.train' eval.log
held=("${lines[@]}" data.val= data.val_fraction=0.3 log.eval_every=2 run.steps=4 checkpoint.every=2)
for n in 1 2 4; do
    check "held out on $n ranks" ranks $n policy.ini "${held[@]}" run.name=held-$n >held-$n.log 2>&1
done
check "held out: the validation of one rank on all" same_losses runs/held-{1,2}/metrics.jsonl 1e-4
check "held out: …" same_losses runs/held-{1,4}/metrics.jsonl 1e-4
counted() { # overrides …: the numbers of episodes that are trained on and held out
    "$dtrain" --check policy.ini "${lines[@]}" data.val= log.eval_every=0 "$@" | sed -n 's/^  \([0-9]*\) episodes.*/\1/p' | paste -sd+
}
check "3 of 13 held out: $(counted data.val_fraction=0.25)" grep -qE '^(10\+3|9\+4)$' <(counted data.val_fraction=0.25)
check "every second: $(counted data.val_fraction=0.5)" grep -qE '^(7\+6|6\+7)$' <(counted data.val_fraction=0.5)
cp -r runs/held-1 runs/held-again && rm -r runs/held-again/checkpoints/step-00000004
check "held out: resumes" "$dtrain" policy.ini "${held[@]}" run.name=held-again >held.log 2>&1
check "held out: with the bits of the whole run" same_bits runs/held-{again,1}/checkpoints/step-00000004
refused "another share on resume" 'data.val_fraction is 0.5, the checkpoint has 0.3' "$dtrain" policy.ini "${held[@]/=0.3/=0.5}" \
    run.name=held-1
refused "another seed" 'run.seed' "$dtrain" policy.ini "${held[@]}" run.seed=5 run.name=held-1
refused "none held out" 'data.val_fraction: 0.001 holds none of the 13 episodes' "$dtrain" policy.ini "${lines[@]}" data.val= data.val_fraction=0.001
refused "held out, and other files" 'data.val_fraction: it is a share of data.train: leave data.val' "$dtrain" policy.ini "${lines[@]}" data.val_fraction=0.1
three_lines robomimic
lines[0]=data.train=masked.h5
check "lists tell episodes of a file apart" "$dtrain" --check policy.ini "${lines[@]}" data.val=hard.h5 >check.log 2>&1
refused "a list twice" 'data.val: hard.h5 is also a shard of data.train' "$dtrain" policy.ini "${lines[@]}" data.val=hard.h5 \
    data.val_mask=train
refused "all episodes, and a list of them" 'hard.h5 is also a shard' "$dtrain" policy.ini "${lines[@]}" data.val=hard.h5 data.mask=all
# A wrong value anywhere ends a run at its start, on any number of ranks, even if no step would read it.
for n in 1 4; do
    for wrong in "bad.h5 masked.h5 /data/demo_12/actions 6 0.5" "masked.h5 bad.h5 /data/demo_11/actions 30 7" "masked.h5 bad.h5 /data/demo_9/obs/a 1 nan"; do
        read -r train val dataset row value <<<"$wrong"
        "$make_episodes" robomimic bad.h5 0 13 "$dataset" "$row" "$value"
        refused "$wrong on $n ranks" "bad.h5: $dataset, row $row, column 0: $value is not a (whole number|finite float32)" \
            ranks "$n" policy.ini "${lines[@]:1}" data.{,val_}mask=all run.steps=1 log.eval_every=0 run.name=bad \
            data.train="$train" data.val="$val"
    done
done
check "it was found before the first step" test ! -s runs/bad/metrics.jsonl
"$make_episodes" robomimic bad.h5 0 13 /data/demo_9/obs/a 1
refused "frames that are not normalised" 'bad.h5: /data/demo_9/obs/a, row 1' "$dtrain" policy.ini "${lines[@]:1}" data.normalize=false \
    data.train=bad.h5 data.val= run.steps=1 log.eval_every=0 run.name=bad
check "windows: $(grep stride held-1.log)" grep -q 'windows of 16 frames start every 16 frames of an episode (data.stride)' held-1.log
"$make_episodes" robomimic train.h5 1 13
three_lines robomimic
refused "other data on resume" 'train.h5, has ' "$dtrain" policy.ini "${lines[@]}" run.name=robomimic-1 run.steps=100
finish
