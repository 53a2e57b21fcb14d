#!/usr/bin/env bash
# No room of src/ includes a header of a room above it (src/README.md), and each outside library is used in one place.
set -uo pipefail
cd "$(dirname "$0")/../.."
rank() { # room
    case $1 in
    base) echo 0 ;; kernels) echo 1 ;; backend) echo 2 ;; comm | data) echo 3 ;; model) echo 4 ;;
    play | checkpoint) echo 5 ;; step | job) echo 6 ;; train) echo 7 ;; bench) echo 8 ;; cmd) echo 9 ;;
    *) echo "no rank for the room $1: tests/style/layers.sh" >&2; exit 1 ;;
    esac
}
wrong=0 checked=0
complain() {
    echo "$*" >&2
    wrong=$((wrong + 1))
}

while IFS=: read -r file include; do
    here=${file#src/} there=${include#\#include \"}
    here=${here%%/*} there=${there%%/*}
    checked=$((checked + 1))
    [ "$here" = "$there" ] || [ "$(rank "$here")" -gt "$(rank "$there")" ] ||
        complain "$file: $include: $here may not use $there"
done < <(grep -roE --include='*.[ch]' --include='*.cu' --include='*.cuh' '^#include "[a-z]+/[^"]*"' kernels src/*/)

only_in() { # header, pattern of files that may include it
    local file
    while read -r file; do
        [[ $file =~ ^($2)$ ]] || complain "$file includes <$1>"
    done < <(grep -rlE --include='*.[ch]' --include='*.cu' --include='*.cuh' "^ *# *include <$1>" kernels src)
}
only_in 'mpi\.h' 'src/main\.c|src/comm/.*'
only_in 'hdf5\.h' 'src/data/h5_.*'
only_in 'nccl\.h' 'src/comm/.*nccl.*'
only_in '(cuda|cublas|nvtx3/).*' 'kernels/.*\.cuh?|src/backend/cuda.*|src/comm/.*nccl.*'
[ $checked -gt 300 ] || complain "only $checked includes found in $PWD"
echo "$checked includes, $wrong wrong" >&2
[ $wrong -eq 0 ]
