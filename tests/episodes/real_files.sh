#!/usr/bin/env bash
# dtrain reads every number of files that h5py writes as robomimic, Minari and D4RL do, or in any layout. The manual's
# examples for your own files train. With PyTorch, a policy that trains on each file with three lines of configuration
# has PyTorch's losses. Skipped without h5py (DTRAIN_PYTHON names another interpreter).
tool=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
python=${DTRAIN_PYTHON:-python3}
"$python" -c 'import h5py, numpy' 2>/dev/null || { echo "skipped: no h5py" >&2; exit 77; }
check "the numbers agree" "$python" "$(dirname "$0")/real_files.py" "$tool"
# What the manual shows trains as it is shown.
check "the manual's files are written" "$python" "$(dirname "$0")/own_files.py" "$repository/launch/README.md"
check "the manual shows three commands" test "$(grep -c . commands.sh)" -eq 3
while read -r command; do
    name=${command##*run.name=}
    check "$name trains" bash -c "\"$dtrain\" ${command#dtrain } run.steps=20 model.d_model=16 run.threads=1 log.eval_every=20" >"$name.log" 2>&1
    check "$name is validated: $(cat "$name.log")" grep -q 'step 20  validation loss [0-9]' "$name.log"
done <commands.sh
while read -r file weights head; do
    check "$weights is a weight" "$dtrain" own.ini data.train="$file" data.weights="$weights" model.heads="$head" run.name="$weights" \
        run.steps=20 model.d_model=16 run.threads=1 data.seq_len=20 >"$file.log" 2>&1
    check "… and trains: $(cat "$file.log")" grep -q 'step 20/20  loss [0-9]' "$file.log"
done <<<$'train.h5 weight:stage stage:categorical*33\ndemos.hdf5 weight move:regression*2'
# The device normalises bytes and the numbers beside them. A missing number is 0 there too.
"$python" - <<'EOF'
import h5py, numpy as np
for name, kind in ("bytes.h5", "u1"), ("shorts.h5", "u2"):
    rng = np.random.default_rng(0)
    with h5py.File(name, "w") as f:
        f["frames"], f["image"] = rng.normal(5, 2, (600, 3)), rng.integers(0, 256, (600, 80)).astype(kind)
        f["targets/stage"], f["episode_starts"] = rng.integers(0, 5, 600), np.arange(0, 600, 30, dtype="u8")
        f["zeros"], f["negative"], f["unknown"] = np.zeros(600), np.where(np.arange(600) == 77, -1.0, 1.0), np.full(600, np.nan)
EOF
for file in bytes shorts; do
    check "$file train" "$dtrain" own.ini data.train=$file.h5 data.inputs='frames@-2 image frames@-1:2:valid' model.heads=stage:categorical*5 \
        run.name=$file run.precision=fp32 run.steps=5 model.d_model=16 run.threads=1 data.seq_len=20 >$file.log 2>&1
done
check "bytes stay bytes" grep -q 'bytes uint8 x 80' <("$dtrain" --check own.ini data.train=bytes.h5 data.inputs='frames@-2 image frames@-1:2:valid' \
    model.heads=stage:categorical*5 data.seq_len=20 2>&1)
# Both normalisations divide in fp32, so the bits are equal.
check "… with the losses of the same numbers as floats" same_losses runs/bytes/metrics.jsonl runs/shorts/metrics.jsonl 0
unusable() { # description, pattern, override …
    refused "$1" "$2" "$dtrain" own.ini data.train=bytes.h5 data.inputs=frames model.heads=stage:categorical*5 run.name=unusable \
        run.steps=5 model.d_model=16 run.threads=1 data.seq_len=20 "${@:3}"
}
unusable "weights that are all 0" 'data.weights: all weights of the frames in data.train are 0' data.weights=zeros
unusable "weights of a head that are all 0" 'data.weights: all weights of the head stage in data.train are 0' data.weights=zeros:stage
unusable "a negative weight" 'bytes.h5: /negative, row 77 \(row 17 of episode 2\): -1 is not a weight \(data.weights\)' data.weights=negative
unusable "no target" 'all targets of data.train are missing: there is nothing to learn' data.targets=unknown
if "$python" -c 'import torch, safetensors' 2>/dev/null; then
    check "policies learn as in PyTorch" "$python" "$(dirname "$0")/torch_policy.py" "$dtrain"
fi
finish
