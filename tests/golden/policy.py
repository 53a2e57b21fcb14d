#!/usr/bin/env python3
"""Golden files of the stem of frames and the heads of a policy: each kind of head, several at once with weights, label
smoothing, positions that do not count, id columns, and heads conditioned on the targets of those before them."""
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
}
DEFAULTS = dict(MAMBA, layers="mlp", d_mlp=6, mlp_gated=False, d_model=10, d_state=3, vocab_size=1, steps=3,
                autoregressive=False, label_smoothing=0.0, ids="")


def outputs(c):
    """(name, kind, width, weight) of each head."""
    for word in c["heads"].split():
        name, _, rest = word.partition(":")
        rest, _, weight = rest.partition("@")
        kind, _, width = rest.partition("*")
        yield name, kind, int(width), float(weight or 1)


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
        d, before, r = c["d_model"], 0, -(-(-(-c["d_model"] // 2)) // 8) * 8  # d / 2 rounded up to 8
        for name, _, width, _ in outputs(c):
            if c["autoregressive"]:
                yield f"heads.{name}.up.weight", (r, d + before)
                yield f"heads.{name}.weight", (width, r)
            before += width
        if not c["autoregressive"]:
            yield "heads.weight", (before, d)
        yield "heads.bias", (before,)
        yield "backbone.norm_f.weight", (d,)

    @staticmethod
    def stem(c, w, batch):
        x = batch["frames"] @ w["stem.weight"].T + w["stem.bias"]
        for n in range(len(tables(c))):
            x = x + w[f"stem.ids.{n}.weight"][batch["ids"][..., n]]
        return x + 0 * (w["stem.mean"].sum() + w["stem.deviation"].sum())  # not trained: a gradient of zeros

    @staticmethod
    def loss(c, kind, z, t):
        """Of each position: PyTorch's own, the mean over an output's columns."""
        e = c["label_smoothing"]
        if kind == "categorical":
            return F.cross_entropy(z.flatten(0, 1), t[..., 0].long().flatten(), reduction="none",
                                   label_smoothing=e).view(z.shape[:2])
        if kind == "bernoulli":
            return F.binary_cross_entropy_with_logits(z, (1 - e) * t + e / 2, reduction="none").mean(-1)
        return (F.mse_loss if kind == "regression" else F.huber_loss)(z, t, reduction="none").mean(-1)

    @staticmethod
    def head(c, w, residual, batch):
        h = rmsnorm(residual, w["backbone.norm_f.weight"], c["norm_eps"])
        inputs, total, first, target = h, 0, 0, 0
        for name, kind, width, weight in outputs(c):
            columns = slice(first, first + width)
            if c["autoregressive"]:
                z = F.silu(inputs @ w[f"heads.{name}.up.weight"].T) @ w[f"heads.{name}.weight"].T
            else:
                z = h @ w["heads.weight"][columns].T
            t = batch["targets"][..., target:target + (1 if kind == "categorical" else width)]
            total = total + weight * Policy.loss(c, kind, z + w["heads.bias"][columns], t)
            x = F.one_hot(t[..., 0].long(), width).double() if kind == "categorical" else t
            inputs = torch.cat([inputs, x], -1)
            first, target = first + width, target + t.shape[-1]
        mask = batch["mask"] if "mask" in batch else torch.ones_like(total)
        return (total * mask).sum() / mask.sum(), None

    @staticmethod
    def batches(c, generator):
        """Targets follow from the frame, the one before and noise."""
        shape = (c["steps"], c["B"], c["T"])
        normal = lambda *n: torch.randn(*shape, *n, generator=generator).float().double()
        frames, batch, targets = normal(c["frame_size"]), {}, []
        signal = frames.sum(-1) + 0.7 * frames.roll(1, 2)[..., 0]
        for _, kind, width, _ in outputs(c):
            y = signal[..., None] * torch.linspace(-1, 1.5, width, dtype=torch.float64) + 0.5 * normal(width)
            targets.append(y.argmax(-1, keepdim=True) if kind == "categorical" else y > 0 if kind == "bernoulli" else y)
        batch["frames"] = frames
        batch["targets"] = torch.cat([t.double() for t in targets], -1).float().double()
        if tables(c):
            batch["ids"] = torch.stack([torch.randint(0, size, shape, generator=generator) for size in tables(c)], -1)
        if c.get("masked"):
            batch["mask"] = (torch.rand(shape, generator=generator) > 0.3).double()
            batch["mask"][:, 0, 0] = 1
            batch["mask"][:, -1, c["T"] // 2:] = 0  # a short episode
        return batch


if __name__ == "__main__":
    make_family(__file__, {name: DEFAULTS | case for name, case in CASES.items()}, {"mamba": Mamba, "mlp": Mlp}, Policy)
