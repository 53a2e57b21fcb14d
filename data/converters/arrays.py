"""Arrays of NumPy, read from .npy files and the members of .npz files without holding them whole."""
import contextlib
import errno
import math
import os
import tokenize
import zipfile
import zlib

import numpy as np

from converters.shared import PIECE_BYTES, Piece, Refused, Source, files_of

TRIAL = "(trial)"  # the number of an episode, with --trials


@contextlib.contextmanager
def reading(where):
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, RuntimeError, SyntaxError,
            tokenize.TokenError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that is of a place outside the file
            raise
        raise Refused(f"{where}: damaged, or not of NumPy: {error}") from error


class Member:
    """An array in a stream of `size` bytes, of which read() gives the next rows."""

    def __init__(self, where, name, stream, size):
        self.where, self.name, self.stream, self.at = where, name, stream, 0
        form = np.lib.format
        read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
        version = form.read_magic(stream)
        if version not in read:
            raise ValueError(f"{name}: version {version}")
        self.shape, by_column, self.type = read[version](stream)
        if self.type.kind not in "biufUS":
            raise Refused(f"{where}: {name} holds {self.type}, neither numbers nor text")
        if math.prod(self.shape) * self.type.itemsize > size - stream.tell():
            raise Refused(f"{where}: {name}: the file ends within the array: it is truncated")
        self.whole = None
        if not self.shape or (by_column and len(self.shape) > 1):  # one number for all rows; rows not one after another
            self.whole = self.items(math.prod(self.shape)).reshape(self.shape, order="F")

    def items(self, n):
        data = self.stream.read(n * self.type.itemsize)
        if len(data) < n * self.type.itemsize:
            raise EOFError(f"{self.name} ends early")
        x = np.frombuffer(data, self.type)
        if self.type.kind == "S":
            x = np.char.decode(x, "utf-8", "replace")
        return x.astype(object) if self.type.kind in "US" else x

    def read(self, n):
        self.at += n
        if not self.shape:
            return np.full(n, self.whole)
        if self.whole is not None:
            return self.whole[self.at - n:self.at]
        return self.items(n * math.prod(self.shape[1:])).reshape(n, *self.shape[1:])


def shown(lengths):
    return f"{lengths[0]} episodes of {lengths[1]} rows" if len(lengths) > 1 else f"{lengths[0]} rows"


class Arrays(Source):
    def __init__(self, options):
        self.options, self.groups, loose = options, [], []
        for path in options.input:
            if not os.path.exists(path):
                raise Refused(f"{path}: no such file")
            if os.path.isdir(path) and not any(name.endswith(".npy") for name in os.listdir(path)):
                self.groups += files_of([path], (".npz",))
            else:
                (loose if path.endswith(".npy") else self.groups).append(path)
        self.groups += [loose] if loose else []
        with reading(self.groups[0]), contextlib.ExitStack() as stack:
            self.names = list(self.members(self.groups[0], stack))
        if options.trials:
            if options.episode:
                raise Refused("--trials and --episode: one of them says what an episode is")
            options.episode = TRIAL
            self.names.append(TRIAL)

    def members(self, group, stack):
        """The arrays of a group by name, open until the stack is closed."""
        if isinstance(group, str) and not os.path.isdir(group):
            archive = stack.enter_context(zipfile.ZipFile(group))
            files = [(info.filename, group, info.file_size, lambda info=info: archive.open(info))
                     for info in archive.infolist()]
        else:
            paths = group if isinstance(group, list) else [os.path.join(group, name) for name in sorted(os.listdir(group))]
            files = [(os.path.basename(path), path, os.path.getsize(path), lambda path=path: open(path, "rb"))
                     for path in paths]
        members = {}
        for name, path, size, opened in files:
            if name.endswith(".npy"):
                name = name[:-4]
                if name in members:
                    raise Refused(f"{path}: two arrays are called {name}")
                members[name] = Member(path, name, stack.enter_context(opened()), size)
        if not members:
            raise Refused(f"{group}: holds no array")
        return members

    def pieces(self, wanted):
        wanted = [name for name in wanted if name != TRIAL]
        for number, group in enumerate(self.groups):
            where = ", ".join(group) if isinstance(group, list) else group
            with reading(where), contextlib.ExitStack() as stack:
                for piece in self.rows(where, self.members(group, stack), wanted):
                    piece.share = (number + piece.share) / len(self.groups)
                    yield piece

    def rows(self, where, members, wanted):
        absent = [name for name in wanted if name not in members]
        if absent:
            raise Refused(f"{where}: no array {absent[0]!r}, which {self.groups[0]} has")
        axes = 2 if self.options.trials else 1
        lengths = {name: members[name].shape[:axes] for name in wanted if members[name].shape}
        most = max(lengths, key=lambda name: len(lengths[name]), default=None)
        if most is None:
            raise Refused(f"{where}: holds only single numbers: no array has rows")
        for name, length in lengths.items():
            if length != lengths[most][:len(length)]:
                raise Refused(f"{where}: {name} has {shown(length)}, {most} {shown(lengths[most])}")
        n, *steps = lengths[most]
        steps = steps[0] if steps else 1
        row_bytes = max(math.prod(members[name].shape[1:]) * members[name].type.itemsize for name in lengths)
        count = max(1, PIECE_BYTES // max(1, row_bytes))
        for begin in range(0, n if steps else 0, count):
            count = min(count, n - begin)
            columns = {TRIAL: np.repeat(np.arange(begin, begin + count), steps)} if self.options.trials else {}
            for name in wanted:
                x = members[name].read(count)
                columns[name] = np.repeat(x, steps, 0) if len(lengths.get(name, ())) < len(lengths[most]) else \
                    x.reshape(count * steps, *x.shape[axes:])
            yield Piece(where, begin * steps, columns, (begin + count) / n, begin == 0)
