# SPDX-License-Identifier: MIT
# What a consumer may rely on, whichever way it gets ChunkedPrefill::chunked_prefill.

# expect_equal(WHAT ACTUAL EXPECTED)
function(expect_equal what actual expected)
  if(NOT "${actual}" STREQUAL "${expected}")
    message(FATAL_ERROR "${what} is '${actual}', not '${expected}'")
  endif()
endfunction()

# No flag, definition or library reaches users but C++20 and Kokkos.
function(expect_nothing_leaks)
  foreach(property IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_OPTIONS PRECOMPILE_HEADERS SOURCES)
    get_target_property(value ChunkedPrefill::chunked_prefill INTERFACE_${property})
    if(value)
      message(FATAL_ERROR "INTERFACE_${property} is '${value}', not empty")
    endif()
  endforeach()
  get_target_property(value ChunkedPrefill::chunked_prefill INTERFACE_COMPILE_FEATURES)
  expect_equal(INTERFACE_COMPILE_FEATURES "${value}" cxx_std_20)
  get_target_property(value ChunkedPrefill::chunked_prefill INTERFACE_LINK_LIBRARIES)
  expect_equal(INTERFACE_LINK_LIBRARIES "${value}" Kokkos::kokkos)
endfunction()
