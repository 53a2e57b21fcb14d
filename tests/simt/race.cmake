# The race build of the host execution model (race.cpp) and of every .cu file: the same tests,
# linked against it, fail where two threads of a launch race. g++'s instrumentation comes late, so
# these kernels are optimised little: what the compiler moves, merges or turns into memset is not seen
# as the source has it. Not beside other sanitizers, whose library has the same hooks.
if(DTRAIN_SANITIZE)
  return()
endif()
set(DT_RACE_FLAGS -fsanitize=thread -g -O1)

# dt_race_kernels(TARGET SOURCES x.cu …): compiled with the hooks, as an object library.
function(dt_race_kernels target)
  cmake_parse_arguments(RACE "" "" "SOURCES" ${ARGN})
  add_library(${target} OBJECT)
  dt_simt_kernels(${target} SOURCES ${RACE_SOURCES})
  target_compile_definitions(${target} PRIVATE SIMT_RACES)
  target_compile_options(${target} PRIVATE ${DT_RACE_FLAGS})
  target_link_libraries(${target} PRIVATE dt_backend dt_warnings)
endfunction()

# dt_race_test(NAME SOURCES … [KERNELS x.cu …]): as dt_simt_test. What is found is the same in every
# order of threads.
function(dt_race_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;KERNELS" ${ARGN})
  dt_test(${name} LABEL simt SOURCES ${TEST_SOURCES} USES dt_simt_race)
  target_compile_definitions(${name} PRIVATE SIMT_FIRST_ORDER_ONLY)
  if(TEST_KERNELS)
    dt_race_kernels(${name}_kernels SOURCES ${TEST_KERNELS})
    target_link_libraries(${name} PRIVATE ${name}_kernels)
  endif()
endfunction()

list(TRANSFORM DT_CUDA_KERNELS PREPEND ${PROJECT_SOURCE_DIR}/kernels/ OUTPUT_VARIABLE race_kernels)
list(TRANSFORM race_kernels APPEND .cu)
dt_race_kernels(dt_simt_race_kernels SOURCES ${race_kernels})
get_target_property(race_model dt_simt_model SOURCES)
add_library(dt_simt_race STATIC ${race_model} race.cpp site.cpp simt_backend.c
                                $<TARGET_OBJECTS:dt_simt_race_kernels>)
target_compile_definitions(
  dt_simt_race PRIVATE _GNU_SOURCE SIMT_RACES SIMT_REPOSITORY="${PROJECT_SOURCE_DIR}/")
target_include_directories(dt_simt_race PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(dt_simt_race PUBLIC dt_backend PRIVATE dt_warnings)

dt_race_test(race_model SOURCES test_race.c KERNELS racing.cu)
