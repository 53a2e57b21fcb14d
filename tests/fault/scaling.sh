#!/usr/bin/env bash
# launch/scaling.sh on a tiny model: table, JSON and picture of 1 and 2 ranks. What failed is named and the rest
# continues; a second call measures nothing again; more ranks than cores are marked and never fitted; the model recovers
# the parameters of made-up measurements. Also `dtrain bench --comm`. No time is checked. Skipped without python3.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
command -v python3 >/dev/null || { echo "skipped: no python3" >&2; exit 77; }
export DTRAIN=$dtrain
small_run
sed -i -e '/^\[optim\]/a rollback = 3' -e '/^\[log\]/a trace_steps = 90:91' small.ini # not of a step that is measured
printf '[comm]\nbucket_mb = 0.05\n' >>small.ini
scaling() { # out, arguments …
    local out=$1
    shift
    "$repository/launch/scaling.sh" small.ini --out "$out" --steps 4 --warmup 1 --repeats 1 "$@" >"$out.txt" 2>"$out.log"
}
python() { # a script that asserts, with its arguments
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$repository/launch/scaling python3 - "$@" 2>&3
}

# ---- collectives
check "bench --comm on two ranks" ranks 2 bench --comm --last 64K --factor 32 --seconds 0.001 --type bf16 --json >comm.json
check "… every collective, without a wrong value" test "$(grep -c '"wrong":0,' comm.json)" -eq 15
check "bench --comm on three ranks" ranks 3 bench --comm --first 3K --last 3K --seconds 0.001 --type bf16 --json >three.json
# algbw is the array over the median time. busbw is the part of it that other ranks have, which an all-reduce moves
# twice.
check "… with the bandwidths of their times" python <<'PY'
import json, os
for n, row in [(n, json.loads(line)) for n, file in ((2, "comm.json"), (3, "three.json")) for line in open(file)]:
    bandwidth = row["bytes"] / row["median_us"] / 1e3
    assert abs(row["algbw_gb_per_s"] / bandwidth - 1) < 0.01 + 1e-5 / bandwidth, row
    others = (n - 1) / n
    factor = {"all-reduce": 2 * others, "reduce-scatter": others, "all-gather": others}.get(row["collective"], 1)
    assert abs(row["busbw_gb_per_s"] / bandwidth / factor - 1) < 0.01 + 2e-5 / bandwidth, row
    assert row["min_us"] <= row["median_us"] <= row["max_us"] and row["count"] * 2 == row["bytes"], row
    assert (row["ranks"], row["hosts"], row["oversubscribed"], row["type"]) == (n, 1, os.cpu_count() < n, "bf16"), row
    assert row["iterations"] >= 5 and row["sum"] in (("fast", "tree") if "reduce" in row["collective"] else "-"), row
    assert len(row) == 17, f"a new field needs a check: {row}"
PY
# The smallest arrays: one element, or one in each rank's block.
check "bench --comm of a few bytes" ranks 2 bench --comm --first 1 --last 20 --factor 4 --seconds 0.001 --type fp64 --json >few.json
for size in "broadcast 8 16" "all-reduce 8 16" "reduce-scatter 16" "all-gather 16"; do
    check "… $size: $(grep "${size%% *}" few.json)" test "$(grep "\"${size%% *}\",\"sum\":\"\(-\|fast\)\"" few.json | grep -o '"bytes":[0-9]*' | cut -d: -f2 | paste -sd' ')" = "${size#* }"
done
# Two arrays of 512 KiB, and no more, are within 1 MiB.
ranks 2 bench --comm --first 256K --last 1M --factor 2 --collective all-gather --seconds 0.001 --max-memory 1 >comm.txt 2>comm.log
check "what needs too much memory is skipped" test "$(grep -c '^  mpi  *all-gather' comm.txt)" -eq 2
check "… with a word" grep -q 'mpi: skipping arrays of 1048576 bytes and more: .* 0.5 MiB (--max-memory)' comm.log
check "… the last line has the times of the rows: $(tail -n 3 comm.txt)" awk '
    function near(got, want, off) { if (got < want - off || got > want + off) bad = 1 }
    length($0) > 80 { bad = 1 }
    /^  mpi/ { n++; if (n == 1) { first = $4; latency = $5 }; if ($8 > best) { best = $8; at = $4 }
        near($7, $4 / $5 / 1000, 0.001 + 0.01 * $7); near($8, $7 / 2, 0.002); if ($5 > $6 || $9 != 0) bad = 1 }
    /^# mpi all-gather:/ { lines++; near($4, latency, 0.06); near($7, first, 0) }
    /^# best busbw/ { near($4, best, 0.001); near($7, at, 0) }
    END { exit bad || n != 2 || lines != 1 }' comm.txt
ranks 2 bench --comm --pairs >default.txt
check "bench --comm --pairs has an array of its own: $(cat default.txt)" grep -q ' 4194304 bytes' default.txt
check "every two of three ranks" ranks 3 bench --comm --pairs --last 64K --json >pairs.json
check "… are in the table once" test "$(grep -oE '"rank":[0-9]+|"with":[0-9]+' pairs.json | cut -d: -f2 | paste -sd' ')" = "1 0 2 0 2 1"
ranks 3 bench --comm --pairs --last 64K >pairs.txt 2>pairs.log
check "… the slowest is the least of the table, and named" awk '
    /^  rank/ { for (i = 4; i <= NF; i++) { if (n++ == 0 || $i < least) least = $i; rate[i - 4, $2 + 0] = $i } }
    / median / { sub(/.*median /, ""); median = $1 + 0 }
    /^# *slowest/ { found = $3; sub(/.*ranks /, ""); a = $1; b = $5 }
    END { for (k in rate) above += rate[k] > median + 0.0011; for (k in rate) below += rate[k] < median - 0.0011
          exit !(n == 3 && above < 2 && below < 2 && found > 0 && found <= least + 0.0011 && found >= least - 0.0011 && rate[a, b] <= found + 0.0011) }' pairs.txt
for wrong in "--first 8Q" "--last x" "--batch 4" "--step" "--collective gossip"; do
    # shellcheck disable=SC2086
    "$dtrain" bench --comm $wrong >/dev/null 2>refused.txt
    code=$?
    check "bench --comm $wrong is refused: exit code $code" test $code -eq 2
    check "… once" test "$(grep -c 'dtrain: error: ' refused.txt)" -eq 1
done

# ---- a table
check "1 and 2 ranks, and 3, which do not divide the batch" test "$(scaling out --ranks 3,2,1; echo $?)" -eq 1
check "… is named" grep -q '^failed: strong-data-3-1: dtrain: error: .*data.batch: 8 sequences cannot be split' out.txt
check "… the others are in the table" test "$(grep -cE '^ +strong +(data|synthetic) +[12] +1 +8 ' out.txt)" -eq 4
check "JSON, SVG and a plausible table" python out <<'PY'
import json, sys
import xml.etree.ElementTree as tree
result = json.load(open(sys.argv[1] + "/scaling.json"))
rows = {(r["data"], r["ranks"]): r for r in result["rows"]}
assert sorted(rows) == [("data", 1), ("data", 2), ("synthetic", 1), ("synthetic", 2)], sorted(rows)
for row in rows.values():
    assert row["tokens"] == 8 * 48 and row["steps"] == 4 and row["step_ms"] > 0 and row["memory_mb"] > 1, row
    assert abs(row["tokens_per_s"] * row["step_ms"] / 1e3 - 384) < 1e-6, row
    assert row["exposed_ms"] >= 0 and row["data_ms"] >= 0, row
assert rows["data", 1]["efficiency"] == 1
assert not result["model"] or result["model"]["job"]["bucket_bytes"] == 50000, result["model"]  # MB are 10^6 bytes
assert [f["run"] for f in result["failed"]] == ["strong-synthetic-3-1", "strong-data-3-1"], result["failed"]
assert {c["ranks"] for c in result["collectives"]} == {2, 3} and all(c["wrong"] == 0 for c in result["collectives"])
picture = tree.parse(sys.argv[1] + "/scaling.svg").getroot()
words = " ".join(t.text for t in picture.iter("{http://www.w3.org/2000/svg}text"))
assert "tokens/s" in words and "waiting for other ranks" in words and "real data" in words, words
assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) >= 4
PY
scaling out --ranks 1,2
check "again: nothing is measured" test "$(grep -c ' run 1 of 1\|collectives on' out.log)" -eq 0
check "… without what failed it succeeds" grep -q 'scaling.svg are in out' out.log

# ---- more ranks than cores, in a folder whose runs are of another kind
core=$(taskset -cp $$ | grep -oE '[0-9]+' | tail -n 1)
check "two ranks on one core, weak" eval 'taskset -c "$core" "$repository/launch/scaling.sh" small.ini --out one --steps 3 \
    --warmup 0 --repeats 1 --ranks 1,2 --weak --data synthetic >one.txt 2>one.log'
check "… are marked" grep -qE '^ +weak +synthetic +2 +1 +16 .* more ranks than cores$' one.txt
check "… and not fitted" python one <<'PY'
import json, sys
result = json.load(open(sys.argv[1] + "/scaling.json"))
assert [(r["ranks"], r["oversubscribed"]) for r in result["rows"]] == [(1, False), (2, True)]
assert result["model"] is None, result["model"]
PY
check "… in the picture too" grep -q 'more ranks than cores' one/scaling.svg

# ---- the figures
check "figures of a run, of its repeats, and what is kept of them" python <<'PY'
import os
import types
import measure
steps = [{"tokens": 100 * (i + 1), "step_ms": ms, "comm_wait_ms": 1, "data_wait_ms": 2, "memory_mb": 10 + i}
         for i, ms in enumerate([50, 10, 12, 14, 30])]
run = measure.summary(steps, 1)
assert run == {"step_ms": 13, "exposed_ms": 1, "data_ms": 2, "compute_ms": 10, "jitter_ms": 1.4826 * 2, "tokens": 100,
               "memory_mb": 14, "steps": 4}, run
job = types.SimpleNamespace(batch=8, arguments=types.SimpleNamespace(ranks=[1, 2], out="kept"), resolved={},
                            given_threads=2, cores=2, here=True, on_cpu=True, failed=[])
row = measure.combine(job, "weak", "data", 2, [dict(run, step_ms=ms) for ms in (20, 50, 10)], 1, False)
expected = {"fastest_ms": 10, "step_ms": 20, "slowest_ms": 50, "tokens_per_s": 5000, "batch": 16, "sequences": 8,
            "micro_batches": 1, "turns": 2, "oversubscribed": True, "repeats": 3}
assert {name: row[name] for name in expected} == expected, row
rows = [{"mode": "strong", "data": "data", "ranks": n, "tokens_per_s": rate} for n, rate in ((4, 30), (1, 10), (2, 18))]
measure.add_efficiency(rows)
assert [r["efficiency"] for r in rows] == [0.75, 1, 0.9], rows
os.makedirs("kept/runs")
kept = [measure.Job.kept(job, "a", [word], lambda i=i: i) for i, word in enumerate("xxyx")]
assert kept == [0, 0, 2, 3], kept  # of the same command alone
PY

# ---- the model
check "the model recovers what made-up measurements were made of" python <<'PY'
import random
import model
random.seed(1)
true = {"within": [12.0, 2e-4], "between": None, "straggler_ms": 1.5, "contention": 1.8, "data_ms": 0.01,
        "ms_per_sequence": 6.0, "fixed_ms": 4.0, "beside_ms": 3.0}
job = {"gradient_bytes": 120e6, "weight_bytes": 120e6, "bucket_bytes": 25e6, "ranks_per_host": 8, "shard": "false",
       "ahead": False}
points, collectives = [], []
for ranks in (1, 2, 4, 8, 16):
    p = model.predict(true, job, ranks, 64 / ranks, turns=max(1, ranks / 8))
    points.append({"mode": "strong", "ranks": ranks, "hosts": 1, "sequences": 64 / ranks, "micro_batches": 1,
                   "compute_ms": p["compute_ms"], "exposed_ms": p["exposed_ms"] + p["straggler_ms"], "data_ms": 0.01,
                   "step_ms": p["step_ms"], "jitter_ms": 1.5, "turns": max(1, ranks / 8), "oversubscribed": ranks > 8})
    collectives += [{"ranks": ranks, "hosts": 1, "bytes": 4 ** k, "median_us": random.uniform(0.97, 1.03) *
                     1e3 * model.collective_ms(true, job, ranks, 4 ** k)} for k in range(6, 14) if 1 < ranks <= 8]
found = model.fit([p for p in points if not p["oversubscribed"]], collectives, job)
# Times of collectives are within 3 %. The wait for a straggler is a tenth of what they leave exposed.
for name, tolerance in (("ms_per_sequence", 0.03), ("fixed_ms", 0.03), ("beside_ms", 0.03), ("contention", 0.03),
                        ("straggler_ms", 0.2)):
    assert abs(found[name] / true[name] - 1) < tolerance, (name, found)
for got, want in zip(found["within"], true["within"]):
    assert abs(got / want - 1) < 0.03, found
held_out = model.held_out(points, collectives, job)
assert [h["fitted_on"] for h in held_out] == [[2, 4, 8], [1, 4, 8], [1, 2, 8], [1, 2, 4], [1, 2, 4, 8]], held_out
once, twice = (model.predict(true, job, 8, 8, turns=turns) for turns in (1, 2))  # all of a step but its data
assert all(abs(twice[name] / once[name] - 2) < 1e-9 for name in ("compute_ms", "exposed_ms", "straggler_ms")), twice
assert max(abs(h["error"]) for h in held_out) < 0.03, held_out
for ranks in (64, 4096):
    got, want = (model.predict(p, job, ranks, 8)["step_ms"] for p in (found, true))
    assert abs(got / want - 1) < 0.02, (ranks, got, want)
def exposed(ms, parameters=true, micro_batches=1, **options):
    return model.exposed_ms(parameters, dict(job, **options), 8, ms, micro_batches)
whole, halves = (exposed(0.0, shard=s) for s in ("false", "states"))
assert abs(whole / halves - 1) < 1e-9, (whole, halves)  # nothing to hide behind
fast = dict(true, within=[0, 2e-4])  # without a start, bytes alone count: half of them in fp32, a quarter in bf16
fp32, bf16 = (exposed(0.0, fast, shard="states", weight_bytes=w) for w in (120e6, 60e6))
assert abs(bf16 / fp32 - 0.75) < 1e-9, (bf16, fp32)
ahead = [exposed(ms, shard="states", ahead=True) for ms in (0.0, 1e6)]
assert abs(ahead[0] / halves - 1) < 1e-9 and abs(5 * ahead[1] / whole - 1) < 1e-6, (ahead, whole)  # one of five buckets
# Three micro-batches send gradients three times, and receive the weights once, or twice each except at the turns.
assert abs(exposed(0.0, micro_batches=3, shard="gradients") / (2 * whole) - 1) < 1e-9
assert abs(exposed(0.0, micro_batches=3, shard="states") / whole - 1) < 1e-9
spread = exposed(0.0, micro_batches=3, shard="weights")
assert abs(spread / (whole / 10 * (3 * 5 + 5 + 5 * 4)) - 1) < 1e-9, (spread, whole)  # in units of half a bucket of five
# If computing takes longer, only the first bucket's weights and the last gradients of each micro-batch are waited for.
spread = exposed(1e6, micro_batches=3, shard="weights")
assert abs(spread / (whole / 10 * (3 + 1)) - 1) < 1e-6, (spread, whole)
assert exposed(60.0, shard="states") < exposed(60.0, shard="weights") < exposed(0.0, shard="weights")
slow = model.fit(points[:4], collectives, job, network=[50, 1])
assert model.collective_ms(slow, job, 16, 1e9) > 1800 and model.collective_ms(slow, job, 8, 1e9) < 400
PY
finish
