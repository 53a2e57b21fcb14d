# dt_room(NAME SOURCES … USES …): adds the static library of a room. USES names the rooms below it and outside libraries;
# the top of each room's CMakeLists.txt says what that room may use. The objects may also become part of a shared library
# (src/step), which exports none of their symbols.
function(dt_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;USES" ${ARGN})
  add_library(dt_${name} STATIC ${ROOM_SOURCES})
  set_target_properties(dt_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_include_directories(dt_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_compile_definitions(dt_${name} PRIVATE _GNU_SOURCE)
  target_link_libraries(dt_${name} PUBLIC ${ROOM_USES} PRIVATE dt_warnings)
endfunction()
