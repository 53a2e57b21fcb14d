#!/usr/bin/env bash
# Set-up, build and every test: with sanitizers first (addresses and undefined behaviour, then threads), then
# the optimised build. --long adds the tests of label `long`. Other arguments go to the last ctest alone (-R name,
# -L label). What each label proves: tests/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' tests/run.sh; exit 0 ;; esac
without=(-LE '^long$')
[ "${1:-}" != --long ] || { without=() && shift; }
./launch/setup.sh --tests
jobs=$(($(nproc) < 8 ? 2 * $(nproc) : 16)) # tests wait about as long as they compute
times=$(mktemp)
trap 'print_times; rm -f "$times"' EXIT

build() { # preset [target …]
    local preset=$1
    shift
    cmake --preset "$preset" --log-level=WARNING
    cmake --build --preset "$preset" ${1:+--target "$@"}
}

run_tests() { # part, build folder, arguments of ctest …
    local part=$1 folder=$2 status=0 log=$2/ctest.log begun=$SECONDS
    shift 2
    ctest --test-dir "$folder" -j "$jobs" --output-on-failure "$@" | tee "$log" || status=$?
    echo "The slowest tests of $folder, seconds:"
    awk '/ Test +#[0-9]+: / && $NF == "sec" { name = $0; sub(/.*Test +#[0-9]+: /, "", name); sub(/ .*/, "", name)
            printf "%8.1f  %s\n", $(NF - 1), name }' "$log" | sort -nr | head -n 10
    awk -v part="$part" '/^Label Time Summary:/ { on = 1; next } /^$/ { on = 0 } on { print $1, part, $3 }' "$log" >>"$times"
    echo "total $part $((SECONDS - begun))" >>"$times"
    return $status
}

# A label's seconds add up its tests, several of which run at a time; the total is by the clock.
print_times() {
    awk '{ seconds[$1, $2] = $3; if (!($1 in seen)) { seen[$1] = 1; label[n++] = $1 } }
        END {
            printf "\n%-12s%12s%12s%12s\n", "seconds", "sanitized", "threads", "optimised"
            for (i = 0; i < n; i++)
                printf "%-12s%12s%12s%12s\n", label[i], seconds[label[i], "sanitized"], seconds[label[i], "threads"],
                    seconds[label[i], "optimised"]
        }' <(grep -v '^total' "$times"; grep '^total' "$times")
}

build cpu-release
if [ $# -eq 0 ]; then
    build cpu-debug
    run_tests sanitized build-debug -L 'unit|parity|dist|simt|fuzz' "${without[@]}"
    build cpu-tsan test_loader test_loader_faults test_worker
    run_tests threads build-tsan -R '^test_(loader|loader_faults|worker)$'
fi
run_tests optimised build "${without[@]}" "$@"
