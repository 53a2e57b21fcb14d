#!/bin/bash
# interop.sh DTRAIN LOGITS_TOOL: models go from transformers to dtrain and back. Skipped (77) if python3 (or
# $PYTHON) has no torch or transformers.
set -eu
python=${PYTHON:-python3}
if ! "$python" -c 'import torch, transformers, safetensors, h5py' 2>/dev/null; then
    echo "skipped: $python has no torch, transformers, safetensors and h5py (set PYTHON to one that has)" >&2
    exit 77
fi
exec "$python" "$(dirname "$0")/interop.py" "$@"
