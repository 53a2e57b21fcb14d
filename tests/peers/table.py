#!/usr/bin/env python3
"""table.py RESULTS.jsonl: the lines of peers and of `dtrain bench --step --json` side by side."""
import json
import sys


def read(path):
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        if row.get("bench") == "step":
            row["peer"] = "dtrain"
            row["variant"] = f"{row['precision']}, recompute {row['recompute']}, micro-batch {row['micro_batch']}"
    return rows


def main():
    rows = read(sys.argv[1])
    done = [row for row in rows if "tokens_per_s" in row]
    peers = [row for row in done if row["peer"] != "dtrain"]
    if not peers:
        sys.exit(f"{sys.argv[1]}: no peer gave a figure")
    best = max(peers, key=lambda row: row["tokens_per_s"])
    print(f"{'':8}{'variant':58}{'tokens/s':>10}{'peak MiB':>10}{'x speed':>9}{'x memory':>10}")
    for row in sorted(done, key=lambda row: -row["tokens_per_s"]):
        print(f"{row['peer']:8}{row['variant']:58}{row['tokens_per_s']:10.0f}{row['peak_memory_mb']:10.0f}"
              f"{row['tokens_per_s'] / best['tokens_per_s']:9.2f}{row['peak_memory_mb'] / best['peak_memory_mb']:10.2f}")
    for row in rows:
        if "error" in row:
            print(f"{row['peer']:8}{row['variant']:58}{row['error']}")
    print(f"x: against the best peer, {best['peer']} ({best['variant']}; {best['versions']})")


main()
