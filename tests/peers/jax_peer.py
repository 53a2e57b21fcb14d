#!/usr/bin/env python3
"""dtrain's benchmark step in JAX, as a JAX user would write it: one jitted train step.

The scan has three forms:
  scan         lax.scan over time, --unroll steps in the loop's body; autodiff keeps every state
  remat        lax.scan over chunks of --chunk steps, each a checkpointed lax.scan: keeps only states at chunk borders
  associative  lax.associative_scan within chunks of --chunk steps, lax.scan over the chunks, checkpointed
"""
import os

import common

options = common.arguments(["remat", "scan", "associative"])
os.environ["JAX_PLATFORMS"] = options.device
os.environ["OMP_NUM_THREADS"] = str(options.threads)
import jax
import jax.numpy as jnp
from jax import lax

try:
    jax.devices()
except (RuntimeError, AssertionError):
    common.skip("no CUDA device for JAX here")
storage = jnp.bfloat16 if options.bf16 else jnp.float32


def linear(x, w):
    return jnp.matmul(x.astype(storage), w.T.astype(storage), preferred_element_type=jnp.float32)


def rmsnorm(x, w):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + common.NORM_EPS) * w


def step_scan(h, xs, a):
    """Takes time-major xs = (x [T, B, E], dt [T, B, E], b [T, B, N], c [T, B, N]) and h [B, E, N]. Returns h, y [T, B, E]."""

    def step(h, at):
        x, dt, b, c = at
        h = jnp.exp(dt[..., None] * a) * h + x[..., None] * b[:, None]
        return h, jnp.sum(h * c[:, None], -1)

    return lax.scan(step, h, xs, unroll=options.unroll)


def associative_chunk(h, xs, a):
    x, dt, b, c = xs
    first = jnp.exp(dt[..., None] * a), x[..., None] * b[:, :, None]
    decay, state = lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), first)
    state = state + decay * h
    return state[-1], jnp.sum(state * c[:, :, None], -1)


def scan(u, dt, a, b, c):
    xs = tuple(x.swapaxes(0, 1) for x in (dt * u, dt, b, c))
    h = jnp.zeros((u.shape[0], u.shape[2], a.shape[1]))
    if options.scan == "scan":
        y = step_scan(h, xs, a)[1]
    else:
        body = associative_chunk if options.scan == "associative" else step_scan
        chunks = tuple(x.reshape(-1, options.chunk, *x.shape[1:]) for x in xs)
        y = lax.scan(jax.checkpoint(lambda h, xs: body(h, xs, a)), h, chunks)[1]
        y = y.reshape(-1, *y.shape[2:])
    return y.swapaxes(0, 1)


def mixer(p, x):
    u, z = jnp.split(linear(x, p["in_proj"]), 2, -1)
    L = u.shape[1]
    padded = jnp.pad(u, ((0, 0), (common.D_CONV - 1, 0), (0, 0)))
    u = sum(padded[:, k : k + L] * p["conv_weight"][:, k] for k in range(common.D_CONV)) + p["conv_bias"]
    u = jax.nn.silu(u)
    dt, b, c = jnp.split(linear(u, p["x_proj"]), [options.dt_rank, options.dt_rank + options.d_state], -1)
    dt = jax.nn.softplus(linear(dt, p["dt_proj"]) + p["dt_bias"])
    y = scan(u, dt, -jnp.exp(p["a_log"]), b, c) + p["d"] * u
    return linear(y * jax.nn.silu(z), p["out_proj"])


def loss_of(p, ids, labels):
    residual = p["embedding"][ids]
    for layer in p["layers"]:
        residual = residual + mixer(layer, rmsnorm(residual, layer["norm"]))
    logits = linear(rmsnorm(residual, p["norm_f"]), p["embedding"])
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def loss_and_gradient(p, ids, labels):
    """Computes loss and gradients of micro-batches one after another."""
    parts = options.batch // options.micro_batch
    split = tuple(x.reshape(parts, -1, x.shape[-1]) for x in (ids, labels))

    def add(total, part):
        one = jax.value_and_grad(loss_of)(p, *part)
        return jax.tree.map(lambda t, x: t + x / parts, total, one), None

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
    return lax.scan(add, zero, split)[0] if parts > 1 else jax.value_and_grad(loss_of)(p, ids, labels)


def adamw(path, w, g, m, v, count):
    m = common.BETA1 * m + (1 - common.BETA1) * g
    v = common.BETA2 * v + (1 - common.BETA2) * g * g
    decay = common.WEIGHT_DECAY if common.decays(path[-1].key) else 0.0
    direction = (m / (1 - common.BETA1**count)) / (jnp.sqrt(v / (1 - common.BETA2**count)) + common.EPS)
    return w - common.LR * (direction + decay * w), m, v


def step(p, m, v, count, ids, labels):
    loss, g = loss_and_gradient(p, ids, labels)
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g)))
    clip = jnp.minimum(1.0, common.GRAD_CLIP / (norm + 1e-6))
    new = jax.tree_util.tree_map_with_path(lambda path, w, g, m, v: adamw(path, w, g * clip, m, v, count), p, g, m, v)
    p, m, v = jax.tree.transpose(jax.tree.structure(p), jax.tree.structure((0, 0, 0)), new)
    return p, m, v, loss


def main():
    p = jax.tree.map(jnp.asarray, common.initial_weights(options))
    state = [p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)]
    compiled, count = jax.jit(step, donate_argnums=(0, 1, 2)), 0

    def train_step(ids, labels):
        nonlocal count
        count += 1
        *state[:], loss = compiled(*state, count, ids, labels)
        return jax.block_until_ready((loss, state))[0]

    def place(tokens):
        return jax.block_until_ready(jnp.asarray(tokens.astype("int32")))

    def peak_on_device():
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20

    peak = peak_on_device if options.device == "cuda" else common.peak_resident
    common.measure("jax", options, train_step, f"jax {jax.__version__}", place, peak)


main()
