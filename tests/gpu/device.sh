#!/usr/bin/env bash
# What this machine has, and whether dtrain can use its CUDA device. Skipped where there is none. Argument: dtrain.
set -uo pipefail
dtrain=$1
"$dtrain" info
echo "tools:"
for tool in nvidia-smi nvcc compute-sanitizer ncu cuobjdump python3; do
    echo "  $tool: $(command -v "$tool" || echo none)"
done
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,compute_mode --format=csv,noheader 2>/dev/null
if "$dtrain" info 2>/dev/null | grep -E '^device +cuda [0-9]+:'; then
    exit 0
fi
"$dtrain" info 2>&1 | sed -nE 's/^device +cuda: /skipped: /p'
compgen -G '/dev/nvidia[0-9]*' >/dev/null || exit 77
echo "this machine has a GPU that dtrain cannot use"
exit 1
