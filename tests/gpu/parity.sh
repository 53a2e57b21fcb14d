#!/usr/bin/env bash
# Every op on a CUDA device against the CPU, at the shapes of the 130M model and at small, awkward ones. A process for
# each family of ops: after a kernel that fails nothing else works in its process. Skipped without a device.
# Argument: the program test_parity.
set -uo pipefail
parity=$1 failures=0
for family in $("$parity" --families); do
    for shapes in --model ""; do
        code=0
        # shellcheck disable=SC2086
        timeout --foreground --kill-after=5 150 "$parity" $shapes cuda "$family" || code=$?
        [ $code -ne 77 ] || exit 77
        [ $code -eq 0 ] || { failures=$((failures + 1)); echo "FAILED: $family $shapes, code $code"; }
    done
done
echo "$failures of the families failed"
[ $failures -eq 0 ]
