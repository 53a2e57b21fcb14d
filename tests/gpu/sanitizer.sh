#!/usr/bin/env bash
# compute-sanitizer over every op at small shapes: nothing out of bounds, no race in shared memory,
# no uninitialised read. Skipped without a device, or without a compute-sanitizer that works here. Arguments: the program test_parity, and memcheck, racecheck or initcheck.
set -euo pipefail
program=$1 tool=$2
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "skipped: compute-sanitizer was not found" >&2; exit 77; }

# dtrain's own kernels (gemm alone is cuBLASLt's), every fifth case: the tool is a hundred times slower.
kernels=(--every 5 cuda flat embed rmsnorm xent conv scan attention rnn ssd gated policy)
"$program" "${kernels[@]}" # says why if it is skipped
refused=9 code=0
"$sanitizer" --tool "$tool" --error-exitcode $refused "$program" "${kernels[@]}" >sanitizer.txt 2>&1 || code=$?
if grep -qE 'Device not supported|Unable to find injection library|Failed to initialize' sanitizer.txt; then
    echo "skipped: compute-sanitizer does not work on this machine" >&2
    exit 77
fi
[ $code -eq 0 ] || cat sanitizer.txt >&2
grep 'ERROR SUMMARY\|RACECHECK SUMMARY\|skipped' sanitizer.txt >&2 || true
exit $code
