"""The selective scan in PyTorch alone. Imported after common.arguments(); a chunk's work is compiled with --compile.

  sequential   goes step by step, with autograd; if compiled, a chunk is unrolled and fused
  logspace     is parallel in a chunk: h_t = e^{S_t} (h + sum_s e^{-S_s} x_s), where S is the running sum of dt A
  doubling     is parallel in a chunk: an associative scan by recursive doubling
  manual       goes step by step, with a backward pass written by hand that keeps h and recomputes the rest
  chunked      is for wide devices: all chunks run at once, each step by step. The state that enters each chunk is found
               first, by running each chunk from zero. Only that is kept for a backward pass written by hand
"""
import torch

import common

options = common.options


def maybe_compiled(function):
    return torch.compile(function, dynamic=False) if options.compile else function


def sequential(h, u, dt, a, b, c):
    """Runs one chunk: h [B, E, N]; u, dt [B, T, E]; a [E, N]; b, c [B, T, N]. Returns y [B, T, E] and the last h."""
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


# The last two forms work on time-major arrays [T, B, ·]: `manual` on one chunk at a time, `chunked` on all, so that its B
# is every pair of sequence and chunk.


@maybe_compiled
def states(h, x, dt, a, b):
    """Returns h after every step as a list, since the compiler fuses an unrolled loop best when it stacks nothing."""
    out = []
    for t in range(x.shape[0]):
        h = torch.exp(dt[t, :, :, None] * a) * h + x[t, :, :, None] * b[t, :, None]
        out.append(h)
    return out


@maybe_compiled
def adjoints(dh, dy, dt, a, c):
    """Returns the gradient of h at every step, last to first, and that of the state before the chunk."""
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
    """Returns d(dt), da. Since h_t - x_t b_t = exp(dt a) h_{t-1}, they need no exponential and no h_{t-1}."""
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


@maybe_compiled
def outputs(h, x, dt, a, b, c):
    out = []
    for t in range(x.shape[0]):
        h = torch.exp(dt[t, :, :, None] * a) * h + x[t, :, :, None] * b[t, :, None]
        out.append((h * c[t, :, None]).sum(-1))
    return out


@maybe_compiled
def last_state(h, x, dt, a, b):
    for t in range(x.shape[0]):
        h = torch.exp(dt[t, :, :, None] * a) * h + x[t, :, :, None] * b[t, :, None]
    return h


@maybe_compiled
def first_adjoint(dh, dy, dt, a, c):
    for t in reversed(range(dy.shape[0])):
        dh = (dh + dy[t, :, :, None] * c[t, :, None]) * torch.exp(dt[t, :, :, None] * a)
    return dh


def fold(x):
    """Turns [B, L, ·] into [T, K B, ·], K chunks of T steps."""
    B, L, width = x.shape
    return x.view(B, L // options.chunk, options.chunk, width).permute(2, 1, 0, 3).reshape(options.chunk, -1, width)


def unfold(x, B):
    """Turns [T, K B, ·] back into [B, L, ·]."""
    T, KB, width = x.shape
    return x.view(T, KB // B, B, width).permute(2, 1, 0, 3).reshape(B, -1, width)


def hand_over(decay, made, B, backward):
    """Returns the state that enters each chunk, [K B, E, N]: the decayed state that entered the previous chunk, plus what that chunk adds."""
    decay, made = (x.view(-1, B, *x.shape[1:]) for x in (decay, made))
    enters = torch.zeros_like(made)
    order = range(len(made))[:: -1 if backward else 1]
    for before, now in zip(order, order[1:]):
        torch.addcmul(made[before], decay[before], enters[before], out=enters[now])
    return enters.flatten(0, 1)


def chunk_decay(dt, a):
    return torch.exp(dt.sum(0)[..., None] * a)


class Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, dt, a, b, c):
        B = u.shape[0]
        u, dt, b, c = (fold(x) for x in (u, dt, b, c))
        x = dt * u
        nothing = u.new_zeros(*u.shape[1:], a.shape[1])
        h = hand_over(chunk_decay(dt, a), last_state(nothing, x, dt, a, b), B, backward=False)
        ctx.save_for_backward(u, dt, a, b, c, h)
        ctx.B = B
        return unfold(torch.stack(outputs(h, x, dt, a, b, c)), B)

    @staticmethod
    def backward(ctx, dy):
        u, dt, a, b, c, h = ctx.saved_tensors
        dy, x = fold(dy), dt * u
        made = first_adjoint(torch.zeros_like(h), dy, dt, a, c)
        dh = hand_over(chunk_decay(dt, a), made, ctx.B, backward=True)
        kept = torch.stack(states(h, x, dt, a, b))
        g = torch.stack(adjoints(dh, dy, dt, a, c)[0][::-1])
        ddt, da = decay_gradients(g, kept, x, dt, a, b)
        dx = over_state(g, b)
        dc = torch.matmul(dy[:, :, None], kept)[:, :, 0]
        db = torch.matmul(x[:, :, None], g)[:, :, 0]
        du, ddt, db, dc = (unfold(x, ctx.B) for x in (dx * dt, ddt + dx * u, db, dc))
        return du, ddt, da, db, dc


chunk_scans = {"sequential": sequential, "logspace": logspace, "doubling": doubling}
chunk_scan = options.scan in chunk_scans and maybe_compiled(chunk_scans[options.scan])


def scan(u, dt, a, b, c):
    """Takes u, dt [B, L, E]; a [E, N]; b, c [B, L, N]. Returns y [B, L, E]."""
    if options.scan in ("manual", "chunked"):
        return (Manual if options.scan == "manual" else Chunked).apply(u, dt, a, b, c)
    h, out = u.new_zeros(u.shape[0], u.shape[2], a.shape[1]), []
    for part in zip(*(x.split(options.chunk, 1) for x in (u, dt, b, c))):
        y, h = chunk_scan(h, part[0], part[1], a, part[2], part[3])
        out.append(y)
    return torch.cat(out, 1)
