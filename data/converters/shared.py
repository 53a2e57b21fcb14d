"""What the converters share: errors, pieces of rows, files, progress, the output. Needs no package until it writes."""
import argparse
import contextlib
import difflib
import fnmatch
import importlib
import math
import os
import re
import signal
import sys
import time

PIECE_BYTES = 4 << 20  # of each column that are in memory at a time


class Refused(Exception):
    """What the user can fix: exit code 2."""


class Failed(Exception):
    """What the machine could not do: exit code 3."""


def library(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.replace("_", "-")
        raise Refused(f"needs the Python package {package} ({error}): {sys.executable} -m pip install {package}") from None


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message} ({self.prog} --help lists the options)")


def end(program, code, text):
    text = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())  # a library's may have lines
    print(f"{program}: error: {text}", file=sys.stderr, flush=True)
    os._exit(code)  # Output says why


def run(program, work, interrupted):
    """Does the work of a program, and ends it with its exit code and one message. interrupted: what that leaves."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the temporary file is removed
    try:
        work()
    except (Refused, FileNotFoundError, PermissionError, IsADirectoryError) as error:
        end(program, 2, error)
    except (Failed, OSError) as error:
        end(program, 3, error)
    except MemoryError:
        end(program, 3, "out of memory")
    except KeyboardInterrupt:
        end(program, 130, f"interrupted: {interrupted}")


class Piece:
    """Consecutive rows of a file. columns[name]: an array [n, …] of numbers, or of objects that are str or None."""

    def __init__(self, path, row, columns, share, first):
        self.path, self.row = path, row  # row: the number of the first one in messages
        self.columns, self.n = columns, len(next(iter(columns.values())))
        self.share = share  # of the source that is read with it
        self.first = first  # it is the first of its file

    def refuse(self, row, column, why):
        raise Refused(f"{self.path}: row {self.row + int(row)}: {column} {why}")


class Source:
    """Where rows come from: `names` of the columns, and pieces(wanted) with the rows of some of them, in order."""

    # Where they do not depend on the data: kinds of heads; of ids the size of the table, and its name.
    heads, tables = {}, {}
    note = ""  # for the configuration
    independent = True  # no two episodes are of one recording, so that some of them may validate

    def labels(self, name, shape):
        """A text for each number of a column."""
        return [f"{name}[{i}]" for i in range(math.prod(shape))] if shape else [name]

    def check(self, rows, episodes):
        """Refuses a source that had other numbers of rows and episodes than it should."""


def files_of(inputs, suffixes):
    """The files that arguments name; those of a folder in the order of the numbers in their names."""
    files = []
    for path in inputs:
        if os.path.isdir(path):
            below = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
            below = [file for file in below if file.endswith(suffixes)]
            if not below:
                raise Refused(f"{path}: no file in this folder ends in {' or '.join(suffixes)}")
            files += sorted(below, key=lambda file: [int(part) if part.isdigit() else part
                                                     for part in re.split(r"(\d+)", file)])
        elif os.path.exists(path):
            files.append(path)
        else:
            raise Refused(f"{path}: no such file")
    return files


def choose(patterns, names, option):
    """The columns that patterns name, each once."""
    chosen = []
    for pattern in patterns or []:
        found = [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            near = difflib.get_close_matches(pattern, names, 1)
            raise Refused(f"{option}: no column {pattern!r}" + (f"; did you mean {near[0]!r}?" if near else
                          f"; the columns are {', '.join(names[:20])}{', …' if len(names) > 20 else ''}"))
        chosen += [name for name in found if name not in chosen]
    return chosen


class Progress:
    """A line with the time left: on a terminal one that changes, after two seconds; elsewhere one every half minute."""

    def __init__(self, what):
        self.what, self.begun, self.live = what, time.monotonic(), sys.stderr.isatty()
        self.next, self.shown = self.begun + (2 if self.live else 30), False

    def show(self, share):
        now = time.monotonic()
        if now < self.next or not 0 < share < 1:
            return
        self.next, self.shown = now + (0.5 if self.live else 30), True
        left = (now - self.begun) * (1 - share) / share
        left = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
        line = f"[{'#' * int(30 * share):<30}] {100 * share:.0f} % of {self.what}, {left} left"
        print(f"\r{line}  " if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def end(self):
        if self.live and self.shown:
            print(file=sys.stderr)


def to_disk(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Output:
    """An HDF5 file under a temporary name that finish() renames. If that is not reached, nothing is left of it; the
    process must then end by os._exit, since HDF5 would try to write the rest."""

    def __init__(self, path, force):
        self.path, self.temporary = path, f"{path}.{os.getpid()}.tmp"
        self.datasets = {}  # open until the end: h5py does not report an error of closing one
        if os.path.isdir(path):
            raise Refused(f"{path} is a folder: name the file to write")
        if os.path.exists(path) and not force:
            raise Refused(f"{path} exists: --force replaces it")
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise Refused(f"{path}: its folder does not exist")

    def __enter__(self):
        return self

    def open(self):
        self.h5py = library("h5py")
        with self.writing():
            self.file = self.h5py.File(self.temporary, "w")

    def __exit__(self, *_):
        with contextlib.suppress(FileNotFoundError):  # finish() has renamed it
            os.unlink(self.temporary)

    @contextlib.contextmanager
    def writing(self):
        try:
            yield
        except (OSError, RuntimeError) as error:  # of HDF5: the cause is in the middle of a long text
            cause = re.search(r"error message = '(.*?)'", str(error))
            raise Failed(f"{self.path} cannot be written: {cause[1] if cause else error}") from error

    def append(self, name, rows):
        """Adds rows to a dataset, which the first call makes."""
        with self.writing():
            if name not in self.datasets:
                rest = rows.shape[1:]
                self.datasets[name] = self.file.create_dataset(
                    name, (0, *rest), rows.dtype, maxshape=(None, *rest),
                    chunks=(max(1, 65536 // max(1, rows[0].nbytes)), *rest))
            dataset = self.datasets[name]
            n = len(dataset)
            dataset.resize(n + len(rows), axis=0)
            dataset[n:] = rows

    def put(self, name, values):
        texts = isinstance(values[0], str)
        try:
            with self.writing():
                self.file.create_dataset(name, data=values, dtype=self.h5py.string_dtype() if texts else "u8")
        except ValueError as error:
            raise Refused(f"{name}: a text that HDF5 does not hold: {error}") from error

    def finish(self):
        with self.writing():
            self.file.flush()
            self.file.close()
            to_disk(self.temporary)
            os.replace(self.temporary, self.path)
            to_disk(os.path.dirname(self.path) or ".")
