// SPDX-License-Identifier: MIT
#include "memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chunked_prefill/error.hpp>
#include <fstream>
#include <limits>

namespace chunked_prefill::cli {
namespace {

/// What a new process may still take, in bytes; infinite where the system does not say.
double available_memory() {
  double available = std::numeric_limits<double>::infinity();
  std::ifstream machine("/proc/meminfo");
  for (std::string line; std::getline(machine, line);) {
    if (line.starts_with("MemAvailable:")) available = 1024. * std::stod(line.substr(13));
  }
  // A container's own bound; "max" where there is none, which reads as no number.
  double limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, std::max(0., limit - used));
  }
  return available;
}

}  // namespace

void require_memory(const std::string& argument, const std::string& what, double bytes) {
  if (bytes < 64e6) return;  // not worth asking
  const double available = available_memory();
  if (bytes <= available) return;
  throw InvalidArgument(argument,
                        fmt::format("{} need {:.1f} GB of memory, {:.1f} GB are available", what,
                                    bytes / 1e9, available / 1e9));
}

}  // namespace chunked_prefill::cli
