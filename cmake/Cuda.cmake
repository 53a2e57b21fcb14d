# With DTRAIN_CUDA, finds nvcc, the architectures, the CUDA runtime and the headers of cuBLASLt and NCCL. The runtime is
# linked statically and the libraries are opened at run time, so the program needs no CUDA library to start. Without
# DTRAIN_CUDA, finds only DT_NVCC, for the tests that compile the kernels.
find_program(DT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)

# Lists every architecture of dtrain that this nvcc knows. The newest one also gets PTX, for future architectures.
function(dt_cuda_architectures out)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE known)
  set(found)
  foreach(architecture 80 86 89 90 100 120)
    if(known MATCHES "sm_${architecture}[^0-9]")
      list(APPEND found ${architecture})
    else()
      message(STATUS "This nvcc does not know sm_${architecture}: the program will not run on it")
    endif()
  endforeach()
  list(POP_BACK found newest)
  list(TRANSFORM found APPEND -real)
  set(${out} ${found} ${newest} PARENT_SCOPE)
endfunction()

function(dt_cuda_header variable file package)
  find_path(${variable} ${file} HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME PATH_SUFFIXES include)
  if(NOT ${variable})
    message(FATAL_ERROR "DTRAIN_CUDA needs ${file}: install ${package} (a package of NVIDIA's CUDA "
                        "repository), or give the header's folder as -D${variable}=…")
  endif()
endfunction()

# This is a macro since a language must be enabled in the scope of the top folder.
macro(dt_enable_cuda)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${DT_NVCC})
  endif()
  if(CMAKE_CUDA_COMPILER MATCHES "NOTFOUND$")
    message(FATAL_ERROR "DTRAIN_CUDA needs the CUDA toolkit (12.0 or newer), and there is no nvcc in PATH nor "
                        "in /usr/local/cuda/bin: install it, or give its path as -DCMAKE_CUDA_COMPILER=…, or "
                        "configure without CUDA (preset cpu-release).")
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    dt_cuda_architectures(CMAKE_CUDA_ARCHITECTURES)
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
    message(FATAL_ERROR "DTRAIN_CUDA needs the CUDA toolkit 12.0 or newer: ${CMAKE_CUDA_COMPILER} is of "
                        "${CMAKE_CUDA_COMPILER_VERSION}.")
  endif()
  find_package(CUDAToolkit REQUIRED)
  dt_cuda_header(CUBLASLT_INCLUDE_DIR cublasLt.h libcublas-dev)
  dt_cuda_header(NCCL_INCLUDE_DIR nccl.h libnccl-dev)
  # Libraries that the loader does not know are looked up beside the program and in the toolkit. LD_LIBRARY_PATH comes
  # before both.
  set(DT_CUDA_RPATH "$ORIGIN/lib;${CUDAToolkit_LIBRARY_DIR}")
endmacro()
