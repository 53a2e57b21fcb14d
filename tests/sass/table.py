"""The table kept in the repository, what it says of today's machine code, and of comments."""

import glob
import os
import re

import rules
import tools

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table.md")
RENEW = "python3 tests/sass/sass.py --renew"

# The GPU that floors are stated for.
GPU, MULTIPROCESSORS, CLOCK, BANDWIDTH = "H200", 132, 1.755e9, 4.3e12
SLOTS_CLOCK, SPECIAL_CLOCK = 4, 16 / 32  # warp instructions a clock and multiprocessor

COUNTED = ["slots", "special", "shared", "shuffles"]
TAKEN = ["local", "registers", "blocks"]
COLUMNS = COUNTED + TAKEN
FLOORS = ["issue ns", "special ns", "bytes ns", "ns"]

HEAD = """# Machine code of the kernels, sm_{architecture}, nvcc {nvcc}

Made by `{renew}`, checked by the test `sass`; see README.md here.
Of a kernel's main loop, for a unit of its work: slots (instructions that a warp issues), special
(on the exponential unit), shared (loads and stores of shared memory), shuffles. Of the kernel:
instructions that access local memory (spills, arrays that are indexed), registers of a thread,
blocks that a multiprocessor holds. The floors are nanoseconds for a token of a layer of the 130M
model on an {gpu} ({multiprocessors} multiprocessors, {clock:.3f} GHz, {slots} slots and
{special:.0f} lanes of special functions a clock and multiprocessor, {bandwidth:.1f} TB/s), `ns` the
largest of them.

"""


def floors(kernel, slots, special):
    """Of a token of a layer of the 130M model, in ns; empty for what runs once a step."""
    if not kernel.units_token:
        return {}
    second = kernel.units_token / MULTIPROCESSORS / CLOCK
    found = {"issue ns": slots * second / SLOTS_CLOCK * 1e9,
             "special ns": special * second / SPECIAL_CLOCK * 1e9,
             "bytes ns": kernel.bytes_token / BANDWIDTH * 1e9}
    found["ns"] = max(found.values())
    return found


def row_of(kernel):
    """{column: number}, rounded as the table has it; without a rule, only what it takes."""
    row = {"local": kernel.count.local, "registers": kernel.registers, "blocks": kernel.blocks}
    if kernel.count.kernel:
        cost = kernel.count.cost
        row.update({column: cost.of[column] for column in COUNTED})
        row.update(floors(kernel.count.kernel, cost.of["slots"], cost.of["special"]))
    return {column: round(value, digits(column)) for column, value in row.items()}


def digits(column):
    return {"local": 0, "registers": 0, "blocks": 0, "special": 2, "shuffles": 2}.get(column, 1)


def write(rows, units, nvcc, architecture):
    columns = COLUMNS + FLOORS
    lines = [["kernel", "unit"] + columns]
    for name in sorted(rows):
        lines.append(["`%s`" % name, units[name] or ""] + [
            "%.*f" % (digits(c), rows[name][c]) if c in rows[name] else "" for c in columns])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    with open(PATH, "w", encoding="utf-8") as file:
        file.write(HEAD.format(renew=RENEW, nvcc=nvcc, architecture=architecture, gpu=GPU,
                               multiprocessors=MULTIPROCESSORS, clock=CLOCK / 1e9, slots=SLOTS_CLOCK,
                               special=SPECIAL_CLOCK * 32, bandwidth=BANDWIDTH / 1e12))
        for line in lines:
            file.write("| " + " | ".join(
                field.ljust(width) if i < 2 else field.rjust(width)
                for i, (field, width) in enumerate(zip(line, widths))) + " |\n")


def read():
    """({kernel: {column: number}}, nvcc's version, architecture)"""
    with open(PATH, encoding="utf-8") as file:
        text = file.read()
    head = re.search(r"sm_(\w+), nvcc ([\d.]+)", text)
    lines = [[field.strip() for field in line.strip("|\n ").split("|")]
             for line in text.split("\n") if line.startswith("|")]
    rows = {}
    for line in lines[2:]:
        line += [""] * (len(lines[0]) - len(line))
        rows[line[0].strip("`")] = {column: float(field) for column, field
                                    in zip(lines[0][2:], line[2:]) if field}
    return rows, head.group(2), head.group(1)


def compare(now):
    """(faults, improvements) of today's rows against the table's."""
    then, _, _ = read()
    faults, better = [], []
    for name in sorted(set(then) | set(now)):
        if name not in now:
            faults.append("%s is in the table and not in the machine code" % name)
            continue
        if name not in then:
            faults.append("%s is not in the table" % name)
            continue
        for column in COLUMNS:
            before, after = then[name].get(column, 0), now[name].get(column, 0)
            change = "%s: %s %g, in the table %g" % (name, column, after, before)
            if after != before:
                rises = after > before
                (faults if rises != (column == "blocks") else better).append(change)
    return faults, better


# A statement of a comment: `scan_backward_registers<16,2,8,bf16,true>: 172 slots, 168 registers`.
NUMBER = r"([\d.]+) (%s)\b" % "|".join(COLUMNS + ["ns"])
STATEMENT = re.compile(r"(\w+<[\w,]+>|\w+_kernel): (%s(?:(?:,| and) %s)*)" % (
    NUMBER.replace("(", "(?:"), NUMBER.replace("(", "(?:")))
# What looks like one and is not in that form.
STRAY = re.compile(r"\b[\d.]+ (?:instructions?|slots|registers|blocks an? (?:SM|multiprocessor))\b"
                   r"|[Ii]nstructions an? \w+\b[^.(]*: [\d.]+")


def comments(path):
    """(line, text) of each run of // lines."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n") + [""]
    start, text = None, []
    for number, line in enumerate(lines, 1):
        found = re.match(r"\s*// ?(.*)", line)
        if found:
            start = start or number
            text.append(found.group(1).strip())
        elif text:
            yield start, " ".join(text)
            start, text = None, []


def find(rows, file, name):
    """A kernel's row: of this source, or of one that includes the file."""
    others = [row for kernel, row in rows.items() if kernel.endswith(" " + name)]
    return rows.get("%s %s" % (file, name)) or (others[0] if others else None)


def check_comments():
    """What comments of the kernels state otherwise than the table."""
    rows, _, _ = read()
    faults = []
    for path in sorted(glob.glob(os.path.join(tools.ROOT, "kernels", "*.cu*"))):
        file = os.path.splitext(os.path.basename(path))[0]
        for line, text in comments(path):
            where = "kernels/%s:%d" % (os.path.basename(path), line)
            for name, numbers in STATEMENT.findall(text):
                row = find(rows, file, name)
                if row is None:
                    faults.append("%s: the table has no %s" % (where, name))
                    continue
                for stated, column in re.findall(NUMBER, numbers):
                    places = len(stated.partition(".")[2])
                    if abs(float(stated) - row.get(column, -1)) > 0.5 * 10 ** -places + 1e-9:
                        faults.append("%s: %s: %s %s, in the table %g" % (
                            where, name, stated, column, row.get(column, -1)))
            for stray in STRAY.findall(STATEMENT.sub("", text)):
                faults.append("%s: `%s` is checked by nothing: write it as `kernel<…>: N slots, N "
                              "registers, N blocks`" % (where, stray))
    return faults


def check_constants():
    """Which constants of the sources are far from what was counted."""
    rows, _, _ = read()
    faults = []
    for file, pattern, kernels, reason in rules.CONSTANTS:
        with open(os.path.join(tools.ROOT, "kernels", file), encoding="utf-8") as text:
            found = re.search(pattern, text.read())
        if not found:
            faults.append("kernels/%s has no `%s`" % (file, pattern))
            continue
        for stated, (kernel, share) in zip(found.groups(), kernels):
            for name, row in rows.items():
                slots = max(row.get("slots", 0),
                            rules.SLOTS_OF_SPECIAL * row.get("special", 0)) * share
                if name.startswith(kernel) and slots and \
                        abs(float(stated) / slots - 1) > rules.CONSTANTS_NEAR:
                    faults.append("kernels/%s: %s for %s, which takes %.0f slots: %s" % (
                        file, stated, name, slots, reason))
    return faults
