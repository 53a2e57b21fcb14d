#!/usr/bin/env python3
"""table.py RESULTS.jsonl: prints the results of peers and of `dtrain bench --step --json` side by side, one table per size.

If a variant was measured more than once, its speed is the median and its memory the largest."""
import json
import statistics
import sys

SIZE = ("d_model", "n_layer", "vocab", "seq_len", "batch")


def read(path):
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        if row.get("bench") == "step":
            row["peer"], row["versions"] = "dtrain", row["name"]
            row["variant"] = f"{row['precision']}, recompute {row['recompute']}, micro-batch {row['micro_batch']}"
    return rows


def grouped(rows, key):
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def together(rows):
    """Returns the rounds of one variant as one row."""
    speeds = [row["tokens_per_s"] for row in rows]
    return {**rows[0], "tokens_per_s": statistics.median(speeds), "rounds": len(rows),
            "spread": (max(speeds) - min(speeds)) / statistics.median(speeds),
            "peak_memory_mb": max(row["peak_memory_mb"] for row in rows)}


def fastest(rows):
    return max(rows, key=lambda row: row["tokens_per_s"], default=None)


def compare(best, peer):
    """Returns a sentence that compares the fastest variant of dtrain with a peer."""
    return (f"dtrain ({best['variant']}) against {peer['peer']} ({peer['variant']}; {peer['versions']}): "
            f"{best['tokens_per_s'] / peer['tokens_per_s']:.2f} x the speed, "
            f"{best['peak_memory_mb'] / peer['peak_memory_mb']:.2f} x the memory")


def show(size, rows):
    rows = [together(rounds) for rounds in grouped(rows, lambda row: (row["peer"], row["variant"])).values()]
    own = fastest(row for row in rows if row["peer"] == "dtrain")
    best = fastest(row for row in rows if row["peer"] != "dtrain")
    official = fastest(row for row in rows if row["variant"].startswith("official"))
    print(", ".join(f"{name} {value}" for name, value in zip(SIZE, size)))
    print(f"{'':8}{'variant':58}{'tokens/s':>10}{'spread':>8}{'peak MiB':>10}{'x speed':>9}{'x memory':>10}")
    for row in sorted(rows, key=lambda row: -row["tokens_per_s"]):
        ratios = (f"{row['tokens_per_s'] / best['tokens_per_s']:9.2f}"
                  f"{row['peak_memory_mb'] / best['peak_memory_mb']:10.2f}") if best else ""
        spread = f"{row['spread']:.1%}" if row["rounds"] > 1 else ""
        print(f"{row['peer']:8}{row['variant']:58}{row['tokens_per_s']:10.0f}{spread:>8}{row['peak_memory_mb']:10.0f}"
              f"{ratios}")
    if not best:
        print("no peer gave a figure")
    if best:
        print(f"x: against the best peer, {best['peer']} ({best['variant']}; {best['versions']})")
    for peer in (best, official if official is not best else None):
        if own and peer:
            print(compare(own, peer))


def main():
    rows = read(sys.argv[1])
    done = [row for row in rows if "tokens_per_s" in row]
    for size, group in grouped(done, lambda row: tuple(row[name] for name in SIZE)).items():
        show(size, group)
        print()
    for peer, variant, error in dict.fromkeys((r["peer"], r["variant"], r["error"]) for r in rows if "error" in r):
        print(f"{peer}: {variant}: {error}")
    if all(row["peer"] == "dtrain" for row in done):
        sys.exit(f"{sys.argv[1]}: no peer gave a figure")


main()
