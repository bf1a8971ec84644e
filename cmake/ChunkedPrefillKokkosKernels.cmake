# SPDX-License-Identifier: MIT
# Finds Kokkos Kernels, unless a parent project already brings it, for the attention component. Shared
# by the build and by the installed package.
#
# Sets ChunkedPrefill_KOKKOS_KERNELS_PROBLEM to one line that says what is wrong, empty when nothing
# is.
set(ChunkedPrefill_KOKKOS_KERNELS_PROBLEM "")

if(NOT TARGET Kokkos::kokkoskernels)
  # Beside Kokkos is where it is installed most often.
  find_package(KokkosKernels 4.5...<6 QUIET
    HINTS ${Kokkos_DIR}/../../.. ${ChunkedPrefill_BUILT_WITH_KOKKOS_KERNELS})
endif()
if(NOT TARGET Kokkos::kokkoskernels)
  set(ChunkedPrefill_KOKKOS_KERNELS_PROBLEM
    "Kokkos Kernels 4.5 to 5.x was not found, set KokkosKernels_ROOT to its installation.")
endif()
