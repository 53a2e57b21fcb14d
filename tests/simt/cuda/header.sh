#!/usr/bin/env bash
# Checks what a header of this folder says about NVIDIA's header of the same name. Each constant, static assertion,
# field of a struct and type of a function is read from it and compiled after NVIDIA's header, as C and, if the header
# says that it is C++ too, as C++. A function declared with another type is an error.
#   header.sh HEADER CC CXX FOLDER      the folder of NVIDIA's headers. Skipped (77) where there is none.
set -euo pipefail
header=$(dirname "$0")/$1 cc=$2 cxx=$3 folder=$4
[ -f "$folder/$1" ] || { echo "skipped: no $1 of NVIDIA's here"; exit 77; }

checks() {
    echo "#include <$1>"
    echo "#include <stddef.h>"
    grep -oE '\b[A-Za-z]\w+ = [0-9]+\b' "$header" | sed -E 's/(.*) = (.*)/_Static_assert(\1 == \2, "\1");/'
    sed -nE 's/^#define (\w+) +(0x[0-9]+)$/_Static_assert(\1 == \2, "\1");/p
        s/^#define (\w+_VERSION) +([0-9]+)$/_Static_assert(\1 \/ 1000 == \2 \/ 1000, "\1");/p' "$header"
    awk '/^_Static_assert/, /;$/' "$header"
    [ "$1" != cuda_runtime_api.h ] || echo '_Static_assert(sizeof(cudaUUID_t) == 16, "UUID");'
    # "type field[n];" of "struct name {": one variable declared by the field's type there, then as it is here.
    awk '/^struct [A-Za-z_]+ [{]$/ { of = $2; next }
        /^\}/ { of = "" }
        of && match($0, /[A-Za-z]+([[][0-9]+[]])?;$/) {
            field = substr($0, RSTART, RLENGTH - 1)
            name = field
            sub(/[[].*/, "", name)
            print "extern __typeof__(((struct " of " *)0)->" name ") " of "_" name ";"
            print "extern " substr($0, 1, RSTART - 1) of "_" field ";"
        }' "$header"
    echo '#ifdef __cplusplus'
    echo 'extern "C" {'
    echo '#endif'
    awk '/^[a-z][A-Za-z_ ]* \*?(cuda|cublas|nccl)[A-Za-z]+\(/, /;$/' "$header"
    echo '#ifdef __cplusplus'
    echo '}'
    echo '#endif'
}

checks "$1" >checks.c
values=$(grep -c '^_Static_assert' checks.c) functions=$(grep -cE '\b(cuda|cublas|nccl)\w+\(' checks.c)
echo "$1: $values values, $functions functions"
[ "$values" -ge 19 ] && [ "$functions" -ge 16 ]
"$cc" -std=c17 -Wall -Werror -Wno-unused -fsyntax-only -isystem "$folder" checks.c
if grep -q __cplusplus "$header"; then
    "$cxx" -std=c++17 -Wall -Werror -Wno-unused -D_Static_assert=static_assert -fsyntax-only -isystem "$folder" -x c++ checks.c
fi
