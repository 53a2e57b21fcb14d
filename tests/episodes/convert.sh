#!/usr/bin/env bash
# data/convert.py gives every number of files that the real libraries wrote, dtrain trains on each file with the
# configuration that it prints, and damaged input is refused with file and row. data/tokens.py is tested likewise. $2 is
# the part: numpy, tables, slippi or tokens.
# Skipped if Python lacks the libraries of that part (DTRAIN_PYTHON names another interpreter).
part=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
python=${DTRAIN_PYTHON:-python3}
case $part in
numpy) packages="h5py, numpy" ;;
tables) packages="h5py, numpy, pyarrow" ;;
tokens) packages="h5py, numpy, pyarrow, tokenizers, xxhash, zstandard" program=tokens.py ;;
slippi) packages="h5py, numpy, pyarrow, peppi_py" ;;
esac
"$python" -c "import $packages" 2>/dev/null || { echo "skipped: Python lacks one of $packages" >&2; exit 77; }
check "data/${program:-convert.py} of $part" "$python" "$(dirname "$0")/${program:-convert.py}" "$dtrain" "$part"
finish
