"""Control flow of a kernel: blocks, dominators, loops."""

import re

from listing import TARGET


class Block:
    __slots__ = ("first", "last", "next", "taken")

    def __init__(self, first):
        self.first, self.last = first, first  # instructions [first, last)
        self.next = self.taken = None         # successors: falling through, branching

    def successors(self):
        return [s for s in (self.taken, self.next) if s is not None]


ENDS = ("BRA", "BRX", "BSYNC", "EXIT", "RET", "JMP", "BPT", "KILL")


def label(one):
    found = TARGET.search(one.operands)
    return found and found.group(1)


def barrier_ends(code):
    """{place of a BSYNC: the label it goes to, that of the BSSY before it}"""
    barriers, ends = {}, {}
    for i, one in enumerate(code):
        barrier = one.operands.partition(",")[0].strip()
        if one.opcode.startswith("BSSY"):
            barriers[barrier] = label(one)
        elif one.opcode.startswith("BSYNC"):
            ends[i] = barriers.get(barrier)
    return ends


def make_blocks(function):
    code, labels = function.code, function.labels
    leaders = {0}
    for i, one in enumerate(code):
        if label(one) in labels:
            leaders.add(labels[label(one)])
        if one.opcode.startswith(ENDS):
            leaders.add(i + 1)
    starts = sorted(leader for leader in leaders if leader < len(code))
    at = {start: k for k, start in enumerate(starts)}
    ends = barrier_ends(code)
    blocks = []
    for k, start in enumerate(starts):
        block = Block(start)
        block.last = starts[k + 1] if k + 1 < len(starts) else len(code)
        block.next = k + 1 if k + 1 < len(starts) else None
        one = code[block.last - 1]
        if one.opcode.startswith(ENDS) and ".DIV" not in one.opcode:  # .DIV: when lanes have parted
            target = ends.get(block.last - 1) or label(one)
            block.taken = at.get(labels.get(target))
            if one.guard is None and not re.match(r"!?U?P\d", one.operands):
                block.next = None
            if block.next == block.taken:
                block.taken = None
        blocks.append(block)
    return blocks


def depth_first(successors, root):
    """Blocks that root reaches, each after all that it reaches but by back edges."""
    seen, order = {root}, []
    stack = [(root, iter(successors(root)))]
    while stack:
        block, rest = stack[-1]
        for s in rest:
            if s not in seen:
                seen.add(s)
                stack.append((s, iter(successors(s))))
                break
        else:
            order.append(block)
            stack.pop()
    return order


def dominators(successors, root):
    """The immediate dominator of each block that root reaches."""
    order = depth_first(successors, root)
    rank = {b: i for i, b in enumerate(order)}
    before = {b: [] for b in order}
    for b in order:
        for s in successors(b):
            before[s].append(b)
    above = {root: root}
    changed = True
    while changed:
        changed = False
        for b in reversed(order):
            if b == root:
                continue
            new = None
            for p in before[b]:
                if p in above:
                    if new is None:
                        new = p
                    else:
                        x, y = p, new
                        while x != y:
                            while rank[x] < rank[y]:
                                x = above[x]
                            while rank[y] < rank[x]:
                                y = above[y]
                        new = x
            if above.get(b) != new:
                above[b] = new
                changed = True
    return above


class Loop:
    def __init__(self, head):
        self.head, self.latches, self.blocks = head, set(), {head}
        self.parent, self.trips = None, None


def find_loops(blocks):
    above = dominators(lambda b: blocks[b].successors(), 0)

    def dominates(a, b):
        while b != a and above[b] != b:
            b = above[b]
        return a == b

    before = {}
    for b in above:
        for s in blocks[b].successors():
            before.setdefault(s, []).append(b)
    loops = {}
    for b in above:
        for s in blocks[b].successors():
            if dominates(s, b):
                loop = loops.setdefault(s, Loop(s))
                loop.latches.add(b)
                stack = [b]
                while stack:
                    x = stack.pop()
                    if x not in loop.blocks:
                        loop.blocks.add(x)
                        stack += before.get(x, [])
    found = sorted(loops.values(), key=lambda l: len(l.blocks))
    for i, loop in enumerate(found):
        for outer in found[i + 1:]:
            if loop.head in outer.blocks and loop is not outer:
                loop.parent = outer
                break
    return found


def whole(blocks):
    """A kernel from its entry to its end, as if it were a loop that runs once."""
    loop = Loop(0)
    loop.blocks = set(depth_first(lambda b: blocks[b].successors(), 0))
    return loop
