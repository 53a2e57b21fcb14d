#!/usr/bin/env bash
# Installs missing packages that dtrain needs to build and run, with apt. Needs root or sudo; without
# them it lists the packages and stops, unless dtrain can be built anyway (modules, conda, a system
# without apt). Silent if there is nothing to do. Does not install CUDA: a GPU build
# (-DDTRAIN_CUDA=ON) uses the installed toolkit, a CPU build needs none.
#
#   launch/setup.sh [--tests]
#
#   --tests  also what only tests/run.sh needs: a Slurm to test launch/train.sbatch on, and zsh
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(gcc g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-dev libdnnl-dev
    libcjson-dev libxxhash-dev libhwloc-dev zlib1g-dev)
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

# Whether dtrain can be configured with what is installed.
can_build() {
    local tool folder status=0
    for tool in cmake ninja mpirun; do
        command -v $tool >/dev/null || return 1
    done
    folder=$(mktemp -d)
    cmake -S . -B "$folder" -G Ninja >/dev/null 2>&1 || status=1
    rm -rf "$folder"
    return $status
}

if ! command -v apt-get >/dev/null; then
    can_build && exit 0
    cat >&2 <<'EOF'
launch/setup.sh needs apt (Debian, Ubuntu), which was not found. Install by hand: a C17 compiler,
CMake 3.25, Ninja, pkg-config, Open MPI, HDF5 1.10.5 or later (serial), oneDNN 2.x or 3.x, cJSON, xxHash 0.8, hwloc 2, zlib;
for GPUs the CUDA toolkit 12.0 or newer with the headers of cuBLAS and NCCL.
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
Then run this again.
EOF
    exit 1
fi

echo "installing: ${wanted[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
        --no-install-recommends "${wanted[@]}" >"$log" 2>&1
}
# The package lists may be missing or old: update them if the first attempt fails.
install || { "${as_root[@]}" apt-get update -q >"$log" 2>&1 && install; } || {
    cat "$log" >&2
    echo "installation failed: see above" >&2
    can_build
}
