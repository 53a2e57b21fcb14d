#!/usr/bin/env bash
# Every op on a CUDA device against the CPU, at small, awkward shapes, or, with --model, those of the 130M model. A
# process for each family of ops: after a kernel that fails nothing else works in its process, so that another one goes
# on after that case. Skipped without a device. Arguments: the program test_parity, perhaps --model.
set -uo pipefail
parity=$1 shapes=${2:-} failures=0

run() { # family, log, options …: the cases of a family, in as many processes as they need
    local family=$1 log=$2 code=0 from=1 lost
    shift 2
    for _ in 1 2 3 4; do
        timeout --foreground --kill-after=5 "${RUN_SECONDS:-150}" "$parity" "$@" --from $from cuda "$family" >"$log" 2>&1 || code=$?
        cat "$log"
        lost=$(sed -n 's/^the device is lost in case \([0-9]*\)$/\1/p' "$log")
        [ -n "$lost" ] || break
        from=$((lost + 1))
    done
    return $code
}

for family in $("$parity" --families); do
    code=0 begun=$SECONDS
    run "$family" "$family.txt" ${shapes:+"$shapes"} || code=$?
    [ $code -ne 77 ] || exit 77
    [ $code -eq 0 ] || failures=$((failures + 1))
    echo "+ $family: $([ $code -eq 0 ] && echo passed || echo "FAILED, code $code"), $((SECONDS - begun)) s"
    sed -n 's/^Blocks:/+ &/p' "$family.txt"
done
echo "$failures of the families failed"
[ $failures -eq 0 ]
