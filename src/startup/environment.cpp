// SPDX-License-Identifier: MIT
#include "environment.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>

namespace chunked_prefill::startup {
namespace {

[[noreturn]] void refuse(const char* variable, std::string_view value, std::string_view right) {
  constexpr std::size_t most = 40;
  std::string shown(value.substr(0, most));
  if (value.size() > most) shown += "...";
  throw InvalidArgument(variable,
                        '"' + shown + "\" in the environment is not " + std::string(right));
}

std::string range(std::int32_t least, std::int32_t most) {
  return '[' + std::to_string(least) + ", " + std::to_string(most) + ']';
}

void check_integer(const char* variable, std::int32_t least, std::int32_t most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return;
  const std::string_view value = text;
  std::int32_t number = 0;
  const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && rest == value.data() + value.size() && number >= least &&
      number <= most) {
    return;
  }
  refuse(variable, value, "an integer in " + range(least, most));
}

void check_word(const char* variable, std::initializer_list<std::string_view> words,
                std::string_view right) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return;
  const auto lower = [](unsigned char c) { return static_cast<char>(std::tolower(c)); };
  const std::string_view value = text;
  const bool known = std::ranges::any_of(
      words, [&](std::string_view word) { return std::ranges::equal(word, value, {}, {}, lower); });
  if (!known) refuse(variable, value, right);
}

void check_bool(const char* variable) {
  check_word(variable, {"yes", "true", "1", "no", "false", "0"}, "a yes or no");
}

/// A number, or one for each level of nesting. OpenMP itself says what it cannot read, and does
/// without.
void check_openmp_threads(std::int32_t most) {
  const char* const variable = "OMP_NUM_THREADS";
  const char* const text = std::getenv(variable);
  if (text == nullptr) return;
  if (std::strtoll(text, nullptr, 10) > most) {
    refuse(variable, text, "at most " + std::to_string(most) + " threads");
  }
}

/// GPUs separated by commas.
/// \returns how many there are, all without the variable.
std::int32_t check_visible_devices(std::int32_t gpus) {
  const char* const variable = "KOKKOS_VISIBLE_DEVICES";
  const char* const text = std::getenv(variable);
  if (text == nullptr) return gpus;
  const std::string_view value = text;
  const char *at = value.data(), *const end = at + value.size();
  for (std::int32_t count = 1;; ++count) {
    std::int32_t gpu = -1;
    at = std::from_chars(at, end, gpu).ptr;
    if (gpu < 0 || gpu >= gpus) break;
    if (at == end) return count;
    if (*at++ != ',') break;
  }
  refuse(variable, value, "a list of GPUs in " + range(0, gpus - 1));
}

}  // namespace

void check_environment(std::int32_t most_threads, std::int32_t gpus) {
  check_integer("KOKKOS_NUM_THREADS", 1, most_threads);
  check_openmp_threads(most_threads);
  check_integer("KOKKOS_DEVICE_ID", 0, gpus < 0 ? INT32_MAX : check_visible_devices(gpus) - 1);
  check_word("KOKKOS_MAP_DEVICE_ID_BY", {"random", "mpi_rank"}, "random or mpi_rank");
  check_bool("KOKKOS_DISABLE_WARNINGS");
  check_bool("KOKKOS_PRINT_CONFIGURATION");
  check_bool("KOKKOS_TUNE_INTERNALS");
}

}  // namespace chunked_prefill::startup
