# Converts files that NumPy, pyarrow and csv write, and replays, by data/convert.py, and compares every number; trains
# dtrain (argv[1]) on the results. argv[2]: the part, numpy, tables or slippi.
import contextlib
import csv
import gzip
import io
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np

CONVERT = Path(__file__).parents[2] / "data" / "convert.py"
rng, checks, failures = np.random.default_rng(11), 0, 0


def check(what, fine):
    global checks, failures
    checks += 1
    if not fine:
        failures += 1
        print(f"FAILED: {what}", file=sys.stderr)


def run(*words, **rest):
    return subprocess.run([sys.executable, CONVERT, *words], capture_output=True, text=True, **rest)


def convert(what, *words, output="out.h5"):
    """Converts, trains two steps with the printed configuration, and opens the file."""
    done = run(*words, "-o", output, "--force")
    check(f"{what}: exit code {done.returncode}, {done.stderr}", done.returncode == 0)
    if done.returncode:
        sys.exit(1)
    Path("out.ini").write_text(done.stdout)
    trained = subprocess.run([sys.argv[1], "out.ini", "run.steps=2", "optim.warmup_steps=1", "model.d_model=16",
                              f"run.name={what.replace(' ', '-')}", "run.precision=fp32", "log.every=1"],
                             capture_output=True, text=True)
    losses = re.findall(r"step \d/2  loss ([0-9.]+)", trained.stderr + trained.stdout)
    check(f"{what}: dtrain trains on it: {done.stdout}{trained.stderr}", trained.returncode == 0 and len(losses) == 2)
    return h5py.File(output, "r"), done.stdout


def refused(what, pattern, *words, code=2, **rest):
    """It ends with one message, and leaves neither the output nor a temporary file."""
    done = run(*words, "-o", "none.h5", **rest)
    check(f"{what}: exit code {done.returncode}, {done.stdout}", done.returncode == code and done.stdout == "")
    check(f"{what}: {pattern!r} in {done.stderr!r}", re.search(pattern, done.stderr) is not None)
    check(f"{what}: one line: {done.stderr}", len(done.stderr.splitlines()) == 1)
    check(f"{what}: left {list(Path().glob('none*'))}", not list(Path().glob("none*")))


def same(what, got, want):
    got, want = np.asarray(got), np.asarray(want)
    fine = got.shape == want.shape and (got == want if got.dtype == object else
                                        np.isclose(got, want, rtol=0, atol=0, equal_nan=True)).all()
    check(f"{what}: {got.dtype} {got.shape} and {want.shape} agree", fine)


def f4(x):
    return np.asarray(x).astype(np.float32)


def episode(n):
    return {"obs": rng.normal(2, 3, (n, 3)), "image": rng.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8),
            "stage": rng.integers(0, 5, n), "action": f4(rng.normal(size=(n, 2))), "reward": rng.normal(size=n)}


def joined(episodes, name):
    return np.concatenate([e[name] for e in episodes])


def numpy_part():
    lengths = [40, 1, 23, 70]
    episodes = [episode(n) for n in lengths]
    starts = np.cumsum([0, *lengths[:-1]])
    Path("demos").mkdir()
    for i, e in enumerate(episodes):
        e["obs"] = np.asfortranarray(e["obs"]) if i == 2 else e["obs"]  # stored in the order of columns
        (np.savez if i % 2 else np.savez_compressed)(f"demos/demo_{i}.npz", **e, task=["walk", "run"][i == 3])
    os.rename("demos/demo_3.npz", "demos/demo_10.npz")  # sorts after demo_2
    words = ["numpy", "demos", "--ids", "stage", "--inputs", "obs", "image", "task", "stage", "--targets", "action"]
    file, text = convert("npz", *words)
    same("frames", file["frames"], f4(joined(episodes, "obs")))
    same("images", file["images/image"], joined(episodes, "image"))
    same("ids", file["ids/stage"], joined(episodes, "stage"))
    same("targets", file["targets/action"], joined(episodes, "action"))
    same("starts", file["episode_starts"], starts)
    same("scalar text", file["ids/task"], np.repeat([0, 0, 0, 1], lengths))
    same("its table", file["tables/task"].asstr()[:], np.array(["walk", "run"], object))
    same("names of the numbers", file["tables/frames"].asstr()[:], np.array([f"obs[{i}]" for i in range(3)], object))
    check(f"configuration {text}", "heads = action:regression*2" in text and
          "inputs = frames images/image ids/stage:id*5 ids/task:id*2" in text and "134 rows, 4 episodes of 1 to 70" in text)

    # The same as columns in .npy files, with the number of the episode.
    for name in episodes[0]:
        np.save(f"{name}.npy", joined(episodes, name))
    np.save("trial.npy", np.repeat([7, 3, 9, 1], lengths))
    columns = [f"{name}.npy" for name in (*episodes[0], "trial")]
    file, text = convert("npy", "numpy", *columns, "--targets", "all=[ar]*ion", "reward", "stage", "--episode", "trial",
                         "--inputs", "obs", output="npy.h5")
    same("npy frames", file["frames"], f4(joined(episodes, "obs")))
    same("npy starts", file["episode_starts"], starts)
    same("npy whole numbers", file["targets/stage"], f4(joined(episodes, "stage")[:, None]))
    check(f"npy heads {text}", "heads = all:regression*2 reward:regression*1 stage:categorical*5" in text)

    check(f"a table for validation {text}", "; val = another file\n" in text)

    # Trials on the first axis, a label for each; text of fixed width.
    x, y = rng.normal(size=(6, 30, 4)), np.array(["left", "right"] * 3)
    np.savez("trials.npz", X=x, y=y)
    file, _ = convert("trials", "numpy", "trials.npz", "--trials", "--targets", "y", output="trials.h5")
    same("trials", file["frames"], f4(x.reshape(180, 4)))
    same("labels of trials", file["targets/y"], f4(np.repeat([0, 1] * 3, 30)[:, None]))
    same("starts of trials", file["episode_starts"], np.arange(0, 180, 30))

    # Wrong inputs are refused with the file and the row.
    def changed(name, **arrays):
        np.savez(f"{name}.npz", **{**episodes[0], **arrays})
        return f"{name}.npz"
    bad = episodes[0]["obs"].copy()
    bad[17, 1] = np.nan
    refused("NaN", r"nan.npz: row 17: obs is missing", "numpy", changed("nan", obs=bad))
    bad[17, 1] = 1e39
    refused("too large", r"huge.npz: row 17: obs is 1e\+39, which fp32", "numpy", changed("huge", obs=bad))
    refused("no id", r"row 3: stage is -1: ids are whole", "numpy",
            changed("id", stage=np.where(np.arange(40) == 3, -1, 0)), "--ids", "stage")
    refused("lengths", "short.npz: .*39 rows, .*40 rows", "numpy", changed("short", reward=np.zeros(39)))
    refused("objects", "objects.npz: reward holds object, neither", "numpy", changed("objects", reward=np.array([{}] * 40)))
    refused("another shape", r"wide.npz: row 0: obs holds 4 numbers, and before 3 numbers", "numpy", "demos/demo_0.npz",
            changed("wide", obs=np.zeros((40, 4))), "--inputs", "obs")
    refused("no array", "few.npz: no array 'reward', which demos/demo_0.npz has", "numpy", "demos/demo_0.npz", few())
    whole = Path("demos/demo_1.npz").read_bytes()
    Path("cut.npz").write_bytes(whole[:-200])
    refused("truncated archive", "cut.npz: damaged, or not of NumPy: File is not a zip", "numpy", "cut.npz")
    np.savez_compressed("flipped.npz", **episodes[3])
    flipped = bytearray(Path("flipped.npz").read_bytes())
    flipped[len(flipped) // 2] ^= 0xff
    Path("flipped.npz").write_bytes(flipped)
    refused("damaged archive", "flipped.npz: damaged", "numpy", "flipped.npz")
    Path("cut.npy").write_bytes(Path("obs.npy").read_bytes()[:-8])
    refused("truncated array", "cut.npy: cut: the file ends within the array", "numpy", "cut.npy")
    refused("unknown column", "--inputs: no column 'obz'; did you mean 'obs'", "numpy", "demos", "--inputs", "obz")
    refused("no file", "nothing.npz: no such file", "numpy", "nothing.npz")
    many = {f"column_{i}": np.zeros(4) for i in range(33)}
    np.savez("many.npz", **many, **{"long" * 8: np.zeros(4)})
    refused("too many heads", "33 columns, and dtrain has at most 32 heads", "numpy", "many.npz", "--targets", "column_*")
    refused("too long", "--targets: longlong.*at most 31 characters", "numpy", "many.npz", "--targets", "long*")
    refused("too many ids", "33 columns of ids, and dtrain reads at most 16", "numpy", "many.npz", "--ids", "column_*")
    np.savez("nul.npz", x=np.arange(2), t=np.array(["a\0b", "c"]))
    refused("NUL", "tables/t: a text that HDF5 does not hold", "numpy", "nul.npz")
    done = run("numpy", "nul.npz", "-o", "nul.npz", "--force")
    check(f"over the input: {done.stderr}", done.returncode == 2 and "nul.npz is the input" in done.stderr)
    refused("no argument", "--gap needs --time", "numpy", "demos", "--gap", "3")
    refused("empty", "no rows in empty.npz", "numpy", few("empty", 0))

    # If a package is missing, the message names the command that installs it. --help needs no package.
    bare = [subprocess.run([sys.executable, "-S", CONVERT, *words], capture_output=True, text=True)
            for words in (["table", "--help"], ["table", "x.csv", "-o", "none.h5"])]
    check(f"no package: {[done.stderr for done in bare]}", [done.returncode for done in bare] == [0, 2] and
          re.fullmatch(r"convert.py: error: needs the Python package numpy .*: \S+ -m pip install numpy\n", bare[1].stderr))

    # An existing output stays as it was without --force, on a full disk, and when the conversion is stopped.
    before = Path("npy.h5").read_bytes()
    done = run("numpy", "demos", "-o", "npy.h5")
    check(f"no --force: {done.stderr}", done.returncode == 2 and "npy.h5 exists: --force" in done.stderr)
    np.lib.format.open_memmap("large.npy", "w+", np.float64, (1 << 20, 16))  # 128 MiB of a sparse file
    done = run("numpy", "large.npy", "-o", "npy.h5", "--force",
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    check(f"full disk: {done.returncode} {done.stderr}", done.returncode == 3 and
          re.fullmatch(r"convert.py: error: npy.h5 cannot be written: .*File too large.*\n", done.stderr, re.DOTALL))
    stopped = subprocess.Popen([sys.executable, CONVERT, "numpy", "large.npy", "-o", "npy.h5", "--force"],
                               stderr=subprocess.PIPE, text=True)
    while not list(Path().glob("npy.h5.*")) and stopped.poll() is None:
        time.sleep(0.001)
    stopped.send_signal(signal.SIGTERM)
    _, message = stopped.communicate()
    check(f"stopped: {stopped.returncode} {message}", stopped.returncode == 130 and "nothing was written" in message)
    check("the output is as it was, alone", Path("npy.h5").read_bytes() == before and not list(Path().glob("npy.h5.*")))

    # Progress is reported on a terminal and elsewhere.
    sys.path.insert(0, str(CONVERT.parent))
    from converters.shared import Progress
    for live, pattern in (True, r"\r\[#{7} {23}\] 25 % of x.h5, 30 s left  \n"), (False, r"\[#.*\] 25 % of x.h5, 30 s left\n"):
        progress, text = Progress("x.h5"), io.StringIO()
        progress.live, progress.begun, progress.next = live, progress.begun - 10, 0
        with contextlib.redirect_stderr(text):
            progress.show(0.25)
            progress.show(0.26)  # too early for a report
            progress.end()
        check(f"progress {text.getvalue()!r}", re.fullmatch(pattern, text.getvalue()) is not None)

    # Memory does not grow with the file: twice that of the small conversions is less than a quarter of the file.
    small = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    run("numpy", "large.npy", "-o", "large.h5")
    large = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    check(f"memory: {large} KiB after {small} KiB", large < small + (32 << 10))
    os.unlink("large.h5")


def few(name="few", n=1):
    np.savez(f"{name}.npz", **{key: x[:n] for key, x in episode(1).items() if key != "reward"})
    return f"{name}.npz"


def write_csv(path, names, rows, delimiter=","):
    with (gzip.open if path.endswith(".gz") else open)(path, "wt", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, *rows])


def tables_part():
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A table with numbers, text, missing cells and quoted line breaks; whole numbers followed by others far below.
    names, n = ["run", "time", "temp [C]", "place", "count", "power", "mode", "note"], 300000
    count = [i % 7 for i in range(n)]
    count[-1] = 2.5
    rows = [[i // 1000, i % 1000 * 0.5, f"{20 + i * 0.001:.3f}", "north" if i % 3 else "", count[i],
             "" if i % 5 == 0 else i * 0.25, ["idle", "on", ""][i % 3], "two\nlines" if i == 4 else "x"] for i in range(n)]
    write_csv("a.csv", names, rows)
    words = ["--inputs", "temp [C]", "count", "place", "--targets", "power", "mode", "--episode", "run", "--time", "time",
             "--text", "place", "mode"]
    file, text = convert("csv", "table", "a.csv", *words)
    same("csv frames", file["frames"], f4(np.transpose([[float(row[2]) for row in rows], count])))
    same("csv ids", file["ids/place"], [i % 3 > 0 for i in range(n)])
    same("csv table", file["tables/place"].asstr()[:], np.array(["", "north"], object))
    same("csv missing targets", file["targets/power"], f4([[np.nan if i % 5 == 0 else i * 0.25] for i in range(n)]))
    same("csv text targets", file["targets/mode"], f4([[[0, 1, np.nan][i % 3]] for i in range(n)]))
    same("csv starts", file["episode_starts"], np.arange(0, n, 1000))
    check(f"csv configuration {text}", "heads = power:regression*1 mode:categorical*2" in text and
          "inputs = frames ids/place:id*2" in text and "val_fraction = 0.1" in text and "eval_every" in text)

    # Tables of another file, with gzip, tabs, no header and a gap.
    write_csv("b.csv.gz", names, [[0, i, 1, ["north", ""][i], 2, 3, "on", ""] for i in range(2)])
    file, _ = convert("csv.gz", "table", "b.csv.gz", *words, "--tables", "out.h5", output="b.h5")
    same("ids as in the other file", file["ids/place"], [1, 0])
    same("targets as in the other file", file["targets/mode"], [[1], [1]])
    refused("text that the tables lack", "c.csv: row 3: place is 'south', which out.h5 does not have", "table", "c.csv",
            *words, "--tables", "out.h5", **written("c.csv", names, [[0, i, 1, ["north", "south"][i], 2, 3, "on", ""]
                                                                     for i in range(2)]))
    write_csv("d.tsv", [0, 1, 7], [[1, 2, 8], [10, 3, 9]], "\t")
    file, _ = convert("tsv", "table", "d.tsv", "--no-header", "--time", "f0", "--gap", "5", "--targets", "y=f2", "--inputs",
                      "f1", output="d.h5")
    same("tsv", file["frames"], [[1], [2], [3]])
    same("tsv gap", file["episode_starts"], [0, 2])

    # A table of text alone, and one of numbers whose next row is predicted.
    write_csv("e.csv", ["word", "x"], [[f"w{i % 3}", i % 2] for i in range(40)])
    file, text = convert("words", "table", "e.csv", "--text", "word", "--inputs", "word", "--targets", "x", output="e.h5")
    same("words", file["ids/word"], [i % 3 for i in range(40)])
    check(f"words alone: {text}", "\ninputs = ids/word:id*3\n" in text)
    refused("nothing to predict", "name --targets", "table", "e.csv", "--text", "word", "--inputs", "word")
    _, text = convert("forecast", "table", "e.csv", "--inputs", "x", output="f.h5")
    check(f"forecast: {text}", "heads = next:regression*1" in text and "targets = frames@+1" in text)

    # Parquet: every kind of number, lists and dictionaries, read one row group at a time.
    n = 1000
    state = rng.normal(size=(n, 4))
    columns = {"state": pa.array(list(state), pa.list_(pa.float32())),
               "grid": pa.array(np.arange(6 * n).reshape(n, 2, 3).tolist()),
               "flag": pa.array(np.arange(n) % 2 == 0), "half": pa.array(f4(np.arange(n)).astype(np.float16)),
               "kind": pa.array(["a", "b", None, "a"] * (n // 4)).dictionary_encode(),
               "when": pa.array(np.arange(n) * 1500000, pa.timestamp("us")), "small": pa.array(np.arange(n) % 5, pa.int8())}
    pq.write_table(pa.table(columns), "p.parquet", row_group_size=300)
    file, text = convert("parquet", "table", "p.parquet", "--inputs", "state", "grid", "half", "when", "kind",
                         "--targets", "flag", "small", "--ids", "small")
    same("parquet frames", file["frames"], np.hstack([f4(state), f4(np.arange(6 * n).reshape(n, 6)),
                                                      f4(np.arange(n))[:, None], f4(np.arange(n) * 1.5)[:, None]]))
    same("parquet ids", file["ids/kind"], [0, 1, 2, 0] * (n // 4))
    check(f"parquet configuration {text}", "heads = flag:bernoulli*1 small:categorical*5" in text and "ids/small:id*5" in text)

    # LeRobot's files: version 2 writes one file for each episode, version 3 several into one; videos are separate.
    for version in "v2.1", "v3.0":
        folder, lengths = Path(version), [30, 12, 25]
        demos = [episode(n) for n in lengths]
        write_lerobot(pa, pq, folder, version, demos)
        file, text = convert(f"lerobot {version}", "lerobot", version, "--ids", "task_index")
        same("lerobot frames", file["frames"], f4(joined(demos, "obs")))
        same("lerobot actions", file["targets/action"], f4(joined(demos, "action")))
        same("lerobot starts", file["episode_starts"], [0, 30, 42])
        same("lerobot names", file["tables/frames"].asstr()[:], np.array([f"observation.state.{k}" for k in "xyz"], object))
        check(f"lerobot configuration {text}", "heads = action:regression*2" in text and "task_index:id*1" in text and "val_fraction" not in text and
              "; left out: observation.images.top" in text)
    data = sorted(Path("v2.1/data/chunk-000").iterdir())
    whole = data[1].read_bytes()
    data[1].write_bytes(whole[:-30])
    refused("damaged Parquet", f"{data[1]}: ", "lerobot", "v2.1")
    data[1].write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused("pointer", f"{data[1]}: a pointer of Git LFS", "lerobot", "v2.1")
    data[1].unlink()
    refused("file that is missing", "v2.1: data/ has 55 rows in 2 episodes, and meta/info.json says 67 in 3", "lerobot", "v2.1")
    info = json.loads(Path("v3.0/meta/info.json").read_text())
    Path("v3.0/meta/info.json").write_text(json.dumps({**info, "codebase_version": "v1.6"}))
    refused("older version", "v3.0: version v1.6", "lerobot", "v3.0")
    refused("no data set", "demos: not a data set of LeRobot", "lerobot", "demos")

    # Wrong inputs are refused with the file and the row; rows of a CSV file are counted as an editor does.
    def bad_csv(what, pattern, rows, *more, names=("t", "x", "y")):
        refused(what, pattern, "table", "bad.csv", "--targets", "y", *more, **written("bad.csv", names, rows))
    good = [[i, i, i] for i in range(10)]
    bad_csv("text among numbers", r"bad.csv: row 6: x is 'abc', not a number \(--text 'x'", [*good[:4], [4, "abc", 4]])
    bad_csv("text far below", "bad.csv: row 600002: x is 'abc', not a number", [*good * 60000, [4, "abc", 4]])
    bad_csv("row too long", "bad.csv: .*row 7: .*4", [*good[:5], [1, 2, 3, 4]])
    bad_csv("missing input", r"bad.csv: row 5: x is missing \(--missing", [*good[:3], [3, "", 3]])
    bad_csv("time steps back", "bad.csv: row 400002: t steps back from 399999 to 2",
            [*([i, i, i] for i in range(400000)), [2, 0, 0]], "--time", "t")
    bad_csv("episode comes again", "bad.csv: row 4: t is 0 again", [good[0], good[1], good[0]], "--episode", "t")
    bad_csv("no episode", "bad.csv: row 4: t is missing", [good[0], good[1], ["", 1, 1]], "--episode", "t")
    bad_csv("infinite", "bad.csv: row 3: y is inf", [good[0], [1, 1, "inf"]])
    bad_csv("twice", "bad.csv: two columns are called 'x'", good, names=("x", "x", "y"))
    bad_csv("one name", "two are called y", good, "y=x")
    bad_csv("no rows", "no rows in bad.csv|Empty", [])
    refused("delimiter", "--delimiter: invalid character value: 'ab'", "table", "a.csv", "--delimiter", "ab")
    refused("another file", "bad.csv: no column|bad.csv: its columns", "table", "a.csv", "bad.csv", *words,
            **written("bad.csv", ["t"], [[1]]))
    pq.write_table(pa.table({"state": [[1.0, 2.0], [1.0, 2.0], [1.0]], "y": [1, 2, 3]}), "ragged.parquet")
    refused("ragged list", "ragged.parquet: row 2: state has 1 values", "table", "ragged.parquet", "--targets", "y")
    pq.write_table(pa.table({"s": [{"a": 1}], "y": [1]}), "struct.parquet")
    refused("struct", "struct.parquet: row 0: s holds struct", "table", "struct.parquet", "--targets", "y")
    done = run("table", "bad.csv", "-o", "m.h5", "--inputs", "x", "--missing", "-7", **written("bad.csv", ["x"], [[1], [""]]))
    check(f"--missing: {done.stderr}", done.returncode == 0 and h5py.File("m.h5")["frames"][1] == -7)


def written(path, names, rows):
    write_csv(path, names, rows)
    return {}


def write_lerobot(pa, pq, folder, version, demos):
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    def table(numbers):
        parts = []
        for i in numbers:
            n = len(demos[i]["obs"])
            parts.append(pa.table({
                "observation.state": pa.array(list(f4(demos[i]["obs"])), pa.list_(pa.float32(), 3)),
                "action": pa.array(list(demos[i]["action"]), pa.list_(pa.float32(), 2)),
                "timestamp": f4(np.arange(n) / 30), "frame_index": np.arange(n), "episode_index": np.full(n, i),
                "index": np.arange(n), "task_index": np.zeros(n, np.int64)}))
        return pa.concat_tables(parts)
    for i, numbers in enumerate([[0], [1], [2]] if version == "v2.1" else [[0, 1], [2]]):
        name = f"episode_{i:06d}" if version == "v2.1" else f"file-{i:03d}"
        pq.write_table(table(numbers), folder / "data" / "chunk-000" / f"{name}.parquet", row_group_size=10)
    feature = {"dtype": "float32", "shape": [1], "names": None}
    (folder / "meta" / "info.json").write_text(json.dumps({
        "codebase_version": version, "total_episodes": 3, "total_frames": 67, "features": {
            "observation.state": {"dtype": "float32", "shape": [3], "names": {"motors": ["x", "y", "z"]}},
            "observation.images.top": {"dtype": "video", "shape": [480, 640, 3], "names": None},
            "action": {"dtype": "float32", "shape": [2], "names": ["a", "b"]}, "timestamp": feature,
            "frame_index": feature, "episode_index": feature, "index": feature, "task_index": feature}}))


# A replay as Slippi 3.9 writes it (the project's SPEC.md): big-endian events in a UBJSON object.
def write_slp(path, numbers, pads, ports=(0, 3), follower=False):
    """pads[i][k]: main_x, main_y, c_x, c_y, trigger and buttons of player i in the k-th frame written."""
    sizes = {0x36: 584, 0x37: 64, 0x38: 76, 0x39: 2, 0x3a: 8, 0x3c: 8}
    sizes[0x37], sizes[0x38] = struct.calcsize(PRE) - 1, struct.calcsize(POST) - 1
    start = bytearray(584)
    start[:3] = 3, 9, 0
    start[18:20] = struct.pack(">H", 31)  # Battlefield
    for port in range(4):
        at = 100 + 36 * port
        start[at:at + 3] = 14 if follower and port == 0 else 2, 0 if port in ports else 3, 4
        start[544 + 10 * port:554 + 10 * port] = b"AB\x81\x94%d23" % port + bytes(3)
    events = bytes([0x35, 1 + 3 * len(sizes)]) + b"".join(struct.pack(">BH", *item) for item in sizes.items())
    events += bytes([0x36]) + start
    for k, frame in enumerate(numbers):
        events += struct.pack(">BiI", 0x3a, frame, 5)
        for event in "pre", "post":
            for i, port in enumerate(ports):
                for nana in (0, 1) if follower and i == 0 and k < 3 else (0,):
                    events += (pre_event if event == "pre" else post_event)(frame, port, nana, i, k, pads[i % 2][k])
        events += struct.pack(">Bii", 0x3c, frame, frame)
    events += bytes([0x39, 2, 0xff])
    Path(path).write_bytes(b"{U\x03raw[$U#l" + struct.pack(">i", len(events)) + events + b"U\x08metadata{}}")


PRE, POST = ">BiBBIH8fIH2fbf", ">BiBBBH5f4Bf5BfBHBBB5ff"


def pre_event(frame, port, nana, i, k, pad):
    *sticks, trigger, buttons = pad
    return struct.pack(PRE, 0x37, frame, port, nana, 5, 14, 0, 0, 1, *sticks, trigger, buttons, buttons, 0, 0, 0, 0)


def post_event(frame, port, nana, i, k, pad):
    return struct.pack(POST, 0x38, frame, port, nana, 10 + i, 20 + k + 100 * nana, 10 * i + k, i + 0.5, 1 - 2 * i, 3 * k, 60,
                       0, 2, 0, 4 - i, k / 2, 1, 0, 0, 0, 0x80 * (k % 2), np.nan, 1, 0, 2, 1 + i, 2, *range(5), 0.25)


def slippi_part():
    # Frame -122 is written twice: netplay rolled it back, and the second one is what happened.
    numbers, n = [-123, -122, -122, -121, -120, -119], 6
    pads = [[(rng.uniform(-1, 1), -1, 1, 0, k / 5, 0x100 << k % 4 | 0x8 * (k == 3)) for k in range(n)],
            [(0, 0.125, -0.5, 0.4, 1, 0x20) for _ in range(n)]]
    Path("replays").mkdir()
    write_slp("replays/game.slp", numbers, pads, follower=True)
    file, text = convert("slippi", "slippi", "replays")
    keep = [0, 2, 3, 4, 5]
    names = list(file["tables/frames"].asstr()[:])
    column = lambda name: file["frames"][:4, names.index(name)]
    check("287 numbers", file["frames"].shape == (8, 287) and len(set(names)) == 287)
    same("an episode for each player", file["episode_starts"], [0, 4])
    for name, want in {"self_x": keep[:4], "other_x": [10 + k for k in keep[:4]], "self_direction": [1] * 4,
                       "self_percent": [3 * k for k in keep[:4]], "other_stocks": [3] * 4, "frame": [-123, -122, -121, -120],
                       "self_flag_4_7": [k % 2 for k in keep[:4]], "self_l_cancelled": [1] * 4, "other_l_cancelled": [0] * 4,
                       "other_l_cancel_missed": [1] * 4, "self_intangible": [1] * 4, "self_hitlag": [0.25] * 4,
                       "self_knockback_x": [2] * 4, "self_follower": [1, 1, 0, 0], "self_follower_percent": [0, 6, 0, 0],
                       "stage_battlefield": [1] * 4, "distance_x": [10] * 4, "self_faces_other": [1] * 4,
                       "other_faces_self": [1] * 4, "self_pad_main_x": [pads[0][k][0] for k in keep[:4]],
                       "self_pad_up": [k == 3 for k in keep[:4]], "other_pad_r": [1] * 4}.items():
        same(name, column(name), f4(want))
    same("mirrored", file["frames"][4:, names.index("self_x")], f4([10 + k for k in keep[:4]]))
    same("characters", file["ids/self_character"], [10] * 4 + [11] * 4)
    same("states", file["ids/other_state"][4:], [20 + k for k in keep[:4]])
    same("states of the follower", file["ids/self_follower_state"][:4], [120, 122, 0, 0])
    # The targets are the controller of the next frame.
    same("main_x", file["targets/main_x"][:4, 0], [np.rint((pads[0][k][0] + 1) * 8) for k in keep[1:]])
    same("other sticks", [file[f"targets/{name}"][0, 0] for name in ("main_y", "c_x", "c_y")], [0, 16, 8])
    same("sticks of the other", [file[f"targets/{name}"][4, 0] for name in ("main_y", "c_x", "c_y")], [9, 4, 11])
    same("shoulder", file["targets/shoulder"][:, 0], [np.rint(k / 5 * 4) for k in keep[1:]] + [4] * 4)
    same("buttons", file["targets/buttons"][:4], [[k % 4 == b for b in range(4)] + [0, 0, 0, k == 3] for k in keep[1:]])
    same("R", file["targets/buttons"][4:], [[0] * 6 + [1, 0]] * 4)
    policy = (CONVERT.parents[1] / "launch" / "policy.ini").read_text()
    check(f"the heads of launch/policy.ini: {text}", re.search("heads = .*", policy)[0] == re.search("heads = .*", text)[0])

    check(f"one table for both players: {text}", "self_character:id*33=character" in text and
          "ids/other_follower_state:id*1024=state" in text)

    for option in ["--port", "4"], ["--code", "ab#323"]:
        file, _ = convert(f"slippi{option[0]}", "slippi", "replays", *option, output="one.h5")
        same(f"the player of {option}", file["ids/self_character"], [11] * 4)
    whole = Path("replays/game.slp").read_bytes()
    Path("replays/cut.slp").write_bytes(whole[:900])
    write_slp("replays/four.slp", numbers, pads, ports=(0, 1, 2, 3))
    write_slp("replays/gap.slp", [-123, -122, -121, -119, -118, -117], pads)
    refused("cut replay", "cut.slp: not a whole replay: .*--skip", "slippi", "replays")
    refused("four players", "four.slp: has 4 players", "slippi", "replays/four.slp")
    refused("missing frame", "gap.slp: frame -121 is followed by frame -119", "slippi", "replays/gap.slp")
    refused("no player", "no rows", "slippi", "replays/game.slp", "--code", "XY#1")
    done = run("slippi", "replays", "-o", "skip.h5", "--skip")
    check(f"--skip: {done.stderr}", done.returncode == 0 and "skipped 3 of 4 replays" in done.stderr and
          len(h5py.File("skip.h5")["frames"]) == 8)


{"numpy": numpy_part, "tables": tables_part, "slippi": slippi_part}[sys.argv[2]]()
print(f"{checks} checks, {failures} failed", file=sys.stderr)
sys.exit(failures > 0)
