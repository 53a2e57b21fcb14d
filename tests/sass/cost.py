"""What a unit of a kernel's work costs, and how much of a GPU it fills."""

import re

import flow
import frequency
import rules
import tools

# What an instruction uses; an issue slot all of them.
KINDS = {
    "slots": r"",
    "special": r"(MUFU|F2F|F2I|I2F|FRND|POPC|FLO|BREV)\b(?!P)",
    "shared": r"(LDS|STS|LDSM|STSM|ATOMS)\b",
    "shuffles": r"(SHFL|REDUX)\b",
    "loads": r"(LDG|LDGSTS|LD|UBLKCP|UTMALDG)\b",
    "stores": r"(STG|ST)\b",
}
LOCAL = re.compile(r"(LDL|STL)\b")
KINDS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}

# Of an architecture: registers, KiB of shared memory, warps and blocks of a multiprocessor.
LIMITS = {"80": (65536, 164, 64, 32), "86": (65536, 100, 48, 16), "89": (65536, 100, 48, 24),
          "90": (65536, 228, 64, 32), "100": (65536, 228, 64, 32), "120": (65536, 100, 48, 32)}
SHARED_OF_SYSTEM = 1024  # bytes of a block


class Cost:
    """Of a run of a loop, or of a unit of work."""

    def __init__(self):
        self.of = dict.fromkeys(KINDS, 0.0)
        self.parts = {}

    def add(self, one, times, part):
        for kind, pattern in KINDS.items():
            if pattern.match(one.opcode):
                self.of[kind] += times
        self.parts[part] = self.parts.get(part, 0.0) + times

    def add_share(self, other, units):
        """Of another's `units` units one."""
        for kind, value in other.of.items():
            self.of[kind] += value / units
        for part, slots in other.parts.items():
            self.parts[part] = self.parts.get(part, 0.0) + slots / units


def part_of(one, sources):
    """The function, called from the kernel itself, that an instruction comes from."""
    if len(one.chain) < 2:
        return "(kernel)"
    path, _ = one.chain[-2]
    return sources.function(one.chain[-2]) if path.startswith(tools.ROOT) else "(library)"


def size(blocks, loop):
    return sum(blocks[b].last - blocks[b].first for b in loop.blocks)


def find_loop(function, blocks, loops, statement, sources):
    """The largest loop whose branch back has the statement, written `own in the call`."""
    best = None
    for loop in loops:
        for latch in loop.latches:
            one = function.code[blocks[latch].last - 1]
            if re.search(statement, " in ".join(map(sources.statement, one.chain))):
                if best is None or size(blocks, loop) > size(blocks, best):
                    best = loop
    return best


class Count:
    """A kernel's cost for a unit of work; how its branches were decided."""

    def __init__(self, function, sources, unruled):
        """unruled: without a rule, count a run of the largest loop, else nothing."""
        self.cost, self.notes, self.undecided = Cost(), [], []
        self.kernel, self.groups = rule_of(function.name)
        self.local = sum(1 for one in function.code if LOCAL.match(one.opcode))
        if not self.kernel and not unruled:
            return
        blocks = flow.make_blocks(function)
        loops = flow.find_loops(blocks)
        for statement, units in self.kernel.work if self.kernel else []:
            loop = flow.whole(blocks) if statement is rules.WHOLE else \
                find_loop(function, blocks, loops, statement, sources)
            if loop is None:
                self.undecided.append("loop `%s`, which is not there" % statement)
                continue
            own = self.run(function, blocks, loops, loop, sources)
            self.cost.add_share(own, units(own, *self.groups) or 1)
        if not self.kernel and loops:
            self.cost = self.run(function, blocks, loops,
                                 max(loops, key=lambda loop: size(blocks, loop)), sources)

    def run(self, function, blocks, loops, loop, sources):
        found = frequency.Frequencies(function, blocks, loops, loop,
                                      frequency.Rules(function.name, sources))
        cost = Cost()
        for b, times in found.of.items():
            for one in frequency.body(function, blocks, b):
                cost.add(one, times, part_of(one, sources))
        self.notes += found.notes
        self.undecided += found.undecided
        return cost


def rule_of(name):
    """(rule, numbers in the name) of a kernel, or (None, [])."""
    for kernel in rules.KERNELS:
        found = re.search(kernel.name, name)
        if found:
            return kernel, [int(group) for group in found.groups()]
    return None, []


def resident_blocks(registers, shared, threads, architecture):
    """Blocks that a multiprocessor holds."""
    all_registers, all_shared, all_warps, most = LIMITS[architecture]
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    by_registers = all_registers // of_warp // warps if of_warp else most
    by_shared = all_shared * 1024 // (-(-shared // 128) * 128 + SHARED_OF_SYSTEM)
    return min(by_registers, by_shared, all_warps // warps, most)
