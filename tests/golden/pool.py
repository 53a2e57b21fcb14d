#!/usr/bin/env python3
"""Golden files of heads that pool their window: each pool alone and several beside a head of every position, with positions
that do not count, windows without a target, targets whose last one counts, and weights."""
import torch
import torch.nn.functional as F
from mamba import Mamba
from mlp import Mlp
from policy import DEFAULTS, Policy
from reference import make_family, rmsnorm

CASES = {
    "plain": dict(heads="kind:categorical*4/mean", frame_size=5, B=3, T=9),
    "last": dict(heads="kind:categorical*3/last flags:bernoulli*2@0.5/last", frame_size=4, masked=True, B=3, T=8),
    "max": dict(heads="kind:categorical*3@2/max", frame_size=4, masked=True, label_smoothing=0.1, B=3, T=11),
    "several": dict(heads="a:bernoulli*3@0.5/max b:categorical*5 c:categorical*3/mean d:bernoulli*2/last e:bernoulli*2 f:categorical*2/mean",
                    layers="mamba mlp", frame_size=5, masked=True, missing=True, weighted=True, B=3, T=12),
}


def outputs(c):
    """Returns (name, kind, width, weight, pool) of each head."""
    for word in c["heads"].split():
        word, _, pool = word.partition("/")
        name, _, rest = word.partition(":")
        rest, _, weight = rest.partition("@")
        kind, _, width = rest.partition("*")
        yield name, kind, int(width), float(weight or 1), pool


class Pooled(Policy):
    @staticmethod
    def head_shapes(c):
        width = sum(width for _, _, width, _, _ in outputs(c))
        yield "heads.weight", (width, c["d_model"])
        yield "heads.bias", (width,)
        yield "backbone.norm_f.weight", (c["d_model"],)

    @staticmethod
    def pooled(h, mask, pool):
        """Pools the rows of a window [T, d] whose mask is 1, in their order; returns zeros if there are none."""
        h = h[mask > 0]
        if len(h) == 0:
            return torch.zeros_like(h.sum(0))
        return {"mean": h.mean(0), "last": h[-1], "max": h.max(0).values}[pool]

    @staticmethod
    def one(c, kind, z, t):
        """Returns the loss of one row that has a target."""
        e = c["label_smoothing"]
        if kind == "categorical":
            return F.cross_entropy(z, t[0].long(), label_smoothing=e)
        return F.binary_cross_entropy_with_logits(z, (1 - e) * t + e / 2)

    @staticmethod
    def head(c, w, residual, batch):
        h = rmsnorm(residual, w["backbone.norm_f.weight"], c["norm_eps"])
        B, T = h.shape[:2]
        mask = batch["mask"] if "mask" in batch else torch.ones(B, T)
        weights = batch["weights"] if "weights" in batch else torch.ones(B, T, 1 + len(list(outputs(c))))
        total, counted, windows, first, target = 0, {}, {}, 0, 0
        for k, (_, kind, width, weight, pool) in enumerate(outputs(c)):
            rows, end = w["heads.weight"][first:first + width], target + (1 if kind == "categorical" else width)
            for b in range(B):
                there = [t for t in range(T) if mask[b, t] > 0 and not batch["targets"][b, t, target:end].isnan().any()]
                for t in there[-1:] if pool else there:
                    x = Pooled.pooled(h[b], mask[b], pool) if pool else h[b, t]
                    z = rows @ x + w["heads.bias"][first:first + width]
                    loss = Pooled.one(c, kind, z, batch["targets"][b, t, target:end])
                    total = total + weight * weights[b, t, 1 + k] * loss
                    if pool:  # a window counts once, with the last row that has a target
                        windows[b] = max(windows.get(b, -1), t)
                    else:
                        counted[b, t] = weights[b, t, 0]
            first, target = first + width, end
        return total / (sum(counted.values()) + sum(weights[b, t, 0] for b, t in windows.items())), None

    @staticmethod
    def batches(c, generator):
        """Makes targets from the frames of the whole window or of the position, and noise."""
        shape = (c["steps"], c["B"], c["T"])
        normal = lambda *n: torch.randn(*n, generator=generator).float().double()
        frames, batch, targets = normal(*shape, c["frame_size"]), {}, []
        for _, kind, width, _, pool in outputs(c):
            signal = frames.mean(2, keepdim=True).expand_as(frames) * 3 if pool else frames
            y = signal.sum(-1, keepdim=True) * torch.linspace(-1, 1.5, width, dtype=torch.float64) + 0.5 * normal(*shape, width)
            t = y.argmax(-1, keepdim=True).double() if kind == "categorical" else (y > 0).double()
            if c.get("missing"):
                t[torch.rand(shape, generator=generator) < 0.4] = float("nan")
                t[:, 1, c["T"] // 3:] = float("nan")
                t[1:3, 2] = float("nan")  # windows without a target
            targets.append(t)
        batch["frames"], batch["targets"] = frames, torch.cat(targets, -1)
        if c.get("masked"):
            batch["mask"] = (torch.rand(shape, generator=generator) > 0.3).double()
            batch["mask"][:, 0, 0] = 1
            batch["mask"][:, -1, c["T"] // 2:] = 0  # a short episode
        if c.get("weighted"):
            batch["weights"] = torch.rand(*shape, 1 + len(targets), generator=generator).float().double() * 2
        return batch


if __name__ == "__main__":
    make_family(__file__, {name: DEFAULTS | case for name, case in CASES.items()}, {"mamba": Mamba, "mlp": Mlp}, Pooled)
