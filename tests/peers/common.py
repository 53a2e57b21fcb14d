"""What the peers share: the model's sizes, its first weights, the batches, and how a step is timed.

The workload is that of `dtrain bench --step`: a Mamba model trained by AdamW, clipped at norm 1. The options for its
size have the names and defaults of that command. Weights and tokens come from numpy with fixed seeds, so every variant
of every peer starts from the same loss, and one that computes something else shows.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

import numpy as np

D_CONV, VOCAB_MULTIPLE = 4, 8
MODELS = {"130m": (768, 24, 50280, 2048), "370m": (1024, 48, 50280, 2048)}  # width, layers, vocabulary, tokens
SMALL = (256, 4, 256, 512)
LR, BETA1, BETA2, EPS, WEIGHT_DECAY, GRAD_CLIP, NORM_EPS = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1e-5
SKIPPED = 77
options = None  # the command line, once arguments() has read it


def arguments(scans):
    parser = argparse.ArgumentParser()
    parser.add_argument("--scan", choices=scans, default=scans[0])
    parser.add_argument("--chunk", type=int, default=32, help="time steps a chunk, where the scan has chunks")
    parser.add_argument("--unroll", type=int, default=1, help="steps in the body of JAX's loop over time")
    parser.add_argument("--bf16", action="store_true", help="matrix products in bf16, the rest in fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile (JAX is always compiled)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", choices=MODELS, help="its width, layers, vocabulary and tokens per sequence")
    for name, meaning in (("--d-model", "width"), ("--n-layer", "layers"), ("--vocab", "vocabulary"),
                          ("--seq-len", "tokens per sequence")):
        parser.add_argument(name, type=int, help=meaning)
    parser.add_argument("--d-state", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=0, help="sequences per pass; 0: all")
    parser.add_argument("--warm-up", type=int, default=1, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--threads", type=int, default=2)
    global options
    options = complete(parser.parse_args())
    for part, whole in (("micro_batch", "batch"), ("chunk", "seq_len")):
        if getattr(options, whole) % getattr(options, part):
            parser.error(f"{part} {getattr(options, part)} does not divide {whole} {getattr(options, whole)}")
    return options


def complete(options):
    """Options that are given override the sizes of a model. Sets also what follows from the sizes."""
    sizes = zip(("d_model", "n_layer", "vocab", "seq_len"), MODELS.get(options.model, SMALL))
    for name, size in sizes:
        setattr(options, name, getattr(options, name) or size)
    options.micro_batch = options.micro_batch or options.batch
    options.chunk = min(options.chunk, options.seq_len)
    options.inner, options.dt_rank = 2 * options.d_model, -(-options.d_model // 16)
    options.padded_vocab = -(-options.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    return options


def skip(reason):
    """Says why this variant cannot run here, and exits with the code that run.sh and gpu.sh expect."""
    print(reason, file=sys.stderr)
    sys.exit(SKIPPED)


def uniform(rng, bound, *shape):
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def initial_layer(options, rng):
    inner, dt_rank, n = options.inner, options.dt_rank, options.d_state
    dt = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), inner)).clip(1e-4)
    return {
        "norm": np.ones(options.d_model, np.float32),
        "in_proj": uniform(rng, options.d_model**-0.5, 2 * inner, options.d_model),
        "conv_weight": uniform(rng, D_CONV**-0.5, inner, D_CONV),
        "conv_bias": uniform(rng, D_CONV**-0.5, inner),
        "x_proj": uniform(rng, inner**-0.5, dt_rank + 2 * n, inner),
        "dt_proj": uniform(rng, dt_rank**-0.5, inner, dt_rank),
        "dt_bias": (dt + np.log(-np.expm1(-dt))).astype(np.float32),
        "a_log": np.log(np.tile(np.arange(1, n + 1, dtype=np.float32), (inner, 1))),
        "d": np.ones(inner, np.float32),
        "out_proj": uniform(rng, inner**-0.5 / options.n_layer**0.5, options.d_model, inner),
    }


def initial_weights(options, seed=1):
    """Returns weights with the official initialisation. Layers are a list of dicts; the head is tied to the embedding."""
    rng = np.random.default_rng(seed)
    layers = [initial_layer(options, rng) for _ in range(options.n_layer)]
    embedding = (0.02 * rng.standard_normal((options.padded_vocab, options.d_model))).astype(np.float32)
    return {"embedding": embedding, "layers": layers, "norm_f": np.ones(options.d_model, np.float32)}


def decays(name):
    """Returns whether a tensor decays: it has two or more dimensions and is not A_log."""
    return name in ("embedding", "in_proj", "conv_weight", "x_proj", "dt_proj", "out_proj")


def tokens(options, step):
    rng = np.random.default_rng(1000 + step)
    window = rng.integers(0, options.vocab, (options.batch, options.seq_len + 1), dtype=np.int64)
    return window[:, :-1].copy(), window[:, 1:].copy()


def peak_resident():
    """Returns the peak resident memory so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def variant(options):
    words = [options.scan, "bf16" if options.bf16 else "fp32", "compiled" if options.compile else "",
             "" if options.scan.startswith("official") else f"chunk {options.chunk}",
             f"unroll {options.unroll}" if options.unroll > 1 else "", f"micro-batch {options.micro_batch}"]
    return ", ".join(filter(None, words))


def measure(peer, options, train_step, versions, place=lambda tokens: tokens, peak_memory=peak_resident):
    """Times steps and prints the line that run.sh reads. place(tokens) copies tokens to the device; train_step(ids, labels)
    runs one whole step until the device has finished it, and returns its loss; peak_memory() returns MiB."""
    losses, seconds = [], []
    for step in range(options.warm_up + options.steps):
        ids, labels = map(place, tokens(options, step))
        start = time.perf_counter()
        losses.append(float(train_step(ids, labels)))
        seconds.append(time.perf_counter() - start)
    timed = seconds[options.warm_up :]
    print(json.dumps({
        "peer": peer,
        "variant": variant(options),
        "device": options.device,
        "d_model": options.d_model,
        "n_layer": options.n_layer,
        "vocab": options.vocab,
        "seq_len": options.seq_len,
        "batch": options.batch,
        "tokens_per_s": round(options.batch * options.seq_len / statistics.median(timed), 1),
        "best_tokens_per_s": round(options.batch * options.seq_len / min(timed), 1),
        "peak_memory_mb": round(peak_memory(), 1),
        "first_step_s": round(seconds[0], 2),
        "losses": [round(x, 5) for x in losses],
        "threads": options.threads,
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
    }))
