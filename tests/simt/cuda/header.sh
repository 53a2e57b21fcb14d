#!/usr/bin/env bash
# Compiles header.c with the declarations here and with the toolkit's, as C17 and C++17. Arguments:
# the C and C++ compilers and the toolkit's folder of headers. Skipped (77) where there is none.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cc=$1 cxx=$2 toolkit=$3

compile() { # the folder of cuda_runtime_api.h
    "$cc" -std=c17 -Wall -Werror -Wno-unused -fsyntax-only -isystem "$1" "$here/header.c"
    "$cxx" -std=c++17 -Wall -Werror -Wno-unused -fsyntax-only -isystem "$1" -x c++ "$here/header.c"
}

compile "$here"
[ -f "$toolkit/cuda_runtime_api.h" ] || { echo "no CUDA toolkit here"; exit 77; }
compile "$toolkit"
