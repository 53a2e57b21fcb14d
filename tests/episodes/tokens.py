#!/usr/bin/env python3
"""data/tokens.py against the libraries that wrote its inputs: every token and document start, checksums by dtrain verify;
damaged inputs; a conversion that was killed. tokens.py DTRAIN, in a scratch folder. Exit code 1: something is wrong."""
import glob
import gzip
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import tokenizers
import zstandard

DTRAIN = os.path.realpath(sys.argv[1])
PROGRAM = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "data", "tokens.py")
failures = 0


def check(what, fine):
    global failures
    if not fine:
        failures += 1
        print(f"FAILED: {what}", file=sys.stderr)


def run(*words, code=0, says=""):
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True)
    text = done.stdout + done.stderr
    check(f"{' '.join(words)}: exit code {done.returncode}, not {code}, or no {says!r}: {text}",
          done.returncode == code and says in text)
    if code:
        check(f"{' '.join(words)}: one message: {text}", done.stderr.count("\n") == 1)


def load(folder, side="train"):
    """All tokens, and the starts counted from the first one of all shards."""
    tokens, starts, n = [], [], 0
    for path in sorted(glob.glob(f"{folder}/{side}-*.h5")):
        with h5py.File(path) as file:
            tokens.append(file["tokens"][:])
            starts += [int(x) + n for x in file["doc_starts"][:]] if "doc_starts" in file else []
            n += len(tokens[-1])
    return np.concatenate(tokens), starts


random.seed(1)
WORDS = ["alpha", "beta", "gamma", "naïve", "日本", "x = 1;", "for", "while", "\n", "\t"]
docs = [" ".join(random.choices(WORDS, k=random.randrange(1, 200))) for _ in range(400)] + ["", "a"]
lines = "".join(json.dumps({"text": text, "content": text.upper()}) + "\n" for text in docs)
os.mkdir("texts")
for i, text in enumerate(docs):
    with open(f"texts/{i}.txt", "w", encoding="utf-8") as file:
        file.write(text)
with open("texts/picture.png", "wb") as file:
    file.write(b"\x89PNG\0\0\0")
with open("a.jsonl", "w", encoding="utf-8") as file:
    file.write(lines)
with gzip.open("b.jsonl.gz", "wt", encoding="utf-8") as file:
    file.write(lines)
with open("c.jsonl.zst", "wb") as file:  # two frames
    for half in lines[:len(lines) // 2], lines[len(lines) // 2:]:
        file.write(zstandard.ZstdCompressor().compress(half.encode()))
pa.parquet.write_table(pa.table({"text": docs}), "d.parquet", row_group_size=70)

# A tokenizer is learned and stored with the shards, and every format gives its tokens.
run("a.jsonl", "-o", "bpe", "--train-bpe", "330")
tokenizer = tokenizers.Tokenizer.from_file("bpe/tokenizer/tokenizer.json")
eos = tokenizer.token_to_id("<|endoftext|>")
ids = [tokenizer.encode(text).ids + [eos] for text in docs if text]
want = np.concatenate(ids)
starts = np.concatenate([[0], np.cumsum([len(x) for x in ids])[:-1]]).tolist()
check("most of the text is in merges", len(want) < 0.6 * sum(len(text.encode()) for text in docs))
check("the text comes back", tokenizer.decode(ids[0][:-1]) == docs[0])
for source in ["texts", "a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.parquet"]:
    folder = "of-" + source
    run(source, "-o", folder, "--tokenizer", "bpe/tokenizer")
    tokens, found = load(folder)
    check(f"{source}: its tokens", np.array_equal(tokens, want))
    check(f"{source}: its documents", found == starts)
    check(f"{source}: its checksums", subprocess.run([DTRAIN, "verify", folder], capture_output=True).returncode == 0)
run("a.jsonl", "-o", "field", "--tokenizer", "bpe/tokenizer", "--field", "content", "--no-eos")
check("another field", np.array_equal(load("field")[0], np.concatenate([tokenizer.encode(text.upper()).ids for text in docs])))
run("a.jsonl", "-o", "held-out", "--tokenizer", "bpe/tokenizer", "--val", "0.2")
check("both sides have all tokens", len(load("held-out")[0]) + len(load("held-out", "val")[0]) == len(want))
check("about a fifth is held out", 0.1 < len(load("held-out", "val")[0]) / len(want) < 0.3)
sizes = [int(h5py.File(path)["tokens"].attrs["bytes"]) for path in glob.glob("held-out/*.h5")]
check(f"both sides say the bytes of their text: {sizes}", sum(sizes) == sum(len(text.encode()) for text in docs))
with open("large.jsonl", "w", encoding="utf-8") as file:
    file.write(lines * (2000000 // len(want)))
run("large.jsonl", "-o", "large", "--tokenizer", "bpe/tokenizer", "--shard-mb", "1")
sizes = [int(h5py.File(path)["tokens"].attrs["bytes"]) for path in sorted(glob.glob("large/*.h5"))]
check(f"each of several shards says its own: {sizes}", len(sizes) > 2 and sum(sizes) == 2000000 // len(want) * sum(
    len(text.encode()) for text in docs))

# Tokens of other programs.
stream = np.random.default_rng(1).integers(0, 50257, 3000000, dtype=np.uint16)
header = np.zeros(256, "<i4")
header[:3] = 20240520, 1, len(stream)
with open("f.bin", "wb") as file:
    file.write(header.tobytes() + stream.tobytes())
np.save("g.npy", stream.astype(np.int64))
lengths = np.diff(np.unique(np.concatenate([[0], np.random.default_rng(2).integers(0, len(stream), 300), [len(stream)]])))
with open("m.bin", "wb") as file:
    file.write(stream.tobytes())
with open("m.idx", "wb") as file:  # as MMapIndexedDataset.Index.writer of Megatron-LM does
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 2
    file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) +
               lengths.astype(np.int32).tobytes() + pointers.astype(np.int64).tobytes() +
               np.arange(len(lengths) + 1, dtype=np.int64).tobytes())
for source in ["f.bin", "g.npy", "m.bin"]:
    folder = "of-" + source
    run(source, "-o", folder, "--vocab-size", "50257")
    tokens, found = load(folder)
    check(f"{source}: its tokens", np.array_equal(tokens, stream))
    check(f"{source}: its documents", found == ((pointers // 2).tolist() if source == "m.bin" else []))
    check(f"{source}: its checksums", subprocess.run([DTRAIN, "verify", folder], capture_output=True).returncode == 0)

# A killed conversion continues and ends with the same bytes.
options = ["g.npy", "--vocab-size", "50257", "--shard-mb", "1", "--val", "0.5"]
run(*options, "-o", "whole")
modified = os.stat("g.npy").st_mtime_ns
job = subprocess.Popen([sys.executable, PROGRAM, *options, "-o", "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not os.path.exists("killed/.tokens.json") and job.poll() is None:
    time.sleep(0.001)
job.send_signal(signal.SIGKILL)
job.wait()
names = sorted(os.path.basename(path) for path in glob.glob("whole/*.h5"))
check("it was killed before its end", len(names) > 2 and not os.path.exists(f"killed/{names[-1]}"))
first = os.stat(f"killed/{names[0]}").st_mtime_ns
run(*options, "-o", "killed")
check("its first shard stays", os.stat(f"killed/{names[0]}").st_mtime_ns == first)
check("its shards", sorted(os.listdir("killed")) == sorted(os.listdir("whole")))
for name in names:
    with open(f"whole/{name}", "rb") as a, open(f"killed/{name}", "rb") as b:
        check(f"{name}: the same bytes", a.read() == b.read())
run(*options, "-o", "killed", says="is complete already")

# A conversion does not continue shards that other options or inputs made.
os.utime("g.npy", (1, 1))
run(*options, "-o", "whole", code=2, says="shards of other inputs or options")
os.utime("g.npy", ns=(modified, modified))
run("f.bin", *options, "-o", "whole", code=2, says="shards of other inputs or options")
for other in ["--vocab-size=50258", "--shard-mb=2", "--val=0.4", "--seed=2", "--tokenizer=bpe/tokenizer", "--train-bpe=300",
              "--train-mb=9", "--field=content", "--eos=x", "--no-eos"]:
    run(*options, other, "-o", "whole", code=2, says="shards of other inputs or options")

# Wrong inputs are refused with file and offset.
run("a.jsonl", "-o", "bpe", "--tokenizer", "bpe/tokenizer", code=2, says="--force replaces them")
run("a.jsonl", "-o", "of-a.jsonl", "--tokenizer", "bpe/tokenizer", "--force", "--val", "0.5")
run("a.jsonl", "-o", "bpe", "--tokenizer", "bpe/tokenizer", "--force")
check("a tokenizer in the folder outlives --force", np.array_equal(load("bpe")[0], want))
run("a.jsonl", "-o", "no", code=2, says="text needs --tokenizer PATH")
run("g.npy", "-o", "no", code=2, says="tokens need --tokenizer PATH or --vocab-size N")
run("g.npy", "-o", "small", "--vocab-size", "9", code=2, says="outside the vocabulary of 9")


def damaged(source, name, change, says):
    with open(source, "rb") as file:
        data = bytearray(file.read())
    with open(name, "wb") as file:
        file.write(change(data))
    if name == "bad-m.bin" and not os.path.exists("bad-m.idx"):
        os.link("m.idx", "bad-m.idx")
    run(name if not name.endswith(".idx") else name[:-4] + ".bin", "-o", "refused", "--force",
        *(["--vocab-size", "50257"] if source[0] in "fgm" else ["--tokenizer", "bpe/tokenizer"]), code=2, says=says)
    check(f"{name}: no shard", not glob.glob("refused/*.h5"))


def flip(at):
    def change(data):
        data[at] ^= 0xFF
        return data
    return change


offset = len(lines.encode()[:1000].rpartition(b"\n")[0]) + 1
line = lines.encode()[:offset].count(b"\n") + 1
damaged("a.jsonl", "bad.jsonl", lambda data: data[:offset] + b"{\n" + data[offset:], f"bad.jsonl: byte {offset}, line {line}")
damaged("a.jsonl", "none.jsonl", lambda data: data + b'{"other": 1}\n', f"none.jsonl: byte {len(lines.encode())}")
damaged("b.jsonl.gz", "bad.jsonl.gz", lambda data: data[:-100], "within its compressed data: it is truncated")
damaged("b.jsonl.gz", "flip.jsonl.gz", flip(-4), "flip.jsonl.gz: damaged near byte")
damaged("c.jsonl.zst", "bad.jsonl.zst", lambda data: data[:-10], "within its compressed data: it is truncated")
damaged("c.jsonl.zst", "flip.jsonl.zst", flip(0), "flip.jsonl.zst: damaged near byte 0")
damaged("d.parquet", "bad.parquet", lambda data: data[:-10], "bad.parquet: damaged after row 0")
damaged("a.jsonl", "bad.txt", lambda data: data[:500] + b"\xff" + data[500:], "bad.txt: byte 500: not UTF-8")
damaged("f.bin", "bad-f.bin", lambda data: data[:-2], "bad-f.bin: ends at byte")
damaged("f.bin", "magic.bin", flip(0), "magic.bin: byte 0: not a file of llm.c")
whole = os.path.getsize("g.npy")
damaged("g.npy", "bad-g.npy", lambda data: data[:-8], f"bad-g.npy: ends at byte {whole - 8}, its header says {whole}")
damaged("g.npy", "head-g.npy", lambda data: data[:60], "head-g.npy: byte 0: damaged")
damaged("g.npy", "magic-g.npy", flip(1), "magic-g.npy: byte 0: damaged")
damaged("m.bin", "bad-m.bin", lambda data: data[:-2], "which has")
os.unlink("bad-m.idx")
damaged("m.idx", "bad-m.idx", lambda data: data[:-2], "bad-m.idx: ends at byte")
sys.exit(failures > 0)
