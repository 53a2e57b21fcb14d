# Collectives by NCCL on the simulated device, with several ranks on one host (label simt). The first five files run on
# GPUs too (tests/gpu).
set(ranks 1 2 3 4)
dt_test(simt_nccl LABEL simt RANKS ${ranks}
        SOURCES test_nccl.c test_nccl_environment.c test_nccl_messages.c test_nccl_sums.c test_nccl_trees.c
                test_nccl_buckets.c test_nccl_stand_in.c test_nccl_watchdog.c
        USES dt_cuda_on_simt dt_nccl_on_simt dt_cudart dt_simt dt_comm)
dt_on_devices(simt_nccl)
foreach(n ${ranks})
  set_tests_properties(
    simt_nccl_${n} PROPERTIES ENVIRONMENT_MODIFICATION
                              "LD_LIBRARY_PATH=path_list_prepend:${DT_SIMT_LIBRARIES};SIMT_DEVICES=set:${n}")
endforeach()

dt_program(nccl_victim SOURCES nccl_victim.c USES dt_cuda_on_simt dt_nccl_on_simt dt_cudart dt_simt dt_comm)
dt_on_devices(nccl_victim)
dt_script_test(simt_nccl_faults LABEL simt SCRIPT nccl_faults.sh ARGS $<TARGET_FILE:nccl_victim>)
set_tests_properties(simt_nccl_faults PROPERTIES ENVIRONMENT_MODIFICATION
                                                 "LD_LIBRARY_PATH=path_list_prepend:${DT_SIMT_LIBRARIES}")

# Where NCCL's own header is installed, the communicator also compiles with that header, and opens the library.
find_path(DT_REAL_NCCL nccl.h HINTS /usr/local/cuda/include)
if(DT_REAL_NCCL)
  dt_test(nccl_real LABEL simt SOURCES nccl_real.c ${DT_NCCL_SOURCES}
          ${PROJECT_SOURCE_DIR}/src/backend/cuda_library.c USES dt_comm ${CMAKE_DL_LIBS})
  target_include_directories(nccl_real SYSTEM PRIVATE ${DT_REAL_NCCL})
endif()
