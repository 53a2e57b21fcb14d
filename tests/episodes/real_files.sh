#!/usr/bin/env bash
# Every number of files that h5py writes as robomimic, Minari and D4RL do is what dtrain reads; and, with PyTorch, a
# policy trained on each with three lines of configuration has PyTorch's losses. Skipped without h5py (DTRAIN_PYTHON
# names another interpreter).
tool=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
python=${DTRAIN_PYTHON:-python3}
"$python" -c 'import h5py, numpy' 2>/dev/null || { echo "skipped: no h5py" >&2; exit 77; }
check "the numbers agree" "$python" "$(dirname "$0")/real_files.py" "$tool"
if "$python" -c 'import torch, safetensors' 2>/dev/null; then
    check "policies learn as in PyTorch" "$python" "$(dirname "$0")/torch_policy.py" "$dtrain"
fi
finish
