#!/usr/bin/env bash
# Every op on a CUDA device against the CPU, at small, awkward shapes, or, with --model, those of the 130M model. A
# process for each family of ops: after a kernel that fails nothing else works in its process, so that another one goes
# on after that case. Several run side by side, since most of the time one core makes operands and compares results.
# Skipped without a device. Arguments: the program test_parity, perhaps --model.
set -uo pipefail
parity=$1 shapes=${2:-} side_by_side=$(($(nproc) / 4 + 1))

cases() { # family: in as many processes as they need
    local code=0 from=1 lost
    for _ in 1 2 3 4; do
        timeout --foreground --kill-after=5 "${STEP_SECONDS:-600}" "$parity" ${shapes:+"$shapes"} --from $from cuda "$1" >"$1.txt" 2>&1 ||
            code=$?
        cat "$1.txt"
        lost=$(sed -n 's/^the device is lost in case \([0-9]*\)$/\1/p' "$1.txt")
        [ -n "$lost" ] || break
        from=$((lost + 1))
    done
    return $code
}

family() { # its name: its cases, then lines for the reader
    local code=0 begun=$SECONDS
    cases "$1" || code=$?
    echo $code >"$1.code"
    [ $code -ne 77 ] || return
    echo "+ $1: $([ $code -eq 0 ] && echo passed || echo "FAILED, code $code"), $((SECONDS - begun)) s"
    sed -n 's/^Blocks:/+ &/p' "$1.txt"
}

rm -f ./*.code
for name in $("$parity" --families); do
    while [ "$(jobs -rp | wc -l)" -ge $side_by_side ]; do wait -n; done
    family "$name" &
done
wait
! grep -qx 77 ./*.code || exit 77
failures=$(grep -Lx 0 ./*.code | wc -l)
echo "$failures of the families failed"
[ "$failures" -eq 0 ]
