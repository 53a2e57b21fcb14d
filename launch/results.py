#!/usr/bin/env python3
"""Makes the manual's tables of GPU measurements from the files that tests/gpu.sh writes.

launch/results.py [FILE…]                  prints them (default: all of launch/results)
launch/results.py --into launch/README.md  puts them between the lines <!-- results --> and <!-- /results -->
"""
import argparse
import glob
import json
import os
import sys

BEGIN, END = "<!-- results -->", "<!-- /results -->"
STEP = ("d_model", "n_layer", "vocab", "seq_len", "batch", "micro_batch", "precision", "recompute")
MODELS = {(768, 24): "130M", (1024, 48): "370M"}
NOT_YET = "not measured yet"


def read(path):
    """The rows of a file, each with its machine, date and commit: they are below a line about these."""
    rows, about = [], None
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
            if "gpu" in row:
                about = row
            elif about:
                rows.append({**about, **row})
            else:
                raise ValueError(f"{path}:{number}: no line about the machine before it: not written by tests/gpu.sh")
    try:
        page(rows)
    except KeyError as key:
        raise ValueError(f"{path}: a row has no {key}: written by another version of dtrain") from key
    return rows


def newest(rows):
    """Of each GPU the newest of each step, and of the ops and kernels those that were measured together last."""
    def group(row):
        return row["gpu"], row["bench"], [row.get(key) for key in STEP] if row["bench"] == "step" else None
    dates = {}
    for row in rows:
        dates[str(group(row))] = max(dates.get(str(group(row)), ""), row["date"])
    return sorted((row for row in rows if row["date"] == dates[str(group(row))]), key=lambda row: row["gpu"])


def rows_of(rows, kind, gpu=None):
    return [row for row in rows if row["bench"] == kind and gpu in (None, row["gpu"])]


def table(titles, rows):
    lines = [titles, ["---"] * len(titles)]
    lines += rows or [[NOT_YET] + [""] * (len(titles) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def model_name(step):
    return MODELS.get((step["d_model"], step["n_layer"]), f"{step['n_layer']} x {step['d_model']}")


def percent(fraction):
    return f"{100 * fraction:.0f} %" if fraction > 0 else "not known"


def measured(row):
    return f"{row['date'][:10]}, {row['commit']}"


def step_cells(step):
    return [
        step["gpu"],
        f"{model_name(step)}, {step['precision']}",
        f"{step['batch']} x {step['seq_len']}",
        f"{step['step_ms']:.1f} ms",
        f"{step['tokens_per_s']:,.0f}",
        percent(step["mfu"]),
        f"{step['peak_memory_mb'] / 1024:.1f} GiB",
        measured(step),
    ]


def steps_table(rows):
    titles = ["GPU", "model", "batch", "step", "tokens/s", "MFU", "memory", "measured"]
    return table(titles, [step_cells(step) for step in rows_of(rows, "step")])


def op_total(name, ops):
    """Time that a step spends in one op, and its floor."""
    calls = [op for op in ops if op["op"] == name and op["calls"] > 0]
    spent = sum(op["calls"] * op["ms"] for op in calls)
    floor = sum(op["calls"] * op["floor_ms"] for op in calls)
    bounds = sorted({op["bound"] for op in calls})
    return [name, f"{spent:.2f}", f"{floor:.2f}", ", ".join(bounds), percent(floor / spent)] if calls else None


def ops_table(ops):
    titles = ["op", "ms per step", "floor, ms", "bound by", "floor / time"]
    names = list(dict.fromkeys(op["op"] for op in ops))
    return table(titles, [cells for cells in (op_total(name, ops) for name in names) if cells])


def limits(machine):
    return (
        f"{machine['gpu']}, driver {machine.get('driver') or 'unknown'}, {measured(machine)}, measured limits: "
        f"copy {machine['copy_gb_per_s'] / 1e3:.2f} TB/s, GEMM bf16 {machine['gemm_bf16_gflops'] / 1e3:.0f} and "
        f"fp32 {machine['gemm_fp32_gflops'] / 1e3:.1f} TFLOP/s, exponentials {machine['gexp2_per_s'] / 1e3:.2f} T/s. "
        f"The ops of one {machine['precision']} step:"
    )


def launches_table(launches):
    names = list(dict.fromkeys(name for row in launches for name in row["metrics"]))
    cells = [[row["gpu"], row["kernel"]] + [row["metrics"].get(name, "") for name in names] for row in launches]
    return table(["GPU", "kernel"] + names, cells)


def page(rows):
    parts = [steps_table(rows)]
    for machine in rows_of(rows, "machine"):
        parts += [limits(machine), ops_table(rows_of(rows, "op", machine["gpu"]))]
    if not rows_of(rows, "machine"):
        parts += [ops_table([])]
    if rows_of(rows, "ncu"):
        parts += ["The scan's kernels, a row for each launch, by Nsight Compute:", launches_table(rows_of(rows, "ncu"))]
    return "\n\n".join(parts) + "\n"


def put_into(path, text):
    with open(path) as file:
        before, begin, rest = file.read().partition(BEGIN)
    middle, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: has no lines {BEGIN} and {END} to put the tables between")
    with open(path, "w") as file:
        file.write(f"{before}{BEGIN}\n{text}{END}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--into", metavar="FILE")
    arguments = parser.parse_args()
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
    files = arguments.files or sorted(glob.glob(os.path.join(folder, "*.jsonl")))
    try:
        text = page(newest([row for path in files for row in read(path)]))
        if arguments.into:
            put_into(arguments.into, text)
        else:
            sys.stdout.write(text)
    except (OSError, ValueError) as error:
        sys.exit(f"launch/results.py: {error}")


if __name__ == "__main__":
    main()
