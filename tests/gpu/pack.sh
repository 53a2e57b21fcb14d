#!/usr/bin/env bash
# Fills a folder with what tests/gpu.sh needs to run without building: programs, scripts, text to
# train on, and all shared libraries except those of glibc, the driver and the CUDA toolkit. The folder
# can be moved; its run.sh has the arguments of tests/gpu.sh. Arguments: build folder, FOLDER (new or empty).
set -euo pipefail
build=$(realpath "$1") folder=$2
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$folder"
folder=$(realpath "$folder")
[ -z "$(ls -A "$folder")" ] || { echo "tests/gpu.sh: $folder is not empty" >&2; exit 2; }
libraries=$(mktemp -d)
trap 'rm -rf "$libraries"' EXIT

mpi_path() { # prefix, pkglibdir, pkgdatadir or sysconfdir of the installed Open MPI
    ompi_info --path "$1" | sed 's/^[^:]*: *//'
}

# The libraries that a program or library is linked with, except those that every machine has.
needs() {
    ldd "$1" | awk '$3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|libutil|libnss_[a-z]*|ld-linux[^/]*|libcuda|libcudart|libcublas|libcublasLt|libnccl|libnvidia-[a-z]*)\.so'
}

copy_libraries() { # file …
    local file library
    for file in "$@"; do
        for library in $(needs "$file"); do
            cp -Ln "$library" "$libraries/"
        done
    done
}

# Open MPI's plugins for one machine. Those for fabrics need more libraries.
copy_mpi() {
    local plugin plugins pmix
    plugins=$(mpi_path pkglibdir)
    mkdir -p "$libraries/openmpi" "$folder/bin" "$folder/etc"
    for plugin in "$plugins"/mca_*.so; do
        case $(basename "$plugin") in
        *ucx* | *ofi* | *openib* | *psm* | *usnic* | *memheap* | *scoll* | *spml* | *sshmem*) ;;
        *)
            cp -L "$plugin" "$libraries/openmpi/"
            copy_libraries "$plugin"
            ;;
        esac
    done
    cp -L "$(command -v mpirun)" "$folder/bin/mpirun"
    cp -L "$(command -v orted)" "$folder/bin/orted"
    copy_libraries "$folder/bin/mpirun" "$folder/bin/orted"
    pmix=$(dirname "$(dirname "$(realpath "$(needs "$plugins/mca_pmix_ext3x.so" | grep libpmix)")")")
    mkdir -p "$folder/share" "$libraries/pmix"
    cp -L "$pmix"/lib/pmix/*.so "$libraries/pmix/"
    cp -r "$pmix/share/pmix" "$folder/share/pmix"
    cp -r "$(mpi_path pkgdatadir)" "$folder/share/openmpi"
    cp -rL "$(mpi_path sysconfdir)/." "$folder/etc/"
}

mkdir -p "$folder/launch/results" "$folder/tests/dist"
programs=()
for program in dtrain tests/parity/test_parity data/game tests/episodes/make_episodes tests/gpu/nccl_gpu; do
    install -D "$build/$program" "$folder/build/$program"
    programs+=("$folder/build/$program")
done
cp -r "$repository/tests/gpu" "$repository/tests/gpu.sh" "$repository/tests/lib.sh" "$folder/tests/"
cp -r "$repository/tests/peers" "$folder/tests/"
cp "$repository/tests/dist/train.sh" "$folder/tests/dist/"
cp "$repository/launch/environment.sh" "$repository/launch/results.py" "$folder/launch/"
git -C "$repository" describe --always --dirty --abbrev=12 >"$folder/COMMIT" 2>/dev/null || true
copy_libraries "${programs[@]}"
copy_mpi

strip "${programs[@]}" "$folder"/bin/*
chmod -R u+w "$libraries"
find "$libraries" -name '*.so*' -exec strip --strip-unneeded {} +
tar -C "$libraries" -czf "$folder/libraries.tar.gz" . # compressed, they need a third of the space
tar -C "$folder" -czf "$folder/programs.tar.gz" build
rm -r "$folder/build"

cat >"$folder/environment.sh" <<'SOURCED'
# Sourced by the scripts of this folder: its libraries, and where the CUDA libraries of this machine may be.
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
newest_symbols() { # of a C++ library
    grep -ao 'GLIBCXX_3\.4\.[0-9]*' "$1" | sort -V | tail -n 1
}
unpack() {
    local own=$here/lib/libstdc++.so.6 theirs
    mkdir -p "$here/lib"
    tar -C "$here" -xzf "$here/programs.tar.gz" && tar -C "$here/lib" -xzf "$here/libraries.tar.gz" || return
    theirs=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | awk '/libstdc\+\+\.so\.6 .*x86-64/ { print $NF; exit }' || true)
    # compute-sanitizer and Python, which are started from here, may need the newer one.
    if [ -n "$theirs" ] &&
        [ "$( (newest_symbols "$theirs" && newest_symbols "$own") | sort -V | tail -n 1)" = "$(newest_symbols "$theirs")" ]; then
        rm "$own" "$here/lib/libgcc_s.so.1"
    fi
    touch "$here/lib/.whole"
}
[ -e "$here/lib/.whole" ] || unpack
# The folders of the toolkit, then those of Python's packages, which come with PyTorch.
cuda_folders() {
    local python
    compgen -G '/usr/local/cuda*/lib64' || true
    compgen -G '/usr/local/cuda*/targets/*/lib' || true
    python=$(python3 -c 'import sysconfig; print(sysconfig.get_path("platlib"))' 2>/dev/null) || return 0
    compgen -G "$python/nvidia/*/lib" || true
}
cuda=$(cuda_folders | paste -sd:)
export CUDA_DISABLE_PTX_JIT=1 # code for another architecture is an error at once, instead of minutes of compiling
export PATH=$here/bin:$PATH:/usr/local/cuda/bin
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}${cuda:+:$cuda}
export OPAL_PREFIX=$here OPAL_PKGLIBDIR=$here/lib/openmpi OPAL_PKGDATADIR=$here/share/openmpi OPAL_SYSCONFDIR=$here/etc
export PMIX_PREFIX=$here PMIX_PKGLIBDIR=$here/lib/pmix PMIX_PKGDATADIR=$here/share/pmix
export OMPI_MCA_ess_singleton_isolated=1 # a lone process starts no daemon
SOURCED
cat >"$folder/run.sh" <<'RUN'
#!/usr/bin/env bash
# tests/gpu.sh with the programs and libraries of this folder. Arguments: see tests/gpu.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec "$here/tests/gpu.sh" --build "$here/build" "$@"
RUN
cat >"$folder/dtrain" <<'RUN'
# dtrain with the libraries of this folder, which other programs here (tests/peers/gpu.sh) do not use.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec "$here/build/dtrain" "$@"
RUN
chmod +x "$folder/run.sh" "$folder/dtrain"
du -sh "$folder" | sed "s|\t.*| in $folder|"
