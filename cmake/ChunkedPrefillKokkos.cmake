# SPDX-License-Identifier: MIT
# Finds Kokkos in the supported range, unless a parent project already brings it.
# Shared by the build and by the installed package, so that both accept the same versions.
if(NOT TARGET Kokkos::kokkos)
  include(CMakeFindDependencyMacro)
  find_dependency(Kokkos 4.5...<6)
endif()
