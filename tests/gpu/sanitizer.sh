#!/usr/bin/env bash
# compute-sanitizer runs every op at small shapes: no access is out of bounds, and there is no race in shared memory.
# Each family of ops has its own process, since the tool stops after an error. Skipped without a device, or without a
# compute-sanitizer that works here. Arguments: the program test_parity, and memcheck or racecheck.
set -uo pipefail
# shellcheck source=tests/gpu/families.sh
. "$(dirname "$0")/families.sh"
program=$1 tool=$2
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "skipped: compute-sanitizer was not found" >&2; exit 77; }

# Every fifth case: the tool is a hundred times slower. The program itself checks what CUDA calls return; libraries try
# calls that may fail.
# shellcheck disable=SC2317
examine() { # family
    local code=0 refused=9
    [ "$1" != gemm ] || return 0 # these are kernels of cuBLASLt
    timeout --foreground --kill-after=5 "${STEP_SECONDS:-600}" "$sanitizer" --tool "$tool" --report-api-errors no --print-limit 20 \
        --error-exitcode $refused "$program" --every 5 cuda "$1" >"$1.txt" 2>&1 || code=$?
    if [ $code -eq 77 ] || grep -qE '^skipped|Device not supported|Unable to find injection library|Failed to initialize' "$1.txt"; then
        echo "skipped: $(grep '^skipped' "$1.txt" || echo 'compute-sanitizer does not work on this machine')"
        return 77
    fi
    [ $code -eq 0 ] || head -n 60 "$1.txt"
    echo "+ $1: code $code; $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$1.txt" | tail -n 1)"
    return $code
}

of_each_family "$program" examine
