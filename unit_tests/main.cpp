// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // The tests that record events see the library's own fences, not fences around each event.
  Kokkos::Tools::Experimental::set_request_tool_settings_callback(
      [](std::uint32_t, Kokkos_Tools_ToolSettings* settings) {
        settings->requires_global_fencing = false;
      });
  const Kokkos::ScopeGuard guard(argc, argv);
  return RUN_ALL_TESTS();
}
