#!/usr/bin/env python3
"""dtrain's benchmark step in PyTorch, as a PyTorch user without a CUDA device would write it.

The scan has four forms; all cut time into chunks, and what a chunk does is compiled with --compile:
  sequential   one step after the other, autograd through it; compiled, a chunk is unrolled and fused
  logspace     parallel in a chunk: h_t = e^{S_t} (h + sum_s e^{-S_s} x_s), S the running sum of dt A
  doubling     parallel in a chunk: an associative scan by recursive doubling
  manual       one step after the other with a backward pass written by hand: h is kept, the rest made again
"""
import os

import common

options = common.arguments(["sequential", "logspace", "doubling", "manual"])
os.environ["OMP_NUM_THREADS"] = str(options.threads)
import torch
import torch.nn.functional as F

torch.set_num_threads(options.threads)


def maybe_compiled(function):
    return torch.compile(function, dynamic=False) if options.compile else function


def sequential(h, u, dt, a, b, c):
    """One chunk. h [B, E, N]; u, dt [B, T, E]; a [E, N]; b, c [B, T, N]. Gives y [B, T, E] and the last h."""
    out = []
    for t in range(u.shape[1]):
        h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
        out.append((h * c[:, t, None]).sum(-1))
    return torch.stack(out, 1), h


def logspace(h, u, dt, a, b, c):
    s = torch.cumsum(dt, 1)[..., None] * a  # [B, T, E, N], falling
    x = (dt * u)[..., None] * b[:, :, None]
    h = torch.exp(s) * (h[:, None] + torch.cumsum(torch.exp(-s) * x, 1))
    return (h * c[:, :, None]).sum(-1), h[:, -1]


def doubling(h, u, dt, a, b, c):
    decay = torch.exp(dt[..., None] * a)
    x = (dt * u)[..., None] * b[:, :, None]
    shift = 1
    while shift < x.shape[1]:
        x = torch.cat([x[:, :shift], x[:, shift:] + decay[:, shift:] * x[:, :-shift]], 1)
        decay = torch.cat([decay[:, :shift], decay[:, shift:] * decay[:, :-shift]], 1)
        shift *= 2
    h = x + decay * h[:, None]
    return (h * c[:, :, None]).sum(-1), h[:, -1]


# The fourth form works on time-major arrays [T, B, ·], a chunk at a time.


@maybe_compiled
def states(h, x, dt, a, b):
    """h after every step: a list, since the compiler fuses an unrolled loop best when nothing is stacked in it."""
    out = []
    for t in range(x.shape[0]):
        h = torch.exp(dt[t, :, :, None] * a) * h + x[t, :, :, None] * b[t, :, None]
        out.append(h)
    return out


@maybe_compiled
def adjoints(dh, dy, dt, a, c):
    """The gradient of h at every step, last to first, and what flows on to the step before the chunk."""
    out = []
    for t in reversed(range(dy.shape[0])):
        dh = dh + dy[t, :, :, None] * c[t, :, None]
        out.append(dh)
        dh = dh * torch.exp(dt[t, :, :, None] * a)
    return out, dh


@maybe_compiled
def over_state(h, c):
    return (h * c[:, :, None]).sum(-1)


@maybe_compiled
def decay_gradients(dh, h, x, dt, a, b):
    """With h_t - x_t b_t = exp(dt a) h_{t-1}, no exponential and no h_{t-1} is needed: d(dt), da."""
    g = dh * (h - x[..., None] * b[:, :, None])
    return (g * a).sum(-1), (g * dt[..., None]).sum((0, 1))


class Manual(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, dt, a, b, c):
        u, dt, b, c = (x.transpose(0, 1).contiguous() for x in (u, dt, b, c))
        L, B, E = u.shape
        x, y, h = dt * u, torch.empty_like(u), u.new_zeros(B, E, a.shape[1])
        kept = u.new_empty(L, B, E, a.shape[1])
        for t in range(0, L, options.chunk):
            now = slice(t, t + options.chunk)
            out = states(h, x[now], dt[now], a, b[now])
            torch.stack(out, out=kept[now])
            y[now] = over_state(kept[now], c[now])
            h = out[-1]
        ctx.save_for_backward(u, dt, a, b, c, kept)
        return y.transpose(0, 1)

    @staticmethod
    def backward(ctx, dy):
        u, dt, a, b, c, kept = ctx.saved_tensors
        dy, x = dy.transpose(0, 1).contiguous(), dt * u
        dx, ddt, da = torch.empty_like(u), torch.empty_like(u), torch.zeros_like(a)
        db, dc, dh = torch.empty_like(b), torch.empty_like(c), torch.zeros_like(kept[0])
        for t in reversed(range(0, u.shape[0], options.chunk)):
            now = slice(t, t + options.chunk)
            out, dh = adjoints(dh, dy[now], dt[now], a, c[now])
            g = torch.stack(out[::-1])
            ddt[now], part = decay_gradients(g, kept[now], x[now], dt[now], a, b[now])
            da += part
            dx[now] = over_state(g, b[now])
            dc[now] = torch.matmul(dy[now, :, None], kept[now])[:, :, 0]
            db[now] = torch.matmul(x[now, :, None], g)[:, :, 0]
        ddt += dx * u
        return (dx * dt).transpose(0, 1), ddt.transpose(0, 1), da, db.transpose(0, 1), dc.transpose(0, 1)


chunk_scan = {"sequential": sequential, "logspace": logspace, "doubling": doubling}.get(options.scan)
chunk_scan = chunk_scan and maybe_compiled(chunk_scan)


def scan(u, dt, a, b, c):
    if options.scan == "manual":
        return Manual.apply(u, dt, a, b, c)
    h, out = u.new_zeros(u.shape[0], u.shape[2], a.shape[1]), []
    for part in zip(*(x.split(options.chunk, 1) for x in (u, dt, b, c))):
        y, h = chunk_scan(h, part[0], part[1], a, part[2], part[3])
        out.append(y)
    return torch.cat(out, 1)


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
    dt, b, c = F.linear(u, p["x_proj"]).split([common.DT_RANK, common.D_STATE, common.D_STATE], -1)
    dt = F.softplus(F.linear(dt, p["dt_proj"]).float() + p["dt_bias"])
    return u, z, dt, -torch.exp(p["a_log"]), b.float().contiguous(), c.float().contiguous()


@maybe_compiled
def after_scan(p, residual, y, u, z):
    return residual + F.linear((y + p["d"] * u) * F.silu(z), p["out_proj"]).float()


@maybe_compiled
def head(p, residual, labels):
    logits = F.linear(rmsnorm(residual, p["norm_f"]), p["embedding"]).float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def forward(p, ids, labels):
    residual = F.embedding(ids, p["embedding"])
    for layer in p["layers"]:
        u, z, dt, a, b, c = before_scan(layer, residual)
        residual = after_scan(layer, residual, scan(u, dt, a, b, c), u, z)
    return head(p, residual, labels)


def parameters():
    """The weights as nested dicts, and as optimizer groups with and without decay."""
    groups = {True: [], False: []}

    def place(node):
        for name, value in node.items():
            if isinstance(value, list):
                for layer in value:
                    place(layer)
            else:
                node[name] = torch.from_numpy(value).requires_grad_()
                groups[common.decays(name)].append(node[name])
        return node

    p = place(common.initial_weights())
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
        for i, l in zip(torch.from_numpy(ids).chunk(parts), torch.from_numpy(labels).chunk(parts)):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
                loss = forward(p, i, l) / parts
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(everything, common.GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    common.measure("torch", options, train_step, f"torch {torch.__version__}")


main()
