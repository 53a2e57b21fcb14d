"""Reads machine code with NVIDIA's tools: the kernels of a file, and the source lines of each instruction."""

import collections
import functools
import glob
import math
import os
import re
import shutil
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What a multiprocessor of each architecture has: registers, KiB of shared memory, warps, blocks.
LIMITS = {"80": (65536, 164, 64, 32), "86": (65536, 100, 48, 16), "89": (65536, 100, 48, 24),
          "90": (65536, 228, 64, 32), "100": (65536, 228, 64, 32), "120": (65536, 100, 48, 32)}
SHARED_OF_SYSTEM = 1024  # bytes of shared memory in each block that CUDA uses itself


class Skip(Exception):
    """Raised where a tool is not installed."""


def find_tool(name, folder=None):
    """Returns the path of a tool: in a given folder, in $DTRAIN_SASS_TOOLS, in PATH, or next to nvcc."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    for place in (folder, os.environ.get("DTRAIN_SASS_TOOLS"), os.environ["PATH"], os.path.dirname(nvcc)):
        found = place and shutil.which(name, path=place)
        if found:
            return found
    raise Skip("no %s here: put it in PATH, or name its folder by --tools or DTRAIN_SASS_TOOLS (PyPI "
               "has nvidia-cuda-nvdisasm and nvidia-cuda-cuobjdump)" % name)


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        raise SystemExit("%s failed:\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return done.stdout


def nvcc_version(nvcc):
    return re.search(r"release [\d.]+, V([\d.]+)", run([nvcc, "--version"])).group(1)


def cubins(path, args, folder):
    """Returns the files with the machine code of a source, a .cubin, or an object file, which may lack the
    architecture. A source is compiled as in a release build, with line numbers, which change no code."""
    if path.endswith(".cubin"):
        return [path]
    if path.endswith(".cu"):
        run([args.nvcc, "-std=c++17", "-O3", "-DNDEBUG", "-lineinfo", "-arch=sm_%s" % args.arch, "-cubin",
             "-I%s" % ROOT, "-I%s" % os.path.join(ROOT, "src"),
             "-o", os.path.join(folder, "one.sm_%s.cubin" % args.arch), path])
    else:
        run([find_tool("cuobjdump", args.tools), "-xelf", "all", os.path.abspath(path)], cwd=folder)
    return glob.glob(os.path.join(folder, "*.sm_%s.cubin" % args.arch))


def most_threads(elf):
    """Returns {symbol: threads that __launch_bounds__ allows in a block} from what `cuobjdump -elf` prints."""
    found = {}
    for section in re.split(r"^\.nv\.info\.", elf, flags=re.M)[1:]:
        bounds = re.search(r"EIATTR_MAX_THREADS\n.*\n\s*Value:(.*)", re.split(r"^\.", section, flags=re.M)[0])
        if bounds:
            found[section.split("\n")[0].strip()] = math.prod(int(number, 16) for number in bounds.group(1).split())
    return found


# chain: (file, line) of the statement, then those of each call into which it was inlined
Instruction = collections.namedtuple("Instruction", "opcode operands chain")


class Kernel:
    """A kernel: its instructions in order, its labels as indices of these, and what it uses of a multiprocessor."""

    def __init__(self, symbol):
        self.symbol = symbol
        self.code, self.labels = [], {}

    def take(self, registers, stack, shared, threads, architecture):
        self.registers, self.stack, self.threads = registers, stack, threads
        system = SHARED_OF_SYSTEM if int(architecture) >= 90 else 0  # cuobjdump includes it from sm_90 on
        self.shared, self.architecture = max(0, shared - system), architecture

    def blocks(self, dynamic=0):
        """Returns how many blocks a multiprocessor holds, if each has `dynamic` bytes more of shared memory."""
        registers, shared, warps, most = LIMITS[self.architecture]
        own = -(-self.threads // 32)
        of_warp = -(-self.registers * 32 // 256) * 256
        by_registers = registers // of_warp // own if of_warp else most
        bytes_shared = -(-(self.shared + dynamic) // 128) * 128 + SHARED_OF_SYSTEM
        return min(by_registers, shared * 1024 // bytes_shared, warps // own, most)


FRAME = re.compile(r'//## File "([^"]+)", line (\d+)')
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+[{} ]*(?:@!?U?P[T0-9]+\s+)?(\S+)\s*(.*?)\s*;\s*$")


def read_listing(listing):
    """Returns the kernels of an `nvdisasm -c -gi` listing, without subroutines (slow paths of divisions)."""
    kernels, chain, fresh = [], (), True
    for line in listing.split("\n"):
        frame, found = FRAME.search(line), LINE.search(line)
        if line.startswith(".text."):
            kernels.append(Kernel(line[6:].rstrip(":")))
            inside, chain = True, ()
        elif frame:
            chain = (() if fresh else chain) + ((os.path.realpath(frame.group(1)), int(frame.group(2))),)
            fresh = False
        elif line.startswith("$") and kernels:
            inside = False
        elif line.startswith(".L_x_"):
            kernels[-1].labels[line.strip().rstrip(":")] = len(kernels[-1].code)
        elif found and kernels and inside:
            kernels[-1].code.append(Instruction(found.group(2), found.group(3), chain))
            fresh = True
    return kernels


def short_name(name):
    """Shortens a demangled name to `scan_backward_registers<16,2,8,bf16,true>`."""
    name, depth = re.sub(r"^void ", "", name), 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name.startswith("(anonymous", i):
            name = name[:i]
            break
    name = name.replace("unsigned short", "bf16").replace("float", "fp32")
    name = re.sub(r"\((?:bool|int|unsigned int|long)\)", "", name)
    return re.sub(r"scan_form<([^<>]*)>", r"\1", name).replace(" ", "")


def read_kernels(path, args):
    """Returns the kernels of a file, named with their source: `cast cast_kernel<8,bf16,fp32>`."""
    cuobjdump, source = find_tool("cuobjdump", args.tools), os.path.basename(path).partition(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        for cubin in cubins(path, args, folder):
            kernels = read_listing(run([find_tool("nvdisasm", args.tools), "-c", "-gi", cubin]))
            names = run([find_tool("c++filt")], input="\n".join(kernel.symbol for kernel in kernels)).split("\n")
            threads = most_threads(run([cuobjdump, "-elf", cubin]))
            used = {symbol: map(int, numbers) for symbol, *numbers in re.findall(
                r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", run([cuobjdump, "-res-usage", cubin]))}
            for kernel, name in zip(kernels, names):
                if kernel.symbol in used:
                    kernel.name = "%s %s" % (source, short_name(name))
                    kernel.take(*used[kernel.symbol], threads.get(kernel.symbol, 1024), args.arch)
                    yield kernel


@functools.lru_cache(None)
def source_lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return [re.sub(r"\s*//.*$", "", line).strip() for line in file.read().split("\n")]


@functools.lru_cache(None)
def statement(frame):
    """Returns the statement of the source that a line belongs to, on one line."""
    lines, first = source_lines(frame[0]), frame[1] - 1
    if not 0 <= first < len(lines):
        return ""
    last = first
    while first > 0 and lines[first - 1] and not re.search(r"[;{}:]$|^#", lines[first - 1]) \
            and not lines[first].startswith("#"):
        first -= 1
    while last + 1 < len(lines) and not re.search(r"[;{}]$|^#", lines[last]):
        last += 1
    return " ".join(lines[first:last + 1])
