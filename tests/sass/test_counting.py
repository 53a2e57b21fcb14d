#!/usr/bin/env python3
"""Tests the counts with a listing written by hand, whose right answers are known without any tool."""

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
        else
            narrow(t);
    }
}
"""

# Each line has a line number of the source and an instruction, or is a label. A run of the main loop takes 4 * 3
# slots in the inner loop, 2 up to the first branch, 2 in slow() half the time, 2 up to the second branch, 3 in
# fast() and 2 at the end.
LISTING = """3 MOV R2, RZ
.L_x_1:
.L_x_2:
5 MUFU.EX2 R4, R4
4 ISETP.NE.AND P0, PT, R12, RZ, PT
4 @P0 BRA `(.L_x_2)
3 ISETP.NE.AND P1, PT, R5, RZ, PT
3 @P1 BRA `(.L_x_3)
7 LDS.128 R8, [R5]
7 STS.64 [R5], R6
.L_x_3:
3 ISETP.NE.AND P2, PT, R7, RZ, PT
3 @!P2 BRA `(.L_x_4)
9 LDG.E.128 R8, desc[UR4][R2.64]
9 { SHFL.BFLY PT, R8, R8, 0x1, 0x1f
9 BRA `(.L_x_5)
.L_x_4:
11 LDG.E R8, desc[UR4][R2.64]
11 LDL R9, [R1]
.L_x_5:
3 ISETP.LT.AND P4, PT, R2, R3, PT
3 @P4 BRA `(.L_x_1)
3 EXIT
$sample_div_slowpath:
3 MUFU.RCP R4, R4
3 STL [R1], R4
"""
HALF = ("sample", r"slow\(t\)", 0.5, "every second time")
NARROW = ("sample", r"narrow\(t\)", 0, "wide accesses")
FOUR = ("sample", r"i \+= 2", 4, "eight in twos")
CONFLICTS = ("sample", r"slow", 16, "conflicts")


def counted(folder, shares, trips, widths, stack=0, name="sample sample_kernel", listing=LISTING):
    path = os.path.realpath(os.path.join(folder, "sample.cu"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(SOURCE)
    text = ".text.sample_kernel:\n"
    for line in listing.split("\n"):
        number, _, code = line.partition(" ")
        text += '\t//## File "%s", line %s\n /*0000*/ %s ;\n' % (path, number, code) if code else line + "\n"
    rules.SHARES, rules.TRIPS, rules.WIDTHS = shares, trips, widths
    rules.KERNELS = [rules.Kernel("sample_kernel$", "token", [("t < n", lambda uses: 8 * uses["loads"])], 0)]
    kernel = machine.read_listing(text)[0]
    kernel.name = name
    kernel.take(168, stack, 41088, 128, "90")
    return sass.row_of(kernel)


def blocks(*taken):
    kernel = machine.Kernel("sample")
    kernel.take(*taken, "90")
    return kernel.blocks()


def main():
    with tempfile.TemporaryDirectory() as folder:
        row, faults = counted(folder, [HALF, NARROW], [FOUR], [])
        conflicts, _ = counted(folder, [HALF, NARROW], [FOUR], [CONFLICTS])
        bare, undecided = counted(folder, [], [], [])
        _, spilled = counted(folder, [HALF, NARROW], [FOUR], [], rules.LOCAL_MOST + 1)
        _, generic = counted(folder, [HALF, NARROW], [FOUR], [], 0, "scan_sample sample_kernel",
                             LISTING.replace("LDG.E.128", "LD.E.128"))
    expected = [("slots", row["slots"], round((4 * 3 + 2 + 1 + 2 + 3 + 2) / 8, 1)),
                ("issue", row["issue"], round((4 * 3 + 2 + 1 + 2 + 3 + 2) / 8 / 4, 1)),
                ("special", row["special"], 4 * 2 / 8),
                ("shared", row["shared"], round((0.5 * (4 + 2) + 1) / 8, 1)),
                ("shared with conflicts", conflicts["shared"], round((0.5 * 32 + 1) / 8, 1)),
                ("slots without a rule, two loads", bare["slots"], round((3 + 2 + 2 + 2 + 3 + 2 + 2) / 16, 1)),
                ("local", row["local"], 1),
                ("faults", faults, []),
                ("faults without a rule", len(undecided), 1),
                ("faults with much local memory", len(spilled), 1),
                ("faults with a generic access", len(generic), 1),
                ("blocks by registers", row["blocks"], 3),
                ("blocks by shared memory", blocks(32, 0, 100000, 128), 2),
                ("blocks by warps", blocks(16, 0, 0, 1024), 2)]
    wrong = ["%s: %s, should be %s" % row for row in expected if row[1] != row[2]]
    print("\n".join(wrong) or "good")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
