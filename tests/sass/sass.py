#!/usr/bin/env python3
"""Counts what a token costs in a kernel's main loop, from its machine code. README.md says how."""

import argparse
import glob
import os
import re
import shutil
import sys

sys.dont_write_bytecode = True

import machine
import rules

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table.md")
RENEW = "python3 tests/sass/sass.py --renew"

# Which pipe an instruction uses; README.md says for how many cycles.
SPECIAL = re.compile(r"(MUFU|F2F|F2I|I2F|FRND|POPC|FLO|BREV)\b")
SHARED = re.compile(r"(LDS|STS|LDSM|STSM|ATOMS|SHFL|LDGSTS)\b")
LOCAL = re.compile(r"(LDL|STL)\b")
LOADS, STORES = re.compile(r"(LDG|LDGSTS|UBLKCP|UTMALDG)\b"), re.compile(r"STG\b")
GENERIC = re.compile(r"(LD|ST|ATOM)\b")  # the address may be in any kind of memory, which the hardware looks up
WIDE = {"64": 2, "128": 4, "4": 4}  # cycles of the data path, by the bits that a lane moves or the number of matrices
LABEL = re.compile(r"`\((\.L_x_\d+)\)")

PIPES = ["issue", "special", "shared"]
COUNTED = dict.fromkeys(["slots", *PIPES], 1)  # column: digits after the point
TAKEN = {"local": 0, "registers": 0, "blocks": 0}

HEAD = """# Machine code of the kernels, sm_{architecture}, nvcc {nvcc}

Made by `{renew}`, checked by the test `sass`; see README.md here.

For a unit of a main loop's work: slots (instructions that a warp issues), and the cycles of a
multiprocessor that they take of each pipe: issue (four slots a cycle), special (16 lanes of
exponentials a cycle), shared (128 bytes of shared memory a cycle).

"""


def cost_of(code, texts, runs, widths):
    """Returns {column: cost} of the instructions, each counted `runs` times, and their global loads and stores."""
    cost, uses = dict.fromkeys(COUNTED, 0.0), {"loads": 0.0, "stores": 0.0}
    for one, text, times in zip(code, texts, runs):
        cost["slots"] += times
        cost["issue"] += times / 4
        cost["special"] += times * 2 * bool(SPECIAL.match(one.opcode))
        if SHARED.match(one.opcode):
            wide = next((WIDE[bits] for bits in one.opcode.split(".") if bits in WIDE), 1)
            cost["shared"] += times * next((row[2] for row in widths if re.search(row[1], text)), wide)
        uses["loads"] += times * bool(LOADS.match(one.opcode))
        uses["stores"] += times * bool(STORES.match(one.opcode))
    return cost, uses


def count(kernel, rule, groups):
    """Returns {column: cost} of a unit of a kernel's main loops, and the branches that no rule covers."""
    shares, trips, widths = ([row for row in rows if re.search(row[0], kernel.name)]
                             for rows in (rules.SHARES, rules.TRIPS, rules.WIDTHS))
    code, total, undecided = kernel.code, dict.fromkeys(COUNTED, 0.0), []
    # The statement of each instruction and those of the calls around it, innermost first.
    texts = [" in ".join(machine.statement(frame) for frame in one.chain) for one in code]
    targets = [one.opcode.startswith("BRA") and LABEL.search(one.operands) for one in code]
    heads = [kernel.labels.get(label.group(1), len(code)) if label else len(code) for label in targets]
    loops = [(head, latch) for latch, head in enumerate(heads) if head <= latch]
    for statement, units in rule.work:
        # The longest loop whose branch back has the statement; one loop may have several branches back.
        mine = [loop for loop in loops if statement and re.search(statement, texts[loop[1]])]
        found = mine if statement else [(0, i) for i, one in enumerate(code) if one.opcode == "EXIT"]
        if not found:
            undecided.append("loop `%s`, which is not there" % statement)
            continue
        first, last = max(found, key=lambda loop: loop[1] - loop[0])
        runs = [1.0] * len(code)
        for i in range(first, last + 1):
            for row in shares:
                runs[i] *= row[2] if re.search(row[1], texts[i]) else 1
        for head, latch in loops:
            if first <= head and latch < last and runs[latch] > 0 and (head, latch) not in mine:
                row = next((row for row in trips if re.search(row[1], texts[latch])), None)
                if row is None:
                    undecided.append("trips of the loop `%s`" % texts[latch].split(" in ")[0])
                for i in range(head, latch + 1):
                    runs[i] *= row[2] if row else 1
        here = slice(first, last + 1)
        cost, uses = cost_of(code[here], texts[here], runs[here], widths)
        for column, value in cost.items():
            total[column] += value * (1 / (units(uses, *groups) or 1))
    return total, undecided


def rule_of(name):
    """Returns (rule, numbers in the name) of a kernel whose main loop is counted, or (None, [])."""
    for rule in rules.KERNELS:
        found = re.search(rule.name, name)
        if found:
            return rule, [int(group) for group in found.groups()]
    return None, []


def row_of(kernel):
    """Returns {column: number} as in the table, and a list of what is wrong with the kernel."""
    rule, groups = rule_of(kernel.name)
    row = {"local": sum(1 for one in kernel.code if LOCAL.match(one.opcode)),
           "registers": kernel.registers, "blocks": kernel.blocks(rule.dynamic if rule else 0)}
    costs, undecided = count(kernel, rule, groups) if rule else ({}, [])
    faults = ["no rule decides the %s" % text for text in undecided]
    if kernel.stack > rules.LOCAL_MOST:
        faults.append("takes %d bytes of local memory a thread, and %d are reserved (src/train/memory.c)"
                      % (kernel.stack, rules.LOCAL_MOST))
    faults += ["accesses memory of any kind: %s %s (%s)" % (one.opcode, one.operands, machine.statement(one.chain[0]))
               for one in kernel.code if GENERIC.match(one.opcode) and kernel.name.startswith("scan_")]
    digits = {**COUNTED, **TAKEN}
    return {column: round(value, digits[column]) for column, value in {**row, **costs}.items()}, faults


def tabled(args):
    """Returns ({name: row}, faults) for the kernels of the given files."""
    rows, faults, paths = {}, [], []
    for path in args.files:
        objects = glob.glob(os.path.join(path, "**", "*.cu.o"), recursive=True)
        paths += sorted(objects) if os.path.isdir(path) else [path]
    for path in paths:
        for kernel in machine.read_kernels(path, args):
            if kernel.name not in rows and re.search(args.kernel, kernel.name):
                rows[kernel.name], wrong = row_of(kernel)
                faults += ["%s: %s" % (kernel.name, text) for text in wrong]
    return rows, faults


def report(args):
    rows, faults = tabled(args)
    for name, row in rows.items():
        print("%s: %s" % (name, ", ".join("%g %s" % (value, column) for column, value in row.items())))
    return say(faults)


def write_table(file, head, rows, columns):
    lines = [head] + [["`%s`" % name] + ([rule_of(name)[0].unit] if "unit" in head else []) + [
        "%.*f" % (digits, rows[name][column]) for column, digits in columns.items()]
                      for name in sorted(rows) if set(columns) <= set(rows[name])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    texts = len(head) - len(columns)
    for line in lines:
        file.write("| " + " | ".join((str.ljust if i < texts else str.rjust)(field, widths[i])
                                     for i, field in enumerate(line)) + " |\n")


def renew(args):
    """Writes the table. Rows of sources that are not among the files stay as they are."""
    kept, version, _ = read_table()
    here = machine.nvcc_version(args.nvcc)
    if not args.files:
        kept, args.files = {}, sorted(glob.glob(os.path.join(machine.ROOT, "kernels", "*.cu")))
    elif here != version:
        raise SystemExit("the table is of nvcc %s, and here is %s: renew it as a whole" % (version, here))
    rows, faults = tabled(args)
    renewed = {name.split()[0] for name in rows}
    rows.update((name, row) for name, row in kept.items() if name.split()[0] not in renewed)
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(HEAD.format(renew=RENEW, nvcc=here, architecture=args.arch))
        write_table(file, ["kernel", "unit", *COUNTED], rows, COUNTED)
        file.write("\nOf every kernel: instructions that access local memory (spills, arrays that are "
                   "indexed),\nregisters of a thread, blocks that a multiprocessor holds.\n\n")
        write_table(file, ["kernel", *TAKEN], rows, TAKEN)
    print("%d kernels in %s" % (len(rows), TABLE))
    return say(faults + check_constants(rows))


def read_table():
    """Returns ({kernel: {column: number}}, the version of nvcc, the architecture) of the table."""
    with open(TABLE, encoding="utf-8") as file:
        text = file.read()
    rows, head = {}, []
    for line in text.split("\n"):
        fields = [field.strip() for field in line.strip("|").split("|")]
        if fields[0] == "kernel":
            head = fields
        elif fields[0].startswith("`"):
            rows.setdefault(fields[0].strip("`"), {}).update(
                (column, float(field)) for column, field in zip(head[1:], fields[1:]) if column != "unit")
    architecture, version = re.search(r"sm_(\w+), nvcc ([\d.]+)", text).groups()
    return rows, version, architecture


def check(args):
    then, version, args.arch = read_table()
    here = machine.nvcc_version(args.nvcc)
    if here != version:
        raise machine.Skip("the table is of nvcc %s, and here is %s" % (version, here))
    now, faults = tabled(args)
    if not now:
        raise machine.Skip("no object files of kernels in %s" % " ".join(args.files))
    faults += ["%s is in one of table and machine code alone" % name for name in sorted(set(then) ^ set(now))]
    faults += ["%s: %s %g, in the table %g" % (name, column, number, then[name].get(column, 0))
               for name in sorted(set(then) & set(now)) for column, number in now[name].items()
               if number != then[name].get(column, 0)]
    if faults:
        faults.append("A number may change for a reason: `%s`, and say in the commit why. What the machine "
                      "code does not say is in tests/sass/rules.py. Sources newer than their object files give wrong "
                      "lines: `ctest -R cuda_build`." % RENEW)
    return say(faults + check_constants(now))


def check_constants(rows):
    """Returns which constants of the scan's cut differ much from what was counted."""
    faults = []
    with open(os.path.join(machine.ROOT, "kernels", "scan_cut.h"), encoding="utf-8") as file:
        text = file.read()
    for pattern, kernels in rules.CONSTANTS:
        for number, (kernel, share) in zip(re.search(pattern, text).groups(), kernels):
            for row in (row for name, row in rows.items() if name.startswith(kernel) and "slots" in row):
                cycles = 4 * max(row[pipe] for pipe in PIPES) * share
                if abs(float(number) / cycles - 1) > rules.CONSTANTS_NEAR:
                    faults.append("kernels/scan_cut.h: %s for %s, of %.0f cycles" % (number, kernel, cycles))
    return faults


def say(faults):
    print("\n".join(faults) or "good")
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="a .cu, a .cubin, an object file built with "
                        "-lineinfo, or a folder of these: reports their kernels")
    parser.add_argument("--renew", dest="act", action="store_const", const=renew, default=report,
                        help="rewrites the table, from the files or from all sources")
    parser.add_argument("--check", dest="act", action="store_const", const=check, help="compares with the table")
    parser.add_argument("--kernel", default=".", metavar="REGEX", help="kernels to report")
    parser.add_argument("--arch", default="90", help="architecture (default: 90)")
    parser.add_argument("--tools", metavar="FOLDER", help="of nvdisasm and cuobjdump")
    parser.add_argument("--nvcc", metavar="FILE", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    args = parser.parse_args()
    if not os.access(args.nvcc, os.X_OK):
        raise machine.Skip("no nvcc here")
    return args.act(args)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except machine.Skip as absent:
        print(absent)
        raise SystemExit(77)
