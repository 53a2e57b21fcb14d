"""Machine code as nvdisasm lists it, and the source lines that it comes from."""

import os
import re

import tools


class Instruction:
    __slots__ = ("address", "guard", "opcode", "operands", "chain")

    def __init__(self, address, guard, opcode, operands, chain):
        self.address, self.guard, self.opcode = address, guard, opcode
        self.operands, self.chain = operands, chain


class Function:
    """A kernel (or a subroutine in its section): instructions in order, labels as indices."""

    def __init__(self, symbol):
        self.symbol, self.name = symbol, symbol
        self.code, self.labels = [], {}


FRAME = re.compile(r'//## File "([^"]+)", line (\d+)( inlined at "([^"]+)", line (\d+))?')
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s*$")
GUARD = re.compile(r"^@(!?U?P[T0-9]+)\s+")
TARGET = re.compile(r"`\((\.L_x_\d+|\$?[\w$]+)\)")


def read_functions(listing):
    """Functions of an `nvdisasm -c -gi` listing."""
    functions, now, chain, fresh = [], None, (), True
    for line in listing.split("\n"):
        if line.startswith(".text."):
            now = Function(line[6:].rstrip(":"))
            functions.append(now)
            chain = ()
            continue
        if now is None:
            continue
        frame = FRAME.search(line)
        if frame:
            if fresh:
                chain, fresh = (), False
            chain += ((os.path.realpath(frame.group(1)), int(frame.group(2))),)
            continue
        if line.startswith((".L_x_", "$")) and line.rstrip().endswith(":"):
            now.labels[line.strip().rstrip(":")] = len(now.code)
            continue
        found = LINE.search(line)
        if not found:
            continue
        fresh = True
        text = found.group(2).lstrip("{} ")
        guard = GUARD.match(text)
        if guard:
            text = text[guard.end():]
        opcode, _, operands = text.partition(" ")
        now.code.append(Instruction(int(found.group(1), 16), guard and guard.group(1), opcode,
                                    operands, chain))
    for function in functions:
        while function.code and function.code[-1].opcode == "NOP":
            function.code.pop()
    return functions


def name_functions(functions, source):
    """Names with the source's: `cast cast_kernel<8,bf16,fp32>`."""
    symbols = "\n".join(function.symbol for function in functions)
    names = tools.run([tools.find_tool("c++filt")], input=symbols)
    for function, name in zip(functions, names.split("\n")):
        function.name = "%s %s" % (source, short_name(name))


def short_name(name):
    """`scan_backward_registers<16,2,8,bf16,true>` of the demangled name."""
    name = re.sub(r"^void ", "", name)
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name.startswith("(anonymous", i):
            name = name[:i]
            break
    name = name.replace("unsigned short", "bf16").replace("float", "fp32")
    name = re.sub(r"\((?:bool|int|unsigned int|long)\)", "", name)
    name = re.sub(r"scan_form<([^<>]*)>", r"\1", name)
    return name.replace(" ", "")


class Sources:
    def __init__(self):
        self.files = {}

    def lines(self, path):
        if path not in self.files:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    self.files[path] = file.read().split("\n")
            except OSError:
                self.files[path] = []
        return self.files[path]

    def statement(self, frame):
        """The statement that a line belongs to, on one line."""
        path, number = frame
        lines = self.lines(path)
        if not 0 < number <= len(lines):
            return ""
        strip = [re.sub(r"\s*//.*$", "", x).strip() for x in lines[max(0, number - 6):number + 5]]
        at = number - 1 - max(0, number - 6)
        first = last = at
        while first > 0 and strip[first - 1] and not re.search(r"[;{}:]$|^#", strip[first - 1]) \
                and not strip[first].startswith("#"):
            first -= 1
        while last + 1 < len(strip) and not re.search(r"[;{}]$|^#", strip[last]):
            last += 1
        return " ".join(strip[first:last + 1])

    def function(self, frame):
        """Name of the function that a line lies in."""
        path, number = frame
        lines = self.lines(path)
        for i in range(min(number, len(lines)) - 1, -1, -1):
            line = lines[i]
            if re.match(r"[A-Za-z]", line) and not line.startswith(("template", "using", "enum")):
                head = " ".join(lines[i:i + 2])
                head = re.sub(r"__launch_bounds__\s*\(([^()]|\([^()]*(\([^()]*\))*[^()]*\))*\)", "", head)
                name = re.search(r"([A-Za-z_]\w*)\s*\(", head)
                return name.group(1) if name else "?"
        return "?"
