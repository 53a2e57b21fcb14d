#!/usr/bin/env bash
# Set-up, build and every test: the sanitizer build first over unit, parity, dist and simt, then the
# optimised build over everything. Arguments go to the last ctest (-R name, -L label).
set -euo pipefail
cd "$(dirname "$0")/.."
./launch/setup.sh

build() { # preset
    cmake --preset "$1" >"/tmp/dtrain-configure.$$" || { cat "/tmp/dtrain-configure.$$" >&2; exit 1; }
    rm -f "/tmp/dtrain-configure.$$"
    cmake --build --preset "$1"
}

build cpu-release
if [ $# -eq 0 ]; then
    build cpu-debug
    ctest --test-dir build-debug --output-on-failure -L 'unit|parity|dist|simt'
    build cpu-tsan
    ctest --test-dir build-tsan --output-on-failure -R '^test_loader$'
fi
exec ctest --test-dir build --output-on-failure "$@"
