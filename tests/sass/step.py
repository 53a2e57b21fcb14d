#!/usr/bin/env python3
"""The time of a training step of the 130M model on an H200 by arithmetic: a sum of what runs one after another.

What it assumes: products at the rates below, x_proj and dt_proj by the bytes they move; every other kernel at
SHARE of its slowest pipe in table.md (or of the bandwidth, if its bytes take longer); the scan's blocks as
kernels/scan_cut.h places them (FILL: `test_scan_cut show`). It leaves out the input, checkpoints, validation,
communication, what two pipes cost each other, and clocks below the boost clock.

With comm.context = R each rank runs a part of one window: a pass takes R - 1 times as long as one layer's scan and
its messages longer than its part of the work.
"""

import sass

CLOCK, MULTIPROCESSORS, BANDWIDTH = 1.755e9, 132, 4.3e12
PRODUCTS, HEAD = 620e12, 520e12  # FLOP/s; the head's output is fp32
SHARE, GAPS = 0.85, 2e-3         # GAPS: seconds between the kernels of a step
LAYERS, LENGTH, D, E, N, RANK, V = 24, 2048, 768, 1536, 16, 48, 50280
CONTEXT_LENGTH, LATENCY, NVLINK = 1 << 17, 15e-6, 450e9  # seconds of a message, bytes/s one way
OPTIMIZER = 34 * 129e6           # bytes: AdamW 28 a weight, the bf16 copy 2, the norm 4
# Batch: channels a lane and fill, forward and backward.
FILL = {1: (2, 0.46, 2, 0.65), 4: (1, 0.72, 2, 0.66), 8: (1, 0.96, 2, 0.75), 16: (2, 0.96, 2, 0.96), 32: (2, 0.96, 2, 0.96)}


def token(rows, kernel, units, moved):
    """Seconds of a token: cycles for `units` units of the table, or `moved` bytes."""
    row = next(row for name, row in rows.items() if name.split()[1].startswith(kernel) and "slots" in row)
    cycles = max(row[pipe] for pipe in sass.PIPES)
    return max(units * cycles / MULTIPROCESSORS / CLOCK, moved / BANDWIDTH) / SHARE


def step(rows, batch, length=LENGTH):
    """{part: seconds of a step}"""
    pairs, fill, back_pairs, back_fill = FILL[batch]
    tokens, bandwidth = batch * length, BANDWIDTH * SHARE
    thin = sum(max(2 * i * o / PRODUCTS, moved / bandwidth) for i, o in ((E, RANK + 2 * N), (RANK, E))
               for moved in (2 * (i + o), 2 * (i + o), 2 * ((2 if i == E else 1) * i + o)))
    parts = {
        "products": LAYERS * (6 * 3 * D * E / PRODUCTS + thin),
        "head": 6 * D * V / HEAD,
        "scan forward": LAYERS * token(rows, "scan_forward_registers<16,%d," % pairs, E / 16, 20 * E) / fill,
        "scan backward": LAYERS * (
            token(rows, "scan_backward_registers<16,%d," % back_pairs, E / 16, 30 * E) / back_fill +
            2 * N * (4 * E / 32 / back_pairs + 2) / bandwidth),  # and the blocks' sums of dB and dC
        "other kernels": LAYERS * sum(token(rows, *kernel) for kernel in (
            ("conv_forward", E / 32, 4.2 * E), ("conv_backward", E / 32, 6.8 * E),
            ("forward_kept_kernel", D / 32, 12 * D), ("backward_kept_kernel", D / 32, 16 * D))) +
        token(rows, "xent_kernel", V / 32, 6 * V) + token(rows, "forward_kernel<8,bf16>", D / 32, 6 * D)}
    parts = {part: seconds * tokens for part, seconds in parts.items()}
    parts["optimizer, gaps"] = OPTIMIZER / bandwidth + GAPS
    return parts


def efficiency(rows, ranks, length):
    """Of `ranks` that share a window of `length` tokens: (the share of time that is work, tokens/s of all)."""
    parts = step(rows, 1, length // ranks)
    work = sum(parts.values())
    state, inputs = 4 * E * N, 2 * 3 * E  # bytes of ssm_state, and of the convolution's last inputs
    message = 2 * LATENCY + (state + inputs) / NVLINK
    late = (ranks - 1) * ((parts["scan forward"] + parts["scan backward"]) / LAYERS + 2 * message)
    return work / (work + late), length / (work + late)


if __name__ == "__main__":
    rows, _, _ = sass.read_table()
    for ranks in (2, 4, 8):
        print("comm.context = %d, L %d: %.0f %% of the time is work, %.0f K tokens/s" % (
            ranks, CONTEXT_LENGTH, 100 * efficiency(rows, ranks, CONTEXT_LENGTH)[0],
            efficiency(rows, ranks, CONTEXT_LENGTH)[1] / 1e3))
    for batch in FILL:
        parts = step(rows, batch)
        total = sum(parts.values())
        print("B %2d: %.0f ms, %.0f K tokens/s: %s" % (batch, total * 1e3, batch * LENGTH / total / 1e3, ", ".join(
            "%s %.1f" % (part, seconds * 1e3) for part, seconds in parts.items())))
