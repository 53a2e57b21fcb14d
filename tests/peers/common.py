"""What the peers share: the model's sizes, its first weights, the batches, and how a step is timed.

The workload is the one dtrain is measured on: a Mamba byte model trained by AdamW, clipped at norm 1. Weights and
tokens come from numpy with fixed seeds, so every variant of every peer starts from the same loss: a variant that
computes something else is seen.
"""
import argparse
import json
import os
import resource
import statistics
import time

import numpy as np

D_MODEL, N_LAYER, VOCAB, D_STATE, D_CONV = 256, 4, 256, 16, 4
INNER, DT_RANK = 2 * D_MODEL, D_MODEL // 16
LR, BETA1, BETA2, EPS, WEIGHT_DECAY, GRAD_CLIP, NORM_EPS = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1e-5


def arguments(scans):
    parser = argparse.ArgumentParser()
    parser.add_argument("--scan", choices=scans, default=scans[0])
    parser.add_argument("--chunk", type=int, default=32, help="time steps a chunk, where the scan has chunks")
    parser.add_argument("--unroll", type=int, default=1, help="steps in the body of JAX's loop over time")
    parser.add_argument("--bf16", action="store_true", help="matrix products in bf16, the rest in fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile (JAX is always compiled)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after one that warms up")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def uniform(rng, bound, *shape):
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def initial_weights(seed=1):
    """Official initialisation. Layers are a list of dicts; the head is tied to the embedding."""
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(N_LAYER):
        dt = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), INNER)).clip(1e-4)
        layers.append({
            "norm": np.ones(D_MODEL, np.float32),
            "in_proj": uniform(rng, D_MODEL**-0.5, 2 * INNER, D_MODEL),
            "conv_weight": uniform(rng, D_CONV**-0.5, INNER, D_CONV),
            "conv_bias": uniform(rng, D_CONV**-0.5, INNER),
            "x_proj": uniform(rng, INNER**-0.5, DT_RANK + 2 * D_STATE, INNER),
            "dt_proj": uniform(rng, DT_RANK**-0.5, INNER, DT_RANK),
            "dt_bias": (dt + np.log(-np.expm1(-dt))).astype(np.float32),
            "a_log": np.log(np.tile(np.arange(1, D_STATE + 1, dtype=np.float32), (INNER, 1))),
            "d": np.ones(INNER, np.float32),
            "out_proj": uniform(rng, INNER**-0.5 / N_LAYER**0.5, D_MODEL, INNER),
        })
    embedding = (0.02 * rng.standard_normal((VOCAB, D_MODEL))).astype(np.float32)
    return {"embedding": embedding, "layers": layers, "norm_f": np.ones(D_MODEL, np.float32)}


def decays(name):
    """Weight decay: tensors of two or more dimensions, except A_log."""
    return name in ("embedding", "in_proj", "conv_weight", "x_proj", "dt_proj", "out_proj")


def tokens(options, step):
    rng = np.random.default_rng(1000 + step)
    window = rng.integers(0, VOCAB, (options.batch, options.length + 1), dtype=np.int64)
    return window[:, :-1].copy(), window[:, 1:].copy()


def measure(peer, options, train_step, versions):
    """train_step(ids, labels) runs one whole step and returns its loss. Prints the line that run.sh reads."""
    losses, seconds = [], []
    for step in range(options.steps + 1):
        ids, labels = tokens(options, step)
        start = time.perf_counter()
        losses.append(float(train_step(ids, labels)))
        seconds.append(time.perf_counter() - start)
    variant = [options.scan, "bf16" if options.bf16 else "fp32", "compiled" if options.compile else "",
               f"chunk {options.chunk}", f"unroll {options.unroll}" if options.unroll > 1 else "",
               f"micro-batch {options.micro_batch}"]
    print(json.dumps({
        "peer": peer,
        "variant": ", ".join(filter(None, variant)),
        "tokens_per_s": round(options.batch * options.length / statistics.median(seconds[1:]), 1),
        "best_tokens_per_s": round(options.batch * options.length / min(seconds[1:]), 1),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "first_step_s": round(seconds[0], 2),
        "losses": [round(x, 5) for x in losses],
        "threads": options.threads,
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
    }))
