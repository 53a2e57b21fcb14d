"""The time of a training step of the 130M model on an H200, by stated arithmetic.

Sums of what runs one after another:
- GEMM: each product (forward, and the gradients of weights and inputs) by what binds it: its FLOP
  at GEMM_SHARE of the 790 TFLOP/s that large products in bf16 reach on random data, or the bytes of
  its activations at BYTES_SHARE of the bandwidth. Bytes bind x_proj and dt_proj;
- scan: the launches of kernels/scan_cut.h, modelled as it does (blocks on the fullest
  multiprocessor, a lone block at half its rate), with the slots of the table, at SCAN_SHARE of the
  issue rate; and the launch that adds the blocks' parts of dB and dC, by its bytes;
- the other ops of a layer, cross-entropy, embedding, optimizer: their floor in the table, at
  BYTES_SHARE of it;
- GAPS_MS for what a graph's launches leave between kernels.
The shares are assumptions, chosen once so that the kernels of 342.8 and 92.1 slots, in the cut of
their day, took what had been estimated for them before: 40, 62, 109, 214 ms at B = 4, 8, 16, 32
(they give 38, 63, 108, 213). They stay as they are until a GPU has measured the step, so that two
tables can be compared: what counts is the ratio. That was before the bytes of products and the sums
of dB and dC were counted: the last column leaves both out, and compares with those numbers.
"""

import collections
import os
import re
import subprocess
import tempfile

import rules
import table
import tools

GEMM_RATE, GEMM_SHARE = 790e12, 0.75
SCAN_SHARE = 0.72
BYTES_SHARE = 0.85
GAPS_MS = 2.0

LAYERS, LENGTH, RANK, BATCHES = 24, 2048, 48, (4, 8, 16, 32)
BF16, FP32 = 2, 4  # bytes
# Inputs, outputs, bytes of one of these; what of the gradient of inputs is added to (read too).
Product = collections.namedtuple("Product", "inputs outputs stored adds")
LAYER = [Product(rules.D, 2 * rules.E, BF16, 0), Product(rules.E, RANK + 2 * rules.N, BF16, 1),
         Product(RANK, rules.E, BF16, 0), Product(rules.E, rules.D, BF16, 0)]
HEAD = Product(rules.D, rules.V, FP32, 0)  # the embedding's weights
PRODUCTS = LAYERS * LAYER + [HEAD]
WEIGHTS = sum(product.inputs * product.outputs for product in PRODUCTS)
OPTIMIZER_BYTES = 34  # a weight: AdamW 28 and 2 for the copy, the norm 4

OPS_LAYER = ["conv1d_silu conv_forward", "conv1d_silu conv_backward",
             "rmsnorm_residual forward", "rmsnorm_residual backward"]
OPS_STEP = ["xent xent", "embed forward"]


def floor_ms(rows, names, tokens):
    """Of kernels that begin with the names, one each."""
    total = 0.0
    for name in names:
        found = [row["ns"] for kernel, row in rows.items() if kernel.startswith(name) and "ns" in row]
        if len(found) != 1:
            raise SystemExit("the table has %d kernels `%s…` with a floor" % (len(found), name))
        total += found[0] * tokens * 1e-6
    return total


def products_ms(tokens):
    """(by what binds each, all by their FLOP)"""
    bound = flops = 0.0
    for inputs, outputs, stored, adds in PRODUCTS:
        work = 2 * inputs * outputs * tokens / (GEMM_RATE * GEMM_SHARE) * 1e3
        moved = (inputs * BF16 + outputs * stored, (inputs + outputs) * BF16,
                 ((1 + adds) * inputs + outputs) * BF16)
        flops += 3 * work
        bound += sum(max(work, each * tokens / (table.BANDWIDTH * BYTES_SHARE) * 1e3)
                     for each in moved)
    return bound, flops


def sums_ms(cut, tokens):
    """Of scan_sum_columns: a block's parts of dB and dC, in fp32, and their sums."""
    blocks = -(-rules.E // int(re.match(r"\d+", cut).group()))
    moved = 2 * rules.N * (blocks * FP32 + BF16)
    return LAYERS * moved * tokens / (table.BANDWIDTH * BYTES_SHARE) * 1e3


def scan_costs(rows, kernel):
    """Blocks held, slots of a warp for a token with one and two channels a lane; and of ends."""
    costs = []
    for part in ("registers", "ends"):
        for lanes in (1, 2):
            found = [row for name, row in rows.items()
                     if name.startswith("scan_%s scan_%s_%s<16,%d," % (kernel, kernel, part, lanes))
                     and "slots" in row]
            if len(found) != 1:
                raise SystemExit("the table has %d of scan_%s_%s<16,%d,…>" % (
                    len(found), kernel, part, lanes))
            costs.append(found[0])
    # an operation of the special unit keeps it for as long as eight slots last
    bounds = [max(row["slots"], row["special"] * table.SLOTS_CLOCK / table.SPECIAL_CLOCK)
              for row in costs]
    return [int(costs[1]["blocks"])] + [slots / (2 if i % 2 == 0 else 1)
                                        for i, slots in enumerate(bounds)]


def scan_cycles(rows):
    """{(batch, direction): cycles of a layer's scan}, and how it is cut."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "cut")
        tools.run([os.environ.get("CC", "cc"), "-std=c17", "-O1", "-I", tools.ROOT, "-I",
                   os.path.join(tools.ROOT, "src"), "-o", program,
                   os.path.join(tools.ROOT, "tests", "sass", "cut.c")])
        numbers = [str(x) for kernel in ("forward", "backward") for x in scan_costs(rows, kernel)]
        lines = subprocess.run([program, *numbers, *map(str, BATCHES)], check=True,
                               capture_output=True, text=True).stdout.split("\n")
    found = {}
    for line in filter(None, lines):
        batch, direction, cycles, cut = line.split(" ", 3)
        found[int(batch), direction] = (float(cycles), cut)
    return found


def report(rows):
    cycles = scan_cycles(rows)
    print("A step of the 130M model on an %s, L %d, in ms; shares assumed: GEMM %.2f of 790 TFLOP/s, "
          "scan %.2f of the issue rate, others %.2f of their floor" % (
              table.GPU, LENGTH, GEMM_SHARE, SCAN_SHARE, BYTES_SHARE))
    print("%5s %8s %12s %13s %8s %8s %8s %8s %10s %14s" % (
        "B", "GEMM", "scan forward", "scan backward", "its sums", "others", "rest", "step",
        "tokens/s", "first counted"))
    for batch in BATCHES:
        tokens = batch * LENGTH
        gemm, flops = products_ms(tokens)
        scan = [LAYERS * cycles[batch, direction][0] / table.CLOCK / SCAN_SHARE * 1e3
                for direction in ("forward", "backward")]
        sums = sums_ms(cycles[batch, "backward"][1], tokens)
        others = (LAYERS * floor_ms(rows, OPS_LAYER, tokens) + floor_ms(rows, OPS_STEP, tokens)
                  ) / BYTES_SHARE
        rest = WEIGHTS * OPTIMIZER_BYTES / table.BANDWIDTH / BYTES_SHARE * 1e3 + GAPS_MS
        step = gemm + sum(scan) + sums + others + rest
        print("%5d %8.1f %12.1f %13.1f %8.1f %8.1f %8.1f %8.1f %9.0fK %13.0fK" % (
            batch, gemm, *scan, sums, others, rest, step, tokens / step,
            tokens / (step - sums - gemm + flops)))
    for (batch, direction), (_, cut) in sorted(cycles.items()):
        print("B %d, %s: %s" % (batch, direction, cut))
