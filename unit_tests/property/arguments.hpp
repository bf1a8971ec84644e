// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace test {

/// What the property runner is asked for.
struct Arguments {
  std::uint64_t seed = 1;
  std::uint64_t first = 0;
  std::int64_t count = 0;
  std::string execution_space;
  std::string output = "property_batch.json";
  bool soak = false;
  int threads = 2;
};

/// \param execution_spaces names of all; the default one is in `defaults`.
/// \returns nothing when there is nothing to run, with the exit status in `status`: help was asked
///   for, or something is wrong, of which standard error has a line.
[[nodiscard]] std::optional<Arguments> parse_arguments(
    int argc, const char* const* argv, const std::vector<std::string>& execution_spaces,
    const Arguments& defaults, int& status);

}  // namespace test
