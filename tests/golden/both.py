#!/usr/bin/env python3
"""Golden files of models that read both ways. Each document is read alone, as far as its window counts. Blocks that go from one
position to the next read it from each end, and both outputs are added, as in BiMamba [Schiff et al. 2024, Caduceus] and Vision Mamba
[Zhu et al. 2024]: fwd(x) + flip(rev(flip(x))). Attention has no causal mask."""
import math
import pathlib
import sys

import torch
from attention import Attention, sizes, turn
from mamba import Mamba
from mamba2 import Mamba2
from mlp import Mlp
from policy import DEFAULTS, Policy
from pool import Pooled
from reference import IGNORED, Language, Model, make
from rnn import Lstm, Rnn

HEADS = "b:categorical*3 a:bernoulli*2"
SMALL = DEFAULTS | dict(direction="both", heads=HEADS, frame_size=4, B=3, T=13, steps=4)
MAMBA2 = dict(d_model=12, d_state=3, d_conv=4, expand=2, head_dim=4, n_groups=2, dt_min=0.0, dt_max=0.0)
CASES = {name: SMALL | case for name, case in {
    "plain": dict(layers="mamba*2", T=41),
    "mamba": dict(layers="mamba*2", reset=True, masked=True, tie_directions=False),
    "mamba_length1": dict(layers="mamba", T=1, B=2),
    "mamba2": dict(MAMBA2, layers="mamba2*2", reset=True, masked=True, tie_directions=False),
    "mamba2_tied": dict(MAMBA2, layers="mamba2*2", T=41, reset=True, lr=1e-3),
    "gru": dict(layers="gru*2", reset=True, masked=True, tie_directions=False),
    "gru_tied": dict(layers="gru", d_rnn=7, reset=True, masked=True),
    "lstm": dict(layers="lstm", d_rnn=7, reset=True, masked=True, tie_directions=False),
    "lstm_tied": dict(layers="lstm*2", masked=True),
    "pooled": dict(layers="mamba mlp gru", heads="a:bernoulli*3@0.5/max b:categorical*5 c:categorical*3/mean d:bernoulli*2/last",
                   reset=True, masked=True, missing=True),
    "mlm": dict(layers="mamba gru", heads="mlm", vocab_size=19, mask_token=18, tie_embeddings=True, reset=True),
    "attention": dict(layers="attention*2", d_model=12, n_head=3, n_kv_head=1, attn_window=4, rope_base=100.0, reset=True, masked=True),
    "attention_whole": dict(layers="attention mamba", d_model=12, n_head=2, n_kv_head=1, attn_window=41, rope_base=10000.0, T=41),
}.items()}


def documents(mask, reset):
    """Returns the documents [s, e) of a sequence, up to the last position that counts."""
    n = len(mask)
    while n > 0 and not mask[n - 1]:
        n -= 1
    starts = [t for t in range(n) if t == 0 or (reset is not None and reset[t])]
    return zip(starts, starts[1:] + [n])


class EachDocument:
    """A block that reads one document at a time."""
    mask = None  # the mask of the batch

    @staticmethod
    def states(c):
        return ()

    def forward(self, c, w, x, reset, state):
        out = []
        for b in range(x.shape[0]):
            mask = torch.ones(x.shape[1]) if EachDocument.mask is None else EachDocument.mask[b]
            rows, at = [], 0
            for s, at in documents(mask, None if reset is None else reset[b]):
                rows.append(self.read(c, w, x[b:b + 1, s:at]))
            rows.append(torch.zeros_like(x[b:b + 1, at:]))  # nothing reads the outputs of padding
            out.append(torch.cat(rows, 1))
        return torch.cat(out), ()


class Unmasked(EachDocument):
    """Attention to all positions of a document that are less than the window away."""
    shapes = staticmethod(Attention.shapes)

    @staticmethod
    def read(c, w, x):
        H, G, E, W = sizes(c)
        q, k, v = (y.view(-1, y.shape[-1] // E, E)
                   for y in (x[0] @ w["mixer.in_proj.weight"].T).split([H * E, G * E, G * E], dim=-1))
        q, k = (torch.stack([turn(row, t, c["rope_base"]) for t, row in enumerate(y)]) for y in (q, k))
        k, v = (y.repeat_interleave(H // G, dim=1) for y in (k, v))
        at = torch.arange(x.shape[1])
        far = (at[:, None] - at).abs() >= W
        scores = torch.einsum("the,jhe->htj", q, k) / math.sqrt(E)
        p = scores.masked_fill(far, -math.inf).softmax(-1)
        return torch.einsum("htj,jhe->the", p, v).flatten(1)[None] @ w["mixer.out_proj.weight"].T


class Both(EachDocument):
    """Makes a block of both directions from a block of one; their tensors are those within mixer.KIND_fwd and mixer.KIND_rev."""

    def __init__(self, kind, block):
        self.kind, self.block = kind, block

    @staticmethod
    def shared(c, name):
        return c.get("tie_directions", True) and name in ("mixer.in_proj.weight", "mixer.out_proj.weight", "mixer.weight_ih_l0")

    def own(self, name, direction):
        return name.replace("mixer.", f"mixer.{self.kind}_{direction}.")

    def shapes(self, c):
        for direction in ("fwd", "rev"):
            for name, shape in self.block.shapes(c):
                if direction == "fwd" or not self.shared(c, name):
                    yield self.own(name, direction), shape

    def run(self, c, w, direction, x):
        names = [name for name, _ in self.block.shapes(c)]
        own = {name: w[self.own(name, "fwd" if self.shared(c, name) else direction)] for name in names}
        zeros = [torch.zeros((1, *shape), dtype=torch.float64) for _, shape in self.block.states(c)]
        return self.block.forward(c, own, x, None, zeros)[0]

    def read(self, c, w, x):
        return self.run(c, w, "fwd", x) + self.run(c, w, "rev", x.flip(1)).flip(1)


class Masked(Language):
    """The head `mlm`, which predicts a share of the tokens, most of which are masked."""

    @staticmethod
    def batches(c, generator):
        ids = Language.batches(dict(c, vocab_size=c["mask_token"], ignored=False), generator)["input_ids"]
        chosen, how = (torch.rand(ids.shape, generator=generator) for _ in range(2))
        return {"input_ids": torch.where((chosen < 0.3) & (how < 0.8), c["mask_token"], ids),
                "labels": torch.where(chosen < 0.3, ids, IGNORED)}


class BothWays(Model):
    def forward(self, batch, state=None):
        EachDocument.mask = batch.get("mask")
        return super().forward(batch, state)


BLOCKS = {name: Both(name, block) for name, block in {"mamba": Mamba, "mamba2": Mamba2, "gru": Rnn, "lstm": Lstm}.items()}
BLOCKS |= {"mlp": Mlp, "attention": Unmasked()}


def main(names):
    torch.set_num_threads(1)
    for seed, (name, case) in enumerate(CASES.items(), 1):
        generator = torch.Generator().manual_seed(seed)
        ends = Masked if case["heads"] == "mlm" else Pooled if "/" in case["heads"] else Policy
        if not names or name in names:
            make(pathlib.Path(__file__).resolve().with_suffix("") / f"{name}.safetensors",
                 BothWays(case, BLOCKS, generator, ends), generator)


if __name__ == "__main__":
    main(sys.argv[1:])
