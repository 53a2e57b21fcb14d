# Tests on the simulated device through the op table of the backend (label simt).
function(dt_gemm_test name)
  dt_test(${name} LABEL simt SOURCES ${ARGN} USES dt_cuda_on_simt dt_cudart)
  dt_on_devices(${name})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION
                                          "LD_LIBRARY_PATH=path_list_prepend:${DT_SIMT_LIBRARIES}")
endfunction()
dt_gemm_test(simt_gemm test_gemm.c)

# A library that cannot be loaded comes before any real one in the path of the loader.
set(no_library ${CMAKE_CURRENT_BINARY_DIR}/no_library)
file(WRITE ${no_library}/libcublasLt.so.13 "")
add_test(NAME simt_no_cublaslt COMMAND simt_gemm no_library)
dt_test_properties(simt_no_cublaslt simt)
set_tests_properties(simt_no_cublaslt PROPERTIES ENVIRONMENT_MODIFICATION
                                                 "LD_LIBRARY_PATH=path_list_prepend:${no_library}")

# Where there is a toolkit, the backend also compiles with its header.
find_path(DT_REAL_CUBLASLT cublasLt.h HINTS /usr/local/cuda/include)
if(DT_REAL_CUBLASLT)
  add_library(cublaslt_header_real OBJECT ${DT_CUDA_BACKEND_SOURCES})
  target_compile_definitions(cublaslt_header_real PRIVATE _GNU_SOURCE)
  target_include_directories(cublaslt_header_real SYSTEM PRIVATE ${DT_REAL_CUBLASLT})
  target_link_libraries(cublaslt_header_real PRIVATE dt_backend dt_warnings)
endif()
