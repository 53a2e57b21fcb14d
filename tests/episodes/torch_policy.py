# A policy of dtrain on each file of real_files.py, trained with three lines of configuration, beside the same policy in
# PyTorch, in float64, from the same initial weights on the same windows: the losses of every step agree. Then one with
# columns of other rows, a shared table, weights and missing targets. argv[1]: dtrain.
import glob
import json
import shutil
import subprocess
import sys

import h5py
import numpy as np
import torch
from safetensors.torch import load_file

STEPS, T, BATCH, LR = 60, 20, 8, 1e-2
torch.set_num_threads(1)
CONFIG = """[run]
steps = %d
precision = fp32
threads = 1
[model]
d_model = 24
layers = mlp*2
mlp_gated = false
heads = move:regression*2 grip:huber*1@0.5
[data]
seq_len = %d
batch = %d
[optim]
lr = %g
schedule = constant
[log]
every = 1
""" % (STEPS, T, BATCH, LR)
# For each file its keys, and what a model reads of row t: dataset, columns, shift; "valid": whether that row exists.
FILES = {
    "robomimic": (["obs/eef obs/gripper obs/stage:id*5", "actions"],
                  [("obs/eef", 0), ("obs/gripper", 0)], [("obs/stage", 0)], [("actions", slice(None), 0)], []),
    "minari": (["observations/eef observations/gripper observations/stage:id*5", "actions"],
               [("observations/eef", 0), ("observations/gripper", 0)], [("observations/stage", 0)],
               [("actions", slice(None), 0)], []),
    "d4rl": (["observations infos/stage:id*5", "actions"],
             [("observations", 0)], [("infos/stage", 0)], [("actions", slice(None), 0)], []),
    "shifted": (["obs/eef@-2:0:valid actions@-1 obs/stage:id*5=s@-1:valid obs/stage:id*5=s obs/gripper",
                 "labels[0:2]@+1 labels[2]", "weight weight_grip:grip"],
                [("obs/eef", -2), ("valid", -2), ("obs/eef", -1), ("valid", -1), ("actions", -1), ("valid", -1),
                 ("obs/gripper", 0)], [("obs/stage", -1), ("obs/stage", 0)],
                [("labels", slice(0, 2), 1), ("labels", slice(2, 3), 0)], ["weight", "weight_grip"]),
}


def dtrain(*words):
    out = subprocess.run([sys.argv[1], *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if out.returncode:
        sys.exit(out.stdout)
    return out.stdout


def read(group, rows, path, shift, missing, columns=slice(None)):
    """Rows first to last - 1 of an episode that is rows start to end - 1, as row t + shift has them."""
    first, last, start, end = rows
    there = [start <= t + shift < end for t in range(first, last)]
    if path == "valid":
        return np.array(there, float)[:, None]
    data = group[path][:].reshape(len(group[path]), -1)[:, columns]
    out = np.full((last - first, data.shape[1]), missing, float)
    for i, t in enumerate(range(first, last)):
        if there[i]:
            out[i] = data[t + shift]
    return out


def window(f, place, frames, ids, targets, weights):
    """frames, ids, targets and weights of the window that `dtrain order` names."""
    if ":" in place:
        name, row = place.split(":")
        group, first, start = f[name], int(row), 0
        end = len(group["actions"])
    else:
        group, first = f, int(place)
        ends = np.append(np.flatnonzero(f["terminals"][:] | f["timeouts"][:]), len(f["actions"]) - 1)
        at = np.searchsorted(ends, first)
        start, end = int(ends[at - 1]) + 1 if at else 0, int(ends[at]) + 1
    rows = first, min(first + T, end), start, end
    parts = [np.hstack([read(group, rows, path, shift, np.nan) for path, shift in frames]),
             np.hstack([read(group, rows, path, shift, 0) for path, shift in ids]),
             np.hstack([read(group, rows, path, shift, np.nan, columns) for path, columns, shift in targets])]
    own = [read(group, rows, path, 0, 0) for path in weights] or [np.ones((rows[1] - first, 1))] * 2
    return parts + [np.hstack([own[0], own[0], own[0] * own[1]])]


def batches(f, order, spec):
    for step in range(STEPS):
        arrays = [np.zeros((BATCH, T, x.shape[-1])) for x in window(f, order[0], *spec)]
        mask = np.zeros((BATCH, T))
        for slot in range(BATCH):
            parts = window(f, order[step * BATCH + slot], *spec)
            mask[slot, :len(parts[0])] = 1
            for array, part in zip(arrays, parts):
                array[slot, :len(part)] = part
        frames, ids, targets, weights = (torch.tensor(array) for array in arrays)
        yield frames, ids.long(), targets, weights, torch.tensor(mask)


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def present(loss, targets):
    """The mean over the columns that have a target; 0 where none has."""
    there = ~torch.isnan(targets)
    return torch.where(there, loss, 0).sum(-1) / there.sum(-1).clamp(min=1), there.any(-1)


def losses(w, frames, ids, targets, weights, mask):
    x = (frames - w["stem.mean"]) / w["stem.deviation"]
    x = torch.where(torch.isnan(x), 0, x) * mask[..., None] @ w["stem.weight"].T + w["stem.bias"]
    for n in range(ids.shape[-1]):
        x = x + w.get("stem.ids.s.weight", w.get("stem.ids.0.weight"))[ids[..., n]]
    for layer in range(2):
        name = "backbone.layers.%d." % layer
        h = rms(x, w[name + "norm.weight"])
        x = x + torch.nn.functional.silu(h @ w[name + "mixer.up_proj.weight"].T) @ w[name + "mixer.down_proj.weight"].T
    z = rms(x, w["backbone.norm_f.weight"]) @ w["heads.weight"].T + w["heads.bias"]
    targets = (targets - w["heads.mean"]) / w["heads.deviation"]
    known = torch.where(torch.isnan(targets), 0, targets)
    move, has_move = present((z[..., :2] - known[..., :2]).square(), targets[..., :2])
    grip, has_grip = present(torch.nn.functional.huber_loss(z[..., 2:], known[..., 2:], reduction="none"), targets[..., 2:])
    total = ((weights[..., 1] * move + 0.5 * weights[..., 2] * grip) * mask).sum()
    return total / (weights[..., 0] * mask * (has_move | has_grip)).sum()


def torch_curve(path, order, weights, spec):
    w = {name: x.double() for name, x in weights.items()}
    trained = {name: x.requires_grad_() for name, x in w.items() if name.split(".")[-1] not in ("mean", "deviation")}
    optimizer = torch.optim.AdamW([
        {"params": [x for x in trained.values() if x.ndim >= 2], "weight_decay": 0.1},
        {"params": [x for x in trained.values() if x.ndim < 2], "weight_decay": 0}], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    curve = []
    with h5py.File(path) as f:
        for batch in batches(f, order, spec):
            optimizer.zero_grad()
            loss = losses(w, *batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
            optimizer.step()
            curve.append(loss.item())
    return np.array(curve)


def check(name, keys, *spec):
    lines = ["data.train=%s.hdf5" % name, *("data.%s=%s" % key for key in zip(["inputs", "targets", "weights"], keys))]
    dtrain("torch.ini", *lines, "run.name=first-" + name, "run.steps=1", "optim.lr=1e-30")
    (start,) = glob.glob("runs/first-%s/checkpoints/step-*" % name)
    dtrain("torch.ini", *lines, "run.name=" + name, "run.init_from=" + start)
    with open("runs/%s/metrics.jsonl" % name) as f:
        ours = np.array([line["loss"] for line in map(json.loads, f) if line["event"] == "train"])
    order = [line.split()[3] for line in dtrain("order", "torch.ini", *lines, "--steps", "1:%d" % STEPS).splitlines()]
    theirs = torch_curve(name + ".hdf5", order, load_file(start + "/model.safetensors"), spec)
    apart = np.abs(ours / theirs - 1)
    print("%s: loss %.4f to %.4f, PyTorch's %.4f to %.4f, at most %.1e apart, %.1e in ten steps" %
          (name, ours[0], ours[-1], theirs[0], theirs[-1], apart.max(), apart[:10].max()))
    return apart.max() < 1e-3 and apart[:10].max() < 1e-5 and ours[-5:].mean() < 0.8 * ours[:5].mean()


def make_shifted():
    """robomimic.hdf5 with labels, some of them missing, and weights."""
    rng = np.random.default_rng(3)
    shutil.copy("robomimic.hdf5", "shifted.hdf5")
    with h5py.File("shifted.hdf5", "r+") as f:
        del f["mask"]
        for demo in f["data"].values():
            labels = demo["actions"][:]
            labels[rng.random(labels.shape) < 0.2] = np.nan
            labels[rng.random(len(labels)) < 0.2] = np.nan
            demo["labels"] = labels
            demo["weight"] = rng.integers(0, 4, len(labels)).astype("u1")
            demo["weight_grip"] = rng.random(len(labels)).astype("f4")


make_shifted()
with open("torch.ini", "w") as config:
    config.write(CONFIG)
sys.exit(not all([check(name, *case) for name, case in FILES.items()]))
