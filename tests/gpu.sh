#!/usr/bin/env bash
# Tests that need a CUDA device (and `host`, which does not), and the measurements.
#   tests/gpu.sh [NAME…]               builds, then runs all tests, or those named
#   tests/gpu.sh --build DIR [NAME…]   uses an existing build folder
#   tests/gpu.sh --list                the names
#   tests/gpu.sh --pack FOLDER [--arch 90 | --build DIR]
#                                      fills FOLDER with programs, libraries and scripts for a machine with
#                                      a driver and cuBLASLt, and no compiler: there run FOLDER/run.sh [NAME…]
# Measurements go to launch/results (or --results DIR), logs to gpu-logs in the build folder.
#   --out DIR         also the measurements, what is printed (summary.txt) and logs.tar.gz, after each test
#   --limit SECONDS   of each test (600)
#   --budget SECONDS  of all: a test gets a fifth of it, or an equal share of what is left where that
#                     is more; none begins where nothing is left
# The most valuable tests come first, for a machine that may be taken away: measurements are in DIR as soon as they are
# made, and the last line names what did not pass, for another call.
# Exit code 0: all passed; 1: some failed; 77: every one was skipped.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname "$here")
tests=(device bench parity ncu shapes ops large train ranks nccl kinds memcheck racecheck host)
build="" pack="" arch="" results=$repository/launch/results out="" limit=600 budget=86400 names=()

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'
}

while [ $# -gt 0 ]; do
    case $1 in
    --list) printf '%s\n' "${tests[@]}"; exit ;;
    --help) usage; exit ;;
    --build | --pack | --arch | --results | --out | --limit | --budget)
        [ $# -gt 1 ] || { echo "tests/gpu.sh: $1 needs a value" >&2; exit 2; }
        declare "${1#--}=$2"
        shift
        ;;
    *)
        [[ " ${tests[*]} " == *" $1 "* ]] || { echo "tests/gpu.sh: unknown: $1" >&2; usage >&2; exit 2; }
        names+=("$1")
        ;;
    esac
    shift
done
[ ${#names[@]} -gt 0 ] || names=("${tests[@]}")
for seconds in "$limit" "$budget"; do
    [[ $seconds =~ ^[0-9]+$ ]] || { echo "tests/gpu.sh: --limit and --budget want whole seconds, not $seconds" >&2; exit 2; }
done
[ -z "$arch" ] || [ -z "$build" ] || { echo "tests/gpu.sh: --arch is for a build of its own, not for --build" >&2; exit 2; }

build_here() {
    "$repository/launch/setup.sh"
    build=$repository/build-cuda
    cmake -S "$repository" --preset cuda-release --log-level=WARNING ${arch:+-DCMAKE_CUDA_ARCHITECTURES="$arch"}
    cmake --build "$build" --target dtrain test_parity game make_episodes nccl_gpu
}

[ -n "$build" ] || build_here
build=$(realpath "$build")
dtrain=$build/dtrain parity=$build/tests/parity/test_parity game=$build/data/game
episodes=$build/tests/episodes/make_episodes nccl=$build/tests/gpu/nccl_gpu
for program in "$dtrain" "$parity" "$game" "$episodes" "$nccl"; do
    [ -x "$program" ] || {
        echo "tests/gpu.sh: no $program: build with cmake --preset cuda-release" >&2
        exit 2
    }
done
if [ -n "$pack" ]; then
    exec "$here/gpu/pack.sh" "$build" "$pack"
fi

command_of() { # name: $command, to run in its scratch folder
    case $1 in
    device) command=(bash "$here/gpu/device.sh" "$dtrain") ;;
    host) command=(env DTRAIN_RUN__DEVICE=cpu bash "$here/dist/train.sh" "$dtrain") ;; # do packed programs work together?
    bench) command=(bash "$here/gpu/bench.sh" "$dtrain" "$measured" 130m) ;;
    large) command=(bash "$here/gpu/bench.sh" "$dtrain" "$measured" 370m) ;;
    ops) command=(bash "$here/gpu/bench.sh" "$dtrain" "$measured" ops) ;;
    ncu) command=(bash "$here/gpu/ncu.sh" "$dtrain" "$measured") ;;
    parity) command=(bash "$here/gpu/parity.sh" "$parity") ;;
    shapes) command=(bash "$here/gpu/parity.sh" "$parity" --model) ;;
    train) command=(bash "$here/gpu/train.sh" "$dtrain" whole) ;;
    kinds) command=(bash "$here/gpu/kinds.sh" "$dtrain" "$game" "$episodes" whole) ;;
    ranks) command=(bash "$here/gpu/ranks.sh" "$dtrain") ;;
    nccl) command=(bash "$here/gpu/nccl.sh" "$dtrain" "$nccl") ;;
    memcheck | racecheck) command=(bash "$here/gpu/sanitizer.sh" "$parity" "$1") ;;
    esac
}

logs=$build/gpu-logs
export OMP_WAIT_POLICY=passive # programs run side by side; and dtrain must not start itself again below Nsight Compute
[ -z "$out" ] || results=$out
mkdir -p "$logs" "$results"
results=$(realpath "$results")
measured=$results/$(date -u +%Y-%m-%dT%H%M%S).jsonl # every call has its own name

say() {
    echo "$*"
    [ -z "$out" ] || echo "$*" >>"$results/summary.txt"
}

keep_logs() { # replaces the archive as a whole, since the machine may be taken away at any time
    [ -n "$out" ] || return 0
    find "$logs" -type f \( -name '*.log' -o -name '*.txt' -o -name '*.jsonl' \) -size -4M -printf '%P\0' |
        tar -C "$logs" --null -T - -czf "$results/logs.part" || true # a killed test may still be writing
    mv "$results/logs.part" "$results/logs.tar.gz"
}

# Keeps the GPU's file open, as the persistence daemon does: the driver switches off a GPU whose file nobody has open,
# and each program would wait for seconds until it works again.
# shellcheck disable=SC2034
for device in /dev/nvidia[0-9]*; do
    [ ! -r "$device" ] || exec {held}<"$device" || true
done

passed=0 again=() waiting=${#names[@]} job=""
trap '[ -z "$job" ] || kill "$job" 2>/dev/null || true' EXIT
[ -z "$out" ] || : >"$results/summary.txt"
for name in "${names[@]}"; do
    log=$logs/$name.log scratch=$logs/$name.d code=0 begun=$SECONDS
    left=$((budget - SECONDS - 10)) # 10: the time until a hanging test is killed
    share=$((left / waiting--))
    if [ $left -lt 5 ]; then
        say "$name: NOT RUN: no time is left"
        again+=("$name")
        continue
    fi
    most=$((share > budget / 5 ? share : budget / 5))
    most=$((most < left ? most : left))
    most=$((most < limit ? most : limit))
    # The limit is for one program of a test, so that after a hang there is time for the next program or the report.
    export RUN_SECONDS=$((most / 2 + 1)) STEP_SECONDS=$((most - 2))
    mkdir -p "$scratch"
    command_of "$name"
    echo "$name: for up to $most s …"
    : >"$log"
    (cd "$scratch" && exec timeout --kill-after=10 $most "${command[@]}") >>"$log" 2>&1 &
    job=$!
    # Lines that begin with "+ " are shown to the reader at once.
    tail -n +1 -s 0.2 -f --pid=$job "$log" 2>/dev/null | sed -un 's/^+ /  /p' | while IFS= read -r line; do say "$line"; done || true
    wait $job || code=$?
    job=""
    case $code in
    0) word=passed passed=$((passed + 1)) ;;
    77) word=skipped ;;
    124 | 137) word="FAILED (timed out)" again+=("$name") ;;
    *) word=FAILED again+=("$name") ;;
    esac
    say "$name: $word, $((SECONDS - begun)) s: $(grep -v '^$' "$log" | tail -n 1 | sed 's/^skipped: //')"
    if [ "${word%% *}" = FAILED ]; then # shows the first failure and the end
        grep -m 10 -E 'FAILED|CHECK|ERROR|rror:' "$log" | cut -c 1-240 || true
        tail -n 15 "$log" | cut -c 1-240
    fi
    keep_logs
done
[ ${#again[@]} -eq 0 ] || say "failed or not run: ${again[*]}"
[ -z "$out" ] || { echo && cat "$results/summary.txt"; } # for callers that get only the end of the output
[ ${#again[@]} -eq 0 ] || exit 1
[ $passed -gt 0 ] || exit 77
