# A policy of dtrain on each file of real_files.py, trained with three lines of configuration, beside the same policy in
# PyTorch, in float64, from the same initial weights on the same windows: the losses of every step agree. argv[1]: dtrain.
import glob
import json
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
# For each file data.inputs; the datasets of the frames' numbers, and of the ids.
FILES = {
    "robomimic": ("obs/eef obs/gripper obs/stage:id*5", ["obs/eef", "obs/gripper"], "obs/stage"),
    "minari": ("observations/eef observations/gripper observations/stage:id*5", ["observations/eef", "observations/gripper"],
               "observations/stage"),
    "d4rl": ("observations infos/stage:id*5", ["observations"], "infos/stage"),
}


def dtrain(*words):
    out = subprocess.run([sys.argv[1], *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if out.returncode:
        sys.exit(out.stdout)
    return out.stdout


def window(f, place, frames, ids):
    """frames, ids and targets of the window that `dtrain order` names."""
    if ":" in place:
        name, row = place.split(":")
        group, first = f[name], int(row)
        end = len(group["actions"])
    else:
        group, first = f, int(place)
        ends = np.append(np.flatnonzero(f["terminals"][:] | f["timeouts"][:]), len(f["actions"]) - 1)
        end = int(ends[np.searchsorted(ends, first)]) + 1
    rows = slice(first, min(first + T, end))
    return [np.hstack([group[path][rows] for path in frames]), group[ids][rows][:, None], group["actions"][rows]]


def batches(f, order, spec):
    for step in range(STEPS):
        arrays = [np.zeros((BATCH, T, x.shape[-1])) for x in window(f, order[0], *spec)]
        mask = np.zeros((BATCH, T))
        for slot in range(BATCH):
            parts = window(f, order[step * BATCH + slot], *spec)
            mask[slot, :len(parts[0])] = 1
            for array, part in zip(arrays, parts):
                array[slot, :len(part)] = part
        frames, ids, targets = (torch.tensor(array) for array in arrays)
        yield frames, ids.long(), targets, torch.tensor(mask)


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def losses(w, frames, ids, targets, mask):
    x = (frames - w["stem.mean"]) / w["stem.deviation"] * mask[..., None] @ w["stem.weight"].T + w["stem.bias"]
    x = x + w["stem.ids.0.weight"][ids[..., 0]]
    for layer in range(2):
        name = "backbone.layers.%d." % layer
        h = rms(x, w[name + "norm.weight"])
        x = x + torch.nn.functional.silu(h @ w[name + "mixer.up_proj.weight"].T) @ w[name + "mixer.down_proj.weight"].T
    z = rms(x, w["backbone.norm_f.weight"]) @ w["heads.weight"].T + w["heads.bias"]
    targets = (targets - w["heads.mean"]) / w["heads.deviation"]
    move = (z[..., :2] - targets[..., :2]).square().mean(-1)
    grip = torch.nn.functional.huber_loss(z[..., 2], targets[..., 2], reduction="none")
    return ((move + 0.5 * grip) * mask).sum() / mask.sum()


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


def check(name, inputs, *spec):
    lines = ["data.train=%s.hdf5" % name, "data.inputs=" + inputs, "data.targets=actions"]
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


with open("torch.ini", "w") as config:
    config.write(CONFIG)
sys.exit(not all([check(name, *case) for name, case in FILES.items()]))
