# dt_room(NAME SOURCES … USES …): the static library of one room. USES names the rooms below it
# and outside libraries; what a room may use is at the top of its folder's CMakeLists.txt. Objects can
# be part of a shared library (src/step), which exports nothing of a room.
function(dt_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;USES" ${ARGN})
  add_library(dt_${name} STATIC ${ROOM_SOURCES})
  set_target_properties(dt_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_include_directories(dt_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_compile_definitions(dt_${name} PRIVATE _GNU_SOURCE)
  target_link_libraries(dt_${name} PUBLIC ${ROOM_USES} PRIVATE dt_warnings)
endfunction()
