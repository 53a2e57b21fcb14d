"""A model of a training step on R ranks, fitted to measurements, that predicts other numbers of ranks.

A point is a number of ranks that was measured: mode (strong or weak), ranks, hosts, sequences (of one rank),
micro_batches, compute_ms, exposed_ms, data_ms, step_ms, jitter_ms (the spread of steps), oversubscribed, turns (threads per core).
A collective is a row of `dtrain bench --comm --json`. The job: gradient_bytes (as they are sent),
bucket_bytes, shard (optim.shard: false, states, gradients or weights), weight_bytes (as they are then gathered), ahead
(with states or gradients: weights are gathered during the next forward pass), ranks_per_host (most ranks measured on
one host).
"""
import itertools
import math
import statistics

BACKWARD = 2 / 3  # of the compute time of a pass: two products for each one of forward

ASSUMPTIONS = [
    "compute: a fixed time, a time per sequence of a rank, and a time added as soon as ranks communicate",
    "an all-reduce of n bytes on R ranks: latency * log2 R + n / bandwidth * 2 (R - 1) / R, fitted to dtrain bench "
    "--comm",
    "gradients leave in equal buckets, evenly over the last micro-batch's backward pass (2/3 of its time), one at a "
    "time; with optim.shard half of an all-reduce, and half of one of the weights (bf16 where storage is) after the "
    "update, between GPUs "
    "during the next forward pass, which needs the buckets evenly over its time",
    "with optim.shard = gradients each micro-batch sends its gradients and waits for them; with weights each pass also "
    "gathers them, a bucket while it computes with the one before, and only a step's first bucket with nothing to do",
    "during a step a collective is slower than alone by one factor, the same on every number of ranks",
    "stragglers: the step times of ranks vary independently and normally, and all wait for the slowest; the spread is "
    "fitted to the time exposed (to the steps of one rank where only that was measured)",
    "a flat network: as fast between any two hosts, however many there are; no congestion, no failures",
    "input keeps up: waiting for data stays as measured",
]


def solve(rows, values):
    """Least squares by the normal equations; None where columns depend on each other."""
    n = len(rows[0])
    matrix = [[sum(r[i] * r[j] for r in rows) for j in range(n)] + [sum(r[i] * v for r, v in zip(rows, values))]
              for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12 * sum(r[i] * r[i] for r in rows) or matrix[i][i] == 0:
            return None
        for k in range(n):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i])]
    return [matrix[i][n] / matrix[i][i] for i in range(n)]


def fit_positive(columns, values):
    """Coefficients of the columns, none negative, with the least relative error; few columns, so all subsets are
    tried. With as many columns as values, earlier columns win."""
    best, best_error = [0.0] * len(columns), math.inf
    for k in range(1, min(len(columns), len(values)) + 1):
        for chosen in itertools.combinations(range(len(columns)), k):
            rows = [[columns[c][i] / v for c in chosen] for i, v in enumerate(values)]
            found = solve(rows, [1.0] * len(values))
            if not found or min(found) < 0:
                continue
            error = sum((sum(a * f for a, f in zip(row, found)) - 1) ** 2 for row in rows)
            if error < best_error * 0.999 - 1e-15:
                best_error = error
                best = [0.0] * len(columns)
                for c, f in zip(chosen, found):
                    best[c] = f
    return best


def volume(ranks):
    """Parts of an array that a rank sends in an all-reduce."""
    return 2 * (ranks - 1) / ranks


def fit_collective(rows):
    """Latency in us per doubling of ranks, us per byte; None where nothing was measured."""
    if not rows:
        return None
    return fit_positive([[math.log2(r["ranks"]) for r in rows], [r["bytes"] * volume(r["ranks"]) for r in rows]],
                        [r["median_us"] for r in rows])


def collective_ms(parameters, job, ranks, size):
    crosses = parameters["between"] and ranks > job["ranks_per_host"]
    latency, per_byte = parameters["between" if crosses else "within"] or parameters["between"] or (0, 0)
    return (latency * math.log2(ranks) + per_byte * size * volume(ranks)) / 1e3 if ranks > 1 else 0.0


def slowest(ranks):
    """How many standard deviations the slowest of `ranks` is above the mean."""
    return max(0.0, statistics.NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))) if ranks > 1 else 0.0


def pipeline_ms(parts, compute_ms, gather_ms, reduce_ms, waits):
    """What a pass waits for. It computes with one part after another; a part is gathered while the one before is
    computed with (the first has arrived, or is waited for) and reduced after it, one collective at a time."""
    network = arrived = gather_ms if waits else 0.0
    computed = 0.0
    for i in range(parts):
        begins = max(computed, arrived)
        if gather_ms and i + 1 < parts:
            network = arrived = max(network, begins) + gather_ms
        computed = begins + compute_ms / parts
        if reduce_ms:
            network = max(network, computed) + reduce_ms
    return max(computed, network) - compute_ms


def exposed_ms(parameters, job, ranks, pass_ms, micro_batches=1):
    """What a step's passes, each of one micro-batch, and its update wait for, bucket by bucket."""
    if ranks == 1:
        return 0.0
    shard, buckets = job["shard"], max(1, math.ceil(job["gradient_bytes"] / job["bucket_bytes"]))
    part = 1 if shard == "false" else 2  # a reduce-scatter or an all-gather is half of an all-reduce
    each, gather = (collective_ms(parameters, job, ranks, job[key] / buckets) * parameters["contention"] / part
                    for key in ("gradient_bytes", "weight_bytes"))
    backward = BACKWARD * pass_ms
    forward = pass_ms - backward
    if shard == "weights":
        turns = [pipeline_ms(buckets, forward, gather, 0.0, waits=i == 0)
                 + pipeline_ms(buckets, backward, gather, each, waits=False) for i in range(min(micro_batches, 2))]
        return turns[0] + (micro_batches - 1) * turns[-1]
    sent = (micro_batches if shard == "gradients" else 1) * pipeline_ms(buckets, backward, 0.0, each, waits=False)
    hidden = forward if job["ahead"] else 0.0
    gathered = max((i + 1) * gather - hidden * i / buckets for i in range(buckets))
    return sent + (0.0 if shard == "false" else gathered)


def predict(parameters, job, ranks, sequences, micro_batches=1, turns=1.0):
    """One step. turns: more ranks than cores take turns, in computing and in communicating."""
    compute = turns * (parameters["fixed_ms"] + parameters["ms_per_sequence"] * sequences
                       + (parameters["beside_ms"] if ranks > 1 else 0))
    exposed = exposed_ms(parameters, job, ranks, compute / turns / micro_batches, micro_batches) * turns
    straggler = parameters["straggler_ms"] * slowest(ranks) * turns
    return {"ranks": ranks, "sequences": sequences, "compute_ms": compute, "exposed_ms": exposed,
            "straggler_ms": straggler, "data_ms": parameters["data_ms"],
            "step_ms": compute + exposed + straggler + parameters["data_ms"]}


def fit_waits(parameters, job, points):
    """What explains the time exposed: how much slower a collective is than alone, and how far ranks are apart. The
    first counts only where several numbers of ranks show it: a wait that one number shows is put down to stragglers."""
    best = math.inf
    for factor in (2 ** (k / 64) for k in range(-64, 321)):
        trial = dict(parameters, contention=factor)
        left = [(p["exposed_ms"] - exposed_ms(trial, job, p["ranks"], p["compute_ms"] / p["micro_batches"],
                                               p["micro_batches"]))
                / p["step_ms"] for p in points]
        spread = [slowest(p["ranks"]) / p["step_ms"] for p in points]
        straggler = max(0.0, sum(a * b for a, b in zip(left, spread)) / sum(b * b for b in spread))
        error = sum((a - straggler * b) ** 2 for a, b in zip(left, spread)) + 1e-6 * math.log(factor) ** 2
        if error < best:
            best, found = error, (factor, straggler)
    return found


def fit(points, collectives, job, network=None):
    """network: (latency in us, bandwidth in 1e9 bytes/s) between hosts, in place of what was measured."""
    points = sorted(points, key=lambda p: p["ranks"])
    between = fit_collective([c for c in collectives if c["hosts"] > 1])
    if network:
        between = [network[0], 1 / (network[1] * 1e3)]
    parameters = {"within": fit_collective([c for c in collectives if c["hosts"] == 1]), "between": between,
                  "straggler_ms": points[0]["jitter_ms"], "contention": 1.0,
                  "data_ms": statistics.median(p["data_ms"] for p in points)}
    together = [p for p in points if p["ranks"] > 1]
    if together and (parameters["within"] or parameters["between"]):
        parameters["contention"], parameters["straggler_ms"] = fit_waits(parameters, job, together)
    columns = [[p["sequences"] for p in points], [1.0] * len(points), [float(p["ranks"] > 1) for p in points]]
    if len({p["sequences"] for p in points}) == 1:
        columns[1] = [0.0] * len(points)  # cannot be distinguished from the time per sequence
    found = fit_positive(columns, [p["compute_ms"] for p in points])
    parameters.update(ms_per_sequence=found[0], fixed_ms=found[1], beside_ms=found[2])
    return parameters


def predict_point(parameters, job, point):
    return predict(parameters, job, point["ranks"], point["sequences"], point["micro_batches"], point["turns"])


def held_out(points, collectives, job):
    """Each number of ranks predicted from the others alone: fitted points without it, and those with more ranks
    than cores, which are never fitted, from all that are. Its collectives are used only where no others were
    measured."""
    fitted = [p for p in points if not p["oversubscribed"]]
    rows = []
    for point in points:
        rest = [p for p in fitted if p["ranks"] != point["ranks"]]
        known = [c for c in collectives
                 if c["ranks"] != point["ranks"] and (c["hosts"] > 1) == (point["hosts"] > 1)]
        row = {"mode": point["mode"], "ranks": point["ranks"], "fitted_on": sorted({p["ranks"] for p in rest}),
               "own_collectives": not known and point["ranks"] > 1, "measured_ms": point["step_ms"],
               "oversubscribed": point["oversubscribed"], "predicted_ms": None, "error": None}
        if rest:
            parameters = fit(rest, known or collectives, job)
            row["predicted_ms"] = predict_point(parameters, job, point)["step_ms"]
            row["error"] = row["predicted_ms"] / point["step_ms"] - 1
        rows.append(row)
    return rows
