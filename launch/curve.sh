#!/usr/bin/env bash
# Draws the training and validation losses of runs in the terminal. Of several runs, also prints in which settings they
# differ and how they ended.
#
#   launch/curve.sh RUN…            folders of runs (runs/NAME), or their metrics.jsonl
#   launch/curve.sh --table RUN…    the table alone
#   launch/curve.sh --expect FILE RUN
#       compares with a reference: each line of FILE is a step, the mean training loss of the ten steps up to it, and by
#       how much that may differ. Exit code 1 where it differs by more.
set -euo pipefail
usage="usage: launch/curve.sh [--table | --expect FILE] runs/NAME…"
table='' expect='' metrics=()
case ${1:-} in
-h | --help) echo "$usage"; exit 0 ;;
--table) table=1; shift ;;
--expect)
    [ $# -eq 3 ] || { echo "$usage" >&2; exit 2; }
    expect=$2
    [ -r "$expect" ] || { echo "curve.sh: cannot read $expect" >&2; exit 2; }
    shift 2
    ;;
esac
[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
[ $# -le 26 ] || { echo "curve.sh: at most 26 runs, not $#" >&2; exit 2; }
for run in "$@"; do
    file=$run
    [ ! -d "$run" ] || file=$run/metrics.jsonl
    [ -r "$file" ] || { echo "curve.sh: cannot read $file: give the folder of a run" >&2; exit 2; }
    grep -q '"event":"train"' "$file" || { echo "curve.sh: $file has no training step yet" >&2; exit 2; }
    metrics+=("$file")
done

# Lines of "run kind step loss step_ms tokens tokens_per_s"; the runs are counted from 1.
points() {
    local n=0 file
    for file in "${metrics[@]}"; do
        n=$((n + 1))
        sed -n -e "s/^{\"event\":\"train\",\"step\":\([0-9]*\),[^{]*\"loss\":\([^,]*\),.*\"tokens\":\([0-9]*\),\"step_ms\":\([^,]*\),\"tokens_per_s\":\([^,]*\),.*/$n train \1 \2 \4 \3 \5/p" \
            -e "s/^{\"event\":\"eval\",\"step\":\([0-9]*\),\"loss\":\([^,]*\),.*/$n eval \1 \2/p" "$file"
    done
}

if [ -n "$expect" ]; then
    points | awk -v reference="$expect" '
        $2 == "train" { loss[$3] = $4; last = $3 }
        END {
            printf "%8s %10s %10s\n", "step", "loss", "expected"
            while ((getline line < reference) > 0) {
                if (line !~ /^[0-9]/ || split(line, at, " ") != 3 || at[1] > last) continue
                sum = n = 0
                for (s = at[1]; s > at[1] - 10 && s in loss; s--) { sum += loss[s]; n++ }
                good = n > 0 && sum / n - at[2] <= at[3] && at[2] - sum / n <= at[3] # a loss of null or nan is not
                if (loss[at[1]] == "null") good = 0
                printf "%8d %10.3f %10.3f +- %.2f%s\n", at[1], n ? sum / n : 0, at[2], at[3], good ? "" : "  WRONG"
                bad += !good; checked++
            }
            if (!checked) print "too few steps to compare"
            exit bad > 0
        }'
    exit
fi
[ -n "$table" ] || points | awk -v runs=$# '
function letter(run) { return runs == 1 ? "*" : substr("abcdefghijklmnopqrstuvwxyz", run, 1) }
function capital(run) { return runs == 1 ? "o" : substr("ABCDEFGHIJKLMNOPQRSTUVWXYZ", run, 1) }
$4 != "null" { n++; run[n] = $1; kind[n] = $2; step[n] = $3; loss[n] = $4 + 0
    if (n == 1 || step[n] < from) from = step[n]
    if (n == 1 || step[n] > to) to = step[n]
    evaluated = evaluated || $2 == "eval" }
END {
    if (n == 0) { print "no step has a finite loss"; exit }
    width = to - from + 1 < 69 ? to - from + 1 : 69; height = 16
    for (i = 1; i <= n; i++) { # the mean of a column of steps
        c = int((step[i] - from) * width / (to - from + 1))
        sum[kind[i], run[i], c] += loss[i]; count[kind[i], run[i], c]++
    }
    for (k = 0; k < 2; k++)
        for (r = 1; r <= runs; r++)
            for (c = 0; c < width; c++)
                if ((k ? "eval" : "train", r, c) in sum) {
                    mean = sum[k ? "eval" : "train", r, c] / count[k ? "eval" : "train", r, c]
                    points++; at[points] = c; value[points] = mean; mark[points] = k ? capital(r) : letter(r)
                    if (points == 1 || mean > top) top = mean
                    if (points == 1 || mean < bottom) bottom = mean
                }
    span = top > bottom ? top - bottom : 1
    for (i = 1; i <= points; i++)
        cell[int((top - value[i]) / span * (height - 1) + 0.5), at[i]] = mark[i]
    for (h = 0; h < height; h++) {
        line = ""
        for (c = 0; c < width; c++) line = line ((h, c) in cell ? cell[h, c] : " ")
        sub(/ +$/, "", line)
        printf span < 0.1 ? "%8.2e |%s\n" : "%8.3f |%s\n", top - span * h / (height - 1), line
    }
    axis = ""
    for (c = 0; c < width; c++) axis = axis "-"
    printf "%8s +%s\n%8s  step %-10d%*s\n", "", axis, "", from, width - 15, "step " to
    if (evaluated) printf "%8s  %s training, %s validation\n", "", runs == 1 ? "*" : "a b …", runs == 1 ? "o" : "A B …"
}'
[ -n "$table" ] || [ $# -gt 1 ] || exit 0

# What a run was told and how it ended, as "run name value"; then the names whose values differ.
facts() {
    local n=0 file folder
    points | awk '
        $2 == "train" { steps[$1]++; last[$1] = $4; ms[$1] += $5; tokens[$1] = $6; rate[$1, steps[$1]] = $7; runs = $1 }
        $2 == "eval" { val[$1] = $4; if ($4 != "null" && (!($1 in best) || $4 + 0 < best[$1])) { best[$1] = $4 + 0; at[$1] = $3 } }
        END { for (r = 1; r <= runs; r++) {
            print r, "!loss", last[r]; print r, "!tokens", tokens[r]
            if (r in best) { print r, "!validation", val[r]; print r, "!lowest", best[r]; print r, "!of step", at[r] }
            for (i = 1; i <= steps[r]; i++) sum[r] += rate[r, i]
            printf "%d !tokens/s %.0f\n%d !time %d:%02d:%02d\n", r, sum[r] / steps[r], r, ms[r] / 3.6e6, ms[r] / 6e4 % 60, ms[r] / 1e3 % 60 } }' |
        sed 's/ !of step / !of=step /;s/^\([0-9]*\) !\([^ ]*\) /\1\t!\2\t/'
    for file in "${metrics[@]}"; do
        n=$((n + 1)) folder=$(dirname "$file")
        sed -n 's/.*"state":"\([^"]*\)","step":\([0-9]*\).*/'$n'\t!state\t\1\n'$n'\t!step\t\2/p' "$folder/state.json" 2>/dev/null || true
        awk -v run=$n '
            /^\[/ { section = substr($0, 2, index($0, "]") - 2) "."; next }
            /^[a-z_0-9]+ = / { key = $1; value = substr($0, length(key) + 4)
                if (value ~ /^"/) sub(/" *# .*/, "\"", value); else sub(/ *# .*/, "", value)
                print run "\t" section key "\t" value }' "$folder/config.resolved.ini" 2>/dev/null || true
    done
}
names=()
for run in "$@"; do names+=("${run%/}"); done
printf -v list '%s\t' "${names[@]}"
facts | LC_ALL=C.UTF-8 awk -F '\t' -v runs=$# -v list="$list" '
function letter(run) { return substr("abcdefghijklmnopqrstuvwxyz", run, 1) }
function same(x, y) { return x == y || (x ~ /^[-+.0-9]/ && y ~ /^[-+.0-9]/ && x ~ /^[-+.e0-9]+$/ && y ~ /^[-+.e0-9]+$/ && x + 0 == y + 0) }
function row(name, shown,   r, line) {
    line = sprintf("  %-20s", shown)
    for (r = first; r <= last; r++) line = line sprintf(" %*s", cell - 1, value[r, name] != "" ? value[r, name] : "-")
    sub(/ +$/, "", line); print line
}
{ if (!($2 in known)) { known[$2] = 1; names[++n] = $2 }
  value[$1, $2] = $3 }
END {
    split(list, run, "\t"); cell = 14; columns = 4
    for (r = 1; r <= runs; r++) print letter(r) "  " run[r]
    for (i = 1; i <= n; i++) {
        name = names[i]
        if (name ~ /^!/ || name == "run.name" || name == "run.dir") continue
        for (r = 2; r <= runs; r++)
            if (!same(value[1, name], value[r, name])) differs[name] = 1
        for (r = 1; r <= runs; r++)
            if (length(value[r, name]) >= cell) long[name] = 1
    }
    for (first = 1; first <= runs; first += columns) {
        last = first + columns - 1 < runs ? first + columns - 1 : runs
        line = sprintf("\n  %-20s", "")
        for (r = first; r <= last; r++) line = line sprintf(" %*s", cell - 1, letter(r))
        print line
        for (i = 1; i <= n; i++) if (names[i] in differs && !(names[i] in long)) row(names[i], names[i])
        split("!state !step !tokens !loss !validation !lowest !of=step !tokens/s !time", ends, " ")
        split("state|at step|tokens|loss of that step|validation loss|lowest|of step|tokens/s|time in steps", shown, "|")
        for (i = 1; i in ends; i++) if (ends[i] in known) row(ends[i], shown[i])
    }
    for (i = 1; i <= n; i++) if (names[i] in differs && names[i] in long) {
        print "  " names[i]
        for (r = 1; r <= runs; r++) print "    " letter(r) "  " value[r, names[i]]
    }
}'
