#!/usr/bin/env bash
# Installs missing packages that dtrain needs to build and run, with apt. Needs root or sudo. Without
# them, or without apt, it lists what is missing and stops, unless dtrain can be built anyway (libraries
# of your own prefix in CMAKE_PREFIX_PATH, modules). Silent if there is nothing to do. Does not install
# CUDA: a GPU build (-DDTRAIN_CUDA=ON) uses the installed toolkit, a CPU build needs none. Nor Python's
# packages: data/convert.py and data/tokens.py name those that they need (numpy, h5py and, by format, pyarrow or peppi-py).
#
#   launch/setup.sh [--tests]
#
#   --tests  also what only tests/run.sh needs: a Slurm to test launch/train.sbatch on, and zsh
set -euo pipefail
cd "$(dirname "$0")/.."

names() { # column: packages of a distribution, from the table of launch/packages/README.md
    sed -n "s/^\(| [^|]*\)\{$1\}| \`\([^|\`]*\)\` |.*/\2/p" launch/packages/README.md
}
# shellcheck disable=SC2207 # words
packages=($(names 1))
usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' launch/setup.sh
}
case ${1:-} in
'') ;;
-h | --help) usage; exit 0 ;;
--tests) packages+=(slurmctld slurmd slurm-client munge iproute2 procps zsh) ;;
*) { echo "setup.sh: unknown option $1"; usage; } >&2; exit 2 ;;
esac

missing() {
    local package
    for package in "${packages[@]}"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
            printf '%s\n' "$package"
    done
}

# Whether dtrain can be configured with what is installed; if not, says what is missing.
can_build() {
    local tool folder log status=0
    for tool in cmake ninja mpirun; do
        command -v $tool >/dev/null || { echo "not found: $tool" >&2; status=1; }
    done
    [ $status -eq 0 ] || return 1
    folder=$(mktemp -d)
    log=$(cmake -S . -B "$folder" -G Ninja 2>&1) || status=1
    rm -rf "$folder"
    [ $status -eq 0 ] || grep -iE "could not find|no package '|or higher is required|^ +- " >&2 <<<"$log" ||
        tail -n 20 >&2 <<<"$log"
    return $status
}

own_prefix='Libraries under your own prefix are found through CMAKE_PREFIX_PATH, programs through PATH.'
if [ "$(uname -s)" != Linux ]; then
    echo "launch/setup.sh: dtrain needs Linux, this is $(uname -s). In a container (not tested on a Mac):
  docker run -it -v \"\$PWD\":/dtrain -w /dtrain debian:12 launch/quickstart.sh" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    can_build && exit 0
    cat >&2 <<EOF
launch/setup.sh installs with apt (Debian, Ubuntu), which was not found. Install by hand what the table in
launch/packages/README.md has for your distribution. On Fedora (not tested):
  dnf install $(names 2 | tr '\n' ' ')
  module load mpi/openmpi-x86_64
$own_prefix
EOF
    exit 1
fi

mapfile -t wanted < <(missing)
[ ${#wanted[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo)
elif command -v sudo >/dev/null && [ -t 0 ]; then
    as_root=(sudo)
elif can_build; then
    exit 0
else
    cat >&2 <<EOF
Some packages that dtrain needs are missing, and installing them needs root or sudo. As root, run:
  apt-get install --no-install-recommends ${wanted[*]}
Then run this again. $own_prefix
EOF
    exit 1
fi

echo "installing: ${wanted[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { # sudo would drop the proxy from the environment; another apt may be busy after boot
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} \
        ${https_proxy:+"https_proxy=$https_proxy"} apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1
}
install() { apt install -y --no-install-recommends "${wanted[@]}"; }
# The package lists may be missing or old: update them if the first attempt fails.
install || { apt update && install; } || {
    cat "$log" >&2
    echo "installation failed: see above" >&2
    can_build
}
