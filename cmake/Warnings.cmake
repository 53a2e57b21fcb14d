# One interface target carries the warnings and sanitizers of every room and test.
add_library(dt_warnings INTERFACE)
target_compile_options(
  dt_warnings
  INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wpointer-arith -Wvla
            -Wformat=2 $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
            $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
if(DTRAIN_WERROR)
  target_compile_options(dt_warnings INTERFACE -Werror)
endif()
if(DTRAIN_SANITIZE)
  target_compile_options(dt_warnings INTERFACE -fsanitize=${DTRAIN_SANITIZE}
                                               -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(dt_warnings INTERFACE -fsanitize=${DTRAIN_SANITIZE})
endif()
