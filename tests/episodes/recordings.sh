#!/usr/bin/env bash
# recordings.sh DTRAIN: one label for a whole recording, written with h5py as the manual shows: channels x time and an
# attribute. The model learns it with each way to pool, and the scores of `dtrain eval` follow from what `dtrain
# predict` writes. Skipped without h5py.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
python=${DTRAIN_PYTHON:-python3}
"$python" -c 'import h5py, numpy' 2>/dev/null || { echo "skipped: no h5py" >&2; exit 77; }
"$python" - <<'EOT' || exit 1
import h5py, numpy as np
random = np.random.default_rng(7)
for name, n in ("train.h5", 48), ("val.h5", 21):
    with h5py.File(name, "w") as f:
        for i in range(n):  # a rhythm in noise, slow or fast, and an offset; each is one window
            label, t = i * 5 % 7 % 2, np.arange(random.integers(60, 129))
            x = random.normal(size=(6, 1)) * np.sin((0.4 + 0.5 * label) * t + random.uniform(0, 6)) + 0.6 * random.normal(size=(6, len(t)))
            x[0] += label
            f[f"subject_{i}/eeg"] = x.astype("f4")
            f[f"subject_{i}"].attrs["disease"] = label
            f[f"subject_{i}"].attrs["weight"] = i % 3
EOT
mkdir new
"$python" -c '
import h5py
with h5py.File("val.h5") as f, h5py.File("new/val.h5", "w") as to:
    for name, group in f.items():
        to[name + "/eeg"] = group["eeg"][:]'
cat >eeg.ini <<'EOT'
[run]
steps = 120
precision = fp32
[model]
layers = mamba*2
d_model = 24
[data]
train = train.h5
val = val.h5
episodes = subject_*
inputs = eeg
targets = @disease
time_axis = 1
seq_len = 128
batch = 12
block = 4
[optim]
lr = 1e-2
[log]
every = 20
eval_every = 120
EOT
for pool in mean max last; do
    check "$pool trains" "$dtrain" eeg.ini model.heads=disease:categorical*2/$pool run.name=$pool >$pool.log 2>&1
    check "$pool: predict" "$dtrain" predict runs/$pool -o $pool.h5 >predict.log 2>&1
    for weights in "" @weight; do
        check "$pool: eval" "$dtrain" eval eeg.ini model.heads=disease:categorical*2/$pool run.name=$pool data.weights=$weights \
            >eval.json 2>eval.log
        check "$pool: learns, and its scores follow from its predictions, weights '$weights'" "$python" - $pool "$weights" <<'EOT'
import h5py, json, sys
import numpy as np
head = json.load(open("eval.json"))["heads"]["disease"]
z, t, w = [], [], []
with h5py.File("val.h5") as data, h5py.File(sys.argv[1] + ".h5") as found:
    for name, group in data.items():
        no, yes = found[name]["disease/logits"][-1]  # of the whole recording
        z.append(yes - no)
        t.append(group.attrs["disease"])
        w.append(group.attrs["weight"] if sys.argv[2] else 1)
z, t, w = np.array(z), np.array(t), np.array(w)
matrix = [[float(sum(w[(t == i) & ((z > 0) == j)])) for j in (0, 1)] for i in (0, 1)]
pairs = [(w[i] * w[j], (z[i] > z[j]) + (z[i] == z[j]) / 2) for i in np.flatnonzero(t == 1) for j in np.flatnonzero(t == 0)]
found = {
    "accuracy": (matrix[0][0] + matrix[1][1]) / sum(w),
    "balanced_accuracy": (matrix[0][0] / sum(matrix[0]) + matrix[1][1] / sum(matrix[1])) / 2,
    "f1": 2 * matrix[1][1] / (2 * matrix[1][1] + matrix[0][1] + matrix[1][0]),
    "auc": sum(n * won for n, won in pairs) / sum(n for n, _ in pairs),
}
assert head["confusion"] == matrix, (head, matrix)
assert all(abs(head[name] - value) < 1e-9 for name, value in found.items()), (head, found)
assert found["auc"] > 0.7
EOT
    done
done

# The pool continues through the windows of a recording: its last row is the same with windows of any length.
for pool in mean max last; do
    check "$pool: predict in short windows" "$dtrain" predict runs/$pool -o short.h5 --force data.seq_len=40 >predict.log 2>&1
    check "… ends as in one" "$python" -c '
import h5py, sys
with h5py.File(sys.argv[1] + ".h5") as f, h5py.File("short.h5") as g:
    for name in f:
        whole, short = (x[name]["disease/logits"][:] for x in (f, g))
        assert abs(whole[-1] - short[-1]).max() < 1e-4 * abs(whole).max(), name  # sums of fp32 in another order
        assert abs(short[39] - short[-1]).max() > 1e-3, name  # the first window alone says something else' $pool
done

# The same with a second head for every frame, and with recordings that have no labels.
check "both heads" "$dtrain" eeg.ini model.heads='disease:categorical*2/mean weight:regression' data.targets='@disease @weight' \
    run.name=both run.steps=10 >both.log 2>&1
declare -A targets=([.]="@disease @weight" [new]=nothing)
for data in . new; do
    check "both heads predict $data/val.h5" "$dtrain" predict runs/both -o $data/both.h5 --data $data/val.h5 \
        data.targets="${targets[$data]}" >predict.log 2>&1
done
check "… the same with labels and without" "$python" -c '
import h5py
with h5py.File("both.h5") as f, h5py.File("new/both.h5") as g:
    assert len(f) == len(g) == 21
    for path in "disease/logits", "disease/probabilities", "weight/values":
        assert all((f[name][path][:] == g[name][path][:]).all() for name in f), path'
finish
