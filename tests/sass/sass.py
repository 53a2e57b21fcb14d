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

import cost
import listing
import tools


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


def kernels(args):
    """(function, sources, architecture, registers, static shared memory, threads) of each kernel."""
    nvdisasm = tools.find_tool("nvdisasm", args.tools)
    cuobjdump = tools.find_tool("cuobjdump", args.tools)
    sources = listing.Sources()
    with tempfile.TemporaryDirectory() as folder:
        for architecture, cubin in cubins(args, folder):
            functions = listing.read_functions(tools.run([nvdisasm, "-c", "-gi", cubin]))
            cost.name_functions(functions, sources)
            used, threads = tools.resources(cuobjdump, cubin), tools.most_threads(cubin)
            for function in functions:
                if re.search(args.kernel, function.name) and function.symbol in used:
                    yield (function, sources, architecture, *used[function.symbol],
                           threads.get(function.symbol, 1024))


def report(args):
    for function, sources, architecture, registers, shared, threads in kernels(args):
        count = cost.Count(function, sources)
        shared += count.kernel.dynamic if count.kernel else 0
        print("%s, sm_%s: %d registers, %d bytes shared, %d threads, %d blocks a multiprocessor" % (
            function.name, architecture, registers, shared, threads,
            cost.resident_blocks(registers, shared, threads, architecture)))
        print("  per %s: %.1f slots, %s" % (
            count.kernel.unit if count.kernel else "run of the largest loop", count.cost.slots,
            ", ".join("%.2f %s" % (value, kind) for kind, value in count.cost.of.items())))
        for note in count.undecided:
            print("  no rule decides the %s" % note)
        if args.parts:
            for part, slots in sorted(count.cost.parts.items(), key=lambda item: -item[1]):
                print("    %-30s %6.1f" % (part, slots))
        if args.branches:
            for note in count.notes:
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
