#!/usr/bin/env python3
"""Counts of a listing written by hand, whose right answers are known without any tool."""

import os
import sys
import tempfile

sys.dont_write_bytecode = True

import cost
import listing
import rules

SOURCE = """static __global__ void sample_kernel(int n)
{
    for (int t = 0; t < n; t += 8) {
        for (int i = 0; i < 8; i++)
            step(i);
        if (rare)
            slow(t);
        if (wide)
            fast(t);
        else
            narrow(t);
        finish(t);
    }
}
"""
MAIN, INNER, STEP, SLOW, FAST, NARROW, FINISH = 3, 4, 5, 7, 9, 11, 12

# Of a run of the main loop: 1 + 4 * 5 in the inner loop, 3 to the first branch, 2 of slow() half
# the time, 2 to the second branch, 3 of fast(), 3 at the end, of which one is the division's slow
# way round.
LINES = [
    (MAIN, "/*0000*/ MOV R2, RZ ;"),
    (None, ".L_x_1:"),
    (INNER, "/*0010*/ HFMA2.MMA R9, -RZ, RZ, 0, 4.76837158203125e-07 ;"),  # 8
    (None, ".L_x_2:"),
    (STEP, "/*0020*/ MUFU.EX2 R4, R4 ;"),
    (INNER, "/*0028*/ VIADD R12, R9.reuse, 0xfffffffe ;"),  # - 2
    (INNER, "/*0030*/ IADD3 R9, R9.reuse, 0xfffffffe, RZ ;"),
    (INNER, "/*0040*/ ISETP.NE.AND P0, PT, R12, RZ, PT ;"),
    (INNER, "/*0050*/ @P0 BRA `(.L_x_2) ;"),
    (MAIN, "/*0060*/ BSSY B0, `(.L_x_3) ;"),
    (MAIN, "/*0070*/ ISETP.NE.AND P1, PT, R5, RZ, PT ;"),
    (MAIN, "/*0080*/ @P1 BRA `(.L_x_3) ;"),
    (SLOW, "/*0090*/ LDS R6, [R5] ;"),
    (SLOW, "/*00a0*/ BSYNC B0 ;"),
    (None, ".L_x_3:"),
    (MAIN, "/*00b0*/ ISETP.NE.AND P2, PT, R7, RZ, PT ;"),
    (MAIN, "/*00c0*/ @!P2 BRA `(.L_x_4) ;"),
    (FAST, "/*00d0*/ LDG.E.128 R8, desc[UR4][R2.64] ;"),
    (FAST, "/*00e0*/ FADD R8, R8, R9 ;"),
    (FAST, "/*00f0*/ BRA `(.L_x_5) ;"),
    (None, ".L_x_4:"),
    (NARROW, "/*0100*/ LDG.E R8, desc[UR4][R2.64] ;"),
    (NARROW, "/*0110*/ LDG.E R9, desc[UR4][R2.64+0x4] ;"),
    (NARROW, "/*0120*/ LDG.E R10, desc[UR4][R2.64+0x8] ;"),
    (NARROW, "/*0130*/ LDG.E R11, desc[UR4][R2.64+0xc] ;"),
    (None, ".L_x_5:"),
    (FINISH, "/*0140*/ @P3 BRA `(.L_x_6) ;"),
    (FINISH, "/*0150*/ CALL.REL.NOINC `($sample_div_slowpath) ;"),
    (None, ".L_x_6:"),
    (MAIN, "/*0160*/ ISETP.LT.AND P4, PT, R2, R3, PT ;"),
    (MAIN, "/*0170*/ @P4 BRA `(.L_x_1) ;"),
    (MAIN, "/*0180*/ EXIT ;"),
    (MAIN, "/*0190*/ NOP ;"),
]
SLOTS = 1 + 4 * 5 + 3 + 2 * 0.5 + 2 + 3 + 1 + 2


def counted(folder, decisions, absent):
    path = os.path.realpath(os.path.join(folder, "sample.cu"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(SOURCE)
    text = ".text.sample_kernel:\n"
    for line, code in LINES:
        if line:
            text += '\t//## File "%s", line %d\n        ' % (path, line)
        text += code + "\n"
    rules.DECISIONS, rules.ABSENT, rules.LOOPS = decisions, absent, []
    rules.KERNELS = [rules.Kernel("^sample sample_kernel$", "token", [("t < n", lambda c: 8)], 0, 0, 0,
                                  "eight tokens a run")]
    functions, sources = listing.read_functions(text), listing.Sources()
    listing.name_functions(functions, "sample")
    return cost.Count(functions[0], sources, False)


def main():
    faults = []

    def expect(what, is_, should):
        if is_ != should:
            faults.append("%s: %s, should be %s" % (what, is_, should))

    half = [("sample", r"slow\(t\)", 0.5, "every second time")]
    with tempfile.TemporaryDirectory() as folder:
        count = counted(folder, half, [("sample", r"narrow\(t\)", "wide accesses")])
        expect("slots", count.cost.of["slots"], SLOTS / 8)
        expect("special", count.cost.of["special"], 4 / 8)
        expect("shared", count.cost.of["shared"], 0.5 / 8)
        expect("loads", count.cost.of["loads"], 1 / 8)
        expect("undecided", count.undecided, [])
        count = counted(folder, [], [])
        expect("slots without a rule", count.cost.of["slots"], (SLOTS + 2 * 0.5 + 4 - 3) / 8)
        expect("undecided without a rule", len(count.undecided), 1)
    expect("blocks by registers", cost.resident_blocks(168, 41088, 128, "90"), 3)
    expect("blocks by shared memory", cost.resident_blocks(32, 100000, 128, "90"), 2)
    expect("blocks by warps", cost.resident_blocks(32, 0, 1024, "90"), 2)
    print("\n".join(faults) or "good")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
