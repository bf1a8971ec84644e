// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace test {

/// What was enqueued, waited for, allocated and copied, by name.
struct Events {
  std::vector<std::string> kernels;
  std::vector<std::uint32_t> devices;  // of each kernel
  std::vector<std::string> fences, allocations, copies;
};

/// Records every event, as Kokkos Tools sees it, between construction and destruction. One at a
/// time.
class Recorder {
 public:
  Recorder() {
    namespace tools = Kokkos::Tools::Experimental;
    s_events = {};
    const auto on_kernel = [](const char* name, std::uint32_t device, std::uint64_t*) {
      s_events.kernels.emplace_back(name);
      s_events.devices.push_back(device);
    };
    tools::set_begin_parallel_for_callback(on_kernel);
    tools::set_begin_parallel_scan_callback(on_kernel);
    tools::set_begin_parallel_reduce_callback(on_kernel);
    tools::set_begin_fence_callback([](const char* name, std::uint32_t, std::uint64_t*) {
      // Kokkos::Threads itself waits for each of its kernels.
      if (name == std::string_view("Kokkos::ThreadsInternal::fence: Unnamed Instance Fence"))
        return;
      s_events.fences.emplace_back(name);
    });
    tools::set_allocate_data_callback(
        [](Kokkos_Profiling_SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          // Kokkos announces the team scratch of every team launch, of 0 bytes where none is used.
          if (bytes > 0) s_events.allocations.emplace_back(label);
        });
    tools::set_begin_deep_copy_callback([](Kokkos_Profiling_SpaceHandle, const char* label,
                                           const void*, Kokkos_Profiling_SpaceHandle, const char*,
                                           const void*,
                                           std::uint64_t) { s_events.copies.emplace_back(label); });
  }
  ~Recorder() { Kokkos::Tools::Experimental::pause_tools(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  [[nodiscard]] const Events& events() const { return s_events; }

 private:
  static inline Events s_events;
};

inline const std::string not_refused = "not refused";

/// The words with which `call` is refused, before anything is enqueued, copied or allocated.
template <class Call>
std::string refusal(const Call& call) {
  const Recorder recorder;
  try {
    call();
  } catch (const chunked_prefill::InvalidArgument& error) {
    const Events& events = recorder.events();
    EXPECT_EQ(events.kernels, std::vector<std::string>()) << error.what();
    EXPECT_EQ(events.fences, std::vector<std::string>()) << error.what();
    EXPECT_EQ(events.allocations, std::vector<std::string>()) << error.what();
    EXPECT_EQ(events.copies, std::vector<std::string>()) << error.what();
    EXPECT_TRUE(std::string_view(error.what()).starts_with(error.argument() + ": "));
    return error.what();
  }
  return not_refused;
}

}  // namespace test
