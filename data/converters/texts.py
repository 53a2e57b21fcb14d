"""Documents of text (files, JSON lines, Parquet; also compressed) and files of tokens (llm.c, Megatron, NumPy), read
piece by piece. What is damaged is refused with the file and the byte, line or row."""
import codecs
import json
import math
import os
import struct
import tokenize
import zlib

import numpy as np

from converters.shared import Refused, library

PIECE = 1 << 20  # characters or tokens of a piece
READ = 1 << 14  # compressed bytes decoded at once, which bounds what they may become


class Piece:
    """A part of a document, str or an array of tokens: whether it begins and ends one, and the share of the file read."""

    def __init__(self, data, begins, ends, share):
        self.data, self.begins, self.ends, self.share = data, begins, ends, share


def blocks(path):
    """The bytes of a file, decompressed, with the share of it that is read."""
    if path.endswith(".gz"):
        fresh, errors = (lambda: zlib.decompressobj(31)), zlib.error
    elif path.endswith(".zst"):
        zstandard = library("zstandard")
        fresh, errors = zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
    else:
        fresh, errors = None, ()
    size, stream = max(1, os.path.getsize(path)), None
    with open(path, "rb") as file:
        while data := file.read(READ if fresh else PIECE):
            share = file.tell() / size
            if not fresh:
                yield data, share
                continue
            while data:  # of one stream after another
                stream, at = stream or fresh(), file.tell() - len(data)
                try:
                    out = stream.decompress(data)
                except errors as error:
                    raise Refused(f"{path}: damaged near byte {at}: {error}") from None
                data = stream.unused_data if stream.eof else b""
                stream = None if stream.eof else stream
                yield out, share
        if stream:
            raise Refused(f"{path}: ends at byte {file.tell()} within its compressed data: it is truncated")


def text_file(path, _):
    """A document, cut after lines."""
    decoder, at, held, begins = codecs.getincrementaldecoder("utf-8")(), 0, "", True
    for data, share in blocks(path):
        pending = len(decoder.getstate()[0])
        try:
            held += decoder.decode(data)
        except UnicodeDecodeError as error:
            raise Refused(f"{path}: byte {at - pending + error.start}: not UTF-8 text ({error.reason})") from None
        at += len(data)
        cut = held.rfind("\n") + 1 if len(held) >= PIECE else 0
        if cut:
            yield Piece(held[:cut], begins, False, share)
            held, begins = held[cut:], False
    if decoder.getstate()[0]:
        raise Refused(f"{path}: byte {at - len(decoder.getstate()[0])}: ends within a character: it is truncated")
    yield Piece(held, begins, True, 1)


def json_lines(path, options):
    at, number, rest = 0, 0, b""

    def piece(line, share):
        try:
            text = json.loads(line.decode())[options.field]
            if not isinstance(text, str):
                raise TypeError(f"{options.field!r} holds no text")
        except KeyError:
            why = f"no field {options.field!r} (--field names another)"
        except TypeError as error:
            why = str(error) if "holds" in str(error) else "not a JSON object"
        except ValueError as error:
            why = f"not a line of JSON: {error}"
        else:
            return Piece(text, True, True, share)
        raise Refused(f"{path}: byte {at}, line {number}: {why}")

    for data, share in blocks(path):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield piece(line, share)
            at += len(line) + 1
    number += 1
    if rest.strip():
        yield piece(rest, 1)


def parquet(path, options):
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet
    row = 0
    try:
        with pa.parquet.ParquetFile(path) as file:
            if options.field not in file.schema_arrow.names:
                raise Refused(f"{path}: no column {options.field!r} (--field names another of "
                              f"{', '.join(file.schema_arrow.names[:20])})")
            n = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(256, columns=[options.field]):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str):
                        raise Refused(f"{path}: row {row}: {options.field!r} holds no text")
                    row += 1
                    yield Piece(text, True, True, row / n)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise Refused(f"{path}: damaged after row {row}: {error}") from None


def tokens_of(path, array, first=True):
    """A stream whose documents are not marked."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise Refused(f"{path}: holds {array.dtype} of shape {array.shape}, not one row of integers")
    for at in range(0, len(array), PIECE):
        yield Piece(array[at:at + PIECE], first and at == 0, at + PIECE >= len(array), (at + PIECE) / len(array))


def numpy_file(path, _):
    size, form = os.path.getsize(path), np.lib.format
    with open(path, "rb") as file:
        try:
            read = form.read_array_header_1_0 if form.read_magic(file) == (1, 0) else form.read_array_header_2_0
            shape, _, kind = read(file)
        except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
            raise Refused(f"{path}: byte 0: damaged, or no array of NumPy: {error}") from None
        begin = file.tell()
    expected = begin + math.prod(shape) * kind.itemsize
    if size != expected and not kind.hasobject:
        raise Refused(f"{path}: ends at byte {size}, its header says {expected}: it is damaged")
    if size > begin and kind.kind in "iu":
        yield from tokens_of(path, np.memmap(path, kind, "r", begin, shape))
    elif size > begin:
        raise Refused(f"{path}: holds {kind}, not integers")


# Of a file of llm.c: its magic number, version, type of tokens. The header is 256 int32.
LLMC = {(20240520, 1): "<u2", (20240801, 7): "<u4"}


def llmc(path, _):
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(1024), "<i4", count=-1) if size >= 1024 else np.zeros(3, "<i4")
    kind = LLMC.get((int(header[0]), int(header[1])))
    if not kind:
        raise Refused(f"{path}: byte 0: not a file of llm.c, and there is no .idx of Megatron beside it; raw tokens: "
                      "dtrain pack --format u16")
    expected = 1024 + int(header[2]) * np.dtype(kind).itemsize
    if size != expected:
        raise Refused(f"{path}: ends at byte {size}, its header says {expected}: it is damaged")
    if header[2]:
        yield from tokens_of(path, np.memmap(path, kind, "r", 1024))


MEGATRON = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # codes of types


def megatron(path, _):
    index = path[:-4] + ".idx"
    with open(index, "rb") as file:
        head, size = file.read(34), os.path.getsize(index)
    if len(head) < 34 or head[:9] != b"MMIDIDX\0\0":
        raise Refused(f"{index}: byte 0: not an index of Megatron")
    version, code, n, n_documents = struct.unpack("<QBQQ", head[9:])
    if version != 1 or code not in MEGATRON:
        raise Refused(f"{index}: byte 9: version {version} with tokens of type {code}, neither of them known")
    if size != 34 + 12 * n + 8 * n_documents:
        raise Refused(f"{index}: ends at byte {size}, its header says {34 + 12 * n + 8 * n_documents}: it is damaged")
    if n == 0:
        return
    lengths = np.memmap(index, "<i4", "r", 34, (n,))
    starts = np.memmap(index, "<i8", "r", 34 + 4 * n, (n,))
    documents = np.memmap(index, "<i8", "r", 34 + 12 * n, (n_documents,))
    begins = set(documents.tolist())
    kind, total = np.dtype(MEGATRON[code]), os.path.getsize(path)
    data = np.memmap(path, "u1", "r") if total else np.zeros(0, "u1")
    for i in range(n):
        start, end = int(starts[i]), int(starts[i]) + int(lengths[i]) * kind.itemsize
        if lengths[i] < 0 or start < 0 or end > total:
            raise Refused(f"{index}: sequence {i} is bytes {start} to {end} of {path}, which has {total}")
        for piece in tokens_of(path, data[start:end].view(kind), i in begins):
            yield Piece(piece.data, piece.begins, piece.ends and (i + 1 in begins or i + 1 == n), (i + piece.share) / n)


# Of each format: its suffixes, whether it has text, whether it marks documents, and its reader.
FORMATS = {
    "jsonl": ((".jsonl", ".ndjson", ".json"), True, True, json_lines),
    "parquet": ((".parquet",), True, True, parquet),
    "numpy": ((".npy",), False, False, numpy_file),
    "megatron": ((), False, True, megatron),
    "llmc": ((".bin",), False, False, llmc),
    "text": ((), True, True, text_file),
}


def format_of(path):
    plain = path.removesuffix(".gz").removesuffix(".zst")
    if plain.endswith(".bin") and os.path.exists(plain[:-4] + ".idx"):
        return "megatron"
    return next((name for name, (suffixes, *_) in FORMATS.items() if plain.endswith(suffixes or ("\0",))), "text")


def is_wanted(path):
    """Of a folder's files: not hidden, not an index, and text only where its start has no zero byte."""
    if os.path.basename(path).startswith(".") or path.endswith(".idx") or os.path.getsize(path) == 0:
        return False
    if format_of(path) != "text" or path.endswith((".gz", ".zst")):
        return True
    with open(path, "rb") as file:
        return b"\0" not in file.read(8192)
