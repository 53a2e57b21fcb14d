#!/usr/bin/env bash
# outputs.sh DTRAIN: heads that predict numbers of any unit (mixtures, quantiles, ranges, weights, missing targets)
# train with the same losses on any ranks and in any micro-batches. Targets are normalised; errors, draws and
# predictions are in the units of the data. Small losses are printed with their digits. Wrong parameters are a clear
# error.
python=python3
"$python" -c 'import h5py, numpy' 2>/dev/null || { echo "skipped: no h5py" >&2; exit 77; }
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
"$python" - <<'EOF2'
import h5py, numpy as np
draws = np.random.default_rng(1)
for name, n in ("train", 2400), ("val", 480):
    with h5py.File(f"{name}.h5", "w") as file:
        x = draws.standard_normal((n, 3))
        y = np.stack([x @ [1, -0.5, 0.25], x @ [0.2, 0.7, 0]], 1)
        missing = draws.random((n, 2)) < 0.1
        file["frames"] = x.astype("f4")
        file["episode_starts"] = np.arange(0, n, 60).astype("u8")
        file["targets/load"] = np.where(missing, np.nan, 5e4 + 1.4e4 * y).astype("f4")
        file["targets/strain"] = (1e-21 * y[:, 0]).astype("f4")
        file["targets/tiny"] = (1e-4 + 1e-6 * y[:, 1]).astype("f4")
        file["targets/move"] = np.tanh(y).astype("f4")
        file["targets/class"] = np.where(missing[:, 0], -100, y[:, 0] > 0).astype("i8")
        file["trust"] = (draws.random(n) + 0.1).astype("f4")
EOF2
write_ini numbers.ini run.steps=20 run.precision=fp32 model.d_model=32 model.layers=mlp \
    'model.heads=load:gmm(3)*2 strain:quantile(0.1,0.5,0.9) tiny:regression move:regression(-1,1)*2@0.5 class:categorical*2' \
    data.train=train.h5 data.val=val.h5 data.seq_len=20 data.batch=8 data.block=4 optim.lr=1e-2 log.every=1 \
    log.eval_every=20
last=checkpoints/step-00000020

weights='data.weights=/trust /trust:load'
for variant in "1" "1 data.micro_batch=2" "2" "4" "1 model.autoregressive=true" "4 model.autoregressive=true"; do
    read -ra words <<<"$variant"
    name=n-${variant//[^a-z0-9]/-}
    check "$variant: trains" ranks "${words[0]}" numbers.ini "$weights" "${words[@]:1}" run.name="$name" >"$name.log" 2>&1
done
for other in n-1-data-micro-batch-2 n-2 n-4; do
    # fp32 sums have another order. The project promises 1e-5 relative to the losses of heads, which are about 1; that
    # of a mixture becomes negative, and the sum crosses 0.
    check "losses of $other" same_losses runs/n-1/metrics.jsonl runs/$other/metrics.jsonl 1e-5 "" 1
done
check "conditioned heads on 4 ranks" same_losses runs/n-1-model-autoregressive-true/metrics.jsonl \
    runs/n-4-model-autoregressive-true/metrics.jsonl 1e-5 "" 1
check "errors are in the data's units, and far below its deviations" "$python" - runs/n-1/metrics.jsonl <<'EOF2'
import json, sys
last = [json.loads(line) for line in open(sys.argv[1])]
heads = [line for line in last if line["event"] == "eval"][-1]["heads"]
most = {"load": 1e4, "strain": 8e-22, "tiny": 6e-7, "move": 0.4}
for name, limit in most.items():
    assert 0 < heads[name]["error"] < limit, (name, heads[name])
    assert abs(heads[name]["mae"] / heads[name]["error"] - 1) < 0.2, heads[name]  # mae counts numbers, error frames
assert heads["class"]["accuracy"] > 0.7, heads["class"]
EOF2
check "predict" "$dtrain" predict runs/n-1 -o predicted.h5 --draw --temperature 0 >predict.log 2>&1
check "predictions are in the data's units, and so are draws" "$python" - predicted.h5 <<'EOF2'
import h5py, sys
import numpy as np
with h5py.File(sys.argv[1]) as file, h5py.File("val.h5") as data:
    found = {}
    file.visititems(lambda path, item: found.update({path: item[()]} if isinstance(item, h5py.Dataset) else {}))
    of = lambda head, what: np.concatenate([found[p] for p in sorted(found) if p.endswith(f"{head}/{what}")]).reshape(480, -1)
    load = of("load", "values")
    z, means, deviations = load[:, :3], load[:, 3:9].reshape(-1, 3, 2), load[:, 9:].reshape(-1, 3, 2)
    best = means[np.arange(480), z.argmax(1)]
    assert (of("load", "drawn") == best).all()
    error = np.nanmean(np.abs(best - data["targets/load"][()]))
    assert error < 1e4 and 100 < np.median(deviations) < 3e4, (error, np.median(deviations))
    assert (of("strain", "drawn") == of("strain", "values")[:, 1:2]).all()
    assert np.abs(of("move", "values")).max() <= 1
    assert np.abs(of("tiny", "values") - 1e-4).max() < 1e-5
EOF2
check "the loss of normalised targets of 1e-4 is not 0.0000" "$dtrain" numbers.ini run.name=tiny model.heads=tiny:regression \
    run.steps=60 >tiny.log 2>&1
check "… nor is its error" bash -c "! grep -q 'error 0.000[ ,]' tiny.log && grep -qE 'error [1-9]\.[0-9]+e-0[67]' tiny.log"
check "targets as they are" "$dtrain" numbers.ini run.name=raw model.heads=tiny:regression data.normalize=false run.steps=2 \
    >raw.log 2>&1
check "the curve of a small loss has its digits" bash -c "'$repository/launch/curve.sh' runs/raw >curve.txt; ! grep -q '0.000 |' curve.txt"
check "… have a loss with four digits" grep -qE 'step 2/2 .*loss [0-9.]+(e-[0-9]+)?  error' raw.log
check "… and no normalisation" "$python" - runs/raw/checkpoints/step-00000002/model.safetensors <<'EOF2'
import json, struct, sys
with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    base = file.tell()
    for name, want in ("heads.mean", 0), ("heads.deviation", 1):
        file.seek(base + header[name]["data_offsets"][0])
        assert struct.unpack("<f", file.read(4))[0] == want, name
EOF2
check "a run resumes" "$dtrain" numbers.ini "$weights" run.name=n-1 run.steps=22 >resumed.log 2>&1
check "int8" "$dtrain" export runs/n-1/$last exported --int8 >export.log 2>&1

ini=numbers.ini
rejected 'a:gmm: expected 1 to 32 components and perhaps a range' model.heads=a:gmm
rejected 'a:gmm\(33\)\*2: expected 1 to 32 components' 'model.heads=a:gmm(33)*2'
rejected 'a:gmm\(2.5\): expected 1 to 32' 'model.heads=a:gmm(2.5)'
rejected 'a:gmm\(2,1\): expected .*\(K,LOW,HIGH\)' 'model.heads=a:gmm(2,1)'
rejected 'a:gmm\(2,1,-1\): expected .*\(K,LOW,HIGH\)' 'model.heads=a:gmm(2,1,-1)'
rejected 'a:quantile: expected 1 to 16 ascending levels between 0 and 1' model.heads=a:quantile
rejected 'a:quantile\(0.5,0.1\): expected 1 to 16 ascending' 'model.heads=a:quantile(0.5,0.1)'
rejected 'a:quantile\(0,0.5\): expected' 'model.heads=a:quantile(0,0.5)'
rejected 'a:regression\(1,1\): expected no parameters or a range' 'model.heads=a:regression(1,1)'
rejected 'a:huber\(1\): expected no parameters or a range' 'model.heads=a:huber(1)'
rejected 'a:categorical\(2\)\*3: expected no parameters' 'model.heads=a:categorical(2)*3'
rejected 'numbers to predict \(allowed: 65536\)' 'model.heads=a:gmm(32)*2000'
rejected 'unknown kind .gm.: did you mean .gmm.' 'model.heads=a:gm(2)*2'
rejected 'data.normalize: false, but these weights were trained on normalised (frames|targets)' \
    run.init_from=runs/n-1/$last data.normalize=false
finish
