"""Writes the rows of a source as dtrain's own layout of episodes.

/frames [n, F] fp32, /images/NAME [n, …] uint8, /ids/NAME [n] int32, /targets/NAME [n, N] fp32, /episode_starts; and for
readers of the file /tables/frames, which column each number of a frame is, and /tables/NAME, the text of each id.
"""
import math
import os
import re

import h5py
import numpy as np

from converters.shared import Refused, choose

TEXTS_MAX = 1 << 20  # different texts of a column
WHOLE_MAX = 1 << 24  # fp32 holds every whole number up to here
CLASSES_MAX = 1024   # above, whole numbers are rather an amount than a class
HEADS_MAX, HEAD_NAME_MAX, IDS_MAX = 32, 31, 16  # of dtrain


def dataset_name(column):
    return re.sub(r"[^A-Za-z0-9_-]+", "_", column).strip("_") or "column"


def is_text(x):
    return x.dtype == object


def shown(text, shape):
    numbers = f"{' x '.join(map(str, shape))} numbers" if shape else "a number"
    return "text" if text else numbers


class Target:
    """A dataset of targets: the columns side by side."""

    def __init__(self, columns):
        self.columns, self.width, self.texts = columns, 0, None
        self.low, self.high, self.whole = math.inf, -math.inf, True

    def see(self, values):
        self.width = values.shape[1]
        values = values[~np.isnan(values)]
        if values.size:
            self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
            self.whole = self.whole and bool((values == np.rint(values)).all())

    def head(self):
        """The kind of head that the values suggest."""
        if self.texts is not None and self.width == 1:
            return f"categorical*{max(2, len(self.texts))}"
        if self.whole and 0 <= self.low and self.high <= 1:
            return f"bernoulli*{self.width}"
        if self.whole and 0 <= self.low and self.high < CLASSES_MAX and self.width == 1:
            return f"categorical*{int(self.high) + 1}"
        return f"regression*{self.width}"


class Converter:
    def __init__(self, options, source, output):
        self.options, self.source, self.output = options, source, output
        names = source.names
        choose([name for name in (options.episode, options.time) if name], names, "--episode, --time")
        self.targets = {}
        for text in options.targets or []:
            name, _, pattern = text.rpartition("=") if text not in names else ("", "", text)
            columns = choose([pattern], names, "--targets")
            for group in [columns] if name else [[column] for column in columns]:
                head = dataset_name(name or group[0])
                if head in self.targets:
                    raise Refused(f"--targets: two are called {head}: give one another name by NAME=COLUMN")
                if len(head) > HEAD_NAME_MAX:
                    raise Refused(f"--targets: {head}: a head's name has at most {HEAD_NAME_MAX} characters: give it "
                                  "another by NAME=COLUMN")
                self.targets[head] = Target(group)
        if len(self.targets) > HEADS_MAX:
            raise Refused(f"--targets: {len(self.targets)} columns, and dtrain has at most {HEADS_MAX} heads: join columns "
                          "by NAME=PATTERN")
        self.ids = choose(options.ids, names, "--ids")
        self.texts = {name: {} for name in choose(options.text, names, "--text")}
        taken = {options.episode, options.time, *self.ids, *(c for t in self.targets.values() for c in t.columns)}
        self.inputs = choose(options.inputs, names, "--inputs") or [name for name in names if name not in taken]
        self.inputs = [name for name in self.inputs if name not in self.ids]
        self.frames, self.images, self.shapes, self.largest = [], [], None, {}
        self.rows, self.starts, self.seen = 0, [], set()
        self.last_episode = self.last_time = None

    def wanted(self):
        keys = [name for name in (self.options.episode, self.options.time) if name]
        labels = [column for target in self.targets.values() for column in target.columns]
        return list(dict.fromkeys(self.inputs + self.ids + labels + keys))

    def arrange(self, piece):
        """Of the first rows: which inputs are numbers, images and ids."""
        self.shapes = {name: (is_text(x), x.shape[1:]) for name, x in piece.columns.items()}
        keys = self.options.episode, self.options.time
        for name, x in piece.columns.items():
            if name in self.texts or (is_text(x) and name not in keys):
                self.texts[name] = {}
                if x.ndim > 1:
                    piece.refuse(0, name, f"holds {x[0].size} texts, not one")
        for name in self.inputs:
            x = piece.columns[name]
            image = x.dtype == np.uint8 and x.ndim > 2
            (self.ids if name in self.texts else self.images if image else self.frames).append(name)
        if not self.frames and not self.targets:
            raise Refused("no column of --inputs holds numbers whose next row could be predicted: name --targets")
        if len(self.ids) > IDS_MAX:
            raise Refused(f"{len(self.ids)} columns of ids, and dtrain reads at most {IDS_MAX}: choose by --inputs")
        datasets = [dataset_name(name) for name in [*self.texts, *(name for name in self.ids if name not in self.texts)]]
        for name in datasets + [dataset_name(name) for name in self.images]:
            if datasets.count(name) > 1 or name == "frames":
                raise Refused(f"two datasets would be called {name}: rename a column")
        if self.options.tables:
            self.read_tables(self.options.tables)

    def read_tables(self, path):
        try:
            with h5py.File(path, "r") as file:
                for name in self.texts:
                    table = file[f"tables/{dataset_name(name)}"].asstr()[:]
                    self.texts[name] = {text: i for i, text in enumerate(table)}
        except (OSError, KeyError, TypeError) as error:
            raise Refused(f"--tables {path}: not a file that was converted with these text columns: {error}") from error

    def add(self, piece):
        if self.shapes is None:
            self.arrange(piece)
        for name, x in piece.columns.items():
            if (is_text(x), x.shape[1:]) != self.shapes[name]:
                piece.refuse(0, name, f"holds {shown(is_text(x), x.shape[1:])}, and before {shown(*self.shapes[name])}")
        self.starts += (self.rows + self.episodes(piece)).tolist()
        self.rows += piece.n
        if self.frames:
            self.output.append("frames", np.hstack([self.input_numbers(piece, name) for name in self.frames]))
        else:  # dtrain knows its layout by this dataset
            self.output.append("frames", np.zeros((piece.n, 1), np.uint8))
        for name in self.images:
            self.output.append(f"images/{dataset_name(name)}", piece.columns[name])
        for name in self.ids:
            x = piece.columns[name]
            codes = self.codes(piece, name, x) if name in self.texts else self.whole_numbers(piece, name)
            self.output.append(f"ids/{dataset_name(name)}", codes)
        for name, target in self.targets.items():
            values = np.hstack([self.labels(piece, target, column) for column in target.columns])
            target.see(values)
            self.output.append(f"targets/{name}", values)

    def episodes(self, piece):
        """The rows of a piece that start an episode."""
        starts = np.zeros(piece.n, bool)
        starts[0] = piece.first
        if piece.first:
            self.seen.clear()
        if self.options.episode:
            name = self.options.episode
            x = self.key(piece, name)
            starts[0] |= x[0] != self.last_episode
            starts[1:] |= x[1:] != x[:-1]
            self.last_episode = x[-1]
            for row in np.flatnonzero(starts):
                if x[row] in self.seen:
                    value = x[row] if is_text(x) else f"{x[row]:g}"
                    piece.refuse(row, name, f"is {value} again, after another episode: sort the rows by {name}")
                self.seen.add(x[row])
        if self.options.time:
            name = self.options.time
            t = self.key(piece, name).astype(np.float64)
            before = np.concatenate([[t[0] if starts[0] else self.last_time], t[:-1]])
            self.last_time = t[-1]
            if self.options.gap:
                starts |= t - before > self.options.gap
            for row in np.flatnonzero((t < before) & ~starts)[:1]:
                piece.refuse(row, name, f"steps back from {before[row]:.12g} to {t[row]:.12g}: sort the rows by {name}, or "
                                        "say by --episode where an episode starts")
        return np.flatnonzero(starts)

    def key(self, piece, name):
        """[n] of a column that orders the rows: none is missing."""
        x = piece.columns[name]
        if x.size != piece.n or (is_text(x) and name == self.options.time):
            piece.refuse(0, name, f"holds {shown(is_text(x), x.shape[1:])}, not one number")
        x = x.reshape(-1)
        missing = [value is None for value in x] if is_text(x) else np.isnan(x.astype(np.float64))
        for row in np.flatnonzero(missing)[:1]:
            piece.refuse(row, name, "is missing")
        return x

    def numbers(self, piece, name):
        """[n, width] fp32, NaN where one is missing."""
        x = piece.columns[name].reshape(piece.n, -1)
        with np.errstate(over="ignore"):
            values = x.astype(np.float32)
        for row, i in np.argwhere(np.isinf(values))[:1]:
            piece.refuse(row, name, f"is {float(x[row, i]):g}, which fp32 cannot hold")
        return values

    def input_numbers(self, piece, name):
        values = self.numbers(piece, name)
        if self.options.missing is not None:
            values[np.isnan(values)] = self.options.missing
        for row, _ in np.argwhere(np.isnan(values))[:1]:
            piece.refuse(row, name, "is missing (--missing VALUE fills it in)")
        return values

    def whole_numbers(self, piece, name):
        """[n] int32 of a column whose numbers are ids."""
        x = self.numbers(piece, name)
        if x.shape[1] > 1:
            piece.refuse(0, name, f"holds {x.shape[1]} numbers, not one id")
        for row, _ in np.argwhere(~((x >= 0) & (x < WHOLE_MAX) & (x == np.rint(x))))[:1]:
            piece.refuse(row, name, f"is {x[row, 0]:g}: ids are whole numbers from 0")
        self.largest[name] = max(self.largest.get(name, 0), int(x.max()))
        return x[:, 0].astype(np.int32)

    def codes(self, piece, name, x):
        """[n] int32 of texts of a column: their numbers in its table, which grows as texts appear."""
        table = self.texts[name]
        if is_text(x):
            x = np.array(["" if text is None else text for text in x], object)
        else:  # --text names it
            x = np.array([f"{value:.15g}" for value in x.reshape(-1).tolist()], object)
        texts, first, inverse = np.unique(x, return_index=True, return_inverse=True)
        for i in np.argsort(first):
            if texts[i] not in table and self.options.tables:
                piece.refuse(first[i], name, f"is {texts[i]!r}, which {self.options.tables} does not have")
            table.setdefault(texts[i], len(table))
        if len(table) > TEXTS_MAX:
            piece.refuse(0, name, f"has more than {TEXTS_MAX} different texts: leave it out of --inputs")
        return np.array([table[text] for text in texts], np.int32)[inverse.reshape(-1)]

    def labels(self, piece, target, name):
        """[n, width] fp32 of a column of targets, NaN where there is none."""
        if name not in self.texts:
            return self.numbers(piece, name)
        target.texts, x = self.texts[name], piece.columns[name]
        labels = np.full((piece.n, 1), np.nan, np.float32)
        present = np.array([text is not None for text in x]) if is_text(x) else ~np.isnan(x.reshape(-1))
        if present.any():
            labels[present, 0] = self.codes(piece, name, x[present])
        return labels

    def finish(self):
        if not self.rows:
            raise Refused(f"no rows in {', '.join(self.options.input)}")
        tables = {name: list(table) for name, table in self.texts.items()}
        tables["frames"] = [text for name in self.frames for text in self.source.labels(name, self.shapes[name][1])]
        for name, texts in tables.items():
            if texts:
                self.output.put(f"tables/{dataset_name(name)}", texts)
        self.output.put("episode_starts", self.starts)
        self.output.finish()

    def configuration(self):
        """A configuration that trains on the file."""
        lengths = np.diff([*self.starts, self.rows])
        seq_len = int(min(64, lengths.max()))
        windows = int((-(-lengths // seq_len)).sum())
        inputs = ["frames"] if self.frames else []
        inputs += [f"images/{dataset_name(name)}" for name in self.images]
        for name in self.ids:
            table = len(self.texts[name]) if name in self.texts else self.largest[name] + 1
            if name in self.source.tables:
                table = "{}={}".format(*self.source.tables[name])
            inputs.append(f"ids/{dataset_name(name)}:id*{table}")
        width = sum(math.prod(self.shapes[name][1]) for name in self.frames)
        heads = [f"{name}:{self.source.heads.get(name) or target.head()}" for name, target in self.targets.items()]
        targets = "" if heads else "targets = frames@+1\n"  # a forecast
        held_out = self.source.independent and len(lengths) >= 10
        val = "val_fraction = 0.1" if held_out else "; val = another file" + (
            f", converted with --tables {self.output.path}" if self.texts else "")
        return f"""\
; {self.output.path}: {self.rows} rows, {len(lengths)} episodes of {lengths.min()} to {lengths.max()} rows
{self.source.note}[run]
name = {dataset_name(os.path.splitext(os.path.basename(self.output.path))[0])}
steps = 2000

[model]
d_model = 128
layers = mamba*2
heads = {" ".join(heads) or f"next:regression*{width}"}

[data]
train = {os.path.abspath(self.output.path)}
{val}
inputs = {" ".join(inputs)}
{targets}seq_len = {seq_len}
batch = {min(16, max(1, windows // 2))}

[optim]
lr = 1e-3
warmup_steps = 100""" + ("""

[log]
eval_every = 200""" if held_out else "")
