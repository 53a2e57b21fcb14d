#!/usr/bin/env python3
"""Estimates the time of a training step of the 130M model on an H200 as the sum of the kernels that run one after
another.

It assumes that products run at the rates below, except x_proj and dt_proj, whose time follows from the bytes they
move; that every other kernel runs at SHARE of its slowest pipe in table.md (or of the bandwidth, if its bytes take
longer); and that the scan's blocks are placed by kernels/scan_cut.h (FILL). It leaves out the input, checkpoints,
validation, communication, conflicts between pipes, and clocks below the boost clock.

With comm.context = R each rank runs a part of one window. A pass then takes the time of its part of the work, plus
R - 1 times that of one layer's scan and its messages.

step.py --check TEST_SCAN_CUT compares FILL with what that program prints, and the time that ranks wait with a
simulation of events.
"""

import re
import subprocess
import sys

import sass

CLOCK, MULTIPROCESSORS, BANDWIDTH = 1.755e9, 132, 4.3e12
PRODUCTS, HEAD = 620e12, 520e12  # FLOP/s; the head's output is fp32
SHARE, GAPS = 0.85, 2e-3         # GAPS: seconds between the kernels of a step
LAYERS, LENGTH, D, E, N, RANK, V = 24, 2048, 768, 1536, 16, 48, 50280
RANKS, CONTEXT_LENGTH, LATENCY, NVLINK = (2, 4, 8), 1 << 17, 15e-6, 450e9  # LATENCY: seconds of a message; NVLINK: bytes/s in one direction
OPTIMIZER = 34 * 129e6           # bytes: AdamW 28 a weight, the bf16 copy 2, the norm 4
# By batch and length: channels per lane and fill, forward and backward, as `test_scan_cut show` prints them.
FILL = {(1, 1 << 14): (2, 0.51, 2, 0.70), (1, 1 << 15): (2, 0.52, 2, 0.71), (1, 1 << 16): (2, 0.52, 2, 0.72),
        (4, LENGTH): (1, 0.72, 2, 0.67), (8, LENGTH): (1, 0.96, 2, 0.75), (16, LENGTH): (2, 0.96, 2, 0.96),
        (32, LENGTH): (2, 0.96, 2, 0.96)}


def token(rows, kernel, units, moved):
    """Returns the seconds of a token: those of the cycles of `units` units in the table, or of `moved` bytes."""
    row = next(row for name, row in rows.items() if name.split()[1].startswith(kernel) and "slots" in row)
    cycles = max(row[pipe] for pipe in sass.PIPES)
    return max(units * cycles / MULTIPROCESSORS / CLOCK, moved / BANDWIDTH) / SHARE


def step(rows, batch, length=LENGTH):
    """Returns {part: seconds of a step}."""
    pairs, fill, back_pairs, back_fill = FILL[batch, length]
    tokens, bandwidth = batch * length, BANDWIDTH * SHARE
    thin = sum(max(2 * i * o / PRODUCTS, moved / bandwidth) for i, o in ((E, RANK + 2 * N), (RANK, E))
               for moved in (2 * (i + o), 2 * (i + o), 2 * ((2 if i == E else 1) * i + o)))
    parts = {
        "products": LAYERS * (6 * 3 * D * E / PRODUCTS + thin),
        "head": 6 * D * V / HEAD,
        "scan forward": LAYERS * token(rows, "scan_forward_registers<16,%d," % pairs, E / 16, 20 * E) / fill,
        "scan backward": LAYERS * (
            token(rows, "scan_backward_registers<16,%d," % back_pairs, E / 16, 30 * E) / back_fill +
            2 * N * (4 * E / 32 / back_pairs + 2) / bandwidth),  # the last term: the sums of dB and dC of the blocks
        "other kernels": LAYERS * sum(token(rows, *kernel) for kernel in (
            ("conv_forward", E / 32, 4.2 * E), ("conv_backward", E / 32, 6.8 * E),
            ("forward_kept_kernel", D / 32, 12 * D), ("backward_kept_kernel", D / 32, 16 * D))) +
        token(rows, "xent_kernel", V / 32, 6 * V) + token(rows, "forward_kernel<8,bf16>", D / 32, 6 * D)}
    parts = {part: seconds * tokens for part, seconds in parts.items()}
    parts["optimizer, gaps"] = OPTIMIZER / bandwidth + GAPS
    return parts


def waiting(parts):
    """Returns the seconds of one layer: its scan forward, its scan backward, and its messages."""
    state, inputs = 4 * E * N, 2 * 3 * E  # bytes of ssm_state and of conv_state
    return parts["scan forward"] / LAYERS, parts["scan backward"] / LAYERS, 2 * LATENCY + (state + inputs) / NVLINK


def efficiency(rows, ranks, length):
    """Returns (the share of the time that is work, total tokens/s) of `ranks` that share a window of `length` tokens."""
    parts = step(rows, 1, length // ranks)
    forward, backward, messages = waiting(parts)
    work = sum(parts.values())
    late = (ranks - 1) * (forward + backward + 2 * messages)
    return work / (work + late), length / (work + late)


def ends(ranks, scan, rest, messages):
    """Returns when the last of `ranks` ends a pass, by a simulation of events: a layer is `rest` seconds of work and
    then a scan, which begins when the scan of the previous rank has ended and its messages have arrived."""
    times = [0.0] * ranks
    for _ in range(LAYERS):
        arrives = 0.0
        for rank in range(ranks):
            times[rank] = max(times[rank] + rest, arrives) + scan
            arrives = times[rank] + messages
    return times[-1]


def faults(rows, cuts):
    """Returns one line for each error; `cuts` is the output of `test_scan_cut show`."""
    wrong = []
    for (batch, length), fill in FILL.items():
        lines = [re.search(r"%s D %d L %d B %d: .* width (\d+): fill (.*)" % (op, E, length, batch), cuts)
                 for op in ("forward", "backward")]
        printed = tuple(x for line in lines for x in (int(line[1]) // 32, float(line[2])))
        if printed != fill:
            wrong.append("FILL of B %d, L %d is %s, but test_scan_cut prints %s" % (batch, length, fill, printed))
    for ranks in RANKS:
        parts = step(rows, 1, CONTEXT_LENGTH // ranks)
        forward, backward, messages = waiting(parts)
        work = sum(parts.values())
        rest = (work / LAYERS - forward - backward) / 2
        seconds = ends(ranks, forward, rest, messages) + ends(ranks, backward, rest, messages)
        for formula, events in zip(efficiency(rows, ranks, CONTEXT_LENGTH), (work / seconds, CONTEXT_LENGTH / seconds)):
            if abs(formula / events - 1) > 1e-9:
                wrong.append("comm.context = %d: %g, by events %g" % (ranks, formula, events))
    return wrong


def show(rows):
    for ranks in RANKS:
        share, speed = efficiency(rows, ranks, CONTEXT_LENGTH)
        print("comm.context = %d, L %d: %.0f %% of the time is work, %.0f K tokens/s" % (
            ranks, CONTEXT_LENGTH, 100 * share, speed / 1e3))
    for batch in (batch for batch, length in FILL if length == LENGTH):
        parts = step(rows, batch)
        total = sum(parts.values())
        print("B %2d: %.0f ms, %.0f K tokens/s: %s" % (batch, total * 1e3, batch * LENGTH / total / 1e3, ", ".join(
            "%s %.1f" % (part, seconds * 1e3) for part, seconds in parts.items())))


def main():
    rows, _, _ = sass.read_table()
    if len(sys.argv) == 1:
        return show(rows)
    wrong = faults(rows, subprocess.run([sys.argv[2], "show"], stdout=subprocess.PIPE, check=True, text=True).stdout)
    print("\n".join(wrong) or "good")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
