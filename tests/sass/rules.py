"""What the machine code does not say: how often a branch is taken, and what a loop's run covers.

At the benchmark's shape: the 130M model (d 768, E 1536, N 16), L 2048, bf16, packed without a
document's start in the tile, states kept each 16 tokens.
"""

# A branch: (kernels, statements that only one of its ways holds, its share of runs, why).
DECISIONS = [
    (r".", r"to\[v\] = v < count|to\[v\] = dt_from_f32<T>\(values\[v\]\)", 0.0, "accesses are wide"),
    (r".", r"scan_clear\(|return args\.reset &&", 0.0, "no document starts here"),
    (r"scan_backward", r"h\[i \+ 1\]\[m\]\[n\] = step\[2 \* m \+ 1\] \* b\[n\];", 0.0,
     "no document starts here"),
    (r"scan_forward", r"run_tile<F, true>|careful = true|keep_at = dt_div_up", 0.0,
     "no document starts here, and a chunk is a tile"),
    (r"scan_backward", r"first - F::TILE", 0.5, "a chunk is two tiles, the first fetches none before"),
    (r"scan_backward", r"scan_read_states<F>\(args\.states", 0.5, "a chunk is two tiles"),
    (r"scan_backward", r"scan_read_states<F>\(space\.starts", 0.0, "a chunk is two tiles"),
]

# A loop whose trips are no constant: (kernels, its statement, trips in a run of the loop around it,
# why).
LOOPS = [
    (r"scan_backward", r"for \(int k = 0; k \+ 1 < tiles", 1, "a chunk is two tiles"),
    (r"scan_backward", r"for \(int k = tiles - 1", 2, "a chunk is two tiles"),
]

# A kernel: (its name, unit, how many units a warp's run of the main loop does, why).
# Groups of the name are {1}, {2} … of the expression.
KERNELS = [
    (r"^scan_forward_(?:registers|ends)<(\d+),(\d+),(\d+),", "token and 16 channels",
     "{3} * {2} / 2", "a tile of 8 or 16 channels"),
    (r"^scan_backward_registers<(\d+),(\d+),(\d+),", "token and 16 channels", "16 * {2} / 2",
     "a chunk of 16 tokens, 8 or 16 channels"),
    (r"^scan_backward_ends<(\d+),(\d+),(\d+),", "token and 16 channels", "{3} * {2} / 2",
     "a tile of 8 or 16 channels"),
]
