#!/usr/bin/env bash
# A policy trains on episodes of every layout with three lines of configuration, the same on two ranks as on one; what
# commands show of such data; what is refused, with exit code 2. $2: the tool that writes the layouts.
make_episodes=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
cat >policy.ini <<'EOF'
[run]
steps = 60
precision = fp32
[model]
d_model = 24
n_layer = 2
heads = buttons:bernoulli*2 stick:categorical*5
[data]
val = train.h5
seq_len = 16
batch = 8
block = 4
[optim]
lr = 1e-2
[log]
every = 1
eval_every = 30
EOF
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
    "$make_episodes" $layout train.h5 0 13 || exit 1
    three_lines $layout
    for n in 1 2; do
        check "$layout on $n ranks trains" ranks $n policy.ini "${lines[@]}" run.name=$layout-$n >$layout-$n.log 2>&1
    done
    check "$layout: the loss falls" awk "BEGIN { exit !($(loss $layout-1 60) < 0.7 * $(loss $layout-1 1)) }"
    check "$layout: two ranks have the losses of one" \
        same_losses runs/$layout-1/metrics.jsonl runs/$layout-2/metrics.jsonl 1e-4
    check "$layout: --check" "$dtrain" --check policy.ini "${lines[@]}" run.name=other >check.log 2>&1
    frames=$([ $layout = robomimic ] && echo 9 || echo 13)
    check "$layout: it shows frames: $(cat check.log)" \
        grep -q "$frames episodes, stride 16; a frame has 5 values and 1 ids (tables of 7), the targets 3" check.log
    check "$layout: by its name" "$dtrain" --check policy.ini "${lines[@]}" run.name=other data.format=$layout >check.log 2>&1
    check "$layout: order" "$dtrain" order policy.ini "${lines[@]}" --steps 1:3 >order.log
    check "$layout: a line a window" test "$(grep -c . order.log)" = 24
done

# Images of bytes stay bytes until the device, with the bits of the same numbers stored as floats; so do those of a
# run that validates on floats or is resumed.
image="obs/a $(printf 'obs/img %.0s' {1..20}) obs/b:id*7 obs/a[0] obs/img[1]"
for type in bytes floats; do
    "$make_episodes" robomimic $type.h5 0 13 $([ $type = bytes ] || echo floats)
    lines=(data.train=$type.h5 data.val=$type.h5 data.inputs="$image" data.targets=actions run.steps=6 log.eval_every=3)
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
lines[1]=data.val=bytes.h5
cp -r runs/bytes-1 runs/again
rm -r runs/again/checkpoints/step-00000006
check "bytes: resumes" "$dtrain" policy.ini "${lines[@]}" run.name=again checkpoint.every=3 >again.log 2>&1
check "bytes: with the bits of the whole run" same_bits runs/{again,bytes-1}/checkpoints/step-00000006

# Frames in any unit train alike: powers of two, so that the bits are the same.
for unit in 1 0x1p-70 0x1p70 0x1p124; do
    "$make_episodes" robomimic unit.h5 0 13 unit $unit || exit 1
    check "frames of $unit train" "$dtrain" policy.ini data.{train,val}=unit.h5 data.inputs=obs/a data.targets=actions \
        run.name=unit-$unit run.steps=20 optim.warmup_steps=2 log.eval_every=20 >unit-$unit.log 2>&1
    check "frames of $unit: the losses of any unit" same_losses runs/unit-{$unit,1}/metrics.jsonl 0
    check "frames of $unit: the validation of any unit" cmp <(grep -o 'validation loss.*' unit-$unit.log) <(grep -o 'validation loss.*' unit-1.log)
done
# As they are their sums overflow: three steps, all skipped, are no training.
"$make_episodes" robomimic unit.h5 0 13 unit 0x1.ap124 || exit 1
refused "frames of 3e38" 'every step of the run was skipped' "$dtrain" policy.ini data.{train,val}=unit.h5 data.inputs=obs/a data.targets=actions \
    data.normalize=false model.d_model=128 run.name=large run.steps=3 optim.warmup_steps=0
check "… and state.json says so" grep -q '"state":"failed"' runs/large/state.json
"$make_episodes" robomimic still.h5 0 13 unit 0
check "constant columns are named" "$dtrain" policy.ini data.{train,val}=still.h5 data.inputs='obs/a obs/b' data.targets=actions \
    run.name=still run.steps=2 optim.warmup_steps=0 >still.log 2>&1
check "… in the log: $(cat still.log)" grep -q '3 of 4 columns of the frames are constant' still.log

"$make_episodes" robomimic train.h5 0 13
three_lines robomimic 'obs/a obs/img[0:2] obs/b:id*7'
for n in 1 2 4; do # at no learning rate the weights are the initial ones, with the statistics of the frames
    check "$n ranks start" ranks $n policy.ini "${lines[@]}" run.name=start-$n run.steps=1 optim.lr=1e-60 >start.log 2>&1
    check "$n ranks normalise with the bits of one" \
        cmp runs/start-{1,$n}/checkpoints/step-00000001/model.safetensors
done
refused "text from a model of frames" 'the model in .* reads frames, not tokens' "$dtrain" sample runs/robomimic-1 --prompt '1 2'
three_lines robomimic obs//
check "slashes at the end of a group" "$dtrain" --check policy.ini "${lines[@]}" >check.txt
three_lines robomimic 'obs/b:id*7'
check "ids alone" "$dtrain" policy.ini "${lines[@]}" run.name=ids checkpoint.every=30 >ids.log 2>&1
check "ids alone: the loss falls" test "$(awk "BEGIN { print $(loss ids 60) < 0.97 * $(loss ids 1) }")" = 1
cp -r runs/ids runs/cut
rm -r runs/cut/checkpoints/step-00000060
check "ids alone: resumes" "$dtrain" policy.ini "${lines[@]}" run.name=cut checkpoint.every=30 >cut.log 2>&1
check "ids alone: with the bits of the whole run" same_bits runs/{cut,ids}/checkpoints/step-00000060
check "ids alone: eval" "$dtrain" eval policy.ini "${lines[@]}" run.name=ids >eval.json 2>eval.log
three_lines robomimic 'obs/a obs/b:id*7'
refused "numbers for a model of ids" 'frames of 3 numbers .*\(model.frame_size, model.ids\) has 0 and \[7\]' \
    "$dtrain" policy.ini "${lines[@]}" run.init_from=runs/ids/checkpoints/step-00000060 run.name=other
three_lines robomimic
check "order names episodes" grep -q ' train.h5 /data/demo_[0-9]*:[0-9]*$' <("$dtrain" order policy.ini "${lines[@]}" --steps 1:3)
check "verify" grep -q 'good  train.h5: 317 frames, fp32, fp64, uint8, int64 (robomimic), values per frame: 8, episodes: 13, targets: 3' <("$dtrain" verify train.h5)
"$make_episodes" robomimic train.h5 0 13 /data/demo_8/obs/a 41
refused "a frame that is not finite" 'train.h5: /data/demo_8/obs/a, row 41, column 0: nan is not a finite float32' \
    "$dtrain" policy.ini "${lines[@]}" run.name=bad
check "nothing is left of it" test ! -e runs/bad/checkpoints/step-00000060
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
"$make_episodes" robomimic train.h5 1 13
refused "other data on resume" 'train.h5, has ' "$dtrain" policy.ini "${lines[@]}" run.name=robomimic-1 run.steps=70
finish
