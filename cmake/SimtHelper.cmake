# dt_simt_kernels(TARGET SOURCES x.cu …): compiles .cu files as C++ for the host execution model in tests/simt. The host
# does not contract products and sums, since a GPU's compiler chooses where to do so. Kernels read memory through vector
# types, so strict aliasing is off. With sanitizers, -Og compiles them in a third of the time of -O1.
function(dt_simt_kernels target)
  cmake_parse_arguments(SIMT "" "" "SOURCES" ${ARGN})
  set_source_files_properties(
    ${SIMT_SOURCES}
    PROPERTIES LANGUAGE CXX
               COMPILE_OPTIONS "-ffp-contract=off;-fno-strict-aliasing;-Wno-unknown-pragmas;$<$<CONFIG:Debug>:-Og>")
  target_sources(${target} PRIVATE ${SIMT_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/simt)
endfunction()

# The folder in which the libraries that stand in for cuBLASLt and NCCL are built.
set(DT_SIMT_LIBRARIES ${PROJECT_BINARY_DIR}/tests/simt/cuda/libraries)

# dt_simt_script_test(NAME SCRIPT … [ARGS …]): adds a test with label simt, as dt_script_test does, but for the program
# dtrain_simt, whose devices are simulated, with the libraries that stand in for cuBLASLt and NCCL.
function(dt_simt_script_test name)
  if(DTRAIN_CUDA) # nothing is simulated in that build
    return()
  endif()
  cmake_parse_arguments(TEST "" "SCRIPT" "ARGS" ${ARGN})
  set(scratch ${CMAKE_CURRENT_BINARY_DIR}/${name}.d)
  file(MAKE_DIRECTORY ${scratch})
  add_test(NAME ${name} COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/${TEST_SCRIPT}
                                $<TARGET_FILE:dtrain_simt> ${TEST_ARGS}
           WORKING_DIRECTORY ${scratch})
  set(label simt)
  dt_script_label(${name} label)
  dt_test_properties(${name} "${label}")
  set_tests_properties(
    ${name} PROPERTIES ENVIRONMENT_MODIFICATION
                       "LD_LIBRARY_PATH=path_list_prepend:${DT_SIMT_LIBRARIES}")
endfunction()
