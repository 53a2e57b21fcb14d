#!/usr/bin/env python3
"""Makes a golden file of a policy some of whose columns come from other rows than that of their frame, with weights, missing targets
and targets at the ends of a range. Also makes what columns.sh trains (episodes in data.h5, weights in start.model), and the losses and
gradient norms of its ten steps. The batches follow from the manual alone and are not shuffled. Needs h5py."""
import pathlib

import h5py
import numpy as np
import torch
from mlp import Mlp
from policy import DEFAULTS, Policy
from reference import Model, make, write
from safetensors.torch import load_file

LENGTHS = [8, 1, 15, 11]  # episodes: 2 + 1 + 3 + 2 windows, two batches an epoch
HEADS = "move:gmm(2,-1,1)*16 grip:huber*1@0.5 level:regression*2"
CASE = dict(DEFAULTS, heads=HEADS, d_model=8, frame_size=12, ids="5=s 5=s", B=4, T=6, steps=10, lr=1e-3, constant=True)
FLAGS = [3, 7, 10, 11]  # the numbers of a frame that are flags
SHARED = "stem.ids.s.weight"


class Columns(Policy):
    """The stem, in which both id columns look up their rows in one table."""

    @staticmethod
    def stem_shapes(c):
        yield from Policy.stem_shapes(dict(c, ids=""))
        yield SHARED, (5, c["d_model"])

    @staticmethod
    def stem(c, w, batch):
        return Policy.stem(dict(c, ids=""), w, batch) + w[SHARED][batch["ids"]].sum(-2)

    @staticmethod
    def batches(c, generator):
        return {name: torch.tensor(array) for name, array in batches(c).items()}


def episodes():
    rng = np.random.default_rng(5)
    for n in LENGTHS:
        eef, label = rng.normal(3, 2, (n, 3)), rng.normal(-40, 7, (n, 3))
        label[rng.random((n, 3)) < 0.2] = np.nan
        label[rng.random(n) < 0.2] = np.nan
        yield {"frames": eef.astype("f4"), "action": np.clip(eef[:, :2] * 0.3, -1, 1).astype("f4"), "stage": rng.integers(0, 5, n),
               "label": label.astype("f4"), "weight": rng.integers(0, 4, n).astype("u1"), "hurry": rng.random(n).astype("f4")}


def at(episode, name, shift, missing):
    """Returns row t + shift for every row t, and in `valid` whether that row exists."""
    n = len(episode["frames"])
    values = np.ones((n, 1)) if name == "valid" else episode[name].reshape(n, -1).astype(float)
    rows = [values[t + shift] if 0 <= t + shift < n else np.full(values.shape[1], missing) for t in range(n)]
    return np.array(rows)


def columns(episode):
    """Returns frames, ids, targets and weights of each frame of an episode."""
    frames = [at(episode, name, shift, 0 if name == "valid" else np.nan)
              for name, shift in [("frames", -2), ("valid", -2), ("frames", -1), ("valid", -1), ("action", -1), ("valid", -1), ("valid", -1)]]
    targets = [*(at(episode, "action", shift, np.nan) for shift in range(8)), at(episode, "label", 0, np.nan)[:, 2:],
               at(episode, "label", 1, np.nan)[:, :2]]
    weight, hurry = at(episode, "weight", 0, 0), at(episode, "hurry", 0, 0)
    return {"frames": np.hstack(frames), "ids": np.hstack([at(episode, "stage", shift, 0) for shift in (-1, 0)]).astype(int),
            "targets": np.hstack(targets), "weights": np.hstack([weight, weight, weight * hurry, weight])}


def statistics(name, plain):
    """Returns means and deviations of columns, without missing numbers; `plain` columns are not normalised."""
    values = np.concatenate([columns(e)[name] for e in episodes()])
    mean, deviation = np.nanmean(values, 0), np.nanstd(values, 0)
    mean[plain], deviation[plain] = 0, 1
    return mean.astype("f4").astype(float), deviation.astype("f4").astype(float)


def batches(c):
    mean, deviation = statistics("frames", FLAGS)
    windows = []
    for episode in map(columns, episodes()):
        n = len(episode["frames"])
        episode["frames"] = np.nan_to_num((episode["frames"] - mean) / deviation)
        episode["mask"] = np.ones(n)
        for first in range(0, n, c["T"]):
            pad = max(first + c["T"] - n, 0)
            windows.append({name: np.pad(x[first:first + c["T"]], [(0, pad)] + [(0, 0)] * (x.ndim - 1)) for name, x in episode.items()})
    each = len(windows) // c["B"]  # windows that a row of the batch reads one after another in each epoch
    rows = [windows[slot * each + step % each] for step in range(c["steps"]) for slot in range(c["B"])]
    return {name: np.stack([row[name] for row in rows]).reshape(c["steps"], c["B"], *rows[0][name].shape) for name in rows[0]}


def main():
    torch.set_num_threads(1)
    folder, generator = pathlib.Path(__file__).resolve().with_suffix(""), torch.Generator().manual_seed(1)
    model = Model(CASE, {"mlp": Mlp}, generator, Columns)
    for name, plain in ("frames", FLAGS), ("targets", slice(0, 16)):
        part = {"frames": "stem", "targets": "heads"}[name]
        for key, values in zip(("mean", "deviation"), statistics(name, plain)):
            model.w[f"{part}.{key}"].data[:] = torch.tensor(values)
    folder.mkdir(exist_ok=True)
    write(folder / "start.model", {name: w.detach() for name, w in model.w.items()}, {"format": "pt"})
    make(folder / "plain.safetensors", model, generator)
    golden = load_file(folder / "plain.safetensors")
    with open(folder / "steps.jsonl", "w") as f:  # as in metrics.jsonl
        for step, (loss, norm) in enumerate(zip(golden["golden.loss"].tolist(), golden["golden.grad_norm"].tolist()), 1):
            f.write('{"event":"train","step":%d,"epoch":0,"loss":%.9g,"grad_norm":%.9g,"lr":%g}\n' % (step, loss, norm, CASE["lr"]))
    with h5py.File(folder / "data.h5", "w") as f:
        for name in next(episodes()):
            f[name] = np.concatenate([e[name] for e in episodes()])
        f["episode_starts"] = np.cumsum([0, *LENGTHS[:-1]], dtype="u8")


if __name__ == "__main__":
    main()
