#!/usr/bin/env python3
"""Golden files of windows that dtrain runs in segments: whole passes over 4,096 positions of two layers of every kind, and over
4,091 with documents; pooled windows; several windows. Here all positions of a document are computed at once.

    segments.py [CASE …]   rewrites all files, or those of these cases
    segments.py --check    compares these forms with those that go position by position
"""
import math
import pathlib
import sys

import mamba
import mamba2
import torch
import torch.nn.functional as F
from attention import Attention, sizes, turn
from both import Both, BothWays, Masked, Unmasked, documents
from pool import Pooled
from policy import DEFAULTS as POLICY
from reference import Language, Model, make
from rnn import Lstm, Rnn

LONG = dict(d_model=8, vocab_size=11, T=4096, batches=1, segments="64 512")
KINDS = {
    "mamba": dict(d_state=3, d_conv=4, expand=2, dt_rank=2),
    "mamba2": dict(d_state=3, d_conv=4, expand=2, head_dim=4, n_groups=2, dt_min=0.0, dt_max=0.0),
    "gru": dict(d_rnn=6),
    "lstm": dict(d_rnn=6),
    "attention": dict(n_head=2, n_kv_head=1, attn_window=50, rope_base=10000.0),
}
CASES = {"plain" if kind == "mamba" else kind: LONG | keys | dict(layers=f"{kind}*2") for kind, keys in KINDS.items()}
CASES |= {f"{kind}_documents": LONG | keys | dict(layers=f"{kind}*2", T=4091, reset=True) for kind, keys in KINDS.items()}
CASES["attention_far"] = CASES["attention_documents"] | dict(attn_window=700)
CASES["pooled"] = POLICY | LONG | KINDS["mamba"] | dict(
    layers="mamba*2", heads="a:categorical*3/mean b:categorical*4/last c:bernoulli*2/max", frame_size=2, vocab_size=1,
    T=4091, steps=10)
CASES["groups"] = LONG | KINDS["mamba"] | KINDS["attention"] | dict(layers="mamba attention", B=4, T=4091, reset=True)
# Models that read in both directions: 4,091 positions with documents, and 4,096.
BOTH = LONG | dict(direction="both", heads="mlm", mask_token=10, tie_embeddings=True)
CASES["both_whole"] = BOTH | KINDS["mamba"] | KINDS["gru"] | dict(layers="mamba gru", B=2, tie_directions=False)
CASES["both_pooled"] = CASES["pooled"] | KINDS["mamba2"] | dict(layers="mamba2*2", direction="both", reset=True)
CASES |= {f"both_{kind}": BOTH | keys | dict(layers=f"{kind}*2", T=4091, reset=True)
          for kind, keys in KINDS.items() if kind != "attention"}
CASES["both_attention"] = BOTH | KINDS["attention"] | dict(layers="attention*2", T=4091, reset=True)
# Heads that two and four ranks can share.
CASES["both_heads"] = BOTH | KINDS["mamba"] | dict(layers="attention mamba attention", d_model=16, n_head=8, n_kv_head=4, attn_window=700,
                                                   rope_base=10000.0, T=4091, reset=True)


class LongPooled(Pooled):
    """Makes a mask with which two thirds of the positions count, and none of the last ones."""

    @staticmethod
    def batches(c, generator):
        batch = Pooled.batches(c, generator)
        batch["mask"] = (torch.rand(batch["frames"].shape[:3], generator=generator) > 0.3).double()
        batch["mask"][..., 3900:] = 0
        return batch


def prefix(decay, x):
    """Computes h_t = decay_t h_{t-1} + x_t along dimension 1 from zero, by doubling [Hillis & Steele 1986]."""
    k = 1
    while k < x.shape[1]:
        x = torch.cat([x[:, :k], x[:, k:] + decay[:, k:] * x[:, :-k]], 1)
        decay = torch.cat([decay[:, :k], decay[:, k:] * decay[:, :-k]], 1)
        k *= 2
    return x


def convolution(u, weight, bias, _reset, window):
    return F.conv1d(torch.cat([window, u], 1).mT, weight[:, None], bias, groups=u.shape[-1]).mT, window


def scan(u, delta, a, b, c, _reset, h):
    step = delta[..., None]
    return (prefix(torch.exp(step * a), step * u[..., None] * b[:, :, None]) * c[:, :, None]).sum(-1), h


def recurrence(x, delta, a, b, c, _reset, h):
    step = delta[..., None, None]
    states = prefix(torch.exp(step * a[:, None, None]), step * x[..., None] * b[:, :, :, None])
    return (states * c[:, :, :, None]).sum(-1), h


class Documents:
    """A block for which each document is a separate sequence."""

    def __init__(self, block):
        self.block = block

    def __getattr__(self, name):
        return getattr(self.block, name)

    def forward(self, c, w, x, reset, state):
        return torch.cat([self.sequence(c, w, x[b:b + 1], None if reset is None else reset[b], [s[b:b + 1] for s in state])
                          for b in range(x.shape[0])]), state

    def sequence(self, c, w, x, reset, state):
        return torch.cat([self.run(c, w, x[:, s:e], state) for s, e in documents(torch.ones(x.shape[1]), reset)], 1)

    def run(self, c, w, x, state):
        return self.block.forward(c, w, x, None, state)[0]


class Recurrent(Documents):
    def run(self, c, w, x, state):
        layer = {Rnn: torch.nn.GRU, Lstm: torch.nn.LSTM}[self.block](x.shape[-1], state[0].shape[-1], batch_first=True,
                                                                   dtype=torch.float64)
        weights = {name: w[f"mixer.{name}"] for name, _ in layer.named_parameters()}
        return torch.func.functional_call(layer, weights, x)[0] @ w["mixer.out_proj.weight"].T


class Windowed(Documents):
    """Attention of each position to the last W keys up to it."""

    def run(self, c, w, x, state):
        H, G, E, W = sizes(c)
        q, k, v = (y.unflatten(-1, (-1, E)) for y in (x @ w["mixer.in_proj.weight"].T).split([H * E, G * E, G * E], dim=-1))
        at = torch.arange(x.shape[1], dtype=torch.float64)
        q, k = (turn(y, at[:, None, None], c["rope_base"]) for y in (q, k))
        k, v = (F.pad(y, (0, 0, 0, 0, W - 1, 0)).unfold(1, W, 1).repeat_interleave(H // G, 2) for y in (k, v))
        there = at[:, None] - torch.arange(W - 1, -1, -1) >= 0  # [T, W]
        scores = torch.einsum("bthe,bthew->bthw", q, k) / math.sqrt(E)
        p = scores.masked_fill(~there[:, None], -torch.inf).softmax(-1)
        return torch.einsum("bthw,bthew->bthe", p, v).flatten(2) @ w["mixer.out_proj.weight"].T


class Seeing(Unmasked):
    """Attention both ways over all positions of a document at once."""

    @staticmethod
    def read(c, w, x):
        H, G, E, W = sizes(c)
        q, k, v = (y.unflatten(-1, (-1, E)) for y in (x[0] @ w["mixer.in_proj.weight"].T).split([H * E, G * E, G * E], dim=-1))
        at = torch.arange(x.shape[1], dtype=torch.float64)
        q, k = (turn(y, at[:, None, None], c["rope_base"]) for y in (q, k))
        k, v = (y.repeat_interleave(H // G, 1) for y in (k, v))
        scores = torch.einsum("the,jhe->htj", q, k) / math.sqrt(E)
        p = scores.masked_fill((at[:, None] - at).abs() >= W, -torch.inf).softmax(-1)
        return torch.einsum("htj,jhe->the", p, v).flatten(1)[None] @ w["mixer.out_proj.weight"].T


SEQUENTIAL = {"mamba": mamba.Mamba, "mamba2": mamba2.Mamba2, "gru": Rnn, "lstm": Lstm, "attention": Attention}
AT_ONCE = {"mamba": Documents(mamba.Mamba), "mamba2": Documents(mamba2.Mamba2), "gru": Recurrent(Rnn), "lstm": Recurrent(Lstm),
           "attention": Windowed(Attention)}


BOTH_WAYS = {kind: Both(kind, AT_ONCE[kind]) for kind in ("mamba", "mamba2", "gru", "lstm")} | {"attention": Seeing()}


def models():
    for seed, (name, case) in enumerate(CASES.items(), 1):
        generator = torch.Generator().manual_seed(seed)
        yield name, case, generator, Masked if case.get("heads") == "mlm" else LongPooled if "heads" in case else Language


def at_once():
    mamba.scan, mamba.convolution, mamba2.convolution, mamba2.recurrence = scan, convolution, convolution, recurrence


def main(names):
    torch.set_num_threads(1)
    at_once()
    for name, case, generator, ends in models():
        if names and name not in names:
            continue
        both = case.get("direction") == "both"
        model = (BothWays if both else Model)(case, BOTH_WAYS if both else AT_ONCE, generator, ends)
        make(pathlib.Path(__file__).resolve().with_suffix("") / f"{name}.safetensors", model, generator)


def check():
    """Returns the outputs of blocks over 90 positions with a document that starts at 37."""
    blocks, x = {}, torch.randn(1, 90, LONG["d_model"], dtype=torch.float64)
    reset = (torch.arange(90) == 37).double()[None]
    for forms in (SEQUENTIAL, AT_ONCE):
        for kind, block in forms.items():
            c = LONG | KINDS[kind] | dict(norm_eps=1e-5)
            generator = torch.Generator().manual_seed(1)
            w = {name: Model.initial(name, shape, generator) for name, shape in block.shapes(c)}
            zeros = [torch.zeros((1, *shape), dtype=torch.float64) for _, shape in block.states(c)]
            blocks.setdefault(kind, []).append(block.forward(c, w, x, reset, zeros)[0])
        at_once()
    for kind, (one, other) in blocks.items():
        worst = (one - other).abs().max().item()
        print(f"{kind}: differs by {worst:.1e}")
        assert worst < 1e-12


if __name__ == "__main__":
    check() if "--check" in sys.argv else main(sys.argv[1:])
