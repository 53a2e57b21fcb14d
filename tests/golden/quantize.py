#!/usr/bin/env python3
"""Golden files of training with linear layers in int8 (kernels/quantize.h): inputs per position, weights per output
channel, straight-through gradients. A value that float64 and fp32 round to different sides would differ by 1/127 of the
largest in its row: the models are small, and their seeds are chosen so that no value does."""
import torch
import torch.nn.functional as F
from mlp import Mlp
from reference import IGNORED, Language, make_family, rmsnorm

CASES = {
    "plain": dict(layers="mlp*2", d_mlp=17, mlp_gated=False, d_model=12, vocab_size=11, T=13, quantize="int8", steps=3),
    "gated": dict(layers="mlp*2", d_mlp=19, mlp_gated=True, d_model=10, vocab_size=9, B=3, T=5, quantize="int8", ignored=True,
                  tie_embeddings=False, steps=4),
}


def rounded(x):
    """Rounds each row to multiples of its largest value / 127; the gradient is that of x."""
    scale = x.detach().abs().amax(-1, keepdim=True) / 127
    q = torch.where(scale > 0, torch.round(x.detach() / scale.clamp_min(1e-300)) * scale, torch.zeros_like(scale))
    return x + (q - x).detach()


def linear(x, w):
    return rounded(x) @ rounded(w).T


class QuantizedMlp(Mlp):
    @staticmethod
    def forward(c, w, x, reset, state):
        if c["mlp_gated"]:
            gate, up = linear(x, w["mixer.gate_up_proj.weight"]).chunk(2, dim=-1)
            return linear(F.silu(gate) * up, w["mixer.down_proj.weight"]), state
        return linear(F.silu(linear(x, w["mixer.up_proj.weight"])), w["mixer.down_proj.weight"]), state


class QuantizedLanguage(Language):
    """Looks up the embedding as it is, but rounds it where it is the output layer."""

    @staticmethod
    def head(c, w, residual, batch):
        x = rmsnorm(residual, w["backbone.norm_f.weight"], c["norm_eps"])
        logits = linear(x, w["backbone.embeddings.weight" if c["tie_embeddings"] else "lm_head.weight"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED), logits


if __name__ == "__main__":
    make_family(__file__, CASES, {"mlp": QuantizedMlp}, QuantizedLanguage)
