"""How often each block of a main loop runs: trips of the loops, shares of the branches.

A loop that counts a register from a constant to a constant is counted; rules.py states the others.
A branch is decided by the statement of the source that the code comes from which only one of its
ways runs: rules.py again. Without a rule, what can be skipped runs, and of two ways the costlier one
is counted and reported as undecided: a number may be too high, never too low.
"""

import operator
import os
import re
import struct

import flow
import rules

RELATIONS = {"NE": operator.ne, "EQ": operator.eq, "LT": operator.lt, "LE": operator.le,
             "GT": operator.gt, "GE": operator.ge}
MEMORY = re.compile(r"(LD|ST|RED|ATOM|UBLKCP|UTMA)")


class Rules:
    """The rules of a kernel."""

    def __init__(self, kernel, sources):
        self.decisions = [rule for rule in rules.DECISIONS if re.search(rule[0], kernel)]
        self.absent = [rule for rule in rules.ABSENT if re.search(rule[0], kernel)]
        self.loops = [rule for rule in rules.LOOPS if re.search(rule[0], kernel)]
        self.sources = sources

    def level(self, one, pattern):
        """At which level of inlining an instruction's statements match first, or None."""
        for level, frame in enumerate(one.chain):
            if re.search(pattern, self.sources.statement(frame)):
                return level
        return None

    def region(self, code):
        """The rule for a region: it matches nearly all accesses to memory and most of the rest (what
        restores predicates and the like has no line of its own); of such rules the one that
        matches the innermost statements."""
        best = None
        for rule in self.decisions:
            levels = [self.level(one, rule[1]) for one in code]
            hits = [level for level in levels if level is not None]
            accesses = [level for one, level in zip(code, levels) if MEMORY.match(one.opcode)]
            if len(hits) >= 0.6 * len(code) and accesses.count(None) <= 0.05 * len(accesses):
                depth = sum(hits) / len(hits)
                if best is None or depth < best[0]:
                    best = (depth, rule)
        return best and best[1]

    def access(self, code):
        """The rule for an access that a region has and that does not happen, or None."""
        for rule in self.absent:
            if any(MEMORY.match(one.opcode) and self.level(one, rule[1]) is not None for one in code):
                return rule
        return None

    def trips(self, one):
        for rule in self.loops:
            if self.level(one, rule[1]) is not None:
                return rule
        return None


def body(function, blocks, b):
    return function.code[blocks[b].first:blocks[b].last]


def fields(one):
    return [field.strip().replace(".reuse", "") for field in one.operands.split(",")]


def number(text):
    """Of an operand: a constant, as a signed number of 32 bits, or None."""
    if re.fullmatch(r"-?U?S?RZ", text):
        return 0
    if not re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
        return None
    value = int(text, 0)
    return value - (1 << 32) if value >= 1 << 31 else value


def halves(high, low):
    """A constant that is made as two halves in fp16."""
    try:
        value, = struct.unpack("<i", struct.pack("<ee", float(low), float(high)))
    except ValueError:
        return None
    return value


def writes(one, register):
    """Is it this register, or predicate, that an instruction writes?"""
    operands = fields(one)
    if one.opcode == "CS2R" and re.match(r"R\d", operands[0]):  # two neighbours
        return register in (operands[0], "R%d" % (int(operands[0][1:]) + 1))
    return register in operands[:2 if "P" in register else 1]


def writer(code, register, first, last):
    """The last instruction in [first, last) that writes a register, or None."""
    for i in range(last - 1, first - 1, -1):
        if writes(code[i], register):
            return i
    return None


class Counter:
    """A register that a loop counts by a constant, and the comparison that ends the loop."""

    def __init__(self, function, blocks, loop):
        self.code = function.code
        self.first = min(blocks[b].first for b in loop.blocks)
        self.last = blocks[max(loop.latches)].last
        self.inside = [i for b in loop.blocks for i in range(blocks[b].first, blocks[b].last)]
        self.head = blocks[loop.head].first

    def trips(self):
        """None: not such a loop."""
        branch = self.code[self.last - 1]
        if not branch.guard or not branch.opcode.startswith("BRA"):
            return None
        compare = writer(self.code, branch.guard.lstrip("!"), self.first, self.last - 1)
        if compare is not None and self.code[compare].opcode.startswith("PLOP3"):
            uniform = re.search(r"UP\d", self.code[compare].operands)
            compare = uniform and writer(self.code, uniform.group(), self.first, compare)
        if compare is None or not re.match(r"U?ISETP\.\w+(\.U32)?\.AND$", self.code[compare].opcode):
            return None
        _, _, register, limit, _ = fields(self.code[compare])
        seen, offset = compare, 0
        made = writer(self.code, register, self.first, compare)
        if made is not None and self.step(register) is None:  # of the counter and a constant
            if not self.added(made):
                return None
            seen, (register, offset) = made, self.added(made)
        step, start = self.step(register), self.start(register)
        if step is None or start is None or number(limit) is None:
            return None
        relation = self.code[compare].opcode.split(".")[1]
        return self.count(start, step[1], relation, number(limit) - offset, step[0] < seen,
                          branch.guard.startswith("!"))

    def added(self, at):
        """(register, constant) that an addition adds, or None."""
        terms = fields(self.code[at])[1:]
        amounts = [number(term) for term in terms if number(term)]
        registers = [term for term in terms if re.fullmatch(r"U?R\d+", term)]
        plain = re.match(r"U?IADD3|V?IADD", self.code[at].opcode)
        return (registers[0], amounts[0]) if plain and len(amounts) == len(registers) == 1 else None

    def step(self, register):
        """(its place, how much is added)"""
        places = [i for i in self.inside if writes(self.code[i], register)]
        if len(places) != 1 or not self.added(places[0]):
            return None
        source, amount = self.added(places[0])
        return (places[0], amount) if source == register else None

    def start(self, register):
        at = writer(self.code, register, 0, self.head)
        if at is None or not re.match(r"U?MOV|IMAD\.MOV|HFMA2|CS2R", self.code[at].opcode):
            return None
        operands = fields(self.code[at])[1:]
        if self.code[at].opcode.startswith("HFMA2"):
            return halves(*operands[-2:])
        values = [number(operand) for operand in operands]
        return None if None in values else values[-1]

    @staticmethod
    def count(value, step, relation, limit, stepped, leaves):
        if relation not in RELATIONS:
            return None
        for trips in range(1, 10000):
            seen = value + step if stepped else value
            value += step
            if RELATIONS[relation](seen, limit) == leaves:
                return trips
        return None


class Frequencies:
    """Runs of each block for one run of a main loop's head."""

    def __init__(self, function, blocks, loops, main, rules):
        self.function, self.blocks, self.rules = function, blocks, rules
        self.main = main
        self.inner = [l for l in loops if l.blocks < main.blocks]
        self.heads = {l.head: l for l in self.inner}
        self.all_notes, self.open = [], []
        self.of = {}
        self.find_trips()
        self.spread()
        self.notes = [text for b, text in self.all_notes if self.of[b] > 0]
        self.undecided = [text for b, text in self.open if self.of[b] > 0]

    def loop_of(self, b):
        around = [l for l in self.inner if b in l.blocks]
        return min(around, key=lambda l: len(l.blocks)) if around else self.main

    def forward(self, b):
        """Successors in the main loop, back edges left out."""
        return [s for s in self.blocks[b].successors()
                if s in self.main.blocks and s != self.main.head
                and not (s in self.heads and b in self.heads[s].blocks)]

    def find_trips(self):
        for loop in self.inner:
            latch = self.blocks[max(loop.latches)]
            code = self.function.code
            rule = self.rules.trips(code[latch.last - 1])
            loop.trips = Counter(self.function, self.blocks, loop).trips()
            reason = "counted"
            if rule and loop.trips is None:
                loop.trips, reason = rule[2], rule[3]
            if loop.trips is None:
                loop.trips, reason = 1, "unknown"
                self.open.append((loop.head, "loop at %s" % self.where(code[latch.last - 1])))
            self.all_notes.append((loop.head, "loop %s: %g trips (%s)"
                              % (self.where(code[latch.last - 1]), loop.trips, reason)))

    def where(self, one):
        if not one.chain:
            return "%#x" % one.address
        path, line = one.chain[0]
        text = self.rules.sources.statement(one.chain[-1])
        return "%#x %s:%d `%s`" % (one.address, os.path.basename(path), line, text[:70])

    def exits(self, loop):
        """The edge (block, successor) by which a loop is left at its end."""
        for b in sorted(loop.latches, reverse=True):
            for s in self.blocks[b].successors():
                if s not in loop.blocks:
                    return (b, s)
        for b in sorted(loop.blocks):
            for s in self.blocks[b].successors():
                if s not in loop.blocks and s in self.main.blocks:
                    return (b, s)
        return None

    def reach(self, b):
        seen, stack = {b}, [b]
        while stack:
            for s in self.forward(stack.pop()):
                if s not in seen:
                    seen.add(s)
                    stack.append(s)
        return seen

    def code_of(self, region):
        return [one for b in sorted(region) for one in body(self.function, self.blocks, b)]

    def split(self, b):
        """Shares of a block's successors."""
        loop = self.loop_of(b)
        going = self.blocks[b].successors()
        if len(going) < 2:
            return {s: 1.0 for s in going if s in self.main.blocks}
        leaving = self.exits(loop) if loop is not self.main else None
        if leaving and leaving[0] == b:
            other = [s for s in going if s != leaving[1]][0]
            return {leaving[1]: 1.0 / loop.trips, other: 1.0 - 1.0 / loop.trips}
        inside = [s for s in going if s in loop.blocks]
        if len(inside) == 1:
            return {inside[0]: 1.0}
        if loop.head in going:  # `continue`: what can be skipped runs
            return {s: float(s != loop.head) for s in going}
        first, second = going
        one, two = self.reach(first), self.reach(second)
        only = {first: one - two, second: two - one}
        return self.decide(b, first, second, only)

    def stated(self, code):
        """(share, why) of a region that a rule decides, or None."""
        straight = not any(one.opcode.startswith("BRA") and one.guard for one in code)
        if straight and any(one.opcode.startswith("CALL") for one in code):
            return 0.0, "a subroutine is the slow way: 64-bit divisions, denormal numbers"
        rule = self.rules.region(code) if code else None
        return rule and rule[2:]

    def decide(self, b, first, second, only):
        branch = self.function.code[self.blocks[b].last - 1]
        codes = {s: self.code_of(only[s]) for s in only}
        stated = {s: self.stated(codes[s]) for s in only}
        a, c = stated[first], stated[second]
        absent = {s: codes[s] and self.rules.access(codes[s]) for s in only}
        if a or c:
            if a and c:
                share = a[0] / (a[0] + c[0]) if a[0] + c[0] else 0.5
            else:
                share = a[0] if a else 1.0 - c[0]
            reason = (a if a and (not c or a[0] < c[0]) else c)[1]
        elif codes[first] and codes[second] and bool(absent[first]) != bool(absent[second]):
            share = 0.0 if absent[first] else 1.0
            reason = (absent[first] or absent[second])[2]
        elif not codes[first] or not codes[second]:
            share = 1.0 if codes[first] else 0.0
            reason = "what can be skipped runs"
        else:
            share = 1.0 if len(codes[first]) >= len(codes[second]) else 0.0
            reason = "more expensive of %d and %d" % (len(codes[first]), len(codes[second]))
            self.open.append((b, "branch at %s" % self.where(branch)))
        self.all_notes.append((b, "branch %s: %d instructions if taken, else %d; taken: %.3g (%s)" % (
            self.where(branch), len(codes[self.blocks[b].taken]), len(codes[self.blocks[b].next]),
            share if self.blocks[b].taken == first else 1 - share, reason)))
        return {first: share, second: 1.0 - share}

    def spread(self):
        order = flow.depth_first(self.forward, self.main.head)[::-1]
        self.of = {b: 0.0 for b in self.main.blocks}
        self.of[self.main.head] = 1.0
        for b in order:
            if b in self.heads:
                self.of[b] *= self.heads[b].trips
            shares = self.split(b)
            for s in self.forward(b):
                self.of[s] += self.of[b] * shares.get(s, 0.0)
