# SPDX-License-Identifier: MIT
# Finds Kokkos in the supported range, unless a parent project already brings it. Shared by the build
# and by the installed package, so that both accept the same.
#
# Sets ChunkedPrefill_KOKKOS_PROBLEM to one line that says what is wrong, empty when nothing is.
set(ChunkedPrefill_KOKKOS_PROBLEM "")

if(NOT TARGET Kokkos::kokkos)
  find_package(Kokkos 4.5...<6 QUIET PATHS ${ChunkedPrefill_BUILT_WITH_KOKKOS})
endif()

if(NOT TARGET Kokkos::kokkos AND Kokkos_CONSIDERED_VERSIONS)
  list(JOIN Kokkos_CONSIDERED_VERSIONS " and " found)
  string(CONCAT ChunkedPrefill_KOKKOS_PROBLEM
    "ChunkedPrefill needs Kokkos 4.5 to 5.x and found ${found}: set Kokkos_ROOT to another installation.")
elseif(NOT TARGET Kokkos::kokkos)
  string(CONCAT ChunkedPrefill_KOKKOS_PROBLEM
    "ChunkedPrefill needs Kokkos 4.5 to 5.x and found none: set Kokkos_ROOT to its installation.")
elseif(Kokkos_VERSION AND (Kokkos_VERSION VERSION_LESS 4.5 OR NOT Kokkos_VERSION VERSION_LESS 6))
  string(CONCAT ChunkedPrefill_KOKKOS_PROBLEM
    "ChunkedPrefill needs Kokkos 4.5 to 5.x; this project brings ${Kokkos_VERSION}.")
else()
  foreach(backend IN LISTS ChunkedPrefill_REQUIRE_BACKENDS)
    if(NOT Kokkos_ENABLE_${backend})
      string(CONCAT ChunkedPrefill_KOKKOS_PROBLEM
        "Kokkos ${Kokkos_VERSION} (${Kokkos_DIR}) has no ${backend} backend, only ${Kokkos_DEVICES}: "
        "set Kokkos_ROOT to an installation that has it.")
    endif()
  endforeach()
endif()

# The language of sources that use Kokkos: CXX, unless Kokkos was built as another CMake language.
if(NOT Kokkos_COMPILE_LANGUAGE)
  set(Kokkos_COMPILE_LANGUAGE CXX)
endif()
function(chunked_prefill_use_kokkos_language target)
  if(NOT Kokkos_COMPILE_LANGUAGE STREQUAL "CXX")
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    set_source_files_properties(${sources} PROPERTIES LANGUAGE ${Kokkos_COMPILE_LANGUAGE})
    set_target_properties(${target} PROPERTIES
      LINKER_LANGUAGE ${Kokkos_COMPILE_LANGUAGE}
      ${Kokkos_COMPILE_LANGUAGE}_STANDARD 20)
  endif()
endfunction()
