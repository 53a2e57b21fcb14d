#!/usr/bin/env bash
# Tests that need a CUDA device (and `host`, which does not), and the measurements.
#   tests/gpu.sh [NAME…]               builds, then runs all tests, or those named
#   tests/gpu.sh --build DIR [NAME…]   uses an existing build folder
#   tests/gpu.sh --list                the names
#   tests/gpu.sh --pack FOLDER [--arch 90] [--build DIR]
#                                      fills FOLDER with programs, libraries and scripts for a machine with
#                                      only a driver and a CUDA toolkit: there run FOLDER/run.sh [NAME…]
# Measurements go to launch/results (or --results DIR), logs to gpu-logs in the build folder.
# Exit code 0: all passed; 1: some failed; 77: every one was skipped.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname "$here")
tests=(host parity train kinds ranks memcheck racecheck initcheck bench)
build="" pack="" arch="" results=$repository/launch/results names=()

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'
}

while [ $# -gt 0 ]; do
    case $1 in
    --list) printf '%s\n' "${tests[@]}"; exit ;;
    --help) usage; exit ;;
    --build | --pack | --arch | --results)
        [ $# -gt 1 ] || { echo "tests/gpu.sh: $1 needs a value" >&2; exit 2; }
        declare "${1#--}=$2"
        shift
        ;;
    *)
        printf '%s\n' "${tests[@]}" | grep -qxF -e "$1" || { echo "tests/gpu.sh: unknown: $1" >&2; usage >&2; exit 2; }
        names+=("$1")
        ;;
    esac
    shift
done
[ ${#names[@]} -gt 0 ] || names=("${tests[@]}")

build_here() {
    "$repository/launch/setup.sh"
    build=$repository/build-cuda
    cmake -S "$repository" --preset cuda-release --log-level=WARNING ${arch:+-DCMAKE_CUDA_ARCHITECTURES="$arch"}
    cmake --build "$build" --target dtrain test_parity game
}

[ -n "$build" ] || build_here
build=$(realpath "$build")
dtrain=$build/dtrain parity=$build/tests/parity/test_parity game=$build/data/game
for program in "$dtrain" "$parity" "$game"; do
    [ -x "$program" ] || {
        echo "tests/gpu.sh: no $program: build with cmake --preset cuda-release" >&2
        exit 2
    }
done
if [ -n "$pack" ]; then
    exec "$here/gpu/pack.sh" "$build" "$pack"
fi

run() { # name, in its scratch folder
    case $1 in
    host) DTRAIN_RUN__DEVICE=cpu bash "$here/dist/train.sh" "$dtrain" ;; # do the packed parts work together?
    parity) "$parity" --model cuda && "$parity" cuda ;;
    train) bash "$here/gpu/train.sh" "$dtrain" whole ;;
    kinds) bash "$here/gpu/kinds.sh" "$dtrain" "$game" whole ;;
    ranks) bash "$here/gpu/ranks.sh" "$dtrain" ;;
    memcheck | racecheck | initcheck) bash "$here/gpu/sanitizer.sh" "$parity" "$1" ;;
    bench) bash "$here/gpu/bench.sh" "$dtrain" "$results" whole ;;
    esac
}

logs=$build/gpu-logs
mkdir -p "$logs" "$results"
results=$(realpath "$results")
passed=0 failed=0
for name in "${names[@]}"; do
    scratch=$logs/$name.d code=0 begun=$SECONDS
    mkdir -p "$scratch"
    (cd "$scratch" && run "$name") >"$logs/$name.log" 2>&1 || code=$?
    case $code in
    0) word=passed passed=$((passed + 1)) ;;
    77) word=skipped ;;
    *) word=FAILED failed=$((failed + 1)) ;;
    esac
    echo "$name: $word, $((SECONDS - begun)) s: $(grep -v '^$' "$logs/$name.log" | tail -n 1)"
    grep '^GEMM timing:' "$logs/$name.log" || true
    [ "$word" != FAILED ] || tail -n 40 "$logs/$name.log"
done
[ $failed -eq 0 ] || { echo "$failed failed; logs: $logs" >&2; exit 1; }
[ $passed -gt 0 ] || exit 77
