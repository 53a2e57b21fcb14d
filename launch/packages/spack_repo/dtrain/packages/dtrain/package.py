import os

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Dtrain(CMakePackage):
    """Trains Mamba and other sequence models on many GPUs or CPUs: one MPI rank per GPU, HDF5 shards, own scan kernels."""

    # The clone that holds this file: spack_repo/dtrain/packages/dtrain below launch/packages.
    git = "file://" + os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 6))

    version("main", branch="main")

    variant("cuda", default=False, description="Build the kernels for NVIDIA GPUs as well")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5@1.10.5:")
    depends_on("cjson")
    depends_on("xxhash@0.8:")
    depends_on("hwloc@2:")
    depends_on("zlib-api")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl", when="+cuda")

    generator("ninja")

    def cmake_args(self):
        return [self.define("BUILD_TESTING", False), self.define_from_variant("DTRAIN_CUDA", "cuda")]

    def test_info(self):
        """dtrain starts, and finds its libraries"""
        Executable(self.prefix.bin.dtrain)("info")
