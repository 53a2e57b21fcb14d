#!/usr/bin/env python3
"""Counts what a token costs in a kernel's main loop, from its machine code. README.md says how.

sass.py FILE…      reports the kernels in them: a .cu (compiled as in a release build), a .cubin, an
                   object file built with -lineinfo, or a folder of such
sass.py --renew    rewrites the table, from the files given or from the kernels' sources
sass.py --check    compares them with the table
sass.py --comments compares what the kernels' comments state with the table
"""

import argparse
import glob
import os
import re
import shutil
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import machine
import rules

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table.md")
RENEW = "python3 tests/sass/sass.py --renew"

# What an instruction uses. Cycles of a multiprocessor that a warp's instruction takes of a pipe: it issues
# four a clock; the special unit has 16 lanes; the data path of shared memory carries 128 bytes a clock,
# and a shuffle goes through it.
SPECIAL = re.compile(r"(MUFU|F2F|F2I|I2F|FRND|POPC|FLO|BREV)\b")
SHARED = re.compile(r"(LDS|STS|LDSM|STSM|ATOMS|SHFL|LDGSTS)\b")
LOCAL = re.compile(r"(LDL|STL)\b")
LOADS, STORES = re.compile(r"(LDG|LDGSTS|UBLKCP|UTMALDG)\b"), re.compile(r"STG\b")
GENERIC = re.compile(r"(LD|ST|ATOM)\b")  # to an address of any kind of memory, which the hardware looks up
WIDE = {"64": 2, "128": 4, "4": 4}  # cycles of the data path by the bits that a lane moves, or matrices
LABEL = re.compile(r"`\((\.L_x_\d+)\)")

PIPES = ["issue", "special", "shared"]
COUNTED = dict.fromkeys(["slots", *PIPES], 1)  # column: digits
TAKEN = {"local": 0, "registers": 0, "blocks": 0}

HEAD = """# Machine code of the kernels, sm_{architecture}, nvcc {nvcc}

Made by `{renew}`, checked by the test `sass`; see README.md here.

For a unit of a main loop's work: slots (instructions that a warp issues), and the cycles of a
multiprocessor that they take of each pipe: issue (four slots a cycle), special (16 lanes of
exponentials a cycle), shared (128 bytes of shared memory a cycle).

"""


class Count:
    """What a unit of a kernel's main loop costs. `undecided`: what no rule says."""

    def __init__(self, kernel, sources, rule, groups):
        self.kernel, self.sources, self.undecided = kernel, sources, []
        self.of = dict.fromkeys(COUNTED, 0.0)
        self.parts = {}
        mine = lambda rows: [row for row in rows if re.search(row[0], kernel.name)]
        self.shares, self.trips, self.widths = map(mine, (rules.SHARES, rules.TRIPS, rules.WIDTHS))
        for statement, units in rule.work:
            loop = self.find_loop(statement)
            if loop is None:
                self.undecided.append("loop `%s`, which is not there" % statement)
                continue
            own, uses, parts = self.run(statement, *loop)
            share = 1 / (units(uses, *groups) or 1)
            for column, value in own.items():
                self.of[column] += value * share
            for part, slots in parts.items():
                self.parts[part] = self.parts.get(part, 0.0) + slots * share

    def statements(self, one):
        """An instruction's statement and those of the calls around it, innermost first."""
        return [self.sources.statement(frame) for frame in one.chain]

    def lies_in(self, frame, pattern):
        """Whether a line belongs to a rule's statement, or lies in its range of statements."""
        start, _, end = pattern.partition(" … ")
        if not end:
            return re.search(pattern, self.sources.statement(frame))
        return self.sources.find(frame[0], start, 0) <= frame[1] <= self.sources.find(
            frame[0], end, self.sources.find(frame[0], start, 0))

    def find_rule(self, rows, one):
        """The first of the rows whose statement the instruction comes from."""
        text = " in ".join(self.statements(one))
        return next((row for row in rows if re.search(row[1], text)), None)

    def loops(self):
        """(first, last) of each branch back."""
        for last, one in enumerate(self.kernel.code):
            label = one.opcode.startswith("BRA") and LABEL.search(one.operands)
            first = self.kernel.labels.get(label.group(1)) if label else None
            if first is not None and first <= last:
                yield first, last

    def turns(self, statement, at):
        """Whether the branch back of a loop has the statement: several may, of one loop."""
        return statement and re.search(statement, " in ".join(self.statements(self.kernel.code[at])))

    def find_loop(self, statement):
        """The longest loop whose branch back has the statement; WHOLE: all up to the end."""
        if statement is rules.WHOLE:
            ends = [i for i, one in enumerate(self.kernel.code) if one.opcode == "EXIT"]
            return (0, ends[-1]) if ends else None
        return max((loop for loop in self.loops() if self.turns(statement, loop[1])),
                   key=lambda loop: loop[1] - loop[0], default=None)

    def run(self, statement, first, last):
        """A run of a loop: {column: cost}, its global loads and stores, slots of each function called."""
        code = self.kernel.code
        runs = [1.0] * len(code)
        for i in range(first, last + 1):
            for row in self.shares:
                if any(self.lies_in(frame, row[1]) for frame in code[i].chain):
                    runs[i] *= row[2]
        for head, latch in self.loops():
            if first <= head and latch < last and runs[latch] > 0 and not self.turns(statement, latch):
                row = self.find_rule(self.trips, code[latch])
                if row is None:
                    self.undecided.append("trips of the loop `%s`" % self.statements(code[latch])[0])
                for i in range(head, latch + 1):
                    runs[i] *= row[2] if row else 1
        cost, uses, parts = dict.fromkeys(COUNTED, 0.0), {"loads": 0.0, "stores": 0.0}, {}
        for one, times in zip(code[first:last + 1], runs[first:last + 1]):
            cost["slots"] += times
            cost["issue"] += times / 4
            cost["special"] += times * 2 * bool(SPECIAL.match(one.opcode))
            cost["shared"] += times * self.data_path(one)
            uses["loads"] += times * bool(LOADS.match(one.opcode))
            uses["stores"] += times * bool(STORES.match(one.opcode))
            part = self.statements(one)[-2][:40] if len(one.chain) > 1 else "(kernel)"
            parts[part] = parts.get(part, 0.0) + times
        return cost, uses, parts

    def data_path(self, one):
        """Cycles that an instruction takes of shared memory's data path."""
        if not SHARED.match(one.opcode):
            return 0
        row = self.find_rule(self.widths, one)
        return row[2] if row else next((WIDE[bits] for bits in one.opcode.split(".") if bits in WIDE), 1)


def rule_of(name):
    """(rule, numbers in the name) of a kernel whose main loop is counted, or (None, [])."""
    for rule in rules.KERNELS:
        found = re.search(rule.name, name)
        if found:
            return rule, [int(group) for group in found.groups()]
    return None, []


def row_of(kernel, sources):
    """({column: number} as the table has it, the count or None)"""
    rule, groups = rule_of(kernel.name)
    row = {"local": sum(1 for one in kernel.code if LOCAL.match(one.opcode)),
           "registers": kernel.registers, "blocks": kernel.blocks(rule.dynamic if rule else 0)}
    count = Count(kernel, sources, rule, groups) if rule else None
    if count:
        row.update(count.of)
    digits = {**COUNTED, **TAKEN}
    return {column: round(value, digits[column]) for column, value in row.items()}, count


def read_all(args):
    """Each kernel of the files given."""
    nvdisasm = machine.find_tool("nvdisasm", args.tools)
    cuobjdump = machine.find_tool("cuobjdump", args.tools)
    paths = []
    for path in args.files:
        objects = glob.glob(os.path.join(path, "**", "*.cu.o"), recursive=True)
        paths += sorted(objects) if os.path.isdir(path) else [path]
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            cubin, made = path, os.path.getmtime(path)
            if path.endswith(".cu"):
                cubin, made = os.path.join(folder, os.path.basename(path) + ".cubin"), time.time()
                machine.compile_source(args.nvcc, path, args.arch, cubin)
            elif not path.endswith(".cubin"):
                cubin = machine.extract(cuobjdump, path, args.arch, folder)
            for kernel in machine.read_kernels(cubin, args.arch, nvdisasm, cuobjdump) if cubin else []:
                check_age(kernel, made)
                if re.search(args.kernel, kernel.name):
                    yield kernel


def check_age(kernel, made):
    """Ends the program when a source is newer than its machine code, whose lines are then others."""
    for path in {path for one in kernel.code for path, _ in one.chain}:
        if path.startswith(machine.ROOT) and os.path.getmtime(path) > made:
            raise SystemExit("%s is newer than the object files: build them (`ctest -R cuda_build`)"
                             % os.path.relpath(path, machine.ROOT))


def report(args):
    sources = machine.Sources()
    for kernel in read_all(args):
        row, count = row_of(kernel, sources)
        print("%s: %s, %d threads" % (kernel.name, ", ".join(
            "%g %s" % (value, column) for column, value in row.items()), kernel.threads))
        for note in count.undecided if count else []:
            print("  no rule decides the %s" % note)
        for part, slots in sorted(count.parts.items(), key=lambda x: -x[1]) if count and args.parts else []:
            print("    %-40s %6.1f" % (part, slots))
    return 0


def tabled(args):
    """({name: row}, faults)"""
    rows, faults, sources = {}, [], machine.Sources()
    for kernel in read_all(args):
        if kernel.name in rows:
            continue
        rows[kernel.name], count = row_of(kernel, sources)
        if kernel.stack > rules.LOCAL_MOST:
            faults.append("%s takes %d bytes of local memory a thread, and %d are reserved "
                          "(src/train/memory.c)" % (kernel.name, kernel.stack, rules.LOCAL_MOST))
        faults += ["%s: %s %s (%s)" % (kernel.name, one.opcode, one.operands, sources.statement(one.chain[0]))
                   for one in kernel.code if GENERIC.match(one.opcode) and kernel.name.startswith("scan_")]
        faults += ["%s: no rule decides the %s" % (kernel.name, text) for text in
                   (count.undecided if count else [])]
    return rows, faults


def write_table(file, head, rows, columns):
    lines = [head] + [["`%s`" % name] + ([rule_of(name)[0].unit] if "unit" in head else []) + [
        "%.*f" % (digits, rows[name][c]) if c in rows[name] else "" for c, digits in columns.items()]
                      for name in sorted(rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        file.write("| " + " | ".join(field.rjust(width) if i >= len(head) - len(columns) else
                                     field.ljust(width) for i, (field, width) in
                                     enumerate(zip(line, widths))) + " |\n")


def renew(args):
    """Writes the table. Rows of sources that are not among the files stay."""
    kept, version, _ = read_table()
    here = machine.nvcc_version(args.nvcc)
    if args.files and here != version:
        raise SystemExit("the table is of nvcc %s, and here is %s: renew it as a whole" % (version, here))
    whole = not args.files
    args.files = args.files or sorted(glob.glob(os.path.join(machine.ROOT, "kernels", "*.cu")))
    rows, faults = tabled(args)
    renewed = {name.split()[0] for name in rows}
    rows.update((name, row) for name, row in kept.items() if not whole and name.split()[0] not in renewed)
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(HEAD.format(renew=RENEW, nvcc=here, architecture=args.arch))
        write_table(file, ["kernel", "unit", *COUNTED], {n: r for n, r in rows.items() if "slots" in r}, COUNTED)
        file.write("\nOf every kernel: instructions that access local memory (spills, arrays that are "
                   "indexed),\nregisters of a thread, blocks that a multiprocessor holds.\n\n")
        write_table(file, ["kernel", *TAKEN], rows, TAKEN)
    print("%d kernels in %s" % (len(rows), TABLE))
    return say(faults + check_comments() + check_constants())


def read_table():
    """({kernel: {column: number}}, nvcc's version, architecture)"""
    with open(TABLE, encoding="utf-8") as file:
        text = file.read()
    rows, head = {}, []
    for line in text.split("\n"):
        fields = [field.strip() for field in line.strip("|").split("|")]
        if fields[0] == "kernel":
            head = fields
        elif fields[0].startswith("`"):
            rows.setdefault(fields[0].strip("`"), {}).update(
                (column, float(field)) for column, field in zip(head[1:], fields[1:])
                if field and column != "unit")
    named = re.search(r"sm_(\w+), nvcc ([\d.]+)", text)
    return rows, named.group(2), named.group(1)


def check(args):
    then, version, args.arch = read_table()
    here = machine.nvcc_version(args.nvcc)
    if here != version:
        raise machine.Skip("the table is of nvcc %s, and here is %s" % (version, here))
    now, faults = tabled(args)
    if not now:
        raise machine.Skip("no object files of kernels in %s" % " ".join(args.files))
    faults += ["%s is in one of table and machine code alone" % name for name in sorted(set(then) ^ set(now))]
    for name in sorted(set(then) & set(now)):
        for column in [*COUNTED, *TAKEN]:
            before, after = then[name].get(column, 0), now[name].get(column, 0)
            change = "%s: %s %g, in the table %g" % (name, column, after, before)
            if after != before and (after > before) == (column == "blocks"):
                print("better than the table: %s (`%s` records it)" % (change, RENEW))
            elif after != before:
                faults.append(change)
    if faults:
        faults.append("A number may rise for a reason: `%s`, and say in the commit why. What the machine "
                      "code does not say is in tests/sass/rules.py." % RENEW)
    return say(faults)


# A statement of a comment: `scan_backward_registers<16,2,8,bf16,true>: 172 slots, 168 registers`.
NUMBER = r"([\d.]+) (%s)\b" % "|".join([*COUNTED, *TAKEN])
PLAIN = NUMBER.replace("(", "(?:")
STATEMENT = re.compile(r"(\w+<[\w,]+>|\w+_kernel): (%s(?:(?:,| and) %s)*)" % (PLAIN, PLAIN))
# What looks like one and is not in that form.
STRAY = re.compile(r"\b[\d.]+ (?:instructions?|slots|registers|blocks an? (?:SM|multiprocessor))\b"
                   r"|[Ii]nstructions an? \w+\b[^.(]*: [\d.]+")


def comments(path):
    """(line, text) of each run of // lines."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines):
        if line.lstrip().startswith("//") and not lines[number - 1].lstrip().startswith("//"):
            end = number
            while lines[end].lstrip().startswith("//"):
                end += 1
            yield number + 1, " ".join(text.strip().lstrip("/ ") for text in lines[number:end])


def check_comments():
    """What comments of the kernels state otherwise than the table."""
    rows, _, _ = read_table()
    faults = []
    for path in sorted(glob.glob(os.path.join(machine.ROOT, "kernels", "*.cu*"))):
        file = os.path.splitext(os.path.basename(path))[0]
        for line, text in comments(path):
            where = "kernels/%s:%d" % (os.path.basename(path), line)
            for name, numbers in STATEMENT.findall(text):
                # of this source, or of one that includes the file
                found = [rows.get("%s %s" % (file, name))] + [
                    row for kernel, row in rows.items() if kernel.endswith(" " + name)]
                row = next(filter(None, found), {})
                for stated, column in re.findall(NUMBER, numbers):
                    places = len(stated.partition(".")[2])
                    if abs(float(stated) - row.get(column, -1)) > 0.5 * 10 ** -places + 1e-9:
                        faults.append("%s: %s: %s %s, in the table %g" % (
                            where, name, stated, column, row.get(column, -1)))
            for stray in STRAY.findall(STATEMENT.sub("", text)):
                faults.append("%s: `%s` is checked by nothing: write it as `kernel<…>: N slots, N "
                              "registers, N blocks`" % (where, stray))
    return faults


def check_constants():
    """Which constants of the sources are far from what was counted."""
    rows, _, _ = read_table()
    faults = []
    for file, pattern, kernels, reason in rules.CONSTANTS:
        with open(os.path.join(machine.ROOT, "kernels", file), encoding="utf-8") as text:
            stated = re.search(pattern, text.read()).groups()
        for number, (kernel, share) in zip(stated, kernels):
            for name, row in rows.items():
                cycles = 4 * max(row.get(pipe, 0) for pipe in PIPES) * share
                if name.startswith(kernel) and cycles and \
                        abs(float(number) / cycles - 1) > rules.CONSTANTS_NEAR:
                    faults.append("kernels/%s: %s for %s, which takes %.0f cycles: %s" % (
                        file, number, name, cycles, reason))
    return faults


def say(faults):
    print("\n".join(faults) or "good")
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--renew", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--comments", action="store_true")
    parser.add_argument("--kernel", default=".", metavar="REGEX", help="kernels to report")
    parser.add_argument("--arch", default="90", help="architecture (default: 90)")
    parser.add_argument("--parts", action="store_true", help="slots of each function called")
    parser.add_argument("--tools", metavar="FOLDER", help="of nvdisasm and cuobjdump")
    parser.add_argument("--nvcc", metavar="FILE", default=shutil.which("nvcc") or
                        "/usr/local/cuda/bin/nvcc")
    args = parser.parse_args()
    if args.comments:
        return say(check_comments() + check_constants())
    if not os.access(args.nvcc, os.X_OK):
        raise machine.Skip("no nvcc here")
    return (renew if args.renew else check if args.check else report)(args)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except machine.Skip as absent:
        print(absent)
        raise SystemExit(77)
