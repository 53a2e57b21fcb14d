# What `cmake --install` and the packages of `cpack` contain beside the program (src/CMakeLists.txt) and libdtrain_step
# (src/step/CMakeLists.txt): the man page, completions, the manual, scripts, a configuration, and converters. The
# installed folder may be moved. `cpack -G TGZ` and `cpack -G DEB` make packages; the latter needs dpkg-dev.
set(DT_SHARE ${CMAKE_INSTALL_DATADIR}/dtrain)

# The program prints these files from its own tables.
set(DT_PRINTED ${PROJECT_BINARY_DIR}/share)
file(MAKE_DIRECTORY ${DT_PRINTED})
add_custom_command(
  OUTPUT ${DT_PRINTED}/dtrain.1 ${DT_PRINTED}/dtrain ${DT_PRINTED}/_dtrain
  COMMAND dtrain man > ${DT_PRINTED}/dtrain.1
  COMMAND dtrain completion bash > ${DT_PRINTED}/dtrain
  COMMAND dtrain completion zsh > ${DT_PRINTED}/_dtrain
  DEPENDS dtrain
  VERBATIM)
add_custom_target(printed ALL DEPENDS ${DT_PRINTED}/dtrain.1)
install(FILES ${DT_PRINTED}/dtrain.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${DT_PRINTED}/dtrain DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${DT_PRINTED}/_dtrain DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES launch/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME manual.md)

install(PROGRAMS launch/run.sh launch/curve.sh launch/sweep.sh launch/scaling.sh launch/train.sbatch
                 launch/array.sbatch DESTINATION ${DT_SHARE}/launch)
install(FILES launch/environment.sh launch/policy.ini DESTINATION ${DT_SHARE}/launch)
install(DIRECTORY launch/scaling DESTINATION ${DT_SHARE}/launch FILES_MATCHING PATTERN "*.py")
install(PROGRAMS data/convert.py data/tokens.py DESTINATION ${DT_SHARE}/data)
install(DIRECTORY data/converters DESTINATION ${DT_SHARE}/data FILES_MATCHING PATTERN "*.py")

set(CPACK_PACKAGE_NAME dtrain)
set(CPACK_PACKAGE_CONTACT "the authors of dtrain")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_GENERATOR TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin) # the libraries are added from the program itself
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3, python3-h5py")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # runs ldconfig
include(CPack)
