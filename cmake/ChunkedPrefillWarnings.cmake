# SPDX-License-Identifier: MIT
# Warnings as errors for every target of the directories below the including one. Directory scope
# keeps them out of the exported targets. Line directives of nvcc's generated code are not pedantic.
set(cuda $<OR:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${Kokkos_ENABLE_CUDA}>>)
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Werror>"
  "$<$<NOT:${cuda}>:-Wpedantic>")
if(Kokkos_ENABLE_CUDA)
  add_compile_options("SHELL:-Werror all-warnings")
endif()
unset(cuda)
