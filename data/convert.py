#!/usr/bin/env python3
"""Converts tables, arrays, robot recordings and game replays to an HDF5 file that dtrain trains on.

  data/convert.py table runs/*.csv -o train.h5 --inputs 'sensor_*' --targets power --time seconds
  data/convert.py numpy demos/*.npz -o train.h5 --inputs 'obs*' --targets action
  data/convert.py lerobot pusht -o train.h5
  data/convert.py slippi replays -o train.h5 --skip

Prints a configuration that trains on the file: data/convert.py … >first.ini && dtrain first.ini. The file is in
dtrain's own layout (launch/README.md, "Converters"), and is written completely or not at all. Exit codes: 0, 2 (the
arguments or the data are wrong), 3 (the machine failed).
"""
import argparse
import importlib
import os

from converters.shared import Output, Parser, Progress, Refused, library, run

# Of each format: what it is, its input, the module and class of its source, the packages that this needs.
FORMATS = {
    "table": ("CSV and Parquet files of the same columns", "files, or folders of files (.csv, .csv.gz, .tsv, .parquet); "
              "without --episode each file is one", "tables", "Tables", ["pyarrow"]),
    "numpy": ("arrays of NumPy", ".npz files or folders of .npy files, each an episode; or .npy files, which are the "
              "columns of one", "arrays", "Arrays", []),
    "lerobot": ("a data set of LeRobot, version 2 or 3 (Parquet; its videos are left out)", "the folder of meta/ and data/",
                "tables", "LeRobot", ["pyarrow"]),
    "slippi": ("replays of two players (.slp), an episode for each player", "replays, or folders of replays",
               "slippi", "Replays", ["pyarrow", "peppi_py"]),
}


def positive(text):
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def character(text):
    if len(text) != 1 or not text.isascii():
        raise ValueError
    return text


def arguments():
    parser = Parser(prog="convert.py", description=__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    formats = parser.add_subparsers(dest="format", metavar="FORMAT", required=True)
    for name, (what, inputs, *_) in FORMATS.items():
        p = formats.add_parser(name, help=what, description=f"Converts {what}.", allow_abbrev=False)
        p.add_argument("input", nargs="+", metavar="INPUT", help=inputs)
        p.add_argument("-o", "--output", required=True, metavar="FILE", help="the HDF5 file to write")
        p.add_argument("--force", action="store_true", help="replace FILE if it exists")
        if name == "slippi":
            p.add_argument("--port", type=int, choices=(1, 2, 3, 4), help="only the player at this port")
            p.add_argument("--code", help="only the player of this connect code (ABCD#123)")
            p.add_argument("--skip", action="store_true", help="leave out damaged replays and those of other than two "
                                                               "players, and say so, rather than stop")
            continue
        p.add_argument("--inputs", nargs="+", metavar="COLUMN", help="columns of the frames, patterns such as 'x_*' too "
                       "(default: all that no other option names; of lerobot: observation*)")
        p.add_argument("--targets", nargs="+", metavar="[NAME=]COLUMN", help="columns to predict, a head each; with NAME= "
                       "the columns of a pattern are one head (default of lerobot: action)")
        p.add_argument("--ids", nargs="+", metavar="COLUMN", help="inputs whose whole numbers are ids, to be embedded")
        p.add_argument("--text", nargs="+", metavar="COLUMN", help="columns to read as text even where it looks like "
                       "numbers; text becomes ids, with a table")
        p.add_argument("--tables", metavar="FILE", help="number text as in this file, which was converted before (for "
                       "validation data)")
        p.add_argument("--missing", type=float, metavar="VALUE", help="what replaces missing inputs (default: they are "
                       "refused; a missing target has no loss)")
        if name != "lerobot":
            p.add_argument("--episode", metavar="COLUMN", help="a new value of this column starts an episode")
            p.add_argument("--time", metavar="COLUMN", help="a column that must not step back within an episode")
            p.add_argument("--gap", type=positive, metavar="TIME", help="a longer step of --time starts an episode")
        if name == "table":
            p.add_argument("--delimiter", type=character, metavar="CHARACTER", help="between the cells of a CSV file (default: a comma; "
                           "in .tsv a tab)")
            p.add_argument("--no-header", action="store_true", help="CSV files start with data: the columns are f0, f1, …")
        if name == "numpy":
            p.add_argument("--trials", action="store_true", help="the first axis of the arrays counts episodes, the "
                           "second their rows; arrays of one axis hold a value for each episode")
    options = parser.parse_args()
    for name in "inputs targets ids text tables missing episode time gap delimiter no_header trials".split():
        if not hasattr(options, name):
            setattr(options, name, None)
    if any(os.path.exists(path) and os.path.realpath(path) == os.path.realpath(options.output) for path in options.input):
        raise Refused(f"{options.output} is the input")
    if options.gap and not options.time:
        raise Refused("--gap needs --time COLUMN")
    return options


def convert():
    options = arguments()
    *_, module, kind, packages = FORMATS[options.format]
    for package in ["numpy", "h5py", *packages]:
        library(package)
    source = getattr(importlib.import_module(f"converters.{module}"), kind)(options)
    episodes = importlib.import_module("converters.episodes")
    with Output(options.output, options.force) as output:
        output.open()
        converter, progress = episodes.Converter(options, source, output), Progress(options.output)
        for piece in source.pieces(converter.wanted()):
            converter.add(piece)
            progress.show(piece.share)
        progress.end()
        source.check(converter.rows, len(converter.starts))
        converter.finish()
    print(converter.configuration(), flush=True)


if __name__ == "__main__":
    run("convert.py", convert, "nothing was written")
