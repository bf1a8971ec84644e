# SPDX-License-Identifier: MIT
# Installs the library, its headers and the CMake package ChunkedPrefill.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ChunkedPrefill)

install(TARGETS chunked_prefill EXPORT ChunkedPrefillTargets FILE_SET HEADERS)
install(EXPORT ChunkedPrefillTargets NAMESPACE ChunkedPrefill:: DESTINATION ${package_dir})
if(TARGET chunked_prefill_attention)
  install(TARGETS chunked_prefill_attention EXPORT ChunkedPrefillAttentionTargets FILE_SET HEADERS)
  install(EXPORT ChunkedPrefillAttentionTargets NAMESPACE ChunkedPrefill::
    DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/ChunkedPrefillConfig.cmake.in
  ${PROJECT_BINARY_DIR}/ChunkedPrefillConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ChunkedPrefillConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/ChunkedPrefillConfig.cmake
  ${PROJECT_BINARY_DIR}/ChunkedPrefillConfigVersion.cmake
  cmake/ChunkedPrefillKokkos.cmake
  cmake/ChunkedPrefillKokkosKernels.cmake
  DESTINATION ${package_dir})
