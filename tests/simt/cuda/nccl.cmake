# label simt: sums by NCCL over the simulated device, several ranks of one host.
add_library(dt_simt_nccl OBJECT ${PROJECT_SOURCE_DIR}/src/backend/known.c ${PROJECT_SOURCE_DIR}/src/comm/known.c
                                ${DT_CUDA_BACKEND_SOURCES} ${DT_NCCL_SOURCES})
target_compile_definitions(dt_simt_nccl PRIVATE _GNU_SOURCE DTRAIN_CUDA)
target_link_libraries(dt_simt_nccl PUBLIC dt_cudart dt_simt ${CMAKE_DL_LIBS} PRIVATE dt_warnings)

foreach(ranks 1 2 3 4)
  set(name simt_nccl_${ranks})
  dt_test(${name} LABEL simt RANKS ${ranks} SOURCES nccl_test.c USES dt_simt_nccl dt_cudart dt_comm)
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(${name} simt_nccl simt_cublaslt)
  set_tests_properties(
    ${name} PROPERTIES ENVIRONMENT_MODIFICATION "LD_LIBRARY_PATH=path_list_prepend:${DT_SIMT_LIBRARIES};SIMT_DEVICES=set:${ranks}")
endforeach()

add_executable(nccl_victim nccl_victim.c)
target_compile_definitions(nccl_victim PRIVATE _GNU_SOURCE)
target_link_libraries(nccl_victim PRIVATE dt_simt_nccl dt_cudart dt_comm dt_warnings)
set_target_properties(nccl_victim PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(nccl_victim simt_nccl simt_cublaslt)
dt_script_test(simt_nccl_faults LABEL simt SCRIPT nccl_faults.sh ARGS $<TARGET_FILE:nccl_victim>)
set_tests_properties(simt_nccl_faults PROPERTIES ENVIRONMENT_MODIFICATION
                                                 "LD_LIBRARY_PATH=path_list_prepend:${DT_SIMT_LIBRARIES}")

# Where the real header is the communicator compiles with it too, and opens the library.
find_path(DT_REAL_NCCL nccl.h HINTS /usr/local/cuda/include)
if(DT_REAL_NCCL)
  dt_test(nccl_real LABEL simt SOURCES nccl_real.c ${DT_NCCL_SOURCES}
          ${PROJECT_SOURCE_DIR}/src/backend/cuda_library.c USES dt_comm ${CMAKE_DL_LIBS})
  target_include_directories(nccl_real SYSTEM PRIVATE ${DT_REAL_NCCL})
endif()
