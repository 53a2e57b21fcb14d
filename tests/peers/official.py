#!/usr/bin/env python3
"""official.py FOLDER MAMBA CAUSAL_CONV1D: builds the packages mamba_ssm and causal_conv1d in FOLDER from folders with
their sources. Their kernels are compiled only for the GPU of this machine. With PYTHONPATH=FOLDER, torch_official.py
finds them. Needs PyTorch, einops, ninja and a CUDA toolkit, but no network; takes minutes of all cores."""
import glob
import os
import shutil
import sys

from torch.utils import cpp_extension

# The same flags as in the setup.py of both packages.
NVCC = ["-O3", "-std=c++20", "--use_fast_math", "--expt-relaxed-constexpr", "--expt-extended-lambda"]
NVCC += [f"-U__CUDA_NO_{what}__" for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS",
                                              "BFLOAT16_CONVERSIONS", "BFLOAT162_OPERATORS", "BFLOAT162_CONVERSIONS")]


def build(folder, name, sources):
    work = os.path.join(folder, name + ".build")
    os.makedirs(work, exist_ok=True)
    files = sorted(glob.glob(os.path.join(sources, "*.cpp")) + glob.glob(os.path.join(sources, "*.cu")))
    cpp_extension.load(name, files, extra_cflags=["-O3"], extra_cuda_cflags=NVCC, extra_include_paths=[sources],
                       build_directory=work, is_python_module=False, verbose=True)
    shutil.copy(os.path.join(work, name + ".so"), folder)


def main():
    folder, mamba, causal_conv1d = map(os.path.abspath, sys.argv[1:])
    for source, package in ((mamba, "mamba_ssm"), (causal_conv1d, "causal_conv1d")):
        shutil.copytree(os.path.join(source, package), os.path.join(folder, package), dirs_exist_ok=True)
    # The package's own __init__.py imports all models and what they need.
    open(os.path.join(folder, "mamba_ssm", "__init__.py"), "w").close()
    build(folder, "causal_conv1d_cuda", os.path.join(causal_conv1d, "csrc"))
    build(folder, "selective_scan_cuda", os.path.join(mamba, "csrc", "selective_scan"))


main()
