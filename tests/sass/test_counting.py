#!/usr/bin/env python3
"""Counts of a listing written by hand, whose right answers are known without any tool."""

import os
import sys
import tempfile

sys.dont_write_bytecode = True

import machine
import rules
import sass

SOURCE = """static __global__ void sample_kernel(int n)
{
    for (int t = 0; t < n; t += 8) {
        for (int i = 0; i < 8; i += 2)
            step(i);
        if (rare)
            slow(t);
        if (wide)
            fast(t);
        else {
            narrow(t);
            narrow_again(t);
        }
    }
}
"""
MAIN, INNER, STEP, SLOW, FAST, NARROW, AGAIN = 3, 4, 5, 7, 9, 11, 12

# A run of the main loop is 4 * 3 slots in the inner loop, 2 to the first branch, 2 of slow() half the
# time, 2 to the second branch, 3 of fast(), 2 at the end.
LINES = [
    (MAIN, "/*0000*/ MOV R2, RZ ;"),
    (None, ".L_x_1:"),
    (None, ".L_x_2:"),
    (STEP, "/*0020*/ MUFU.EX2 R4, R4 ;"),
    (INNER, "/*0040*/ ISETP.NE.AND P0, PT, R12, RZ, PT ;"),
    (INNER, "/*0050*/ @P0 BRA `(.L_x_2) ;"),
    (MAIN, "/*0070*/ ISETP.NE.AND P1, PT, R5, RZ, PT ;"),
    (MAIN, "/*0080*/ @P1 BRA `(.L_x_3) ;"),
    (SLOW, "/*0090*/ LDS.128 R8, [R5] ;"),
    (SLOW, "/*00a0*/ STS.64 [R5], R6 ;"),
    (None, ".L_x_3:"),
    (MAIN, "/*00b0*/ ISETP.NE.AND P2, PT, R7, RZ, PT ;"),
    (MAIN, "/*00c0*/ @!P2 BRA `(.L_x_4) ;"),
    (FAST, "/*00d0*/ LDG.E.128 R8, desc[UR4][R2.64] ;"),
    (FAST, "/*00e0*/ { SHFL.BFLY PT, R8, R8, 0x1, 0x1f ;"),
    (FAST, "/*00f0*/ BRA `(.L_x_5) ;"),
    (None, ".L_x_4:"),
    (NARROW, "/*0100*/ LDG.E R8, desc[UR4][R2.64] ;"),
    (AGAIN, "/*0110*/ LDL R9, [R1] ;"),
    (None, ".L_x_5:"),
    (MAIN, "/*0160*/ ISETP.LT.AND P4, PT, R2, R3, PT ;"),
    (MAIN, "/*0170*/ @P4 BRA `(.L_x_1) ;"),
    (MAIN, "/*0180*/ EXIT ;"),
    (None, "$sample_div_slowpath:"),
    (MAIN, "/*0190*/ MUFU.RCP R4, R4 ;"),
    (MAIN, "/*01a0*/ NOP ;"),
]


def counted(folder, shares, trips, widths):
    path = os.path.realpath(os.path.join(folder, "sample.cu"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(SOURCE)
    text = ".text.sample_kernel:\n"
    for line, code in LINES:
        if line:
            text += '\t//## File "%s", line %d\n        ' % (path, line)
        text += code + "\n"
    rules.SHARES, rules.TRIPS, rules.WIDTHS = shares, trips, widths
    rules.KERNELS = [rules.Kernel("^sample sample_kernel$", "token", [("t < n", lambda uses: 8 * uses["loads"])],
                                  0, "eight tokens for each load")]
    kernel = machine.read_listing(text)[0]
    kernel.name = "sample sample_kernel"
    kernel.take(168, 0, 41088, 128, "90")
    return sass.row_of(kernel, machine.Sources())


def main():
    faults = []

    def expect(what, is_, should):
        if is_ != should:
            faults.append("%s: %s, should be %s" % (what, is_, should))

    half = ("sample", r"slow\(t\)", 0.5, "every second time")
    wide = ("sample", r"narrow\(t\) … narrow_again", 0, "wide accesses")
    four = ("sample", r"i \+= 2", 4, "eight in twos")
    with tempfile.TemporaryDirectory() as folder:
        row, count = counted(folder, [half, wide], [four], [])
        expect("slots", row["slots"], round((4 * 3 + 2 + 1 + 2 + 3 + 2) / 8, 1))
        expect("special", row["special"], 4 * 2 / 8)
        expect("shared", row["shared"], round((0.5 * (4 + 2) + 1) / 8, 1))
        expect("local", row["local"], 1)
        expect("blocks by registers", row["blocks"], 3)
        expect("undecided", count.undecided, [])
        row, _ = counted(folder, [half, wide], [four], [("sample", r"slow", 16, "conflicts")])
        expect("shared with conflicts", row["shared"], round((0.5 * 32 + 1) / 8, 1))
        row, count = counted(folder, [], [], [])
        expect("slots without a rule, two loads", row["slots"], round((3 + 2 + 2 + 2 + 3 + 2 + 2) / 16, 1))
        expect("undecided without a rule", len(count.undecided), 1)
    sample = machine.Kernel("sample")
    sample.take(32, 0, 100000, 128, "90")
    expect("blocks by shared memory", sample.blocks(), 2)
    sample.take(32, 0, 0, 1024, "90")
    expect("blocks by warps", sample.blocks(), 2)
    print("\n".join(faults) or "good")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
