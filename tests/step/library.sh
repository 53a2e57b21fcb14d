#!/usr/bin/env bash
# library.sh DTRAIN LIBRARY COMPILER: libdtrain_step exports only dtrain_step_* and needs neither MPI nor HDF5. Once it
# is installed, the C program in its header finds it by pkg-config and by CMake, and runs. The installed files work in a
# folder that was moved, and cpack packs them. Without tests no C++ compiler is needed.
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

rm -rf installed moved packages product found
cmake --install "$build" --prefix "$PWD/moved" >install.log 2>&1 || complain "$(cat install.log)"
mv moved installed
installed/bin/dtrain man | cmp - installed/share/man/man1/dtrain.1 || complain "the man page is another"
for shell in bash zsh; do
    installed/bin/dtrain completion $shell | cmp - "$(find installed/share/*$shell* -name '*dtrain')" || complain "the completion of $shell is another"
done
for script in run.sh curve.sh $(command -v python3 >/dev/null && echo scaling.sh); do
    installed/share/dtrain/launch/$script --help >script.log 2>&1 || complain "$script: $(cat script.log)"
done
cpack -G TGZ --config "$build/CPackConfig.cmake" -B "$PWD/packages" >cpack.log 2>&1 || complain "$(cat cpack.log)"
diff <(cd installed && find . ! -type d | sort) \
    <(tar tzf packages/*.tar.gz | sed -n 's|^[^/]*/\(.*[^/]\)$|./\1|p' | sort) || complain "the package holds other files"
cmake -S "$(dirname "$0")/../.." -B product -G Ninja -DBUILD_TESTING=OFF -DCMAKE_CXX_COMPILER=/nonexistent >cmake.log 2>&1 ||
    complain "no build without C++: $(cat cmake.log)"
! grep -m 1 '/test_[a-z]*\.c' product/build.ninja || complain "BUILD_TESTING=OFF builds tests"
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
    printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(player C)' 'find_package(dtrain 0.1 REQUIRED)' \
        'add_executable(player program.c)' 'target_link_libraries(player dtrain::dtrain_step)' >CMakeLists.txt
    { cmake -B found -G Ninja -DCMAKE_PREFIX_PATH="$PWD/installed" && cmake --build found; } >cmake.log 2>&1 || complain "$(cat cmake.log)"
    grep -q 'nowhere/config.json' <(./found/player nowhere 2>&1) || complain "CMake's program says something else"
    LD_LIBRARY_PATH=$(dirname "$pc")
    export LD_LIBRARY_PATH
    says=$(./program nowhere 2>&1) && complain "the header's program plays nothing"
    grep -q 'nowhere/config.json' <<<"$says" || complain "the header's program says: $says"
    says=$(./program run/checkpoints/step-00000001) || complain "the header's program fails"
    [ "$(grep -cE '^([0-9]|[12][0-9]|30)$' <<<"$says")" -eq 10 ] || complain "the header's program draws: $says"
fi
[ $wrong -eq 0 ]
