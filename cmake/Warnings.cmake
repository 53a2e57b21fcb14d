# One interface target carries the warnings and sanitizers of every room and test.
add_library(dt_warnings INTERFACE)
set(DT_C_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wpointer-arith -Wvla -Wformat=2)
target_compile_options(
  dt_warnings
  INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${DT_C_WARNINGS}>"
            "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")
if(DTRAIN_WERROR)
  target_compile_options(dt_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
                                               $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(DTRAIN_SANITIZE)
  # Optimised a little where nothing else is asked for: the tests run every thread of every kernel, and every
  # matrix product, on one core. Of debug information the lines alone: variables take a third of the time to build.
  set(DT_SANITIZE -fsanitize=${DTRAIN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
                  $<$<CONFIG:Debug>:-O1$<SEMICOLON>-g1>)
  target_compile_options(dt_warnings INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${DT_SANITIZE}>")
  target_link_options(dt_warnings INTERFACE -fsanitize=${DTRAIN_SANITIZE})
endif()
