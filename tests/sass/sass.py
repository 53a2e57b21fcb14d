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

import cost
import listing
import rules
import table
import tools


def cubins(args, folder):
    """[(architecture, cubin, when it was made)] of the files given."""
    paths = []
    for path in args.files:
        objects = glob.glob(os.path.join(path, "**", "*.cu.o"), recursive=True)
        paths += sorted(objects) if os.path.isdir(path) else [path]
    for path in paths:
        if path.endswith(".cu"):
            output = os.path.join(folder, os.path.basename(path) + ".cubin")
            tools.compile_source(args.nvcc, path, args.arch, output)
            yield args.arch, output, time.time()
        elif tools.is_cubin(path):
            yield args.arch, path, os.path.getmtime(path)
        else:
            found = tools.extract(tools.find_tool("cuobjdump", args.tools), path, folder)
            if args.arch in found:
                yield args.arch, found[args.arch], os.path.getmtime(path)


class Kernel:
    """A kernel in a file: its count, and what it takes of a multiprocessor."""

    def __init__(self, function, sources, architecture, used, threads, unruled):
        self.name, self.architecture, self.threads = function.name, architecture, threads
        self.count = cost.Count(function, sources, unruled)
        self.registers, self.shared, self.stack = used
        if int(architecture) >= 90:  # cuobjdump counts the system's share from there on
            self.shared = max(0, self.shared - cost.SHARED_OF_SYSTEM)
        if self.count.kernel:
            self.shared += self.count.kernel.dynamic
        self.blocks = cost.resident_blocks(self.registers, self.shared, threads, architecture)


def check_age(functions, made):
    """Ends the program when a source is newer than its machine code, whose lines are then others."""
    files = {path for function in functions for one in function.code for path, _ in one.chain}
    for path in sorted(files):
        if path.startswith(tools.ROOT) and os.path.getmtime(path) > made:
            raise SystemExit("%s is newer than the object files: build them (`ctest -R cuda_build`)"
                             % os.path.relpath(path, tools.ROOT))


def kernels(args, unruled=False):
    nvdisasm = tools.find_tool("nvdisasm", args.tools)
    cuobjdump = tools.find_tool("cuobjdump", args.tools)
    sources = listing.Sources()
    with tempfile.TemporaryDirectory() as folder:
        for architecture, cubin, made in cubins(args, folder):
            functions = listing.read_functions(tools.run([nvdisasm, "-c", "-gi", cubin]))
            check_age(functions, made)
            listing.name_functions(functions, os.path.basename(cubin).partition(".")[0])
            used, threads = tools.resources(cuobjdump, cubin), tools.most_threads(cubin)
            for function in functions:
                if re.search(args.kernel, function.name) and function.symbol in used:
                    yield Kernel(function, sources, architecture, used[function.symbol],
                                 threads.get(function.symbol, 1024), unruled)


def report(args):
    for kernel in kernels(args, unruled=True):
        count = kernel.count
        print("%s, sm_%s: %d registers, %d bytes shared, %d threads, %d blocks a multiprocessor" % (
            kernel.name, kernel.architecture, kernel.registers, kernel.shared, kernel.threads,
            kernel.blocks))
        print("  per %s: %s" % (
            count.kernel.unit if count.kernel else "run of the largest loop",
            ", ".join("%.2f %s" % (value, kind) for kind, value in count.cost.of.items())))
        if count.local:
            print("  %d accesses to %d bytes of local memory" % (count.local, kernel.stack))
        if count.kernel and count.kernel.units_token:
            print("  floors for a token of a layer of the 130M model: %s" % ", ".join(
                "%s %.1f" % item for item in table.floors(
                    count.kernel, count.cost.of["slots"], count.cost.of["special"]).items()))
        for note in count.undecided:
            print("  no rule decides the %s" % note)
        if args.parts:
            for part, slots in sorted(count.cost.parts.items(), key=lambda item: -item[1]):
                print("    %-30s %6.1f" % (part, slots))
        if args.branches:
            for note in count.notes:
                print("   ", note)


def tabled(args):
    """{name: row}, {name: unit}, what no rule decides and who takes too much local memory."""
    rows, units, undecided = {}, {}, []
    for kernel in kernels(args):
        if kernel.stack > rules.LOCAL_MOST:
            undecided.append("%s takes %d bytes of local memory a thread, and %d are reserved "
                             "(src/train/memory.c)" % (kernel.name, kernel.stack, rules.LOCAL_MOST))
        if kernel.name in rows:
            continue
        rows[kernel.name] = table.row_of(kernel)
        units[kernel.name] = kernel.count.kernel and kernel.count.kernel.unit
        if kernel.count.kernel:
            undecided += ["%s: no rule decides the %s" % (kernel.name, text)
                          for text in kernel.count.undecided]
    return rows, units, undecided


def renew(args):
    args.files = args.files or sorted(glob.glob(os.path.join(tools.ROOT, "kernels", "*.cu")))
    rows, units, undecided = tabled(args)
    table.write(rows, units, tools.nvcc_version(args.nvcc), args.arch)
    print("%d kernels in %s" % (len(rows), table.PATH))
    faults = undecided + table.check_comments() + table.check_constants()
    print("\n".join(faults))
    return 1 if faults else 0


def check(args):
    _, version, args.arch = table.read()
    here = tools.nvcc_version(args.nvcc)
    if here != version:
        raise tools.Skip("the table is of nvcc %s, and here is %s" % (version, here))
    rows, _, undecided = tabled(args)
    if not rows:
        raise tools.Skip("no object files of kernels in %s" % " ".join(args.files))
    faults, better = table.compare(rows)
    for line in better:
        print("better than the table: %s (`%s` records it)" % (line, table.RENEW))
    for line in undecided + faults:
        print(line)
    if undecided or faults:
        print("A number may rise for a reason: `%s`, and say in the commit why. What the machine "
              "code does not say is in tests/sass/rules.py." % table.RENEW)
    return 1 if undecided or faults else 0


def comments():
    faults = table.check_comments() + table.check_constants()
    print("\n".join(faults) or "comments agree with the table")
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
    parser.add_argument("--branches", action="store_true", help="how each branch was decided")
    parser.add_argument("--tools", metavar="FOLDER", help="of nvdisasm and cuobjdump")
    parser.add_argument("--nvcc", metavar="FILE", default=shutil.which("nvcc") or
                        "/usr/local/cuda/bin/nvcc")
    args = parser.parse_args()
    if args.comments:
        return comments()
    if not os.access(args.nvcc, os.X_OK):
        raise tools.Skip("no nvcc here")
    if args.renew:
        return renew(args)
    return check(args) if args.check else report(args)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except tools.Skip as absent:
        print(absent)
        raise SystemExit(77)
