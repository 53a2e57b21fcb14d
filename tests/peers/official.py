#!/usr/bin/env python3
"""official.py FOLDER MAMBA CAUSAL_CONV1D: puts the packages mamba_ssm and causal_conv1d into FOLDER, from folders with
their sources, with their kernels compiled for this machine's GPU alone; PYTHONPATH=FOLDER then lets torch_official.py
find them. Needs PyTorch, einops, ninja and a CUDA toolkit, no network; takes minutes of all cores."""
import glob
import os
import shutil
import sys

from torch.utils import cpp_extension

# As the setup.py of both packages has it.
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
    # Its own imports all models, and what they need.
    open(os.path.join(folder, "mamba_ssm", "__init__.py"), "w").close()
    build(folder, "causal_conv1d_cuda", os.path.join(causal_conv1d, "csrc"))
    build(folder, "selective_scan_cuda", os.path.join(mamba, "csrc", "selective_scan"))


main()
