#!/usr/bin/env bash
# Draws a run's training loss in the terminal.
#
#   launch/curve.sh runs/NAME      or its metrics.jsonl
set -euo pipefail
usage="usage: launch/curve.sh runs/NAME"
[ $# -eq 1 ] || { echo "$usage" >&2; exit 2; }
case $1 in -h | --help) echo "$usage"; exit 0 ;; esac
metrics=$1
[ ! -d "$1" ] || metrics=$1/metrics.jsonl
[ -r "$metrics" ] || { echo "curve.sh: cannot read $metrics: give the folder of a run" >&2; exit 2; }
grep -q '"event":"train"' "$metrics" || { echo "curve.sh: $metrics has no training step yet" >&2; exit 2; }
sed -n 's/.*"event":"train","step":\([0-9]*\),[^{]*"loss":\([0-9.e+-]*\),.*/\1 \2/p' "$metrics" | awk '
{ step[NR] = $1; loss[NR] = $2 }
END {
    width = NR < 72 ? NR : 72; height = 16
    for (c = 0; c < width; c++) { # the mean of each column of steps
        first = int(c * NR / width) + 1; last = int((c + 1) * NR / width)
        sum = 0
        for (i = first; i <= last; i++) sum += loss[i]
        mean[c] = sum / (last - first + 1)
        if (c == 0 || mean[c] > top) top = mean[c]
        if (c == 0 || mean[c] < bottom) bottom = mean[c]
    }
    span = top > bottom ? top - bottom : 1
    for (r = 0; r < height; r++) {
        line = ""
        for (c = 0; c < width; c++)
            line = line (int((top - mean[c]) / span * (height - 1) + 0.5) == r ? "*" : " ")
        sub(/ +$/, "", line)
        printf span < 0.1 ? "%8.2e |%s\n" : "%8.3f |%s\n", top - span * r / (height - 1), line
    }
    axis = ""
    for (c = 0; c < width; c++) axis = axis "-"
    printf "%8s +%s\n%8s  step %-10d%*s\n", "", axis, "", step[1], width - 15, "step " step[NR]
}'
