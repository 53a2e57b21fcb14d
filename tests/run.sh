#!/usr/bin/env bash
# Set-up, build and every test: the sanitizer build first over unit, parity, dist and simt, then the
# optimised build over everything. Arguments go to the last ctest (-R name, -L label).
set -euo pipefail
cd "$(dirname "$0")/.."
./launch/setup.sh

build() { # preset [target …]
    local preset=$1
    shift
    cmake --preset "$preset" --log-level=WARNING
    cmake --build --preset "$preset" ${1:+--target "$@"}
}

run_tests() { # build folder, arguments of ctest …
    local folder=$1 status=0
    shift
    ctest --test-dir "$folder" -j2 --output-on-failure "$@" || status=$?
    echo "The slowest tests of $folder, seconds:"
    sed '/^---/,$d' "$folder/Testing/Temporary/CTestCostData.txt" | sort -k3 -nr | head -n 10 |
        awk '{ printf "%8.1f  %s\n", $3, $1 }'
    return $status
}

build cpu-release
if [ $# -eq 0 ]; then
    build cpu-debug
    run_tests build-debug -L 'unit|parity|dist|simt'
    build cpu-tsan test_loader test_loader_faults
    run_tests build-tsan -R '^test_loader(_faults)?$'
fi
run_tests build "$@"
