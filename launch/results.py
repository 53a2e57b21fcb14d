#!/usr/bin/env python3
"""Makes the manual's tables of GPU measurements from the files that tests/gpu.sh bench writes.

launch/results.py [FILE…]                  prints them (default: all of launch/results)
launch/results.py --into launch/README.md  puts them between the lines <!-- results --> and <!-- /results -->
"""
import argparse
import glob
import json
import os
import sys

BEGIN, END = "<!-- results -->", "<!-- /results -->"
MODELS = {(768, 24): "130M", (1024, 48): "370M"}
NOT_YET = "not measured yet"


def read(path):
    with open(path) as file:
        try:
            result = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    for key in ("gpu", "date", "commit", "rows"):
        if key not in result:
            raise ValueError(f"{path}: no {key}: not written by tests/gpu.sh bench")
    try:
        page([result])
    except KeyError as key:
        raise ValueError(f"{path}: a row has no {key}: written by another version of dtrain") from key
    return result


def newest_of_each_gpu(results):
    newest = {}
    for result in sorted(results, key=lambda result: result["date"]):
        newest[result["gpu"]] = result
    return [newest[gpu] for gpu in sorted(newest)]


def rows_of(result, kind):
    return [row for row in result["rows"] if row["bench"] == kind]


def table(titles, rows):
    lines = [titles, ["---"] * len(titles)]
    lines += rows or [[NOT_YET] + [""] * (len(titles) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def model_name(step):
    return MODELS.get((step["d_model"], step["n_layer"]), f"{step['n_layer']} x {step['d_model']}")


def percent(fraction):
    return f"{100 * fraction:.0f} %" if fraction > 0 else "not known"


def step_cells(result, step):
    return [
        result["gpu"],
        f"{model_name(step)}, {step['precision']}",
        f"{step['batch']} x {step['seq_len']}",
        f"{step['step_ms']:.1f} ms",
        f"{step['tokens_per_s']:,.0f}",
        percent(step["mfu"]),
        f"{step['peak_memory_mb'] / 1024:.1f} GiB",
        f"{result['date'][:10]}, {result['commit']}",
    ]


def steps_table(results):
    titles = ["GPU", "model", "batch", "step", "tokens/s", "MFU", "memory", "measured"]
    return table(titles, [step_cells(result, step) for result in results for step in rows_of(result, "step")])


def op_total(name, ops):
    """Time that a step spends in one op, and its floor."""
    calls = [op for op in ops if op["op"] == name and op["calls"] > 0]
    spent = sum(op["calls"] * op["ms"] for op in calls)
    floor = sum(op["calls"] * op["floor_ms"] for op in calls)
    bounds = sorted({op["bound"] for op in calls})
    return [name, f"{spent:.2f}", f"{floor:.2f}", ", ".join(bounds), percent(floor / spent)] if calls else None


def ops_table(result):
    titles = ["op", "ms per step", "floor, ms", "bound by", "floor / time"]
    ops = rows_of(result, "op") if result else []
    names = list(dict.fromkeys(op["op"] for op in ops))
    return table(titles, [cells for cells in (op_total(name, ops) for name in names) if cells])


def limits(result):
    machine = rows_of(result, "machine")[0]
    return (
        f"{result['gpu']}, driver {result.get('driver') or 'unknown'}, measured limits: "
        f"copy {machine['copy_gb_per_s'] / 1e3:.2f} TB/s, GEMM bf16 {machine['gemm_bf16_gflops'] / 1e3:.0f} and "
        f"fp32 {machine['gemm_fp32_gflops'] / 1e3:.1f} TFLOP/s, exponentials {machine['gexp2_per_s'] / 1e3:.2f} T/s. "
        f"The ops of one {machine['precision']} step:"
    )


def page(results):
    parts = [steps_table(results)]
    with_ops = [result for result in results if rows_of(result, "machine")]
    for result in with_ops:
        parts += [limits(result), ops_table(result)]
    if not with_ops:
        parts += [ops_table(None)]
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
    files = arguments.files or sorted(glob.glob(os.path.join(folder, "*.json")))
    try:
        text = page(newest_of_each_gpu([read(path) for path in files]))
        if arguments.into:
            put_into(arguments.into, text)
        else:
            sys.stdout.write(text)
    except (OSError, ValueError) as error:
        sys.exit(f"launch/results.py: {error}")


if __name__ == "__main__":
    main()
