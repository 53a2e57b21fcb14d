#!/usr/bin/env python3
"""Golden files of the stem `frames` and the heads of a policy: each kind of head, several at once with weights, label
smoothing, positions that do not count, weights of positions, missing targets, id columns, ranges, and heads conditioned on
the targets of those before them. Numbers without a range are normalised by heads.mean and heads.deviation."""
import re

import torch
import torch.nn.functional as F
from mamba import DEFAULTS as MAMBA, Mamba
from mlp import Mlp
from reference import make_family, rmsnorm

ALL = "a:bernoulli*3@0.5 b:categorical*7 c:regression*2@2 d:huber*3 e:categorical*2"
CASES = {
    "plain": dict(heads="buttons:bernoulli*3 stick:categorical*5", frame_size=7, T=20),
    "categorical": dict(heads="stick:categorical*9", frame_size=3, label_smoothing=0.1, masked=True, B=3, T=6),
    "bernoulli": dict(heads="buttons:bernoulli*4", frame_size=3, label_smoothing=0.2, ids="5", T=9),
    "regression": dict(heads="aim:regression*3@0.5", frame_size=4, masked=True, B=3, T=6),
    "huber": dict(heads="aim:huber*2", frame_size=1, T=9),
    "several": dict(heads=ALL, layers="mamba mlp", frame_size=5, ids="4 11", label_smoothing=0.05, masked=True, reset=True, state=True, B=3,
                    T=11),
    "chained": dict(heads=ALL, frame_size=5, ids="6", autoregressive=True, masked=True, B=3, T=7),
    "length1": dict(heads="b:categorical*3 a:bernoulli*2", frame_size=6, autoregressive=True, T=1, steps=5),
    "long": dict(heads="b:categorical*3 a:huber*2", frame_size=2, autoregressive=True, label_smoothing=0.1, T=77, steps=2,
                 layers="mamba"),
    "mixture": dict(steps=10, heads="act:gmm(3)*2", frame_size=4, masked=True, B=3, T=6),
    "bounded": dict(steps=10, heads="act:gmm(2,-1,1.5)*3@0.5 aim:regression(-2,2)*2 d:huber(-1,1)", frame_size=4, T=9),
    "quantile": dict(steps=10, heads="load:quantile(0.1,0.5,0.8)*2", frame_size=3, T=9),
    "weighted": dict(steps=10, heads=ALL, frame_size=5, label_smoothing=0.05, masked=True, missing=True, weighted=True, B=3, T=11),
    "conditioned": dict(steps=10, heads="a:gmm(2)*2 q:quantile(0.3,0.6)*2 b:categorical*4 c:regression(-1,1)*2 e:bernoulli*2",
                        frame_size=5, autoregressive=True, missing=True, weighted=True, B=3, T=7),
}
DEFAULTS = dict(MAMBA, layers="mlp", d_mlp=6, mlp_gated=False, d_model=10, d_state=3, vocab_size=1, steps=3,
                autoregressive=False, label_smoothing=0.0, ids="")


class Output:
    """Parses the heads NAME:KIND(PARAMETERS)*SIZE@WEIGHT."""

    def __init__(self, word):
        parts = re.fullmatch(r"(\w+):(\w+)(?:\((.*)\))?(?:\*(\d+))?(?:@(.*))?", word)
        self.name, self.kind, numbers, size, weight = parts.groups()
        self.numbers, self.size, self.weight = [float(x) for x in (numbers or "").split(",") if x], int(size or 1), float(weight or 1)
        self.one_of = self.kind == "categorical"
        self.columns = 1 if self.one_of else self.size
        components = int(self.numbers[0]) if self.kind == "gmm" else 0
        self.range = self.numbers[1 if components else 0:] if self.kind != "quantile" else []
        self.components = components
        self.width = (components * (1 + 2 * self.size) if components else
                      len(self.numbers) * self.size if self.kind == "quantile" else self.size)
        self.scaled = self.kind not in ("categorical", "bernoulli") and not self.range

    def squash(self, z):
        return self.range[0] + (self.range[1] - self.range[0]) * (torch.tanh(z) + 1) / 2 if self.range else z


def outputs(c):
    return [Output(word) for word in c["heads"].split()]


def tables(c):
    return [int(size) for size in c["ids"].split()]


class Policy:
    """The stem `frames` and the head `policy`."""

    @staticmethod
    def stem_shapes(c):
        d = c["d_model"]
        yield "stem.weight", (d, c["frame_size"])
        yield "stem.bias", (d,)
        for n, size in enumerate(tables(c)):
            yield f"stem.ids.{n}.weight", (size, d)
        yield "stem.mean", (c["frame_size"],)
        yield "stem.deviation", (c["frame_size"],)

    @staticmethod
    def head_shapes(c):
        d, before, r = c["d_model"], 0, -(-(-(-c["d_model"] // 2)) // 8) * 8  # d / 2, rounded up to a multiple of 8
        for o in outputs(c):
            if c["autoregressive"]:
                yield f"heads.{o.name}.up.weight", (r, d + before)
                yield f"heads.{o.name}.weight", (o.width, r)
            before += o.size
        width, columns = sum(o.width for o in outputs(c)), sum(o.columns for o in outputs(c))
        if not c["autoregressive"]:
            yield "heads.weight", (width, d)
        yield "heads.bias", (width,)
        if any(o.scaled for o in outputs(c)):
            yield "heads.mean", (columns,)
            yield "heads.deviation", (columns,)
        yield "backbone.norm_f.weight", (d,)

    @staticmethod
    def stem(c, w, batch):
        x = batch["frames"] @ w["stem.weight"].T + w["stem.bias"]
        for n in range(len(tables(c))):
            x = x + w[f"stem.ids.{n}.weight"][batch["ids"][..., n]]
        return x + 0 * (w["stem.mean"].sum() + w["stem.deviation"].sum())  # not trained, so the gradient is zero

    @staticmethod
    def loss(c, o, z, t, there):
        """Returns PyTorch's loss of each position: the mean over the columns of an output that have a target, or one loss of all columns for a mixture."""
        e, n = c["label_smoothing"], there.sum(-1).clamp(min=1)
        mean = lambda x: (x * there).sum(-1) / n
        if o.kind == "categorical":
            return F.cross_entropy(z.flatten(0, 1), t[..., 0].long().flatten(), reduction="none",
                                   label_smoothing=e).view(z.shape[:2])
        if o.kind == "bernoulli":
            return mean(F.binary_cross_entropy_with_logits(z, (1 - e) * t + e / 2, reduction="none"))
        if o.kind == "quantile":
            q = torch.tensor(o.numbers, dtype=torch.float64).float().double()[:, None]
            u = t[..., None, :] - z.unflatten(-1, (len(o.numbers), o.size))
            return mean(torch.maximum(q * u, (q - 1) * u).mean(-2))
        if o.kind == "gmm":
            k, n = o.components, o.size
            means, spreads = (x.unflatten(-1, (k, n)) for x in (z[..., k:k + k * n], z[..., k + k * n:]))
            each = torch.distributions.Normal(o.squash(means), F.softplus(spreads) + 1e-4).log_prob(t[..., None, :])
            return -torch.logsumexp(F.log_softmax(z[..., :k], -1) + (each * there[..., None, :]).sum(-1), -1)
        return mean((F.mse_loss if o.kind == "regression" else F.huber_loss)(o.squash(z), t, reduction="none"))

    @staticmethod
    def head(c, w, residual, batch):
        h = rmsnorm(residual, w["backbone.norm_f.weight"], c["norm_eps"])
        inputs, total, first, target, counted = h, 0, 0, 0, torch.zeros(h.shape[:2], dtype=torch.bool)
        for k, o in enumerate(outputs(c)):
            columns, of_targets = slice(first, first + o.width), slice(target, target + o.columns)
            if c["autoregressive"]:
                z = F.silu(inputs @ w[f"heads.{o.name}.up.weight"].T) @ w[f"heads.{o.name}.weight"].T
            else:
                z = h @ w["heads.weight"][columns].T
            t = batch["targets"][..., of_targets]
            if "heads.mean" in w and not o.one_of and o.kind != "bernoulli":
                t = (t - w["heads.mean"][of_targets].detach()) / w["heads.deviation"][of_targets].detach()
            there = (~t.isnan()).double()
            t, has = t.nan_to_num(0), there.sum(-1) > 0
            weight = batch["weights"][..., 1 + k] if "weights" in batch else 1
            total = total + o.weight * weight * has * Policy.loss(c, o, z + w["heads.bias"][columns], t, there)
            counted = counted | has
            x = F.one_hot(t[..., 0].long(), o.size).double() * there if o.one_of else t
            inputs = torch.cat([inputs, x], -1)
            first, target = first + o.width, target + o.columns
        mask = (batch["mask"] if "mask" in batch else 1) * counted.double()
        count = (mask * (batch["weights"][..., 0] if "weights" in batch else 1)).sum()
        fixed = 0 * (w["heads.mean"].sum() + w["heads.deviation"].sum()) if "heads.mean" in w else 0  # not trained
        return (total * mask).sum() / count + fixed, None

    @staticmethod
    def batches(c, generator):
        """Makes targets from the frame, the previous frame and noise."""
        shape = (c["steps"], c["B"], c["T"])
        normal = lambda *n: torch.randn(*shape, *n, generator=generator).float().double()
        frames, batch, targets = normal(c["frame_size"]), {}, []
        signal = frames.sum(-1) + 0.7 * frames.roll(1, 2)[..., 0]
        for o in outputs(c):
            y = signal[..., None] * torch.linspace(-1, 1.5, o.size, dtype=torch.float64) + 0.5 * normal(o.size)
            targets.append(y.argmax(-1, keepdim=True) if o.one_of else y > 0 if o.kind == "bernoulli" else y)
        batch["frames"] = frames
        batch["targets"] = torch.cat([t.double() for t in targets], -1).float().double()
        if tables(c):
            batch["ids"] = torch.stack([torch.randint(0, size, shape, generator=generator) for size in tables(c)], -1)
        if c.get("masked"):
            batch["mask"] = (torch.rand(shape, generator=generator) > 0.3).double()
            batch["mask"][:, 0, 0] = 1
            batch["mask"][:, -1, c["T"] // 2:] = 0  # a short episode
        if c.get("missing"):  # single numbers and whole rows
            some = torch.rand(batch["targets"].shape, generator=generator) < 0.2
            batch["targets"][some | (torch.rand(shape, generator=generator) < 0.1)[..., None]] = torch.nan
        if c.get("weighted"):
            weights = torch.rand(*shape, 1 + len(targets), generator=generator).double()
            batch["weights"] = (2 * weights * (weights > 0.2)).float().double()
        return batch


if __name__ == "__main__":
    make_family(__file__, {name: DEFAULTS | case for name, case in CASES.items()}, {"mamba": Mamba, "mlp": Mlp}, Policy)
