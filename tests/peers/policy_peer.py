#!/usr/bin/env python3
"""policy_peer.py KIND [options]: a training step of a controller policy in PyTorch, as a PyTorch user would write it.

KIND is lstm or gru (nn.LSTM, nn.GRU of two layers), attention (scaled_dot_product_attention and SwiGLU, two layers,
d_mlp 512), mamba (a block written for this test, with the scans of torch_scan.py) or mlp (SwiGLU). Frames of 287 numbers
pass through a linear layer of width 256; the heads are those of launch/policy.ini; AdamW is clipped at norm 1. Options:
--batch, --seq-len, --threads, --steps, and for mamba --scan, --chunk, --compile. Prints one JSON line with ms per step.
"""
import json
import os
import statistics
import sys
import time

import common

kind = sys.argv.pop(1)
if "--chunk" not in sys.argv:
    sys.argv += ["--chunk", "20"]  # divides 60, 120, 180
options = common.arguments(["manual", "sequential", "logspace", "doubling"])
os.environ["OMP_NUM_THREADS"] = str(options.threads)
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(options.threads)
import torch_scan

FRAME, WIDTH, LAYERS, D_MLP, HEADS = 287, 256, 2, 512, 4
BUTTONS, STICKS, SHOULDER = 8, (17, 17, 17, 17), 5


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer(WIDTH, WIDTH, num_layers=LAYERS, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


class SwiGLU(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm, self.up = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Attention(nn.Module):
    def __init__(self, L):
        super().__init__()
        self.norm, self.qkv = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(L), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def forward(self, x):
        B, L, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, L, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(B, L, WIDTH))


class Mamba(nn.Module):
    def __init__(self):
        super().__init__()
        E, N, R = 2 * WIDTH, options.d_state, WIDTH // 16
        self.sizes = R, N
        self.norm, self.in_proj = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * E, bias=False)
        self.conv = nn.Conv1d(E, E, common.D_CONV, groups=E, padding=common.D_CONV - 1)
        self.x_proj, self.dt_proj = nn.Linear(E, R + 2 * N, bias=False), nn.Linear(R, E)
        self.a_log = nn.Parameter(torch.arange(1, N + 1).float().log().repeat(E, 1))
        self.d, self.out = nn.Parameter(torch.ones(E)), nn.Linear(E, WIDTH, bias=False)

    def forward(self, x):
        L, (R, N) = x.shape[1], self.sizes
        u, z = self.in_proj(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :L].transpose(1, 2))
        dt, b, c = self.x_proj(u).split([R, N, N], -1)
        y = torch_scan.scan(u, F.softplus(self.dt_proj(dt)), -self.a_log.exp(), b.contiguous(), c.contiguous())
        return x + self.out((y + self.d * u) * F.silu(z))


def blocks(L):
    return {"lstm": lambda: [Recurrent(nn.LSTM)],
            "gru": lambda: [Recurrent(nn.GRU)],
            "attention": lambda: [part for _ in range(LAYERS) for part in (Attention(L), SwiGLU(D_MLP))],
            "mamba": lambda: [Mamba() for _ in range(LAYERS)],
            "mlp": lambda: [SwiGLU(688) for _ in range(LAYERS)]}[kind]()


def loss_of(out, targets):
    sizes = [BUTTONS, *STICKS, SHOULDER]
    buttons, *rest = out.split(sizes, -1)
    loss = F.binary_cross_entropy_with_logits(buttons, targets[..., :BUTTONS]) * BUTTONS
    for i, logits in enumerate(rest):
        loss = loss + F.cross_entropy(logits.flatten(0, 1), targets[..., BUTTONS + i].long().flatten())
    return loss


def main():
    torch.manual_seed(1)
    B, L = options.batch, options.seq_len
    outputs = BUTTONS + sum(STICKS) + SHOULDER
    model = nn.Sequential(nn.Linear(FRAME, WIDTH), *blocks(L), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, outputs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    frames = torch.randn(B, L, FRAME)
    targets = torch.cat([torch.randint(0, 2, (B, L, BUTTONS)), torch.randint(0, SHOULDER, (B, L, 5))], -1).float()
    seconds = []
    for _ in range(options.warm_up + options.steps):
        start = time.perf_counter()
        loss = loss_of(model(frames), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    timed = seconds[options.warm_up:]
    print(json.dumps({"peer": "torch", "kind": kind, "batch": B, "seq_len": L, "threads": options.threads,
                      "ms": round(1e3 * statistics.median(timed), 2), "best_ms": round(1e3 * min(timed), 2),
                      "loss": round(loss.item(), 4), "torch": torch.__version__}))


main()
