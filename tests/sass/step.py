"""The time of a training step of the 130M model on an H200, by stated arithmetic.

Sums of what runs one after another:
- GEMM: 6 FLOP for each weight that multiplies and token, at GEMM_SHARE of the 790 TFLOP/s that
  large products in bf16 reach on random data;
- scan: the launches of kernels/scan_cut.h, modelled as it does (blocks on the fullest
  multiprocessor, a lone block at half its rate), with the slots of the table, at SCAN_SHARE of the
  issue rate;
- the other ops of a layer, cross-entropy, embedding, optimizer: their floor in the table, at
  BYTES_SHARE of it;
- GAPS_MS for what a graph's launches leave between kernels.
The shares are assumptions, chosen once so that the kernels of 342.8 and 92.1 slots, in the cut of
their day, took what had been estimated for them before: 40, 62, 109, 214 ms at B = 4, 8, 16, 32
(they give 38, 63, 108, 213). They stay as they are until a GPU has measured the step, so that two
tables can be compared: what counts is the ratio.
"""

import os
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
WEIGHTS_LAYER = rules.D * 2 * rules.E + rules.E * (RANK + 2 * rules.N) + RANK * rules.E + \
    rules.E * rules.D
WEIGHTS = LAYERS * WEIGHTS_LAYER + rules.D * rules.V  # that multiply; the embedding is the head
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
    print("%5s %8s %12s %13s %8s %8s %8s %10s" % ("B", "GEMM", "scan forward", "scan backward",
                                                  "others", "rest", "step", "tokens/s"))
    for batch in BATCHES:
        tokens = batch * LENGTH
        gemm = 6 * WEIGHTS * tokens / (GEMM_RATE * GEMM_SHARE) * 1e3
        scan = [LAYERS * cycles[batch, direction][0] / table.CLOCK / SCAN_SHARE * 1e3
                for direction in ("forward", "backward")]
        others = (LAYERS * floor_ms(rows, OPS_LAYER, tokens) + floor_ms(rows, OPS_STEP, tokens)
                  ) / BYTES_SHARE
        rest = WEIGHTS * OPTIMIZER_BYTES / table.BANDWIDTH / BYTES_SHARE * 1e3 + GAPS_MS
        step = gemm + sum(scan) + others + rest
        print("%5d %8.1f %12.1f %13.1f %8.1f %8.1f %8.1f %9.0fK" % (
            batch, gemm, *scan, others, rest, step, tokens / step))
    for (batch, direction), (_, cut) in sorted(cycles.items()):
        print("B %d, %s: %s" % (batch, direction, cut))
