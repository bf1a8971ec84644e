// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

// A Kokkos tool (KOKKOS_TOOLS_LIBS) that spoils a result: in the host memory with the label
// WRONG_LABEL it looks for the int32 WRONG_VALUE when a kernel has ended, and adds one to it.

namespace {

std::int32_t* values = nullptr;
std::size_t count = 0;

}  // namespace

extern "C" {

struct SpaceHandle {
  char name[64];
};

void kokkosp_allocate_data(SpaceHandle, const char* label, const void* data, std::uint64_t bytes) {
  const char* const wanted = std::getenv("WRONG_LABEL");
  if (wanted == nullptr || std::string_view(label) != wanted) return;
  values = static_cast<std::int32_t*>(const_cast<void*>(data));
  count = bytes / sizeof(std::int32_t);
}

void kokkosp_end_parallel_for(std::uint64_t) {
  const char* const wanted = std::getenv("WRONG_VALUE");
  if (wanted == nullptr) return;
  for (std::size_t k = 0; k < count; ++k) {
    if (values[k] != std::atoi(wanted)) continue;
    ++values[k];
    return;
  }
}
}
