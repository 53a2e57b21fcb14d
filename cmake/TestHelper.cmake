# dt_program(NAME SOURCES … USES …): adds a program of the tests' folder.
function(dt_program name)
  cmake_parse_arguments(PROGRAM "" "" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${PROGRAM_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
  target_link_libraries(${name} PRIVATE ${PROGRAM_USES} dt_warnings)
endfunction()

# dt_test(NAME LABEL … SOURCES … USES … [RANKS n …] [ARGS …])
# Adds a test that is a plain main program with tests/test.h. RANKS runs it under mpirun, as NAME_n for each n. Exit code
# 77 is reported as skipped, never as passed. Most tests with ranks and most scripts wait more than they compute, so
# tests/run.sh runs two tests per core.
set(DT_MPIRUN ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none)
function(dt_test name)
  cmake_parse_arguments(TEST "" "LABEL" "SOURCES;USES;ARGS;RANKS" ${ARGN})
  dt_program(${name} SOURCES ${TEST_SOURCES} USES ${TEST_USES} dt_said)
  foreach(ranks ${TEST_RANKS})
    add_test(NAME ${name}_${ranks} COMMAND ${DT_MPIRUN} -np ${ranks} $<TARGET_FILE:${name}> ${TEST_ARGS})
    dt_test_properties(${name}_${ranks} ${TEST_LABEL})
  endforeach()
  if(NOT TEST_RANKS)
    add_test(NAME ${name} COMMAND ${name} ${TEST_ARGS})
    dt_test_properties(${name} ${TEST_LABEL})
  endif()
endfunction()

# dt_tests(LABEL ROOMS NAME…): adds a test of one source for each name, which uses these rooms.
function(dt_tests label rooms)
  foreach(name ${ARGN})
    dt_test(${name} LABEL ${label} SOURCES ${name}.c USES ${rooms})
  endforeach()
endfunction()

# Together these scripts take every path of the program, so they always run with sanitizers. The others run with
# sanitizers only with --long: they check figures, texts and scripts, in which a sanitizer finds nothing.
set(DT_SANITIZED_SCRIPTS
    dist_context
    dist_mixture
    dist_reproducible
    dist_resume
    dist_rings
    dist_shard
    dist_tokenizer
    dist_train
    episodes
    options
    simt_faults
    simt_nccl_faults
    simt_predict)
function(dt_script_label name label)
  if(DTRAIN_SANITIZE AND NOT name IN_LIST DT_SANITIZED_SCRIPTS)
    set(${label} "${${label}};long" PARENT_SCOPE)
  endif()
endfunction()

# dt_script_test(NAME LABEL … SCRIPT … [ARGS …]): adds a test that is a shell script. Its first argument is the path of
# the program dtrain, and its working directory is an empty scratch folder.
function(dt_script_test name)
  cmake_parse_arguments(TEST "" "LABEL;SCRIPT" "ARGS" ${ARGN})
  set(scratch ${CMAKE_CURRENT_BINARY_DIR}/${name}.d)
  file(MAKE_DIRECTORY ${scratch})
  set(timed)
  dt_script_label(${name} TEST_LABEL)
  if(name IN_LIST DT_TIMED_TESTS)
    set(timed ${PROJECT_SOURCE_DIR}/tests/timed.sh)
  endif()
  add_test(NAME ${name} COMMAND ${timed} bash ${CMAKE_CURRENT_SOURCE_DIR}/${TEST_SCRIPT}
                                $<TARGET_FILE:dtrain> ${TEST_ARGS}
           WORKING_DIRECTORY ${scratch})
  dt_test_properties(${name} "${TEST_LABEL}")
endfunction()

# A test that hangs fails. This limit is only for hangs: the slowest test takes less than a sixth of it on two busy cores
# without AVX-512.
set(DT_TEST_TIMEOUT 1200)
# The longest tests start first, so that none runs alone at the end. So do those that check how soon a job ends after a
# fault: they take two places of the four on two cores, and run again if the machine stalled (timed.sh).
set(DT_LONG_TESTS fault_kills fault_run_lock golden_bf16 simt_faults simt_train)
set(DT_TIMED_TESTS fault_comm fault_exchange fault_hand_on fault_swap fault_hosts fault_rank_dies fault_slow_disk fault_start simt_nccl_faults slurm_jobs)
function(dt_test_properties name label)
  set_tests_properties(
    ${name}
    PROPERTIES LABELS "${label}" TIMEOUT ${DT_TEST_TIMEOUT} SKIP_RETURN_CODE 77 ENVIRONMENT
               "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_btl_vader_single_copy_mechanism=none;OMPI_MCA_plm_rsh_agent=/bin/false;OMP_WAIT_POLICY=passive;LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
  if(name IN_LIST DT_TIMED_TESTS)
    set_tests_properties(${name} PROPERTIES COST 100 PROCESSORS 2)
  elseif(name IN_LIST DT_LONG_TESTS)
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
endfunction()
