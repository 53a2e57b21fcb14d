#!/usr/bin/env bash
# Builds the program with CUDA. Warnings and kernels that spill registers are errors. The program must start without any
# CUDA library, and where it sees no GPU it must say so, or train on the CPU as the program without CUDA does. Objects
# keep source lines, for tests/sass.
# Arguments: that program, the repository, the build's folder, the generator, nvcc, architectures (90 …).
# Skipped (77) without nvcc or NCCL's header, or if nvcc knows none of the architectures.
plain=$(realpath "$1") repository=$2 folder=$3 generator=$4 nvcc=$5
shift 5
[ -x "$nvcc" ] || { echo "no nvcc here"; exit 77; }

known=$("$nvcc" --list-gpu-code)
architectures=
for architecture in "$@"; do
    if grep -qx "sm_$architecture" <<<"$known"; then
        architectures+="${architectures:+;}$architecture-real"
    else
        echo "this nvcc does not know sm_$architecture"
    fi
done
[ -n "$architectures" ] || exit 77

mkdir -p "$folder"
cmake -S "$repository" -B "$folder" -G "$generator" -DCMAKE_BUILD_TYPE=Release -DDTRAIN_CUDA=ON \
    -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$architectures" \
    "-DCMAKE_CUDA_FLAGS=-Xptxas=-warn-spills -lineinfo" >"$folder/configure.log" 2>&1 || {
    cat "$folder/configure.log"
    grep -q 'DTRAIN_CUDA needs' "$folder/configure.log" && exit 77
    exit 1
}
cmake --build "$folder" --target dtrain >"$folder/build.log" 2>&1 || {
    grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$folder/build.log"
    exit 1
}

# shellcheck source=tests/lib.sh
. "$repository/tests/lib.sh" "$folder/dtrain"
small_run
export CUDA_VISIBLE_DEVICES= # no GPU is seen, with and without a driver

ldd "$dtrain" >needed.log
check "a CUDA library is needed to start: $(grep -E 'libcu(da|dart|blas)|nccl' needed.log)" \
    bash -c "! grep -qE 'libcu(da|dart|blas)|nccl' needed.log"

"$dtrain" info >info.log 2>&1
check "dtrain info does not tell CUDA's version: $(cat info.log)" grep -Eq '^CUDA +[0-9]' info.log

"$dtrain" small.ini run.name=refused run.device=cuda >refused.log 2>&1
status=$?
check "run.device = cuda without a GPU: exit code $status, not 2" test $status -eq 2
check "run.device = cuda without a GPU: $(cat refused.log)" grep -q 'no GPU' refused.log

"$dtrain" small.ini run.name=cuda >cuda.log 2>&1
status=$?
check "run.device = auto does not train without a GPU: $(tail -n 5 cuda.log)" test $status -eq 0
"$plain" small.ini run.name=plain >plain.log 2>&1
check "it trains otherwise than the program without CUDA" \
    cmp <(train_lines runs/cuda/metrics.jsonl) <(train_lines runs/plain/metrics.jsonl)
check "nothing was trained" test -s runs/cuda/metrics.jsonl
finish
