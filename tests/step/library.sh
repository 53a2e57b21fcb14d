#!/usr/bin/env bash
# library.sh DTRAIN LIBRARY COMPILER: libdtrain_step exports dtrain_step_* alone, needs neither MPI nor
# HDF5, and once installed a C program finds it by pkg-config and runs it.
set -uo pipefail
library=$2 compiler=$3
build=$(dirname "$1")
wrong=0
complain() {
    echo "$*" >&2
    wrong=$((wrong + 1))
}

exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
[ "$(grep -c '^dtrain_step_' <<<"$exported")" -ge 10 ] || complain "too few functions: $exported"
! grep -v '^dtrain_step_' <<<"$exported" || complain "symbols of its rooms are exported"
! ldd "$library" | grep -E 'libmpi|libhdf5|not found' || complain "a library that it may not need"

rm -rf installed
cmake --install "$build" --prefix "$PWD/installed" >install.log 2>&1 || complain "$(cat install.log)"
pc=$(dirname "$(find installed -name dtrain_step.pc)")
cat >program.c <<'C'
#include <dtrain_step.h>
#include <stdio.h>
int main(void)
{
    dtrain_step *handle;
    char why[256];
    int code = dtrain_step_open("nowhere", NULL, &handle);
    dtrain_step_error(why, sizeof why);
    printf("%d %s", code, why);
    return 0;
}
C
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs dtrain_step) || complain "pkg-config fails"
    # shellcheck disable=SC2086
    "$compiler" -Wall -Wextra -Werror -pedantic -std=c99 program.c $flags -o program || complain "no program"
    says=$(LD_LIBRARY_PATH=$(dirname "$pc") ./program)
    grep -q '^2 .*nowhere/config.json' <<<"$says" || complain "the program says: $says"
fi
[ $wrong -eq 0 ]
