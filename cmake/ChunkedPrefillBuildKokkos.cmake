# SPDX-License-Identifier: MIT
# A Kokkos with OpenMP in the build folder, where none is installed: for `pip install`, which has
# nobody to build one first.
find_package(Kokkos 4.5...<6 QUIET)
if(NOT Kokkos_FOUND)
  set(prefix ${CMAKE_BINARY_DIR}/kokkos)
  # pip hides itself from the builds that it starts.
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH --unset=PYTHONNOUSERSITE
      ${PROJECT_SOURCE_DIR}/cmake/build_kokkos.sh ${prefix} --openmp --cxx ${CMAKE_CXX_COMPILER}
      --cmake ${CMAKE_COMMAND}
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Kokkos could not be built: set Kokkos_ROOT to an installed 4.5 to 5.x.")
  endif()
  set(Kokkos_ROOT ${prefix})
endif()
