#!/usr/bin/env bash
# Compares every op on a CUDA device with the CPU, at small, awkward shapes or, with --model, at those of the 130M
# model. Each family of ops has its own process: after a kernel that fails nothing else works in a process, so another
# one continues after that case. Skipped without a device. Arguments: the program test_parity, perhaps --model.
set -uo pipefail
# shellcheck source=tests/gpu/families.sh
. "$(dirname "$0")/families.sh"
parity=$1 shapes=${2:-}

# shellcheck disable=SC2317
cases() { # family: runs its cases in as many processes as they need
    local code=0 from=1 lost begun=$SECONDS
    for _ in 1 2 3 4; do
        timeout --foreground --kill-after=5 "${STEP_SECONDS:-600}" "$parity" ${shapes:+"$shapes"} --from $from cuda "$1" >"$1.txt" 2>&1 ||
            code=$?
        cat "$1.txt"
        lost=$(sed -n 's/^the device is lost in case \([0-9]*\)$/\1/p' "$1.txt")
        [ -n "$lost" ] || break
        from=$((lost + 1))
    done
    [ $code -eq 77 ] || echo "+ $1: $([ $code -eq 0 ] && echo passed || echo "FAILED, code $code"), $((SECONDS - begun)) s"
    sed -n 's/^Blocks:/+ &/p' "$1.txt"
    return $code
}

of_each_family "$parity" cases
