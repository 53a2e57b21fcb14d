#!/usr/bin/env python3
"""Golden files of attention, made by plain code that goes position by position and rotates keys by their distance to the query.

    attention.py            rewrites all files
    attention.py --check    compares this reference with transformers' rotary positions and PyTorch's own attention
"""
import math
import sys

import torch
import torch.nn.functional as F
from mamba import DEFAULTS as MAMBA, Mamba
from reference import make_family

SMALL = dict(d_model=12, vocab_size=11, steps=4, n_head=2, n_kv_head=2, attn_window=77, rope_base=10000.0)
CASES = {name: SMALL | case for name, case in {
    "plain": dict(layers="attention*2"),
    "length1": dict(layers="attention", T=1, B=3, attn_window=5, state=True),
    "length1_alone": dict(layers="attention", T=1, B=1, attn_window=1),
    "shared_window": dict(layers="attention*2", n_head=3, n_kv_head=1, attn_window=20, B=3, tie_embeddings=False),
    "reset": dict(layers="attention", n_head=1, n_kv_head=1, B=3, reset=True, ignored=True, rope_base=100.0),
    "state": dict(layers="attention*2", d_model=16, n_head=4, attn_window=30, B=3, state=True),
    "reset_state": dict(layers="attention", d_model=16, n_head=4, attn_window=90, B=3, T=50, reset=True, state=True),
    "hybrid": MAMBA | dict(layers="mamba attention mamba", d_state=3, B=3, T=20, attn_window=7, reset=True, state=True,
                           rope_base=0.0),
}.items()}


def sizes(c):
    """Returns H, G, E, W."""
    return c["n_head"], c["n_kv_head"], c["d_model"] // c["n_head"], c["attn_window"]


def turn(x, position, base):
    """Rotates pairs (x_i, x_{i + E/2}) of the last dimension by the angle position · base^(-2i / E)."""
    if base == 0:
        return x
    half = x.shape[-1] // 2
    angle = position * base ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


class Attention:
    @staticmethod
    def shapes(c):
        H, G, E, _ = sizes(c)
        yield "mixer.in_proj.weight", ((H + 2 * G) * E, c["d_model"])
        yield "mixer.out_proj.weight", (c["d_model"], H * E)

    @staticmethod
    def states(c):
        _, G, E, W = sizes(c)
        return ("keys", (W - 1, G * E)), ("values", (W - 1, G * E)), ("count", (1,))

    @staticmethod
    def random_state(c, generator):
        """Returns states of which all, no, and some previous positions count; those that do not count are zero."""
        _, G, E, W = sizes(c)
        count = torch.tensor([[W - 1, 0, W // 2][b % 3] for b in range(c["B"])], dtype=torch.float64)
        valid = torch.arange(W - 1) >= W - 1 - count[:, None]
        draw = lambda: torch.randn((c["B"], W - 1, G * E), generator=generator).double() * valid[..., None]
        return [draw(), draw(), count[:, None]]

    @staticmethod
    def forward(c, w, x, reset, state):
        H, G, E, W = sizes(c)
        q, k, v = (x @ w["mixer.in_proj.weight"].T).split([H * E, G * E, G * E], dim=-1)
        keys, values = (torch.cat([before, now], dim=1) for before, now in zip(state, (k, v)))  # position j is at j + W - 1
        out, last = [], []
        for b in range(x.shape[0]):
            first, rows = W - 1 - int(state[2][b]), []  # index of the first position that counts
            for t in range(x.shape[1]):
                if reset is not None and reset[b, t]:
                    first = t + W - 1
                start = max(first, t)
                rows.append(attend(q[b, t].view(H, E), keys[b, start : t + W].view(-1, G, E),
                                   values[b, start : t + W].view(-1, G, E), c["rope_base"]))
            out.append(torch.stack(rows))
            end = x.shape[1] + W - 1
            counts = (torch.arange(end - W + 1, end) >= first).double()[:, None]
            last.append([keys[b, end - W + 1 :] * counts, values[b, end - W + 1 :] * counts,
                         counts.sum().view(1)])
        return torch.stack(out) @ w["mixer.out_proj.weight"].T, [torch.stack(part) for part in zip(*last)]


def attend(q, k, v, base):
    """Returns the output [H * E] of q [H, E] on k and v [n, G, E], whose last position is that of q."""
    n, shared = k.shape[0], q.shape[0] // k.shape[1]
    k = torch.stack([turn(k[j], j - (n - 1), base) for j in range(n)])
    scores = torch.einsum("he,nhe->hn", q, k.repeat_interleave(shared, dim=1)) / math.sqrt(q.shape[-1])
    return torch.einsum("hn,nhe->he", scores.softmax(-1), v.repeat_interleave(shared, dim=1)).flatten()


def check():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    c = dict(SMALL, d_model=24, n_head=4, n_kv_head=2, attn_window=9)
    H, G, E, W = sizes(c)
    B, T = 2, 31
    x = torch.randn(B, T, c["d_model"], dtype=torch.float64)
    w = {name: torch.randn(shape, dtype=torch.float64) / 5 for name, shape in Attention.shapes(c)}
    zeros = [torch.zeros((B, *shape), dtype=torch.float64) for _, shape in Attention.states(c)]
    mine, _ = Attention.forward(c, w, x, None, zeros)
    q, k, v = (y.view(B, T, -1, E).transpose(1, 2)
               for y in (x @ w["mixer.in_proj.weight"].T).split([H * E, G * E, G * E], dim=-1))
    angle = torch.outer(torch.arange(T).double(), 10000 ** (-torch.arange(0, E, 2).double() / E)).repeat(1, 2)[None]
    q, k = apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
    distance = torch.arange(T)[:, None] - torch.arange(T)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=(distance >= 0) & (distance < W), enable_gqa=True)
    theirs = theirs.transpose(1, 2).reshape(B, T, -1) @ w["mixer.out_proj.weight"].T
    worst = (mine - theirs).abs().max().item()
    print(f"differs by {worst:.1e}")
    assert worst < 1e-12


if __name__ == "__main__":
    if "--check" in sys.argv:
        check()
    else:
        make_family(__file__, CASES, {"attention": Attention, "mamba": Mamba})
