#!/usr/bin/env bash
# library.sh DTRAIN LIBRARY COMPILER: libdtrain_step exports dtrain_step_* alone, needs neither MPI nor
# HDF5, and once installed the C program in its header finds it by pkg-config and runs.
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
sed -n '/^\/\/   #include/,/^\/\/   }$/s|^// \{0,3\}||p' "$(dirname "$0")/../../src/step/dtrain_step.h" >program.c
cat >model.ini <<'EOF'
[run]
steps = 1
device = cpu
[model]
d_model = 16
n_layer = 1
vocab_size = 31
[data]
train = synthetic:random
seq_len = 8
batch = 1
[optim]
lr = 1e-3
EOF
rm -rf run
"$1" model.ini run.dir=run >train.log 2>&1 || complain "$(cat train.log)"
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs dtrain_step) || complain "pkg-config fails"
    # shellcheck disable=SC2086
    "$compiler" -Wall -Wextra -Werror -pedantic -std=c99 program.c $flags -o program || complain "no program"
    LD_LIBRARY_PATH=$(dirname "$pc")
    export LD_LIBRARY_PATH
    says=$(./program nowhere 2>&1) && complain "the header's program plays nothing"
    grep -q 'nowhere/config.json' <<<"$says" || complain "the header's program says: $says"
    says=$(./program run/checkpoints/step-00000001) || complain "the header's program fails"
    [ "$(grep -cE '^([0-9]|[12][0-9]|30)$' <<<"$says")" -eq 10 ] || complain "the header's program draws: $says"
fi
[ $wrong -eq 0 ]
