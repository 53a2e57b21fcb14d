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

build cpu-release
if [ $# -eq 0 ]; then
    build cpu-debug
    ctest --test-dir build-debug -j2 --output-on-failure -L 'unit|parity|dist|simt'
    build cpu-tsan test_loader test_loader_faults
    ctest --test-dir build-tsan --output-on-failure -R '^test_loader(_faults)?$'
fi
exec ctest --test-dir build -j2 --output-on-failure "$@"
