#!/usr/bin/env python3
"""dtrain's benchmark step in PyTorch, as a PyTorch user would write it: on the CPU, or with --device cuda on a GPU.

The scan is one of the forms in torch_scan.py, which need only PyTorch, or in torch_official.py, which use CUDA kernels of
the package mamba_ssm; where that is not installed, these forms say so and are skipped.
"""
import os

import common

options = common.arguments(["sequential", "logspace", "doubling", "manual", "chunked", "official", "official-scan"])
os.environ["OMP_NUM_THREADS"] = str(options.threads)
import torch
import torch.nn.functional as F

on_gpu, official = options.device == "cuda", options.scan.startswith("official")
if on_gpu and not torch.cuda.is_available():
    common.skip("no CUDA device for PyTorch here")
torch.set_num_threads(options.threads)
torch.set_float32_matmul_precision("high" if on_gpu and options.bf16 else "highest")
from torch_scan import maybe_compiled, scan

if official:
    from torch_official import mixer


def finish():
    """Waits until the device has finished its work."""
    if on_gpu:
        torch.cuda.synchronize()


def peak_memory():
    """Returns the peak memory so far, in MiB."""
    return torch.cuda.max_memory_allocated() / 2**20 if on_gpu else common.peak_resident()


def versions():
    text = f"torch {torch.__version__}"
    if on_gpu:
        text += f", CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}"
    return text


def rmsnorm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, common.NORM_EPS)


@maybe_compiled
def before_scan(p, residual):
    x = rmsnorm(residual, p["norm"])
    u, z = F.linear(x, p["in_proj"]).float().chunk(2, -1)
    L = u.shape[1]
    padded = F.pad(u, (0, 0, common.D_CONV - 1, 0))
    taps = (padded[:, k : k + L] * p["conv_weight"][:, k] for k in range(common.D_CONV))
    u = F.silu(sum(taps) + p["conv_bias"])
    dt, b, c = F.linear(u, p["x_proj"]).split([options.dt_rank, options.d_state, options.d_state], -1)
    dt = F.softplus(F.linear(dt, p["dt_proj"]).float() + p["dt_bias"])
    return u, z, dt, -torch.exp(p["a_log"]), b.float().contiguous(), c.float().contiguous()


@maybe_compiled
def after_scan(p, residual, y, u, z):
    return residual + F.linear((y + p["d"] * u) * F.silu(z), p["out_proj"]).float()


@maybe_compiled
def head(p, residual, labels):
    logits = F.linear(rmsnorm(residual, p["norm_f"]), p["embedding"]).float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@maybe_compiled
def add_and_norm(residual, out, weight):
    residual = residual + out
    return residual, rmsnorm(residual, weight)


def forward_official(p, ids, labels):
    residual = F.embedding(ids, p["embedding"])
    x = rmsnorm(residual, p["layers"][0]["norm"])
    for layer, after in zip(p["layers"], p["layers"][1:]):
        residual, x = add_and_norm(residual, mixer(layer, x), after["norm"])
    return head(p, residual + mixer(p["layers"][-1], x), labels)


def forward(p, ids, labels):
    if official:
        return forward_official(p, ids, labels)
    residual = F.embedding(ids, p["embedding"])
    for layer in p["layers"]:
        u, z, dt, a, b, c = before_scan(layer, residual)
        residual = after_scan(layer, residual, scan(u, dt, a, b, c), u, z)
    return head(p, residual, labels)


def parameters():
    """Returns the weights as nested dicts, and as optimizer groups with and without decay."""
    groups = {True: [], False: []}

    def place(node):
        for name, value in node.items():
            if isinstance(value, list):
                for layer in value:
                    place(layer)
            else:
                node[name] = torch.from_numpy(value).to(options.device).requires_grad_()
                groups[common.decays(name)].append(node[name])
        return node

    p = place(common.initial_weights(options))
    groups = [{"params": groups[True], "weight_decay": common.WEIGHT_DECAY},
              {"params": groups[False], "weight_decay": 0.0}]
    return p, groups


def main():
    p, groups = parameters()
    everything = [w for group in groups for w in group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=common.LR, betas=(common.BETA1, common.BETA2), eps=common.EPS, fused=True)
    parts = options.batch // options.micro_batch

    def train_step(ids, labels):
        total = 0.0
        for i, l in zip(ids.chunk(parts), labels.chunk(parts)):
            with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.bf16):
                loss = forward(p, i, l) / parts
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(everything, common.GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        finish()
        return total

    def place(tokens):
        tokens = torch.from_numpy(tokens).to(options.device)
        finish()
        return tokens

    common.measure("torch", options, train_step, versions(), place, peak_memory)


main()
