# Builds the host execution model (race.cpp) and every .cu file to find races (label race): test_parity linked with them
# (race_parity) fails where two threads of a launch race. g++ adds its instrumentation late, and does not see accesses as
# in the source once the compiler has moved or merged them or made them memset, so these kernels are optimised little.
# Other sanitizers have the same hooks in their library, so this is not built with them.
if(DTRAIN_SANITIZE)
  return()
endif()
set(DT_RACE_FLAGS -fsanitize=thread -g -O1)

# dt_race_kernels(TARGET SOURCES x.cu …): adds an object library of kernels that are compiled with the hooks.
function(dt_race_kernels target)
  cmake_parse_arguments(RACE "" "" "SOURCES" ${ARGN})
  add_library(${target} OBJECT)
  dt_simt_kernels(${target} SOURCES ${RACE_SOURCES})
  target_compile_definitions(${target} PRIVATE SIMT_RACES)
  target_compile_options(${target} PRIVATE ${DT_RACE_FLAGS})
  target_link_libraries(${target} PRIVATE dt_backend dt_warnings)
endfunction()

list(TRANSFORM DT_CUDA_KERNELS PREPEND ${PROJECT_SOURCE_DIR}/kernels/ OUTPUT_VARIABLE race_kernels)
list(TRANSFORM race_kernels APPEND .cu)
dt_race_kernels(dt_simt_race_kernels SOURCES ${race_kernels})
get_target_property(race_model dt_simt_model SOURCES)
add_library(dt_simt_race STATIC ${race_model} race.cpp site.cpp simt_backend.c simt_gemm.c
                                $<TARGET_OBJECTS:dt_simt_race_kernels>)
target_compile_definitions(
  dt_simt_race PRIVATE _GNU_SOURCE SIMT_RACES SIMT_REPOSITORY="${PROJECT_SOURCE_DIR}/")
target_include_directories(dt_simt_race PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(dt_simt_race PUBLIC dt_backend PRIVATE dt_warnings)

dt_race_kernels(race_model_kernels SOURCES racing.cu)
dt_test(race_model LABEL race SOURCES test_race.c USES dt_simt_race race_model_kernels)
