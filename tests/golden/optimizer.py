#!/usr/bin/env python3
"""Golden files of ten steps with Muon, rates by name, muP, and all of these together.

    optimizer.py            rewrites all files (same seeds, same files)
    optimizer.py --check    compares this reference's Muon with torch.optim.Muon
"""
import sys

import torch
from mamba import DEFAULTS as MAMBA, Mamba
from mlp import Mlp
from reference import make_family, orthogonal

# Matrices of both shapes: in_proj is tall and out_proj wide, and an mlp has one of each.
SMALL = dict(MAMBA, layers="mamba mlp", d_mlp=24, mlp_gated=False, d_model=16, d_state=4, vocab_size=11, T=24, B=2)
MUON = dict(momentum=0.95)
GROUPS = {"*.in_proj.weight": 0.5, "*.layers.1.*": 0.25, "*embeddings*": 2.0, "*.A_log": 0.0}
CASES = {
    "plain": SMALL | MUON,
    "groups": SMALL | dict(lr_groups=GROUPS, lr=2e-3),
    "muon_groups": SMALL | MUON | dict(lr_groups=GROUPS, tie_embeddings=False, weight_decay=0.5),
    "mup": SMALL | dict(d_model=32, mup_base=16, lr=8e-3),
    "mup_muon": SMALL | MUON | dict(d_model=32, mup_base=16, lr=8e-3, momentum=0.9),
}


def check():
    """Compares with torch.optim.Muon, which iterates in bf16, so one step agrees only to 2^-8. Momentum and factors agree exactly."""
    generator = torch.Generator().manual_seed(1)
    for shape in (24, 16), (16, 40), (8, 8):
        w = torch.randn(shape, generator=generator)
        theirs = w.clone().requires_grad_()
        optimizer = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        m = torch.zeros(shape)
        for _ in range(3):
            g = torch.randn(shape, generator=generator)
            theirs.grad = g.clone()
            optimizer.step()
            m = 0.95 * m + 0.05 * g
            w = w * (1 - 0.1 * 0.3) - 0.1 * 0.2 * max(shape) ** 0.5 * orthogonal((0.95 * m + 0.05 * g).double()).float()
        difference = ((w - theirs).abs().max() / w.abs().max()).item()
        print(f"{shape}: {difference:.1e}")
        assert difference < 0.02, difference


if __name__ == "__main__":
    check() if "--check" in sys.argv else make_family(__file__, CASES, {"mamba": Mamba, "mlp": Mlp})
