#!/usr/bin/env bash
# Compiles one .cu file by nvcc and lets no kernel spill registers. Arguments: nvcc, the repository,
# the file, and architectures (90 …). Skipped (77) where there is no nvcc.
set -euo pipefail
nvcc=$1 repository=$2 file=$3
shift 3
[ -x "$nvcc" ] || { echo "no nvcc here"; exit 77; }

known=$("$nvcc" --list-gpu-code)
targets=()
for arch in "$@"; do
    if grep -qx "sm_$arch" <<<"$known"; then
        targets+=(-gencode "arch=compute_$arch,code=sm_$arch")
    else
        echo "this nvcc does not know sm_$arch"
    fi
done
[ ${#targets[@]} -gt 0 ] || exit 77

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$nvcc" -std=c++17 -O3 -Werror all-warnings -I "$repository/src" -I "$repository" \
    "${targets[@]}" -Xptxas -v -c "$file" -o "$scratch/out.o" >"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    exit 1
}
kernels=$(grep -c 'bytes spill stores' "$scratch/log") || { echo "ptxas said nothing"; exit 1; }
echo "$(basename "$file"): $kernels kernels compiled"
if grep -B1 -E '[1-9][0-9]* bytes spill' "$scratch/log"; then
    echo "these kernels spill registers"
    exit 1
fi
