"""CSV and Parquet files, and LeRobot's folders of them, read by pyarrow some thousand rows at a time."""
import contextlib
import json
import math
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from converters.shared import PIECE_BYTES, Piece, Refused, Source, choose, files_of


class Unlike(Exception):
    """A row of an arrow array is not what it should be."""

    def __init__(self, row, why):
        super().__init__(why)
        self.row, self.why = int(row), why


def from_arrow(array):
    """As an array [n, …] of numbers, NaN where one is missing, or [n] of str and None."""
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return from_arrow(array.storage)
    if types.is_dictionary(kind):
        return from_arrow(array.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind):
        return array.to_numpy(zero_copy_only=False)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = pa.compute.list_value_length(array).fill_null(-1).to_numpy(zero_copy_only=False)
        usual = lengths[0]
        for row in np.flatnonzero((lengths < 0) | (lengths != usual))[:1]:
            raise Unlike(row, "is missing" if lengths[row] < 0 else f"has {lengths[row]} values, the row before {usual}")
        try:
            values = from_arrow(array.flatten())
        except Unlike as error:
            raise Unlike(error.row // max(1, usual), error.why) from None
        return values.reshape(len(array), usual, *values.shape[1:])
    if types.is_timestamp(kind) or types.is_date(kind):  # seconds
        array = array.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64(), safe=False)
        return array.to_numpy(zero_copy_only=False) / 1e6
    if types.is_uint8(kind) and array.null_count == 0:
        return array.to_numpy()
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        array = array.cast(pa.uint8()) if types.is_boolean(kind) else array
        return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    raise Unlike(0, f"holds {kind}, neither numbers nor text: leave it out of --inputs")


class Tables(Source):
    def __init__(self, options):
        self.options, self.types, self.wanted = options, None, None
        self.files = self.find(options)
        first = self.files[0]
        with self.reading(first):
            self.names = pa.parquet.read_schema(first).names if first.endswith(".parquet") else \
                self.open_csv(first)[1].schema.names
        for name in self.names:
            if self.names.count(name) > 1:
                raise Refused(f"{first}: two columns are called {name!r}")

    def find(self, options):
        return files_of(options.input, (".csv", ".csv.gz", ".tsv", ".parquet"))

    @contextlib.contextmanager
    def reading(self, path):
        try:
            yield
        except pa.ArrowKeyError:
            raise Refused(f"{path}: its columns are not those of {self.files[0]}") from None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise Refused(f"{path}: {self.explain(path, str(error))}") from error

    def explain(self, path, error):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if file.read(40).startswith(b"version https://git-lfs"):
                return "a pointer of Git LFS, not the file itself: run git lfs pull"
        cell = re.match(r"In CSV column #(\d+): Row #(\d+): .* invalid value '(.*)'", error, re.DOTALL)
        if not cell:
            return error.replace("Row #", "row ")
        name = self.wanted[int(cell[1])]
        kind = "a number" if self.types[name] == pa.float64() else self.types[name]
        return f"row {cell[2]}: {name} is {cell[3]!r}, not {kind} (--text {name!r} makes ids of its texts)"

    def open_csv(self, path, types=None):
        """Its bytes, and a reader of batches of the wanted columns."""
        raw = pa.OSFile(path)
        stream = pa.CompressedInputStream(raw, "gzip") if path.endswith(".gz") else raw
        return raw, pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(use_threads=False, block_size=PIECE_BYTES,
                               autogenerate_column_names=bool(self.options.no_header)),
            pa.csv.ParseOptions(delimiter=self.options.delimiter or ("\t" if path.endswith(".tsv") else ","),
                                newlines_in_values=True),
            pa.csv.ConvertOptions(strings_can_be_null=True, include_columns=self.wanted, column_types=types))

    def csv_type(self, field):
        """How all rows are read, where `field` is what the first ones suggest."""
        if field.name in choose(self.options.text, self.names, "--text"):
            return pa.string()
        text = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
        if text and field.name == self.options.episode:
            return pa.string()
        known = pa.types.is_boolean(field.type) or pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)
        return field.type if known else pa.float64()

    def csv_batches(self, path):
        if self.types is None:
            self.types = {field.name: self.csv_type(field) for field in self.open_csv(path)[1].schema}
        raw, reader = self.open_csv(path, self.types)
        size = max(1, os.path.getsize(path))
        for batch in reader:
            yield batch, 1 if raw.closed else min(1, raw.tell() / size)

    def parquet_batches(self, path):
        with pa.parquet.ParquetFile(path) as file:
            absent = [name for name in self.wanted if name not in file.schema_arrow.names]
            if absent:
                raise Refused(f"{path}: no column {absent[0]!r}, which {self.files[0]} has")
            n, done = max(1, file.metadata.num_rows), 0
            data = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
            rows = PIECE_BYTES * n // max(1, data)
            for batch in file.iter_batches(max(1, min(rows, 1 << 18)), columns=self.wanted):
                done += len(batch)
                yield batch, done / n

    def pieces(self, wanted):
        self.wanted = wanted
        sizes = [os.path.getsize(file) for file in self.files]
        for number, path in enumerate(self.files):
            batches, row = (self.parquet_batches, 0) if path.endswith(".parquet") else \
                (self.csv_batches, 1 if self.options.no_header else 2)
            first = True
            with self.reading(path):
                for batch, share in batches(path):
                    if len(batch) == 0:
                        continue
                    columns = {}
                    for name in wanted:
                        try:
                            columns[name] = from_arrow(batch.column(name))
                        except Unlike as error:
                            raise Refused(f"{path}: row {row + error.row}: {name} {error.why}") from None
                    share = (sum(sizes[:number]) + share * sizes[number]) / max(1, sum(sizes))
                    yield Piece(path, row, columns, share, first)
                    row, first = row + len(batch), False


class LeRobot(Tables):
    """meta/info.json and data/chunk-*/*.parquet. Version 2 has a file an episode, version 3 several in each."""

    def find(self, options):
        if len(options.input) > 1:
            raise Refused("lerobot converts one data set at a time")
        self.folder = options.input[0]
        try:
            with open(os.path.join(self.folder, "meta", "info.json"), encoding="utf-8") as file:
                info = json.load(file)
            self.features, self.counts = info["features"], (int(info["total_frames"]), int(info["total_episodes"]))
            version = str(info["codebase_version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"{self.folder}: not a data set of LeRobot: meta/info.json: {error!r}") from error
        if not version.startswith(("v2.", "v3.")):
            raise Refused(f"{self.folder}: version {version} of LeRobot's data sets; known: v2.0, v2.1, v3.0")
        pictures = [name for name, feature in self.features.items() if feature.get("dtype") in ("video", "image")]
        if not options.inputs:
            self.note = f"; left out: {', '.join(pictures)} (pictures)\n" if pictures else ""
            options.inputs = [name for name in self.features if name.startswith("observation") and name not in pictures]
        options.targets = options.targets or ["action"]
        options.episode, options.time = "episode_index", "frame_index"
        return files_of([os.path.join(self.folder, "data")], (".parquet",))

    def labels(self, name, shape):
        names = self.features.get(name, {}).get("names")
        if isinstance(names, dict):  # {"motors": […]}
            names = next(iter(names.values()), None)
        if isinstance(names, list) and len(names) == math.prod(shape):
            return [f"{name}.{part}" for part in names]
        return super().labels(name, shape)

    def check(self, rows, episodes):
        if (rows, episodes) != self.counts:
            raise Refused(f"{self.folder}: data/ has {rows} rows in {episodes} episodes, and meta/info.json says "
                          f"{self.counts[0]} in {self.counts[1]}: files are missing or were changed")
