"""How often each block of a main loop runs: trips of the loops, shares of the branches.

A loop that counts a register from a constant to a constant is counted; rules.py states the others.
A branch is decided by the statement of the source that the code comes from which only one of its
ways runs: rules.py again. Without a rule, what can be skipped runs, and of two ways the dearer one
is counted and reported as undecided: a number may be too high, never too low.
"""

import os
import re

import flow
import rules

MEMORY = re.compile(r"(LD|ST|RED|ATOM|UBLKCP|UTMA)")


class Rules:
    """The rules of a kernel."""

    def __init__(self, kernel, sources):
        self.decisions = [rule for rule in rules.DECISIONS if re.search(rule[0], kernel)]
        self.loops = [rule for rule in rules.LOOPS if re.search(rule[0], kernel)]
        self.sources = sources

    def level(self, one, pattern):
        """At which level of inlining an instruction's statements match first, or None."""
        for level, frame in enumerate(one.chain):
            if re.search(pattern, self.sources.statement(frame)):
                return level
        return None

    def decide(self, code):
        """The rule for a region: it matches all accesses to memory and most of the rest, and of
        such rules the one that matches the innermost statements."""
        best = None
        for rule in self.decisions:
            levels = [self.level(one, rule[1]) for one in code]
            hits = [level for level in levels if level is not None]
            missed = any(MEMORY.match(one.opcode) for one, level in zip(code, levels)
                         if level is None)
            if len(hits) >= 0.6 * len(code) and hits and not missed:
                depth = sum(hits) / len(hits)
                if best is None or depth < best[0]:
                    best = (depth, rule)
        return best and best[1]

    def trips(self, one):
        for rule in self.loops:
            if self.level(one, rule[1]) is not None:
                return rule
        return None


def body(function, blocks, b):
    return function.code[blocks[b].first:blocks[b].last]


def counted_trips(function, blocks, loop):
    """Trips of a loop that counts a register by a constant from a constant to a constant, or None."""
    code = function.code
    if len(loop.latches) != 1:
        return None
    latch = blocks[next(iter(loop.latches))]
    branch = code[latch.last - 1]
    if not branch.guard or not branch.opcode.startswith("BRA"):
        return None
    predicate = branch.guard.lstrip("!")
    ahead = range(latch.last - 2, latch.first - 1, -1)
    for i in ahead:
        fields = [o.strip() for o in code[i].operands.split(",")]
        if fields and predicate in fields[:2]:
            break
    else:
        return None
    if code[i].opcode.startswith("PLOP3"):
        inner = [f for f in fields[2:] if re.match(r"U?P\d", f)]
        for i in range(i - 1, latch.first - 1, -1):
            fields = [o.strip() for o in code[i].operands.split(",")]
            if inner and fields and inner[0] in fields[:2]:
                break
        else:
            return None
    if "ISETP" not in code[i].opcode or ".EX" in code[i].opcode:
        return None
    relation = code[i].opcode.split(".")[1]
    register, limit = fields[2].replace(".reuse", ""), number(fields[3])
    if limit is None:
        return None
    step = start = None
    compared_after = None
    for b in sorted(loop.blocks):
        for k in range(blocks[b].first, blocks[b].last):
            one = code[k]
            fields = [o.strip().replace(".reuse", "") for o in one.operands.split(",")]
            if fields[0] == register:
                if not re.match(r"U?IADD|VIADD", one.opcode) or register not in fields[1:]:
                    return None
                amount = [number(f) for f in fields[1:] if number(f)]
                if len(amount) != 1 or step is not None:
                    return None
                step, compared_after = amount[0], k < i
    for k in range(blocks[loop.head].first - 1, -1, -1):
        one = code[k]
        fields = [o.strip() for o in one.operands.split(",")]
        if fields[0] == register and re.match(r"U?MOV|HFMA2|CS2R|IMAD.MOV", one.opcode):
            values = [number(f) for f in fields[1:] if number(f) is not None]
            zero = all(f.startswith(("RZ", "-RZ", "URZ", "SRZ", "0")) for f in fields[1:])
            start = 0 if zero else values[-1] if one.opcode.startswith(("MOV", "UMOV")) and values \
                else None
            break
        if fields[0] == register:
            break
    if step is None or start is None:
        return None
    value, trips = start, 0
    while trips < 10000:
        trips += 1
        before, value = value, value + step
        seen = value if compared_after else before
        going = {"NE": seen != limit, "LT": seen < limit, "GE": seen >= limit, "GT": seen > limit,
                 "LE": seen <= limit, "EQ": seen == limit}.get(relation)
        if going is None:
            return None
        if branch.guard.startswith("!"):
            going = not going
        if not going:
            return trips
    return None


def number(text):
    found = re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text.replace(".reuse", ""))
    return int(text.replace(".reuse", ""), 0) if found else None


class Frequencies:
    """Runs of each block for one run of a main loop's head."""

    def __init__(self, function, blocks, loops, main, rules):
        self.function, self.blocks, self.rules = function, blocks, rules
        self.main = main
        self.inner = [l for l in loops if l.blocks < main.blocks]
        self.heads = {l.head: l for l in self.inner}
        self.notes, self.undecided = [], []
        self.of = {}
        self.find_trips()
        self.spread()

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
            loop.trips = counted_trips(self.function, self.blocks, loop)
            reason = "counted"
            if rule and loop.trips is None:
                loop.trips, reason = rule[2], rule[3]
            if loop.trips is None:
                loop.trips, reason = 1, "unknown"
                self.undecided.append("loop at %s" % self.where(code[latch.last - 1]))
            self.notes.append("loop %s: %g trips (%s)"
                              % (self.where(code[latch.last - 1]), loop.trips, reason))

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
        back = [s for s in going if s == loop.head]
        if back:  # a latch with the loop's rest after it: `continue`
            return {s: 0.5 for s in going}
        first, second = going
        one, two = self.reach(first), self.reach(second)
        only = {first: one - two, second: two - one}
        return self.decide(b, first, second, only)

    def stated(self, code):
        """(share, why) of a region that a rule decides, or None."""
        straight = not any(one.opcode.startswith("BRA") and one.guard for one in code)
        if straight and any(one.opcode.startswith("CALL") and "_div_" in one.operands
                            for one in code):
            return 0.0, "a division of 32 bits does"
        rule = self.rules.decide(code) if code else None
        return rule and rule[2:]

    def decide(self, b, first, second, only):
        branch = self.function.code[self.blocks[b].last - 1]
        codes = {s: self.code_of(only[s]) for s in only}
        stated = {s: self.stated(codes[s]) for s in only}
        a, c = stated[first], stated[second]
        if a or c:
            if a and c:
                share = a[0] / (a[0] + c[0]) if a[0] + c[0] else 0.5
            else:
                share = a[0] if a else 1.0 - c[0]
            reason = (a if a and (not c or a[0] < c[0]) else c)[1]
        elif not codes[first] or not codes[second]:
            share = 1.0 if codes[first] else 0.0
            reason = "what can be skipped runs"
        else:
            share = 1.0 if len(codes[first]) >= len(codes[second]) else 0.0
            reason = "dearer of %d and %d" % (len(codes[first]), len(codes[second]))
            self.undecided.append("branch at %s" % self.where(branch))
        self.notes.append("branch %s: %d instructions of the way taken, %d of the one that falls "
                          "through; taken: %.3g (%s)" % (
                              self.where(branch), len(codes[self.blocks[b].taken]),
                              len(codes[self.blocks[b].next]),
                              share if self.blocks[b].taken == first else 1 - share, reason))
        return {first: share, second: 1.0 - share}

    def spread(self):
        order = flow.depth_first(len(self.blocks), self.forward, self.main.head)[::-1]
        self.of = {b: 0.0 for b in self.main.blocks}
        self.of[self.main.head] = 1.0
        for b in order:
            if b in self.heads:
                self.of[b] *= self.heads[b].trips
            shares = self.split(b)
            for s in self.forward(b):
                self.of[s] += self.of[b] * shares.get(s, 0.0)
