# dt_fuzz_test(NAME SOURCES … ROOMS …): adds a libFuzzer test. Its program has SOURCES and all sources of the rooms that
# they need, compiled separately by clang with ASan and UBSan. It runs for 20 s (with --long also for ten minutes) from
# the seeds in corpus/NAME, without the "fuzz_" of NAME. Where clang or libFuzzer's runtime is missing, the test reports
# itself as skipped (77). An input that failed is left in the build folder as NAME-crash-… ; `NAME.d/NAME FILE` runs it
# again.
find_program(DT_FUZZ_CLANG NAMES clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14)
set(DT_FUZZ_FLAGS -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -g -O1)

# Finds out whether a target can be built and run here, by doing so once.
function(dt_fuzz_probe)
  if(DEFINED DT_FUZZ_WORKS)
    return()
  endif()
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/fuzz_probe)
  file(WRITE ${probe}.c
       "int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size)\n"
       "{\n    return !data && size;\n}\n")
  set(works FALSE)
  if(DT_FUZZ_CLANG)
    execute_process(COMMAND ${DT_FUZZ_CLANG} ${DT_FUZZ_FLAGS} ${probe}.c -o ${probe}
                    RESULT_VARIABLE built OUTPUT_QUIET ERROR_QUIET)
    if(built EQUAL 0)
      execute_process(COMMAND ${probe} -runs=1 RESULT_VARIABLE ran OUTPUT_QUIET ERROR_QUIET)
      if(ran EQUAL 0)
        set(works TRUE)
      endif()
    endif()
  endif()
  message(STATUS "libFuzzer works with clang: ${works}")
  set(DT_FUZZ_WORKS ${works} CACHE INTERNAL "clang builds and runs libFuzzer targets")
endfunction()

# Lists the sources of a room as full paths.
function(dt_room_sources room out)
  get_target_property(names ${room} SOURCES)
  get_target_property(folder ${room} SOURCE_DIR)
  set(paths)
  foreach(name ${names})
    get_filename_component(path ${name} ABSOLUTE BASE_DIR ${folder})
    list(APPEND paths ${path})
  endforeach()
  set(${out} ${paths} PARENT_SCOPE)
endfunction()

# Compiles each source separately, so that changes of its headers are noticed, and links them.
function(dt_fuzz_program name program)
  set(objects)
  get_filename_component(folder ${program} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  foreach(source ${ARGN})
    file(RELATIVE_PATH object ${PROJECT_SOURCE_DIR} ${source})
    string(REPLACE / - object ${object}) # rooms may have files of the same name
    set(object ${folder}/${object}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${DT_FUZZ_CLANG} ${DT_FUZZ_FLAGS} -std=gnu17 -D_GNU_SOURCE -I${PROJECT_SOURCE_DIR}
              -I${PROJECT_SOURCE_DIR}/src ${CJSON_CFLAGS} ${XXHASH_CFLAGS} ${HWLOC_CFLAGS} -MMD -MF ${object}.d
              -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_custom_command(
    OUTPUT ${program}
    COMMAND ${DT_FUZZ_CLANG} ${DT_FUZZ_FLAGS} ${objects} ${CJSON_LDFLAGS} ${XXHASH_LDFLAGS} ${HWLOC_LDFLAGS}
            -lpthread -lm -o ${program}
    DEPENDS ${objects}
    VERBATIM)
  add_custom_target(${name} ALL DEPENDS ${program})
endfunction()

function(dt_fuzz_test name)
  cmake_parse_arguments(FUZZ "" "" "SOURCES;ROOMS" ${ARGN})
  dt_fuzz_probe()
  if(NOT DT_FUZZ_WORKS)
    add_test(NAME ${name} COMMAND sh -c "echo 'no clang with libFuzzer here'; exit 77")
    dt_test_properties(${name} fuzz)
    return()
  endif()
  list(TRANSFORM FUZZ_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  foreach(room ${FUZZ_ROOMS})
    dt_room_sources(${room} sources)
    list(APPEND FUZZ_SOURCES ${sources})
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${name}.d)
  dt_fuzz_program(${name} ${folder}/${name} ${FUZZ_SOURCES})
  set(found ${folder}/found) # inputs that reached new code; the next run starts from them too
  file(MAKE_DIRECTORY ${found})
  string(REPLACE "fuzz_" "" seeds ${name})
  foreach(seconds 20 600)
    set(test ${name})
    set(label fuzz)
    if(seconds GREATER 20)
      set(test ${name}_${seconds})
      list(APPEND label long)
    endif()
    add_test(NAME ${test}
             COMMAND ${folder}/${name} -max_total_time=${seconds} -timeout=10 -rss_limit_mb=2048
                     -max_len=8192 -verbosity=0 -print_final_stats=1
                     -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/${name}- ${found}
                     ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${seeds})
    dt_test_properties(${test} "${label}")
  endforeach()
endfunction()
