#!/usr/bin/env python3
"""Turns text into shards of tokens that dtrain trains on, and tokens of other programs, too.

  data/tokens.py books/ web/*.jsonl.zst -o data --tokenizer gpt2/
  data/tokens.py corpus.parquet --field content -o data --train-bpe 32000
  data/tokens.py fineweb_train_*.bin -o data --vocab-size 50257

INPUT is files, or folders of files: text (a document each), JSON lines and Parquet (a document a line or row), each also
as .gz or .zst; .bin of llm.c, .bin with .idx of Megatron, .npy of NumPy. FOLDER gets train-00000.h5, …, with --val also
val-00000.h5, …, and tokenizer/: data.tokenizer = FOLDER/tokenizer copies that into every checkpoint. Stopped at any
moment, the same command continues after the last whole shard, and ends with the same bytes. Exit codes: 0, 2 (the
arguments or the data are wrong), 3 (the machine failed).
"""
import argparse
import concurrent.futures
import glob
import itertools
import json
import os
import shutil

from converters.shared import Output, Parser, Progress, Refused, files_of, library, run, to_disk

BATCH = 1 << 22  # characters that are tokenized at once, by all cores
HASH_BLOCK = 1 << 14  # bytes that a checksum covers
END_OF_TEXT = "<|endoftext|>"
# The files that are a tokenizer: tokenizer.json, whose hash the shards carry, and what may stand beside it.
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                   "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "chat_template.jinja"]


def arguments():
    def share(text):
        value = float(text)
        if not 0 <= value < 1:
            raise ValueError
        return value

    def positive(text):
        value = int(text)
        if value < 1:
            raise ValueError
        return value

    p = Parser(prog="tokens.py", description=__doc__, allow_abbrev=False,
               formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("input", nargs="+", metavar="INPUT")
    p.add_argument("-o", "--output", required=True, metavar="FOLDER", help="made if it is missing")
    p.add_argument("--tokenizer", metavar="PATH", help="a folder with tokenizer.json, or that file")
    p.add_argument("--train-bpe", type=positive, metavar="N", help="learn a byte-level BPE tokenizer of N tokens first")
    p.add_argument("--train-mb", type=positive, default=256, metavar="N", help="… from the first N million characters "
                   "(default: 256; its memory grows with them)")
    p.add_argument("--field", default="text", metavar="NAME", help="field of JSON lines, column of Parquet (default: text)")
    p.add_argument("--eos", metavar="TOKEN", help="ends each document (default: the tokenizer's eos_token)")
    p.add_argument("--no-eos", action="store_true", help="add no token after a document")
    p.add_argument("--vocab-size", type=positive, metavar="N", help="of inputs that are tokens already")
    p.add_argument("--val", type=share, default=0, metavar="SHARE", help="share of the documents held out (default: 0)")
    p.add_argument("--seed", type=int, default=1337, metavar="N", help="which ones (default: 1337)")
    p.add_argument("--shard-mb", type=positive, default=256, metavar="N", help="about so many 2^20 bytes of tokens a "
                   "shard (default: 256)")
    p.add_argument("--threads", type=positive, metavar="N", help="of the tokenizer (default: all cores)")
    p.add_argument("--force", action="store_true", help="replace what is in FOLDER")
    options = p.parse_args()
    if options.tokenizer and options.train_bpe:
        raise Refused("--tokenizer and --train-bpe: one of them says where the tokenizer is from")
    if not -2**63 <= options.seed < 2**63:
        raise Refused("--seed: not a number of 64 bits")
    return options


# ---- the tokenizer

def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Refused(f"{path}: not JSON: {error}") from None


def special_token(folder, name):
    """The text of a special token, from either file that may have it; None."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(os.path.join(folder, file)).get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return None


class Tokenizer:
    def __init__(self, folder, options):
        tokenizers, xxhash = library("tokenizers"), library("xxhash")
        path = os.path.join(folder, "tokenizer.json")
        if not os.path.exists(path):
            raise Refused(f"{folder}: no tokenizer.json in it (AutoTokenizer.from_pretrained(…).save_pretrained makes one)")
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the library raises no class of its own
            raise Refused(f"{path}: not a tokenizer: {error}") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        with open(path, "rb") as file:
            self.hash = xxhash.xxh64_intdigest(file.read())
        self.vocab_size = max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        eos = None if options.no_eos else options.eos or special_token(folder, "eos_token")
        self.eos = None if eos is None else self.tokenizer.token_to_id(eos)
        if eos is not None and self.eos is None:
            raise Refused(f"{path}: has no token {eos!r} (--eos, or eos_token beside it)")

    def encode(self, texts):
        encode = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)
        return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]


def learn(options, pieces, folder):
    tokenizers = library("tokenizers")
    left = options.train_mb * 1000000

    def texts():
        nonlocal left
        for piece in pieces:
            if left <= 0:
                return
            left -= len(piece.data)
            yield piece.data

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    if options.train_bpe <= len(alphabet):
        raise Refused(f"--train-bpe {options.train_bpe}: more than {len(alphabet)}, the bytes and {END_OF_TEXT}")
    tokenizer.train_from_iterator(texts(), tokenizers.trainers.BpeTrainer(
        vocab_size=options.train_bpe, special_tokens=[END_OF_TEXT], initial_alphabet=sorted(alphabet), show_progress=False))
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    shutil.rmtree(folder, ignore_errors=True)
    temporary = f"{folder}.tmp"
    os.makedirs(temporary, exist_ok=True)
    tokenizer.save(os.path.join(temporary, "tokenizer.json"))
    for name, content in (("special_tokens_map.json", special), ("tokenizer_config.json", {
            **special, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False})):
        with open(os.path.join(temporary, name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
    os.rename(temporary, folder)


def copy_tokenizer(source, folder):
    source = source if os.path.isdir(source) else os.path.dirname(source) or "."
    if os.path.realpath(source) == os.path.realpath(folder):
        return
    os.makedirs(folder, exist_ok=True)
    for name in TOKENIZER_FILES:
        if os.path.exists(os.path.join(source, name)):
            shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))


# ---- shards

class Side:
    """The tokens of the next shard of train or val, in a file until it is whole."""

    def __init__(self, name, options, dtype):
        self.name, self.folder, self.dtype = name, options.output, dtype
        self.spill = open(os.path.join(self.folder, f".{name}.tokens.tmp"), "wb+")
        self.count, self.bytes, self.starts = 0, 0, []

    def add(self, tokens, begins, size=0):
        """size: bytes of the text that the tokens stand for."""
        self.bytes += size
        if begins:
            self.starts.append(self.count)
        if len(tokens):
            self.spill.write(np.asarray(tokens, self.dtype).tobytes())
            self.count += len(tokens)

    def finish(self, number, vocab_size, hash_, documents):
        """Writes the shard, as dtrain pack does, under a temporary name first."""
        if self.count == 0:
            return 0
        xxhash, count = library("xxhash"), self.count
        self.spill.flush()
        tokens = np.memmap(self.spill, self.dtype, "r", shape=(count,))
        step = HASH_BLOCK // self.dtype.itemsize
        sums = np.array([xxhash.xxh3_64_intdigest(tokens[at:at + step].tobytes()) for at in range(0, count, step)], "<u8")
        starts = np.array(self.starts, "<u8")
        with Output(os.path.join(self.folder, f"{self.name}-{number:05}.h5"), True) as output:
            output.open()
            with output.writing():
                data = output.file.create_dataset("tokens", data=tokens)
                data.attrs["vocab_size"] = np.uint64(vocab_size)
                if self.bytes > 0:
                    data.attrs["bytes"] = np.uint64(self.bytes)
                if hash_ is not None:
                    data.attrs["tokenizer_xxh64"] = np.uint64(hash_)
                output.file.create_dataset("tokens_xxh3", data=sums).attrs["block_bytes"] = np.uint64(HASH_BLOCK)
                if documents:
                    output.file.create_dataset("doc_starts", data=starts)
                    data.attrs["doc_starts_count"] = np.uint64(len(starts))
                    data.attrs["doc_starts_xxh3"] = np.uint64(xxhash.xxh3_64_intdigest(starts.tobytes()))
            output.finish()
        del tokens
        self.spill.seek(0)
        self.spill.truncate()
        self.count, self.bytes, self.starts = 0, 0, []
        return count

    def close(self):
        self.spill.close()
        os.unlink(self.spill.name)


class Journal:
    """What is done, in FOLDER/.tokens.json: replaced as a whole after each shard."""

    def __init__(self, options, files):
        self.path = os.path.join(options.output, ".tokens.json")
        keep = ("tokenizer", "train_bpe", "train_mb", "field", "eos", "no_eos", "vocab_size", "val", "seed", "shard_mb")
        self.job = {"options": {name: getattr(options, name) for name in keep},
                    "inputs": [[os.path.abspath(file), os.path.getsize(file), os.stat(file).st_mtime_ns] for file in files]}
        self.state = {"file": 0, "piece": 0, "document": 0, "shards": 0, "train": 0, "val": 0, "hash": None, "done": False}
        shards = [path for side in ("train", "val") for path in glob.glob(os.path.join(glob.escape(options.output),
                                                                                     f"{side}-*.h5"))]
        saved = read_json(self.path)
        if options.force:
            for path in [*shards, self.path]:
                if os.path.exists(path):
                    os.unlink(path)
            own = os.path.join(options.output, "tokenizer")
            if not os.path.realpath(options.tokenizer or "").startswith(os.path.realpath(own)):
                shutil.rmtree(own, ignore_errors=True)
        elif saved and saved.get("job") == self.job:
            self.state = saved["state"]
        elif saved or shards:
            raise Refused(f"{options.output} holds shards" + (" of other inputs or options" if saved else "") +
                          ": --force replaces them")

    def save(self, **changes):
        self.state |= changes
        with open(self.path + ".tmp", "w", encoding="utf-8") as file:
            json.dump({"job": self.job, "state": self.state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path + ".tmp", self.path)
        to_disk(os.path.dirname(self.path))


# ---- the conversion

def pieces_from(files, options, first, skip):
    """(file, piece of it, number of the next piece), from a piece on."""
    for number in range(first, len(files)):
        read = texts.FORMATS[texts.format_of(files[number])][3]
        begin = skip if number == first else 0
        for index, piece in enumerate(itertools.islice(read(files[number], options), begin, None), begin + 1):
            yield number, piece, index


def batches(pieces):
    batch, size = [], 0
    for item in pieces:
        batch.append(item)
        size += len(item[1].data)
        if size >= BATCH or len(batch) >= 1 << 14:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_ahead(iterator):
    """Its items, of which the next is made while one is used."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, iterator, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, iterator, None)
            yield item


def encode(batch, tokenizer):
    """The tokens of each piece."""
    text = [piece.data for _, piece, _ in batch if isinstance(piece.data, str)]
    encoded = iter(tokenizer.encode(text) if text else [])
    return [next(encoded) if isinstance(piece.data, str) else piece.data for _, piece, _ in batch]


def check_range(path, tokens, vocab_size):
    for i in np.flatnonzero((tokens < 0) | (tokens >= vocab_size))[:1]:
        raise Refused(f"{path}: token {i} of a piece is {tokens[i]}, outside the vocabulary of {vocab_size}")


def convert():
    options = arguments()
    if options.threads:
        os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    for package in ("numpy", "h5py", "xxhash"):
        library(package)
    global np, texts
    import numpy as np
    from converters import texts
    files = [file for path in options.input for file in files_of([path], ("",))
             if not os.path.isdir(path) or texts.is_wanted(file)]
    if not files:
        raise Refused(f"{options.input[0]}: no file to read")
    kinds = [texts.FORMATS[texts.format_of(file)] for file in files]
    has_text, documents = any(kind[1] for kind in kinds), all(kind[2] for kind in kinds)
    if has_text and not (options.tokenizer or options.train_bpe):
        raise Refused("text needs --tokenizer PATH, or --train-bpe N to learn one")
    if not has_text and not (options.tokenizer or options.vocab_size):
        raise Refused("tokens need --tokenizer PATH or --vocab-size N")
    os.makedirs(options.output, exist_ok=True)
    journal = Journal(options, files)
    state, folder = journal.state, os.path.join(options.output, "tokenizer")
    if state["done"]:
        print(f"{options.output} is complete already: {state['train']} tokens to train on, {state['val']} for validation")
        return
    for path in glob.glob(os.path.join(glob.escape(options.output), "*-*.h5.*.tmp")):
        os.unlink(path)  # of a process that was killed
    if options.train_bpe and not os.path.exists(folder):
        if not all(kind[1] for kind in kinds):
            raise Refused("--train-bpe: all inputs must be text")
        learn(options, (piece for _, piece, _ in pieces_from(files, options, 0, 0)), folder)
    elif options.tokenizer:
        copy_tokenizer(options.tokenizer, folder)
    tokenizer = Tokenizer(folder, options) if options.tokenizer or options.train_bpe else None
    vocab_size = tokenizer.vocab_size if tokenizer else options.vocab_size
    hash_ = tokenizer.hash if tokenizer else None
    if state["shards"] and state["hash"] != hash_:
        raise Refused(f"{folder} has changed since the first shards were written: --force begins again")

    dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    limit = (options.shard_mb << 20) // dtype.itemsize
    xxhash, document = library("xxhash"), state["document"]
    threshold = int(options.val * 2**64)
    sizes = [row[1] for row in journal.job["inputs"]]
    progress = Progress(options.output)
    sides = [Side(name, options, dtype) for name in ("train", "val")]

    def finish_shards(file, piece, done=False):
        counts = [side.finish(state["shards"], vocab_size, hash_, documents) for side in reversed(sides)]
        journal.save(file=file, piece=piece, document=document, shards=state["shards"] + 1, hash=hash_, done=done,
                     val=state["val"] + counts[0], train=state["train"] + counts[1])

    try:
        for batch in read_ahead(batches(pieces_from(files, options, state["file"], state["piece"]))):
            for (file, piece, index), tokens in zip(batch, encode(batch, tokenizer)):
                if not isinstance(piece.data, str):
                    check_range(files[file], tokens, vocab_size)
                held_out = xxhash.xxh64_intdigest(document.to_bytes(8, "little"), options.seed & 2**64 - 1) < threshold
                side = sides[held_out]
                size = len(piece.data.encode()) if isinstance(piece.data, str) else 0
                side.add(tokens, piece.begins and len(tokens) > 0, size)
                if piece.ends:
                    if isinstance(piece.data, str) and tokenizer.eos is not None and (len(tokens) or not piece.begins):
                        side.add([tokenizer.eos], False)
                    document += 1
                if sides[0].count >= limit:
                    finish_shards(file, index)
            progress.show((sum(sizes[:file]) + piece.share * sizes[file]) / max(1, sum(sizes)))
        progress.end()
        finish_shards(len(files), 0, True)
    finally:
        for side in sides:
            side.close()
    if state["train"] == 0:
        raise Refused(f"{options.input[0]}: no tokens in it")
    print(f"[data]\ntrain = {options.output}/train-*.h5")
    if state["val"]:
        print(f"val = {options.output}/val-*.h5")
    if tokenizer:
        print(f"tokenizer = {folder}")
    print(f"[model]\nvocab_size = {vocab_size}", flush=True)


if __name__ == "__main__":
    run("tokens.py", convert, "the same command continues after the last whole shard")
