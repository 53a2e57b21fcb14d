#!/usr/bin/env bash
# compute-sanitizer over every op at small shapes: nothing out of bounds, no race in shared memory. A process for each
# family of ops, since the tool goes no further after an error. Skipped without a device, or without a compute-sanitizer
# that works here. Arguments: the program test_parity, and memcheck or racecheck.
set -uo pipefail
program=$1 tool=$2
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "skipped: compute-sanitizer was not found" >&2; exit 77; }

# Every fifth case: the tool is a hundred times slower. What calls of CUDA return is checked by the program itself;
# libraries try calls that may fail.
refused=9 failures=0
for family in $("$program" --families); do
    [ "$family" != gemm ] || continue # cuBLASLt's kernels, not dtrain's
    code=0
    timeout --foreground --kill-after=5 "${RUN_SECONDS:-120}" "$sanitizer" --tool "$tool" --report-api-errors no --print-limit 20 --error-exitcode $refused \
        "$program" --every 5 cuda "$family" >"$family.txt" 2>&1 || code=$?
    if [ $code -eq 77 ] || grep -qE '^skipped|Device not supported|Unable to find injection library|Failed to initialize' "$family.txt"; then
        echo "skipped: $(grep '^skipped' "$family.txt" || echo 'compute-sanitizer does not work on this machine')" >&2
        exit 77
    fi
    echo "+ $family: code $code; $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$family.txt" | tail -n 1)" >&2
    [ $code -eq 0 ] || { failures=$((failures + 1)); head -n 60 "$family.txt" >&2; }
done
echo "$tool: $failures of the families failed" >&2
[ $failures -eq 0 ]
