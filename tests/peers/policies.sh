#!/usr/bin/env bash
# policies.sh DTRAIN: a training step of launch/policy.ini with each kind of block in dtrain against PyTorch (policy_peer.py), in
# fp32 on the same cores, and a playing step. They take turns, so that a machine that others use gives the same ratio;
# the best of each counts. $PYTHON (or python3) needs torch. $THREADS cores (1), $BATCHES ("32 256"), $LENGTHS ("60"),
# $KINDS, $ROUNDS (3).
set -u
[ $# -eq 1 ] || { sed -n 2,5p "$0" >&2; exit 2; }
dtrain=$(realpath "$1") here=$(dirname "$(realpath "$0")") threads=${THREADS:-1}
export OMP_NUM_THREADS=$threads
cd "$here/../.." || exit 1
times=$(mktemp)

field() { grep -o "\"$1\": *[0-9.]*" | sed 's/.*: *//'; }
heads=$(sed -n "s/^heads = //p" launch/policy.ini)
least() { sort -g | head -n 1; }

own() { # kind, options …
    local layers="$1*2"
    [ "$1" != attention ] || layers="attention mlp attention mlp"
    "$dtrain" bench "${@:2}" --layers "$layers" --heads "$heads" --frame-size 287 --d-model 256 --json --precision fp32 --threads "$threads"
}

peer() { # kind, batch, length: for mamba, the faster of the two scans
    local scans=("") scan
    [ "$1" != mamba ] || scans=("--scan manual" "--scan manual --compile" "--scan sequential --compile")
    for scan in "${scans[@]}"; do
        # shellcheck disable=SC2086
        "${PYTHON:-python3}" "$here/policy_peer.py" "$1" --batch "$2" --seq-len "$3" --threads "$threads" --steps 3 $scan \
            2>/dev/null | field best_ms
    done | least
}

printf '%-10s %5s %6s %12s %12s %8s %12s\n' backbone batch length "dtrain ms" "PyTorch ms" times "play us"
for kind in ${KINDS:-mamba attention gru lstm mlp}; do
    play=$(own "$kind" --play --seq-len 60 | field best_step_us)
    for length in ${LENGTHS:-60}; do
        for batch in ${BATCHES:-32 256}; do
            : >"$times.own" && : >"$times.peer"
            for _ in $(seq "${ROUNDS:-3}"); do
                own "$kind" --step --seq-len "$length" --batch "$batch" --seconds 2 | field best_step_ms >>"$times.own"
                peer "$kind" "$batch" "$length" >>"$times.peer"
            done
            a=$(least <"$times.own") b=$(least <"$times.peer")
            printf '%-10s %5s %6s %12.1f %12.1f %8.2f %12.1f\n' "$kind" "$batch" "$length" "$a" "$b" \
                "$(awk -v a="$a" -v b="$b" 'BEGIN { print b / a }')" "$play"
        done
    done
done
rm -f "$times" "$times.own" "$times.peer"
