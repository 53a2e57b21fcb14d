"""What the machine code does not tell: how often a branch is taken, and what one run of a loop covers.

The rules hold for the benchmark's shape: the 130M model (d 768, E 1536, N 16, K 4, V 50,280), L 2048, bf16, no start
of a document in the tile, and states kept every 8 tokens. A kernel's name begins with the name of its source.
"""

import collections

LOCAL_MOST = 128  # bytes of local memory that src/train/memory.c plans for each thread

# Code of a main loop that does not run each time: kernels, a statement that contains or calls it, its share of
# runs, and the reason. Code without such a rule runs each time. Patterns are searched in the statement of an
# instruction and those of the calls around it: `innermost in the call of it in …`.
SHARES = [
    (r"^scan", r"to\[v\] = v < count|to\[v\] = dt_from_f32<T>\(values\[v\]\)", 0, "wide accesses"),
    (r"^scan", r"scan_clear\(|return args\.in\.reset[ [&]", 0, "no document starts here"),
    (r"^scan", r"\[scan_state_at\(", 0, "states are accessed as neighbours"),
    (r"^scan_backward", r"copy_tile<F, T, false>", 0, "tiles are whole, accesses wide"),
    (r"^scan_backward", r"run_tile<F, T, false>", 0, "no document starts here"),
    (r"^scan_backward", r"fetch_resets\(args, .*first - ", 0.25, "a tile in four begins 32 tokens"),
    (r"^scan_forward", r"fetch_tile<F, T, false>|scan_store_token<F>|scan_blank_beyond<F>", 0, "full tiles"),
    (r"^scan_forward", r"run_singly<F>|end_with_resets<F>", 0, "no document starts here"),
    (r"^scan_.*<\d+,2,", r"to\[n \* cut\.channels \+ c\]", 0, "wide accesses"),
    (r"^conv", r"in\.x0 \+|row\[v\] = 0\.0f|return in\.reset|dt_least\(i, left - 1\)", 0, "rows within the sequence"),
    (r"^conv", r"\(unsigned\)starts", 0, "resets are read by words"),
    (r"^conv", r"back_plainly", 15 / 17, "the first and the last of a tile's 17 runs are careful"),
    (r"conv_backward", r"^(?!.*back_plainly).*(\(resets, i\)|_row\b|t \+ i |reset \?|convolve\(|slope|\bds\b|counts"
     r"|open\[|out\b|dx \+= gradient)", 2 / 17, "these two"),
    (r"^attention", r"mma_hide<", 0, "tiles inside: one in 16 of a query's lies on a border"),
    (r"^attention", r"else \*reinterpret_cast<uint4 \*>", 0, "rows within the sequence"),
]

# Loops within a main loop: kernels, the statement of the branch back, the number of trips, and the reason.
TRIPS = [
    (r"^scan_backward", r"int i = F::TILE - 1", 2, "a tile of 8 tokens, 4 at a time"),
    (r"^scan_forward", r"i \+= PIECE", 2, "a tile of 16 tokens in pieces of 8"),
]

# Accesses to shared memory whose cycles do not follow from their width: kernels, statement, cycles, and the reason.
WIDTHS = [
    (r"^scan", r"columns[.-]>?of\[i\]|tile->[bc]\[i\]", 2, "B and C: lanes t and t ^ 1 read the same 16 bytes"),
    (r"^scan.*<16,2,", r"\bstep\)", 2, "Δ and Δ u: lanes t and t ^ 2 read the same"),
    (r"^scan", r"\bds\[place\.group|\bstep\)", 1, "the same"),
    (r"^scan_forward.*<16,2,", r"&tile\.s\[", 8, "the carriers of a token and its neighbours meet in pairs"),
    (r"^scan_backward.*<16,2,", r"= row\.steps\[k\]", 4, "Δ, 16 bytes apart: tokens two apart share banks"),
    (r"^scan_backward", r"sources\.u\[", 2, "pieces of a row: lanes t and t ^ 2 read the same"),
]

# A kernel: its name as a regular expression with groups; the unit for which costs are stated; the units that one
# run of each loop does in a warp, computed from its stores and loads and the groups of the name; the dynamic
# shared memory of a block. The loop is the longest one whose branch back has the statement or, without a
# statement, the whole kernel.
Kernel = collections.namedtuple("Kernel", "name unit work dynamic")
SCAN_UNIT, ELEMENTS, TILE = "token and 16 channels", "32 elements", "64x64 tile and warp"
WHOLE = None


def scan_tile(uses, n, pairs, tile):
    """Returns the units of one run, which is a tile of 8 or 16 channels."""
    return tile * pairs / 2


def attention(name, width, loop, kept, more=""):
    """Returns a kernel on tensor cores for heads of this width. One run is a tile. The kernel keeps arrays of
    64 rows in shared memory, beside two stages of two tiles."""
    tile = min(64, 4096 // width)
    return Kernel(r"^attention_%s<%d%s\b.*>$" % (name, width, more), TILE, [(loop, lambda uses: tile / 64)],
                  2 * (width + 8) * (kept * 64 + 4 * tile))


KERNELS = [
    Kernel(r"^scan_forward scan_forward_(?:registers|ends)<(16),(\d+),(\d+),bf16>$", SCAN_UNIT,
           [(r"t < place\.end", scan_tile)], 0),
    Kernel(r"^scan_backward scan_backward_registers<(16),(1),(\d+),bf16>$", SCAN_UNIT,
           [(r"more; first -= ", scan_tile)], 35456),
    Kernel(r"^scan_backward scan_backward_registers<(16),(2),(\d+),bf16>$", SCAN_UNIT,
           [(r"more; first -= ", scan_tile)], 50048),
    Kernel(r"^scan_backward scan_backward_ends<(16),(\d+),(\d+),bf16>$", SCAN_UNIT,
           [(r"first >= place\.begin", scan_tile)], 0),
    Kernel(r"^conv1d_silu conv_forward<bf16,(8),4>$", ELEMENTS,  # a store is a row of 8 channels
           [(r"t \+= AHEAD", lambda uses, v: uses["stores"] * v)], 0),
    Kernel(r"^conv1d_silu conv_backward<bf16,(4),4>$", ELEMENTS,  # 17 runs are a tile of 64 tokens
           [(r"t \+= AHEAD", lambda uses, v: 64 / 17 * v)], 0),
    Kernel(r"^rmsnorm_residual forward_kept_kernel<(3),bf16>$", ELEMENTS,  # a warp has a row
           [(WHOLE, lambda uses, vectors: vectors * 8)], 0),
    Kernel(r"^rmsnorm_residual backward_kept_kernel<96,bf16>$", ELEMENTS,  # a run is eight elements a lane
           [(r"for \(int64_t i = from; i < end", lambda uses: 8)], 0),
    Kernel(r"^xent xent_kernel<(4),true,bf16>$", ELEMENTS,  # an access is four elements; the row is kept
           [(r"STEP < whole.* in reduce_row", lambda uses, n: uses["loads"] * n),
            (r"i < whole.* in if \(dx\) write_row", lambda uses, n: uses["stores"] * n)], 50280 * 4),
    Kernel(r"^embed forward_kernel<(8),bf16>$", ELEMENTS,  # eight elements are two stores
           [(r"i \+= DT_WARP \* N", lambda uses, n: uses["stores"] / 2 * n)], 0),
    attention("backward dkv_mma_kernel", 256, r"t0 < end", 1, ",false"),
] + [kernel for width in (16, 32, 64, 128, 256) for kernel in (
    attention("forward forward_mma_kernel", width, r"j \+= ROWS", 1),
    attention("backward dq_mma_kernel", width, r"j \+= ROWS", 2),
    attention("backward dkv_mma_kernel", width, r"t0 < end", 2))]

# The constants by which kernels/scan_cut.h chooses the cut: a pattern that finds them, and for each group the
# kernel and a warp's share of its unit (with one channel per lane a warp has 8 of the 16 channels). A constant
# is four times the cycles that a warp uses of the slowest pipe.
CONSTANTS = [
    (r"SCAN_%s_COSTS = \{\w+, \{(\d+), (\d+)\}, \{(\d+), (\d+)\}\}" % way.upper(),
     [("scan_%s scan_%s_%s<16,%d," % (way, way, part, lanes), lanes / 2)
      for part in ("registers", "ends") for lanes in (1, 2)]) for way in ("forward", "backward")]
CONSTANTS_NEAR = 0.1  # smaller differences change the best cut little
