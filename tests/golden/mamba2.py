#!/usr/bin/env python3
"""Golden files of Mamba-2 [Dao & Gu 2024, section 7], made by the plain recurrence (reference.py).

    mamba2.py            rewrites all files (same seeds, same files)
    mamba2.py --check    compares this reference with transformers' Mamba2ForCausalLM
"""
import math
import sys

import torch
import torch.nn.functional as F
from mamba import DEFAULTS as MAMBA, Mamba, compare_with_transformers, convolution
from reference import fresh, make_family, rmsnorm

DEFAULTS = dict(layers="mamba2*2", d_model=16, d_state=16, d_conv=4, expand=2, head_dim=8, n_groups=1, dt_min=0.0,
                dt_max=0.0)
CASES = {name: DEFAULTS | case for name, case in {
    "plain": dict(),
    "length1": dict(T=1, B=1),
    "length1_state": dict(T=1, B=3, d_state=8, d_conv=3, n_groups=2, state=True, tie_embeddings=False, vocab_size=13),
    "wide": dict(layers="mamba2", d_model=8, expand=8, head_dim=64, d_state=128, steps=4),
    "groups": dict(B=3, d_state=5, n_groups=2, d_conv=2, ignored=True, tie_embeddings=False, vocab_size=29),
    "reset": dict(B=3, layers="mamba2*3", d_state=1, d_conv=3, reset=True, ignored=True, weight_decay=0.0),
    "reset_state": dict(B=3, d_state=8, head_dim=32, reset=True, state=True, vocab_size=11, eps=1e-6),
    "limits": dict(layers="mamba2", d_state=3, dt_min=0.1, dt_max=0.4),
    "hybrid": MAMBA | DEFAULTS | dict(layers="mamba mamba2 mamba", d_state=3, dt_rank=2, B=3, T=20, reset=True),
}.items()}


def sizes(c):
    """Returns E, H, P, N, G, W."""
    E, P = c["expand"] * c["d_model"], c["head_dim"]
    return E, E // P, P, c["d_state"], c["n_groups"], E + 2 * c["n_groups"] * c["d_state"]


class Mamba2:
    @staticmethod
    def shapes(c):
        (E, H, _, _, _, W), d, K = sizes(c), c["d_model"], c["d_conv"]
        yield "mixer.in_proj.weight", (E + W + H, d)
        yield "mixer.conv1d.weight", (W, 1, K)
        yield "mixer.conv1d.bias", (W,)
        yield "mixer.dt_bias", (H,)
        yield "mixer.A_log", (H,)
        yield "mixer.D", (H,)
        yield "mixer.norm.weight", (E,)
        yield "mixer.out_proj.weight", (d, E)

    @staticmethod
    def states(c):
        E, _, _, N, _, W = sizes(c)
        return ("ssm_state", (E, N)), ("conv_state", (c["d_conv"] - 1, W))

    @staticmethod
    def forward(c, w, x, reset, state):
        E, H, P, N, G, W = sizes(c)
        h, window = state
        z, xbc, dt = (x @ w["mixer.in_proj.weight"].T).split([E, W, H], dim=-1)
        xbc, window = convolution(xbc, w["mixer.conv1d.weight"][:, 0], w["mixer.conv1d.bias"], reset, window)
        u, b, c_ = F.silu(xbc).split([E, G * N, G * N], dim=-1)
        heads = lambda v: v.unflatten(-1, (G, N)).repeat_interleave(H // G, dim=2)  # [B, T, H, N]
        delta = F.softplus(dt + w["mixer.dt_bias"]).clamp(c["dt_min"], c["dt_max"] or math.inf)
        y, h = recurrence(u.unflatten(-1, (H, P)), delta, -torch.exp(w["mixer.A_log"]), heads(b), heads(c_), reset,
                          h.view(-1, H, P, N))
        y = (y + w["mixer.D"][:, None] * u.unflatten(-1, (H, P))).flatten(2) * F.silu(z)
        y = rmsnorm(y.unflatten(-1, (G, E // G)), 1, c["norm_eps"]).flatten(2) * w["mixer.norm.weight"]
        return y @ w["mixer.out_proj.weight"].T, [h.flatten(1, 2), window]


def recurrence(x, delta, a, b, c, reset, h):
    """Runs the recurrence: x [B, T, H, P], delta [B, T, H], a [H], b and c [B, T, H, N], h [B, H, P, N]."""
    out = []
    for t in range(x.shape[1]):
        step = delta[:, t, :, None, None]
        h = torch.exp(step * a[:, None, None]) * fresh(h, reset, t) + step * x[:, t, :, :, None] * b[:, t, :, None]
        out.append((h * c[:, t, :, None]).sum(-1))
    return torch.stack(out, dim=1), h


def huggingface(c):
    from transformers import Mamba2Config, Mamba2ForCausalLM

    E, H, P, N, G, _ = sizes(c)
    config = Mamba2Config(vocab_size=c["vocab_size"], hidden_size=c["d_model"], state_size=N, num_heads=H, head_dim=P,
                          n_groups=G, num_hidden_layers=int(c["layers"].partition("*")[2] or 1),
                          conv_kernel=c["d_conv"], expand=c["expand"], layer_norm_epsilon=c["norm_eps"],
                          use_bias=False, use_conv_bias=True, tie_word_embeddings=c["tie_embeddings"],
                          time_step_limit=(c["dt_min"], c["dt_max"] or math.inf), chunk_size=16, use_cache=False,
                          residual_in_fp32=True, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    return Mamba2ForCausalLM(config).double()


if __name__ == "__main__":
    if "--check" in sys.argv:
        compare_with_transformers({name: case for name, case in CASES.items() if name != "hybrid"}, {"mamba2": Mamba2},
                                  huggingface)
    else:
        make_family(__file__, CASES, {"mamba2": Mamba2, "mamba": Mamba})
