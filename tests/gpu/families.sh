# shellcheck shell=bash
# Sourced by parity.sh and sanitizer.sh. Families run side by side, since most of the time one core makes operands and
# compares results. A family that hangs does not keep the others from running.

of_each_family() { # the program test_parity, a function that runs one family and returns 77 if that is skipped
    local names name failures
    names=$("$1" --families) && [ -n "$names" ] || return
    rm -f ./*.code
    for name in $names; do
        while [ "$(jobs -rp | wc -l)" -gt $(($(nproc) / 4)) ]; do wait -n; done
        { "$2" "$name" && echo 0 >"$name.code" || echo $? >"$name.code"; } &
    done
    wait
    ! grep -qx 77 ./*.code || exit 77
    failures=$(grep -Lx 0 ./*.code | wc -l)
    echo "$failures of the families failed"
    [ "$failures" -eq 0 ]
}
