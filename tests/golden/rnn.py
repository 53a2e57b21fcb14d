#!/usr/bin/env python3
"""Golden files of GRU and LSTM, made by PyTorch's own cells position by position. Their weights have the layout of dtrain's.

    rnn.py            rewrites all files
    rnn.py --check    compares this reference with nn.GRU and nn.LSTM
"""
import sys

import torch
from mamba import DEFAULTS as MAMBA, Mamba
from reference import fresh, make_family

SMALL = dict(d_model=12, vocab_size=11, steps=4)
CASES = {
    "plain": dict(SMALL, layers="gru*2"),
    "lstm": dict(SMALL, layers="lstm*2"),
    "gru_length1": dict(SMALL, layers="gru", T=1, B=3, d_rnn=7, state=True),
    "lstm_length1": dict(SMALL, layers="lstm", T=1, d_rnn=5, state=True, reset=True),
    "gru_reset_state": dict(SMALL, layers="gru*2", d_rnn=19, B=3, reset=True, state=True, ignored=True),
    "lstm_reset_state": dict(SMALL, layers="lstm*2", d_rnn=9, B=3, reset=True, state=True, tie_embeddings=False),
    "hybrid": dict(MAMBA, **SMALL | dict(layers="gru mamba lstm", d_state=3, B=3, T=20, reset=True, state=True)),
}


class Rnn:
    gates, cell, names = 3, torch.nn.GRUCell, ("hidden_state",)

    @classmethod
    def shapes(cls, c):
        d, h = c["d_model"], c.get("d_rnn", c["d_model"])
        yield "mixer.weight_ih_l0", (cls.gates * h, d)
        yield "mixer.weight_hh_l0", (cls.gates * h, h)
        yield "mixer.bias_ih_l0", (cls.gates * h,)
        yield "mixer.bias_hh_l0", (cls.gates * h,)
        if h != d:
            yield "mixer.out_proj.weight", (d, h)

    @classmethod
    def states(cls, c):
        return [(name, (c.get("d_rnn", c["d_model"]),)) for name in cls.names]

    @classmethod
    def forward(cls, c, w, x, reset, state):
        cell = cls.cell(x.shape[-1], state[0].shape[-1], dtype=torch.float64)
        weights = {name: w[f"mixer.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        out = []
        for t in range(x.shape[1]):
            state = [fresh(part, reset, t) for part in state]
            after = torch.func.functional_call(cell, weights, (x[:, t], state[0] if len(state) == 1 else tuple(state)))
            state = [after] if len(state) == 1 else list(after)
            out.append(state[0])
        y = torch.stack(out, dim=1)
        return y @ w["mixer.out_proj.weight"].T if "mixer.out_proj.weight" in w else y, state


class Lstm(Rnn):
    gates, cell, names = 4, torch.nn.LSTMCell, ("hidden_state", "cell_state")


def check():
    for kind, layer in ((Rnn, torch.nn.GRU), (Lstm, torch.nn.LSTM)):
        peer, x = layer(5, 7, batch_first=True, dtype=torch.float64), torch.randn(3, 11, 5, dtype=torch.float64)
        zeros = [torch.zeros(3, 7, dtype=torch.float64) for _ in kind.names]
        mine, _ = kind.forward({}, {f"mixer.{name}": p for name, p in peer.named_parameters()}, x, None, zeros)
        worst = (mine - peer(x)[0]).abs().max().item()
        print(f"{layer.__name__}: differs by {worst:.1e}")
        assert worst < 1e-12


if __name__ == "__main__":
    if "--check" in sys.argv:
        check()
    else:
        make_family(__file__, CASES, {"gru": Rnn, "lstm": Lstm, "mamba": Mamba})
