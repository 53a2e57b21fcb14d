"""NVIDIA's tools: where they are, what they say of an object file. Skip: a tool is absent."""

import glob
import os
import re
import shutil
import struct
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ELF_CUDA = 190
ATTRIBUTE_MAX_THREADS = 0x05
SIZED = 0x04  # format of an attribute that has its size before its value


class Skip(Exception):
    pass


def find_tool(name, folder=None):
    """In a given folder, in $DTRAIN_SASS_TOOLS, in PATH, or next to nvcc."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    places = [folder, os.environ.get("DTRAIN_SASS_TOOLS"), None, os.path.dirname(nvcc)]
    for place in places:
        found = shutil.which(name, path=place) if place else place is None and shutil.which(name)
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
    found = re.search(r"release [\d.]+, V([\d.]+)", run([nvcc, "--version"]))
    return found.group(1) if found else "unknown"


def compile_source(nvcc, source, architecture, output):
    """With the flags of a release build, and with lines, which change no code."""
    run([nvcc, "-std=c++17", "-O3", "-DNDEBUG", "-lineinfo", "-arch=sm_%s" % architecture, "-cubin",
         "-I%s" % ROOT, "-I%s" % os.path.join(ROOT, "src"), "-o", output, source])


def is_cubin(path):
    with open(path, "rb") as file:
        head = file.read(20)
    return head[:4] == b"\x7fELF" and struct.unpack_from("<H", head, 18)[0] == ELF_CUDA


def extract(cuobjdump, path, folder):
    """{architecture: cubin} of an object file."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        run([cuobjdump, "-xelf", "all", os.path.abspath(path)], cwd=own)
        found = {}
        for cubin in glob.glob(os.path.join(own, "*.cubin")):
            architecture = re.search(r"sm_(\w+)\.cubin$", cubin).group(1)
            kept = os.path.join(folder, "%s.%s.cubin" % (os.path.basename(path), architecture))
            os.rename(cubin, kept)
            found[architecture] = kept
        return found


def resources(cuobjdump, cubin):
    """{symbol: (registers, static shared memory, bytes of local memory of a thread)}"""
    text = run([cuobjdump, "-res-usage", cubin])
    found = {}
    for symbol, registers, stack, shared in re.findall(
            r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text):
        found[symbol] = (int(registers), int(shared), int(stack))
    return found


def most_threads(cubin):
    """{symbol: threads of a block that __launch_bounds__ allows}, from the sections .nv.info.*"""
    with open(cubin, "rb") as file:
        data = file.read()
    start, = struct.unpack_from("<Q", data, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
    sections = []
    for i in range(count):
        name, _, _, _, offset, length = struct.unpack_from("<IIQQQQ", data, start + i * size)
        sections.append((name, offset, length))
    names = sections[names_at][1]
    found = {}
    for name, offset, length in sections:
        end = data.index(b"\0", names + name)
        title = data[names + name:end].decode()
        if not title.startswith(".nv.info."):
            continue
        at = offset
        while at < offset + length:
            form, attribute, value = struct.unpack_from("<BBH", data, at)
            if form == SIZED and attribute == ATTRIBUTE_MAX_THREADS:
                x, y, z = struct.unpack_from("<III", data, at + 4)
                found[title[len(".nv.info."):]] = x * y * z
            at += 4 + (value if form == SIZED else 0)
    return found
