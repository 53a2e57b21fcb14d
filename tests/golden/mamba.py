#!/usr/bin/env python3
"""Golden files of Mamba-1 [Gu & Dao 2023, Algorithm 2 and Figure 3], made by plain sequential code (reference.py).

    mamba.py            rewrites all files (same seeds, same files)
    mamba.py --check    compares this reference with transformers' MambaForCausalLM
"""
import json
import sys

import torch
import torch.nn.functional as F
from reference import IGNORED, Model, fresh, make_family, rmsnorm

# expand is 2 and dt_rank is ceil(d / 16), as published.
DEFAULTS = dict(layers="mamba*2", d_state=16, d_conv=4, expand=2, dt_rank="auto")
CASES = {name: DEFAULTS | case for name, case in {
    "length1": dict(T=1, B=1),
    "length1_state": dict(T=1, B=3, d_model=36, expand=1, d_state=8, d_conv=3, state=True, tie_embeddings=False,
                          vocab_size=13),
    "length2_reset": dict(T=2, B=3, d_state=8, expand=3, layers="mamba", reset=True, state=True),  # L < K - 1
    "plain": dict(),
    "batch": dict(B=3, d_model=36, expand=1, d_state=1, d_conv=2, tie_embeddings=False, vocab_size=29, ignored=True,
                  dt_rank=5),
    "reset": dict(B=3, layers="mamba*3", d_conv=3, reset=True, ignored=True, weight_decay=0.0),
    "state": dict(d_state=8, d_conv=2, state=True, tie_embeddings=False, grad_clip=0.0),
    "reset_state": dict(B=3, d_model=36, expand=1, reset=True, state=True, dt_rank=7, vocab_size=11, eps=1e-6,
                        beta1=0.8, beta2=0.99),
    "falcon": dict(B=3, d_model=36, d_state=5, dt_rank=7, reset=True, state=True, mixer_rms_eps=1e-6),
    "falcon_plain": dict(tie_embeddings=False, vocab_size=11, mixer_rms_eps=0.03),
}.items()}


def sizes(c):
    """Returns E, N, K, R."""
    rank = -(-c["d_model"] // 16) if c["dt_rank"] == "auto" else c["dt_rank"]
    return c["expand"] * c["d_model"], c["d_state"], c["d_conv"], rank


class Mamba:
    @staticmethod
    def shapes(c):
        (E, N, K, R), d = sizes(c), c["d_model"]
        yield "mixer.in_proj.weight", (2 * E, d)
        yield "mixer.conv1d.weight", (E, 1, K)
        yield "mixer.conv1d.bias", (E,)
        yield "mixer.x_proj.weight", (R + 2 * N, E)
        yield "mixer.dt_proj.weight", (E, R)
        yield "mixer.dt_proj.bias", (E,)
        yield "mixer.A_log", (E, N)
        yield "mixer.D", (E,)
        yield "mixer.out_proj.weight", (d, E)

    @staticmethod
    def states(c):
        E, N, K, _ = sizes(c)
        return ("ssm_state", (E, N)), ("conv_state", (K - 1, E))

    @staticmethod
    def forward(c, w, x, reset, state):
        E, N, _, R = sizes(c)
        h, window = state
        u, z = (x @ w["mixer.in_proj.weight"].T).split(E, dim=-1)
        u, window = convolution(u, w["mixer.conv1d.weight"][:, 0], w["mixer.conv1d.bias"], reset, window)
        u = F.silu(u)
        parts = (u @ w["mixer.x_proj.weight"].T).split([R, N, N], dim=-1)
        if eps := c.get("mixer_rms_eps"):  # FalconMamba
            parts = [rmsnorm(part, 1, eps) for part in parts]
        dt, b, c = parts
        delta = F.softplus(dt @ w["mixer.dt_proj.weight"].T + w["mixer.dt_proj.bias"])
        s, h = scan(u, delta, -torch.exp(w["mixer.A_log"]), b, c, reset, h)
        return ((s + w["mixer.D"] * u) * F.silu(z)) @ w["mixer.out_proj.weight"].T, [h, window]


def convolution(u, weight, bias, reset, window):
    """A causal, depthwise convolution. The window of the last K - 1 inputs is cleared where a document starts."""
    out = []
    for t in range(u.shape[1]):
        taps = torch.cat([fresh(window, reset, t), u[:, t : t + 1]], dim=1)  # [B, K, E]
        out.append((taps * weight.T).sum(1) + bias)
        window = taps[:, 1:]
    return torch.stack(out, dim=1), window


def scan(u, delta, a, b, c, reset, h):
    out = []
    for t in range(u.shape[1]):
        step = delta[:, t, :, None]
        h = torch.exp(step * a) * fresh(h, reset, t) + step * u[:, t, :, None] * b[:, t, None, :]
        out.append((h * c[:, t, None, :]).sum(-1))
    return torch.stack(out, dim=1), h


def huggingface(c):
    from transformers import FalconMambaConfig, FalconMambaForCausalLM, MambaConfig, MambaForCausalLM

    (E, N, K, R), falcon = sizes(c), "mixer_rms_eps" in c
    config = (FalconMambaConfig if falcon else MambaConfig)(vocab_size=c["vocab_size"], hidden_size=c["d_model"], state_size=N,
                         num_hidden_layers=int(c["layers"].partition("*")[2] or 1), conv_kernel=K, expand=c["expand"],
                         intermediate_size=E, time_step_rank=R, layer_norm_epsilon=c["norm_eps"], use_bias=False,
                         use_conv_bias=True, tie_word_embeddings=c["tie_embeddings"], use_cache=False,
                         residual_in_fp32=True, pad_token_id=0, bos_token_id=0, eos_token_id=0,
                         **{"mixer_rms_eps": c["mixer_rms_eps"]} if falcon else {})
    return (FalconMambaForCausalLM if falcon else MambaForCausalLM)(config).double()


def compare_with_transformers(cases, blocks, peer_of):
    """Compares logits and gradients with transformers' own code, which rounds to fp32 in its norms: the tolerance is 1e-5."""
    worst = 0.0
    for name, case in cases.items():
        if case.get("reset") or case.get("state"):
            continue
        generator = torch.Generator().manual_seed(7)
        model = Model(case, blocks, generator)
        batch = {key: array[0] for key, array in model.ends.batches(model.c, generator).items()}
        peer = peer_of(model.c)
        peer.load_state_dict({key: w.detach() for key, w in model.w.items()}, strict=False)
        peer.tie_weights()
        loss, mine, _ = model.forward(batch)
        theirs = peer(batch["input_ids"]).logits
        loss.backward()
        F.cross_entropy(theirs.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED).backward()
        pairs = {"logits": (mine.detach(), theirs.detach())}
        pairs |= {key: (model.w[key].grad, p.grad) for key, p in peer.named_parameters()}
        assert len(pairs) == len(model.w) + 1, "not every tensor was compared"
        for key, (x, y) in pairs.items():
            error = ((x - y).norm() / y.norm().clamp_min(1e-12)).item()
            worst = max(worst, error)
            if error > 1e-5:
                raise SystemExit(f"{name}: {key} differs from transformers by {error:.2e}")
        print(f"{name}: {len(pairs)} tensors agree")
    print(json.dumps({"worst_relative_error": worst}))


if __name__ == "__main__":
    if "--check" in sys.argv:
        compare_with_transformers(CASES, {"mamba": Mamba}, huggingface)
    else:
        make_family(__file__, CASES, {"mamba": Mamba})
