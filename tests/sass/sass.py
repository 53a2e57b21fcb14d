#!/usr/bin/env python3
"""Counts what a token costs in a kernel's main loop, from its machine code.

sass.py FILE… [--kernel REGEX] [--arch 90] [--parts] [--branches]
    FILE: a .cu (compiled as in a release build), a .cubin or an object file built with -lineinfo
"""

import argparse
import os
import re
import shutil
import tempfile

import flow
import frequency
import listing
import rules
import tools

# What an instruction uses besides its issue slot.
KINDS = {
    "special": r"(MUFU|F2F|F2I|I2F|FRND|POPC|FLO|BREV)\b(?!P)",  # 16 lanes a clock and multiprocessor
    "shared": r"(LDS|STS|LDSM|STSM|ATOMS)\b",
    "shuffles": r"(SHFL|REDUX)\b",
    "spills": r"(LDL|STL)\b",
    "memory": r"(LDG|STG|LDGSTS|RED|ATOMG|LD|ST|UBLKCP|UTMALDG)\b",
}
KINDS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}

REGISTERS_MULTIPROCESSOR, WARPS_MULTIPROCESSOR = 65536, 64
SHARED_MULTIPROCESSOR = {"80": 164, "90": 228, "100": 228, "120": 100}  # KiB
SHARED_BLOCK_EXTRA = 1024


class Cost:
    """Of a run of the main loop, or of a unit of its work."""

    def __init__(self):
        self.slots = 0.0
        self.of = dict.fromkeys(KINDS, 0.0)
        self.parts = {}

    def add(self, one, times, part):
        self.slots += times
        for kind, pattern in KINDS.items():
            if pattern.match(one.opcode):
                self.of[kind] += times
        self.parts[part] = self.parts.get(part, 0.0) + times

    def divide(self, units):
        self.slots /= units
        self.of = {kind: value / units for kind, value in self.of.items()}
        self.parts = {part: value / units for part, value in self.parts.items()}


def part_of(one, sources):
    """The function, called from the kernel itself, that an instruction comes from."""
    if len(one.chain) < 2:
        return "(kernel)"
    path, _ = one.chain[-2]
    return sources.function(one.chain[-2]) if path.startswith(tools.ROOT) else "(library)"


def rule_of(name):
    """(unit, units in a run of the main loop) of a kernel, or None."""
    for pattern, unit, expression, _ in rules.KERNELS:
        found = re.match(pattern, name)
        if found:
            for i, group in enumerate(found.groups(), 1):
                expression = expression.replace("{%d}" % i, group)
            return unit, eval(expression, {"__builtins__": {}})
    return None


def count(function, sources):
    """Cost of a run of the main loop, or None; notes; what no rule decides."""
    blocks = flow.make_blocks(function)
    loops = flow.find_loops(blocks)
    tops = [loop for loop in loops if loop.parent is None]
    if not tops:
        return None, [], []
    main = max(tops, key=lambda loop: sum(blocks[b].last - blocks[b].first for b in loop.blocks))
    found = frequency.Frequencies(function, blocks, loops, main,
                                  frequency.Rules(function.name, sources))
    cost = Cost()
    for b, times in found.of.items():
        for one in frequency.body(function, blocks, b):
            cost.add(one, times, part_of(one, sources))
    return cost, found.notes, found.undecided


def blocks_resident(registers, shared, threads, architecture):
    """Blocks that a multiprocessor holds."""
    warps = -(-threads // 32)
    each = -(-registers * 32 // 256) * 256  # registers of a warp
    by_registers = REGISTERS_MULTIPROCESSOR // each // warps if each else WARPS_MULTIPROCESSOR
    room = SHARED_MULTIPROCESSOR.get(architecture, 100) * 1024
    by_shared = room // (-(-shared // 128) * 128 + SHARED_BLOCK_EXTRA)
    return min(by_registers, by_shared, WARPS_MULTIPROCESSOR // warps, 32)


def cubins(args, folder):
    """[(architecture, cubin)] of the files given."""
    for path in args.files:
        if path.endswith(".cu"):
            nvcc = args.nvcc or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
            output = os.path.join(folder, os.path.basename(path) + ".cubin")
            tools.compile_source(nvcc, path, args.arch, output)
            yield args.arch, output
        elif tools.is_cubin(path):
            yield args.arch, path
        else:
            found = tools.extract(tools.find_tool("cuobjdump", args.tools), path, folder)
            if args.arch in found:
                yield args.arch, found[args.arch]


def report(args):
    nvdisasm = tools.find_tool("nvdisasm", args.tools)
    cuobjdump = tools.find_tool("cuobjdump", args.tools)
    sources = listing.Sources()
    with tempfile.TemporaryDirectory() as folder:
        for architecture, cubin in cubins(args, folder):
            functions = listing.read_functions(tools.run([nvdisasm, "-c", "-gi", cubin]))
            listing.demangle(functions)
            used, threads = tools.resources(cuobjdump, cubin), tools.most_threads(cubin)
            for function in functions:
                if re.search(args.kernel, function.name) and function.symbol in used:
                    show(args, function, sources, architecture, used[function.symbol],
                         threads.get(function.symbol, 1024))


def show(args, function, sources, architecture, used, threads):
    registers, shared = used
    print("%s, sm_%s: %d registers, %d bytes shared, %d threads, %d blocks a multiprocessor" % (
        function.name, architecture, registers, shared, threads,
        blocks_resident(registers, shared, threads, architecture)))
    cost, notes, undecided = count(function, sources)
    if not cost:
        print("  no loop")
        return
    rule = rule_of(function.name)
    unit, units = rule if rule else ("run of the main loop", 1)
    cost.divide(units)
    print("  per %s: %.1f slots, %s" % (unit, cost.slots, ", ".join(
        "%.2f %s" % (value, kind) for kind, value in cost.of.items())))
    for note in undecided:
        print("  no rule decides the %s" % note)
    if args.parts:
        for part, slots in sorted(cost.parts.items(), key=lambda item: -item[1]):
            print("    %-30s %6.1f" % (part, slots))
    if args.branches:
        for note in notes:
            print("   ", note)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--kernel", default=".", metavar="REGEX", help="kernels to report")
    parser.add_argument("--arch", default="90", help="architecture (default: 90)")
    parser.add_argument("--parts", action="store_true", help="slots of each function called")
    parser.add_argument("--branches", action="store_true", help="how each branch was decided")
    parser.add_argument("--tools", metavar="FOLDER", help="of nvdisasm and cuobjdump")
    parser.add_argument("--nvcc", metavar="FILE")
    args = parser.parse_args()
    report(args)


if __name__ == "__main__":
    try:
        main()
    except tools.Skip as absent:
        print(absent)
        raise SystemExit(77)
