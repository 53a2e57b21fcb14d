#!/usr/bin/env bash
# Prints what this machine has, and checks that dtrain can use its CUDA device. Skipped without one. Argument: dtrain.
set -uo pipefail
"$1" info >info.txt 2>&1
sed 's/^/+ /' info.txt
echo "tools:"
for tool in nvidia-smi nvcc compute-sanitizer ncu cuobjdump python3; do
    echo "  $tool: $(command -v "$tool" || echo none)"
done
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,compute_mode,persistence_mode,power.limit,clocks.sm --format=csv,noheader 2>/dev/null |
    sed 's/^/+ /'
grep -E '^device +cuda [0-9]+:' info.txt && exit 0
sed -nE 's/^device +cuda: /skipped: /p' info.txt
compgen -G '/dev/nvidia[0-9]*' >/dev/null || exit 77
echo "this machine has a GPU that dtrain cannot use"
exit 1
