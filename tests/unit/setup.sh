#!/usr/bin/env bash
# launch/setup.sh where it cannot or need not install, on a made-up machine: what it prints, and its exit code. Also the
# arguments of launch/quickstart.sh.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mkdir bin machine
for program in bash sh true cat dirname env grep mktemp rm sed tail tr uname id; do
    ln -s "$(type -P $program)" bin
done
program() { # name, text: a made-up program on the machine
    printf '#!/bin/sh\n%s\n' "$2" >"machine/$1"
    chmod +x "machine/$1"
}
setup() { # exit code, text that it must print
    PATH=$PWD/machine:$PWD/bin http_proxy=http://proxy:3128 "$repository/launch/setup.sh" >setup.log 2>&1 </dev/null
    local status=$?
    check "exit code $status, not $1: $(cat setup.log)" test $status -eq "$1"
    [ -z "${2:-}" ] || check "\"$2\" in: $(cat setup.log)" grep -qF -- "$2" setup.log
}

setup 1 'not found: cmake'
setup 1 'dnf install gcc'
setup 1 'Libraries under your own prefix are found through CMAKE_PREFIX_PATH'
program ninja 'exit 0'
program mpirun 'exit 0'
program cmake 'echo "  Could NOT find ZLIB (missing: ZLIB_LIBRARY)"; exit 1'
setup 1 'Could NOT find ZLIB (missing: ZLIB_LIBRARY)'
program cmake 'exit 0'
setup 0
check "silent where dtrain can be built: $(cat setup.log)" test ! -s setup.log
program uname 'echo Darwin'
setup 1 'dtrain needs Linux, this is Darwin'
rm machine/uname

# With apt, as a user.
program dpkg-query 'case "$*" in *libhwloc-dev | *ninja-build) exit 1 ;; esac; printf "install ok installed"'
program apt-get "echo \"\$*; proxy \$http_proxy\" >>'$PWD/apt.log'; [ -e '$PWD/listed' ] || case \"\$*\" in *update) >'$PWD/listed' ;; *) exit 1 ;; esac"
program id 'echo 1000'
setup 0
program cmake 'exit 1'
setup 1 'apt-get install --no-install-recommends ninja-build libhwloc-dev'
check "apt is not called: $(cat apt.log 2>&1)" test ! -e apt.log
# shellcheck disable=SC2016 # the stand-in expands them
program sudo '[ "$1" != -n ] || shift; exec env -i PATH="$PATH" "$@"' # sudo resets the environment
setup 0 'installing: ninja-build libhwloc-dev'
check "install, update, install, each with the proxy: $(cat apt.log)" \
    test "$(grep -o 'install -y\|update\|proxy http://proxy:3128' apt.log | tr '\n' ' ')" = \
    "install -y proxy http://proxy:3128 update proxy http://proxy:3128 install -y proxy http://proxy:3128 "

quickstart=$repository/launch/quickstart.sh messages=0
echo text >short.txt
refused "an unknown option" 'unknown option --test' "$quickstart" --test
refused "no text" "text $PWD/absent: no such file" "$quickstart" --text absent
refused "too little text, in the caller's folder" "text $PWD/short.txt: 5 bytes; give at least" "$quickstart" --text short.txt
refused "ranks" 'ranks 3: must be 1, 2' "$quickstart" --ranks 3
refused "minutes" 'minutes 0: must be a positive' "$quickstart" --minutes 0
finish
