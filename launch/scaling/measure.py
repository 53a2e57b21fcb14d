#!/usr/bin/env python3
"""Measures how a training job scales over ranks.

  launch/scaling.sh CONFIG --ranks 1,2,4,8 [--weak] [--strong] [options] [section.key=value ...]

For each number of ranks it measures the collectives (dtrain bench --comm), then short runs of CONFIG without evaluations and
checkpoints, on synthetic data and on the configuration's own. The first steps of a run are not counted; a figure is
the median over its steps and over its repeats. Then a model of the step is fitted, checked on numbers of ranks held out of
the fit, and used to predict larger jobs (launch/scaling/model.py).

The table: step ms is the median step, (from-to) the fastest and slowest repeat. efficiency is tokens/s per rank, relative
to the smallest number of ranks. exposed comm and data wait are the parts of a step in which rank 0 waits for gradients
and for data. stragglers, in the prediction, is the part in which ranks wait for the slowest.

Strong scaling (default) keeps data.batch. Weak scaling keeps the sequences per rank: data.batch is that of the smallest
number of ranks. On the CPUs of one machine every rank gets the same number of threads (run.threads, unless given), so
that more ranks use more cores; more ranks than cores are marked and never fitted.

Finished runs in the folder --out are not repeated: run the same command again after a failure or a stop.
"""
import argparse
import datetime
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys

import model
import plot

SETTINGS = {  # a training run without what is not a step; its learning rate cannot spoil the weights
    "run.resume": "never", "run.patience": "0", "optim.schedule": "constant", "optim.warmup_steps": "0",
    "optim.lr": "1e-6", "optim.min_lr": "auto", "data.val": "", "checkpoint.every": "0", "checkpoint.minutes": "0",
    "checkpoint.best": "false", "log.eval_every": "0", "log.console": "plain", "log.every": "1000000", "log.trace_steps": "",
    "optim.rollback": "0", "run.allow_unequal_nodes": "true"}  # 3 ranks on nodes of 2
PREDICTED = [64, 128, 256, 512, 1024, 2048, 4096]


def say(text):
    print(f"scaling: {text}", file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(prog="launch/scaling.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    parser.add_argument("--ranks", required=True, help="numbers of ranks, such as 1,2,4,8")
    parser.add_argument("--weak", action="store_true", help="data.batch grows with the ranks")
    parser.add_argument("--strong", action="store_true", help="data.batch stays (default)")
    parser.add_argument("--data", choices=["both", "synthetic", "config"], default="both")
    parser.add_argument("--steps", type=int, default=50, help="measured steps of a run (default 50)")
    parser.add_argument("--warmup", type=int, default=10, help="steps before them (default 10)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--out", metavar="DIR", help="default: scaling/NAME-OF-CONFIG")
    parser.add_argument("--network", metavar="US,GB/S",
                        help="predict for hosts linked by this latency and bandwidth instead of what was measured")
    parser.add_argument("--launcher", default="mpirun -np", help="what starts N ranks when N is appended "
                                           "(default: mpirun here, srun --mpi=pmix inside a Slurm allocation)")
    arguments = parser.parse_intermixed_args()
    launchers = [a for a in sys.argv[1:] if a == "--launcher" or a.startswith("--launcher=")]
    arguments.own_launcher = len(launchers) > 1  # scaling.sh gives the first
    try:
        arguments.ranks = sorted({int(n) for n in arguments.ranks.split(",")})
        assert arguments.ranks[0] > 0
    except (ValueError, AssertionError):
        parser.error(f"--ranks {arguments.ranks}: must be positive numbers, such as 1,2,4,8")
    if arguments.network:
        try:
            arguments.network = [float(x) for x in arguments.network.split(",")]
            assert len(arguments.network) == 2 and min(arguments.network) > 0
        except (ValueError, AssertionError):
            parser.error("--network: must be a latency in us and a bandwidth in GB/s, such as 5,12.5")
    if min(arguments.steps, arguments.repeats) < 1 or arguments.warmup < 0:
        parser.error("--steps and --repeats must be positive")
    for pair in arguments.settings:
        if not re.fullmatch(r"\w+\.\w+=.*", pair):
            parser.error(f"{pair}: not section.key=value")
    if not os.path.isfile(arguments.config):
        parser.error(f"{arguments.config}: no such file")
    name = os.path.splitext(os.path.basename(arguments.config))[0]
    arguments.out = arguments.out or os.path.join("scaling", name)
    return arguments


class Failed(Exception):
    pass


class Job:
    def __init__(self, arguments):
        self.arguments = arguments
        self.dtrain = os.environ.get("DTRAIN") or shutil.which("build/dtrain") or shutil.which("dtrain") or "build/dtrain"
        self.given = dict(pair.split("=", 1) for pair in arguments.settings)
        self.failed = []
        self.load = os.getloadavg()[0]
        if not os.access(self.dtrain, os.X_OK):
            raise Failed(f"{self.dtrain} does not exist: build it (cmake --preset cpu-release && cmake --build "
                         "--preset cpu-release), or set DTRAIN to its path")

    def launcher(self, ranks):
        """By mpirun, or by srun on as few nodes of the allocation as hold the ranks."""
        if "SLURM_JOB_ID" not in os.environ or self.arguments.own_launcher:
            return shlex.split(self.arguments.launcher) + [str(ranks)]
        words = ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "-n", str(ranks)]
        per_node = re.match(r"\d+", os.environ.get("SLURM_NTASKS_PER_NODE", ""))
        if per_node:
            words += ["-N", str(math.ceil(ranks / int(per_node[0])))]
        return words

    def start(self, ranks, words, log):
        """Output on success; the first error in words otherwise. The whole output is kept in a file."""
        command = self.launcher(ranks) + [self.dtrain] + words
        with open(log, "w") as file:
            print(shlex.join(command), file=file, flush=True)
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=file, text=True, check=False,
                                  env=os.environ | {"COLUMNS": "1000"})  # an error is one line
        with open(log) as file:
            errors = [line.strip() for line in file if line.startswith("dtrain: error: ")]
        with open(log, "a") as file:
            file.write(done.stdout)
        if done.returncode != 0:
            raise Failed(errors[-1] if errors else f"exit code {done.returncode}, see {log}")
        return done.stdout

    def pairs(self, ranks, mode, data, more):
        settings = dict(SETTINGS, **more)
        if data == "synthetic":
            frames = bool(self.resolved.get("model.heads"))
            settings["data.train"] = "synthetic:frames" if frames else "synthetic:random"
            settings.update({"data.normalize": "false"} if frames else {})
        if mode == "weak":
            settings["data.batch"] = str(self.batch * ranks // self.arguments.ranks[0])
        if self.threads:
            settings["run.threads"] = str(self.threads)
        given = {k: v for k, v in self.given.items() if k not in ("data.train", "data.batch") or k not in settings}
        return [f"{k}={v}" for k, v in dict(settings, **given).items()]

    def without_epochs(self):
        """The configuration, or a copy without run.epochs, which would contradict run.steps."""
        with open(self.arguments.config) as file:
            text = file.read()
        plain = re.sub(r"(?m)^[ \t]*epochs[ \t]*=.*$", "", text)
        if plain == text:
            return self.arguments.config
        path = os.path.join(self.arguments.out, "config.ini")
        write(path, plain)
        return path

    def look(self):
        """The resolved configuration, and what `dtrain --check` says of model and machine."""
        first = self.arguments.ranks[0]
        self.resolved, self.threads = {}, 0
        self.config = self.without_epochs()
        steps = {"run.steps": str(self.arguments.warmup + self.arguments.steps),
                 "run.dir": os.path.join(self.arguments.out, "runs", "check")}
        text = self.start(first, ["--check", self.config] + self.pairs(first, "strong", "config", steps),
                          os.path.join(self.arguments.out, "check.log"))
        section = ""
        for line in text.splitlines():
            if re.fullmatch(r"\[\w+\]", line):
                section = line[1:-1]
            match = re.match(r"(\w+) = (.*?) +# ", line)
            if match and section:
                self.resolved[f"{section}.{match[1]}"] = match[2]
        self.batch = int(self.resolved["data.batch"])
        found = re.search(r"^device: (.*?)(, (\d+) threads?)? \(", text, re.M)
        self.device, self.on_cpu = found[1], found[3] is not None
        self.parameters = 1e6 * float(re.search(r"^model: ([\d.]+) M parameters", text, re.M)[1])
        self.cores = len(os.sched_getaffinity(0))
        self.here = "SLURM_JOB_ID" not in os.environ and not self.arguments.own_launcher
        if self.here and self.on_cpu and "run.threads" not in self.given:
            fitting = [n for n in self.arguments.ranks if n <= self.cores] or [self.cores]
            self.threads = max(1, self.cores // max(fitting))
        self.given_threads = self.threads or int(self.given.get("run.threads", 0))
        wire = 2 if self.resolved.get("comm.dtype") == "bf16" else 4
        self.job = {"gradient_bytes": wire * self.parameters,
                    "bucket_bytes": wire / 4 * 1e6 * float(self.resolved.get("comm.bucket_mb", 25))}
        self.job["shard"] = self.resolved.get("optim.shard", "false").replace("true", "states")
        bf16 = re.search(r"^model: .* bf16 storage", text, re.M) is not None
        self.job["weight_bytes"] = (2 if bf16 else 4) * self.parameters
        self.job["ahead"] = (not self.on_cpu and self.resolved.get("comm.backend") != "mpi"
                             and self.resolved.get("run.share_device") != "true")
        self.job["bucket_bytes"] = min(self.job["bucket_bytes"], self.job["gradient_bytes"])

    def sorts(self):
        """(mode, data) of the runs."""
        modes = [m for m in ("strong", "weak") if getattr(self.arguments, m)] or ["strong"]
        synthetic = self.resolved["data.train"].startswith("synthetic:")
        data = {"both": ["synthetic"] if synthetic else ["synthetic", "data"], "synthetic": ["synthetic"],
                "config": ["synthetic" if synthetic else "data"]}[self.arguments.data]
        return [(m, d) for m in modes for d in data]

    def kept(self, name, command, make):
        """The result of `make`, or that of an earlier call with the same command, kept in a file."""
        path = os.path.join(self.arguments.out, "runs", name + ".json")
        if os.path.exists(path):
            with open(path) as file:
                before = json.load(file)
            if before["command"] == command:
                return before["result"]
        try:
            result = make()
        except Failed as error:
            self.failed.append({"run": name, "error": str(error)})
            say(f"{name} failed: {error}")
            return None
        with open(path + ".new", "w") as file:
            json.dump({"command": command, "result": result}, file)
        os.replace(path + ".new", path)
        return result

    def collectives(self, ranks):
        kind = "bf16" if self.resolved.get("comm.dtype") == "bf16" else "fp32"
        words = ["bench", "--comm", "--collective", "all-reduce", "--type", kind, "--first", "4K", "--factor", "4",
                 "--last", str(int(max(1 << 20, 2 * self.job["bucket_bytes"]))), "--seconds", "0.05", "--json",
                 "--device", "cpu" if self.on_cpu else "cuda"]
        order = "tree" if self.resolved.get("comm.reduce") == "reproducible" else "fast"

        def make():
            say(f"collectives on {ranks} ranks")
            text = self.start(ranks, words, os.path.join(self.arguments.out, "runs", f"collectives-{ranks}.log"))
            rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            backends = {r["backend"] for r in rows}
            used = "nccl" if "nccl" in backends and self.resolved.get("comm.backend") != "mpi" else rows[0]["backend"]
            return [r for r in rows if r["backend"] == used and r["sum"] == order]
        if ranks == 1:
            return []
        return self.kept(f"collectives-{ranks}", words, make) or []

    def run(self, mode, data, ranks, repeat):
        a = self.arguments
        name = f"{mode}-{data}-{ranks}-{repeat}"
        folder = os.path.join(a.out, "runs", name)
        more = {"run.steps": str(a.warmup + a.steps), "run.dir": folder}
        words = [self.config] + self.pairs(ranks, mode, data, more)

        def make():
            say(f"{mode} scaling, {data}, {ranks} rank{'s' * (ranks > 1)}, run {repeat} of {a.repeats}")
            shutil.rmtree(folder, ignore_errors=True)
            self.start(ranks, words, folder + ".log")
            with open(os.path.join(folder, "metrics.jsonl")) as file:
                steps = [json.loads(line) for line in file]
            shutil.rmtree(folder)
            return summary([s for s in steps if s["event"] == "train"], a.warmup)
        return self.kept(name, words, make)


def summary(steps, warmup):
    """The figures of one run."""
    steps = steps[warmup:]
    tokens = (steps[-1]["tokens"] - steps[0]["tokens"]) / max(len(steps) - 1, 1) or steps[0]["tokens"]
    figures = {name: statistics.median(s[key] for s in steps) for name, key in
               (("step_ms", "step_ms"), ("exposed_ms", "comm_wait_ms"), ("data_ms", "data_wait_ms"))}
    alone = [s["step_ms"] - s["comm_wait_ms"] - s["data_wait_ms"] for s in steps]
    figures["compute_ms"] = statistics.median(alone)
    # Robust against a few steps that something else delayed: what the median step differs by.
    figures["jitter_ms"] = 1.4826 * statistics.median(abs(x - figures["compute_ms"]) for x in alone)
    return dict(figures, tokens=tokens, memory_mb=max(s["memory_mb"] for s in steps), steps=len(steps))


def busy(job):
    """A sentence, where other programs ran when this began."""
    return f"; the machine was busy with other work (load {job.load:.1f})" if job.load > 0.5 else ""


def times(n, word):
    return f"{n} {word}" + "s" * (n != 1)


def combine(job, mode, data, ranks, runs, hosts, crowded):
    """The row of the table: the median of the repeats."""
    row = {key: statistics.median(r[key] for r in runs) for key in runs[0]}
    batch = job.batch * (ranks // job.arguments.ranks[0] if mode == "weak" else 1)
    micro = int(job.resolved.get("data.micro_batch", 0)) or batch // ranks
    turns = ranks * job.given_threads / job.cores if job.here and job.on_cpu and job.given_threads else 1.0
    shares = not job.on_cpu and job.resolved.get("run.share_device") == "true"
    return dict(row, mode=mode, data=data, ranks=ranks, hosts=hosts, batch=batch, sequences=batch / ranks,
                micro_batches=max(1, batch // ranks // micro), repeats=len(runs),
                tokens_per_s=1e3 * row["tokens"] / row["step_ms"],
                slowest_ms=max(r["step_ms"] for r in runs), fastest_ms=min(r["step_ms"] for r in runs),
                turns=max(1.0, turns), oversubscribed=turns > 1 or crowded or shares)


def add_efficiency(rows):
    for row in rows:
        base = min((r for r in rows if (r["mode"], r["data"]) == (row["mode"], row["data"])), key=lambda r: r["ranks"])
        row["efficiency"] = row["tokens_per_s"] / row["ranks"] / (base["tokens_per_s"] / base["ranks"])


def measure(job):
    a = job.arguments
    collectives = {n: job.collectives(n) for n in a.ranks}
    runs = {}
    for repeat in range(1, a.repeats + 1):  # outermost: what else the machine does meets all alike
        for mode, data in job.sorts():
            for ranks in a.ranks:
                result = job.run(mode, data, ranks, repeat)
                if result:
                    runs.setdefault((mode, data, ranks), []).append(result)
    rows = []
    for (mode, data, ranks), results in runs.items():
        seen = collectives[ranks][0] if collectives[ranks] else {"hosts": 1, "oversubscribed": 0}
        rows.append(combine(job, mode, data, ranks, results, seen["hosts"], bool(seen["oversubscribed"])))
    add_efficiency(rows)
    return rows, [c for n in a.ranks for c in collectives[n]]


def fit_and_predict(job, rows, collectives):
    """None where no number of ranks can be fitted."""
    data = "data" if any(r["data"] == "data" for r in rows) else "synthetic"
    points = [r for r in rows if r["data"] == data]
    fitted = [p for p in points if not p["oversubscribed"]]
    usable = [c for c in collectives if not c["oversubscribed"]]
    several = any(p["ranks"] > 1 for p in fitted) and usable
    if not several and not (fitted and job.arguments.network):
        return None
    job.job["ranks_per_host"] = max([p["ranks"] for p in points if p["hosts"] == 1] or [0])
    network = job.arguments.network
    parameters = model.fit(fitted, usable, job.job, network)
    tokens = points[0]["tokens"] / points[0]["batch"]
    smallest = min(points, key=lambda p: p["ranks"])
    one = model.predict(parameters, job.job, smallest["ranks"], smallest["sequences"], smallest["micro_batches"])
    predictions = []
    for mode, ranks in [(m, n) for m in ("strong", "weak") for n in sorted(set(job.arguments.ranks + PREDICTED))]:
        sequences = job.batch / ranks if mode == "strong" else smallest["sequences"]
        if sequences >= 1:
            p = model.predict(parameters, job.job, ranks, sequences, smallest["micro_batches"])
            p.update(mode=mode, data=data, tokens_per_s=tokens * sequences * ranks / p["step_ms"] * 1e3,
                     efficiency=one["step_ms"] / one["sequences"] * sequences / p["step_ms"])
            predictions.append(p)
    return {"data": data, "parameters": parameters, "job": job.job,
            "assumptions": assumptions(job, fitted, collectives), "held_out": model.held_out(points, usable, job.job), "predictions": predictions}


def assumptions(job, fitted, collectives):
    said = list(model.ASSUMPTIONS)
    if job.arguments.network:
        said[-2] = "a flat network between hosts of {:g} us and {:g} GB/s, as --network says".format(
            *job.arguments.network)
    elif all(c["hosts"] == 1 for c in collectives):
        said.append("measured on one host: the prediction takes the network to be as fast as this host's memory; "
                    "measure on two hosts or more, or describe the network by --network")
    most = max(p["ranks"] for p in fitted)
    said.append(f"fitted on up to {most} ranks: 64 ranks are {64 / most:g} times that, 4,096 ranks {4096 / most:g} times")
    return said


# ---- what is printed

def aligned(titles, rows):
    widths = [max(len(line[i]) for line in [titles] + rows) for i in range(len(titles))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths)).rstrip() for line in [titles] + rows)


def measured_table(rows):
    titles = ["scaling", "data", "ranks", "hosts", "batch", "step ms", "(from-to)", "tokens/s", "efficiency",
              "exposed comm", "data wait", "MB/rank", ""]
    cells = [[r["mode"], r["data"], str(r["ranks"]), str(r["hosts"]), str(r["batch"]), f"{r['step_ms']:.1f}",
              f"({r['fastest_ms']:.1f}-{r['slowest_ms']:.1f})", f"{r['tokens_per_s']:,.0f}",
              f"{100 * r['efficiency']:.1f} %", f"{100 * r['exposed_ms'] / r['step_ms']:.1f} %",
              f"{100 * r['data_ms'] / r['step_ms']:.2f} %", f"{r['memory_mb']:.0f}",
              "more ranks than cores" if r["oversubscribed"] else ""]
             for r in sorted(rows, key=lambda r: (r["mode"], r["data"], r["ranks"]))]
    return aligned(titles, cells)


def held_out_table(held_out):
    titles = ["scaling", "ranks", "fitted on", "measured ms", "predicted ms", "error", ""]
    return aligned(titles, [
        [h["mode"], str(h["ranks"]), ",".join(map(str, h["fitted_on"])) + " + its collectives" * h["own_collectives"],
         f"{h['measured_ms']:.1f}", f"{h['predicted_ms']:.1f}" if h["predicted_ms"] else "-",
         f"{100 * h['error']:+.1f} %" if h["predicted_ms"] else "-",
         "more ranks than cores: never fitted" if h["oversubscribed"] else ""] for h in held_out])


def prediction_table(predictions):
    titles = ["scaling", "ranks", "sequences/rank", "step ms", "tokens/s", "efficiency", "exposed comm", "stragglers"]
    return aligned(titles, [
        [p["mode"], str(p["ranks"]), f"{p['sequences']:g}", f"{p['step_ms']:.1f}", f"{p['tokens_per_s']:,.0f}",
         f"{100 * p['efficiency']:.1f} %", f"{100 * p['exposed_ms'] / p['step_ms']:.1f} %",
         f"{100 * p['straggler_ms'] / p['step_ms']:.1f} %"] for p in predictions])


def report(job, rows, fitted, failed):
    a = job.arguments
    threads = f", {times(job.given_threads, 'thread')} per rank" if job.given_threads else ""
    text = [f"{a.config}: {job.parameters / 1e6:.3g} M parameters, {job.resolved['data.seq_len']} tokens per sequence; "
            f"{job.device}, {times(job.cores, 'core')} here{threads}; medians of {times(a.repeats, 'run')} of {a.steps} "
            f"steps after {a.warmup}; waits and memory are those of rank 0{busy(job)}", "", measured_table(rows)]
    if fitted:
        p = fitted["parameters"]
        text += ["", f"A step, fitted to the runs on {fitted['data']}: {p['fixed_ms']:.2f} ms + "
                 f"{p['ms_per_sequence']:.3f} ms per sequence + {p['beside_ms']:.2f} ms with communication; ranks "
                 f"{p['straggler_ms']:.2f} ms apart; collectives x{p['contention']:.2f} during a step"]
        for where in ("within", "between"):
            if p[where]:
                speed = f"{1e-3 / p[where][1]:.2f} GB/s" if p[where][1] else "a time that does not depend on the size"
                text += [f"All-reduce {where} hosts: {p[where][0]:.1f} us per doubling of ranks, {speed}"]
        text += ["", "Each number of ranks predicted without it:", held_out_table(fitted["held_out"])]
        text += ["", "Assumptions:"] + [f"  - {line}" for line in fitted["assumptions"]]
        text += ["", "Predicted:", prediction_table([q for q in fitted["predictions"] if q["ranks"] in PREDICTED])]
    else:
        text += ["", "No model: it needs two numbers of ranks, one of several, that have cores enough."]
    text += [""] * bool(failed) + [f"failed: {f['run']}: {f['error']}" for f in failed]
    return "\n".join(text) + "\n"


def picture(job, rows, fitted):
    a = job.arguments
    headings = {"strong": f"Strong scaling: {job.batch} sequences per step over all ranks",
                "weak": f"Weak scaling: {job.batch / a.ranks[0]:g} sequences per rank and step"}
    modes = sorted({r["mode"] for r in rows})
    predictions = fitted["predictions"] if fitted else []
    groups = [(headings[mode], [r for r in rows if r["mode"] == mode],
               [p for p in predictions if p["mode"] == mode or (p["mode"] == "weak" and "weak" not in modes)])
              for mode in modes]
    hosts = max(r["hosts"] for r in rows)
    title = f"{os.path.basename(a.config)}: {job.parameters / 1e6:.3g} M parameters, " \
            f"{job.resolved['data.seq_len']} tokens per sequence"
    subtitle = f"{job.device}, {times(job.cores, 'core')}, {times(hosts, 'host')}; medians of " \
               f"{times(a.repeats, 'run')} of {a.steps} steps; {datetime.date.today()}{busy(job)}"
    return plot.draw(title, subtitle, groups)


def write(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def main():
    arguments = parse()
    try:
        os.makedirs(os.path.join(arguments.out, "runs"), exist_ok=True)
        job = Job(arguments)
        job.look()
    except (Failed, OSError) as error:
        print(f"scaling.sh: {error}", file=sys.stderr)
        return 2
    rows, collectives = measure(job)
    if not rows:
        sys.exit("scaling.sh: every run failed")
    fitted = fit_and_predict(job, rows, collectives)
    text = report(job, rows, fitted, job.failed)
    results = {"command": shlex.join(["launch/scaling.sh"] + sys.argv[3:]), "config": arguments.config,
               "settings": arguments.settings, "date": datetime.date.today().isoformat(), "device": job.device,
               "cores": job.cores, "load": job.load, "threads_per_rank": job.given_threads,
               "parameters": job.parameters, "seq_len": int(job.resolved["data.seq_len"]), "steps": arguments.steps,
               "warmup": arguments.warmup, "repeats": arguments.repeats, "rows": rows, "collectives": collectives,
               "model": fitted, "failed": job.failed}
    write(os.path.join(arguments.out, "scaling.json"), json.dumps(results, indent=1) + "\n")
    write(os.path.join(arguments.out, "scaling.txt"), text)
    write(os.path.join(arguments.out, "scaling.svg"), picture(job, rows, fitted))
    sys.stdout.write(text)
    say(f"scaling.txt, scaling.json and scaling.svg are in {arguments.out}")
    return 1 if job.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("scaling.sh: stopped; the same command continues with the runs that are missing")
