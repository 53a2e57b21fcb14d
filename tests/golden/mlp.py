#!/usr/bin/env python3
"""Golden files of the feed-forward block, gated (SwiGLU [Shazeer 2020]) and plain, alone and between Mamba blocks."""
import torch.nn.functional as F
from mamba import DEFAULTS as MAMBA, Mamba
from reference import make_family

CASES = {
    "plain": dict(layers="mlp*2", d_mlp=23, mlp_gated=False, d_model=12, vocab_size=11, steps=4),
    "gated": dict(layers="mlp*2", d_mlp=17, mlp_gated=True, d_model=12, vocab_size=11, B=3, T=5, reset=True, ignored=True,
                  tie_embeddings=False, steps=4),
    "length1": dict(layers="mlp", d_mlp="auto", mlp_gated=True, d_model=9, vocab_size=7, T=1, steps=4),
    "hybrid": dict(MAMBA, layers="mamba mlp mamba mlp", d_mlp="auto", mlp_gated=False, d_model=8, d_state=3, vocab_size=7,
                   B=3, reset=True, state=True, steps=4),
    "relu2": dict(layers="mlp*2", d_mlp=21, mlp_gated=False, mlp_activation="relu2", d_model=10, vocab_size=11, T=40, steps=3),
}


class Mlp:
    @staticmethod
    def f(c, x):
        return F.relu(x).square() if c.get("mlp_activation") == "relu2" else F.silu(x)

    @staticmethod
    def width(c):
        gated = -(-(-(-8 * c["d_model"] // 3)) // 8) * 8  # 8/3 d, rounded up to a multiple of 8
        return c["d_mlp"] if c["d_mlp"] != "auto" else gated if c["mlp_gated"] else 4 * c["d_model"]

    @staticmethod
    def shapes(c):
        d, f = c["d_model"], Mlp.width(c)
        yield ("mixer.gate_up_proj.weight", (2 * f, d)) if c["mlp_gated"] else ("mixer.up_proj.weight", (f, d))
        yield "mixer.down_proj.weight", (d, f)

    @staticmethod
    def states(c):
        return ()

    @staticmethod
    def forward(c, w, x, reset, state):
        if c["mlp_gated"]:
            gate, up = (x @ w["mixer.gate_up_proj.weight"].T).chunk(2, dim=-1)
            y = Mlp.f(c, gate) * up
        else:
            y = Mlp.f(c, x @ w["mixer.up_proj.weight"].T)
        return y @ w["mixer.down_proj.weight"].T, state


if __name__ == "__main__":
    make_family(__file__, CASES, {"mlp": Mlp, "mamba": Mamba})
