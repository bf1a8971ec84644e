// SPDX-License-Identifier: MIT
#include <chunked_prefill/capacity.hpp>
#include <chunked_prefill/error.hpp>
#include <string>

namespace chunked_prefill {
namespace {

void check_positive(const char* setting, std::int64_t value) {
  if (value > 0) return;
  throw InvalidArgument(setting, std::to_string(value) + " is not positive");
}

}  // namespace

std::int64_t get_max_chunk_capacity(const CapacitySettings& settings) {
  check_positive("chunked_prefill_size", settings.chunked_prefill_size);
  check_positive("mla_chunk_multiplier", settings.mla_chunk_multiplier);
  if (settings.chunked_prefill_size >
      max_supported_chunk_capacity / settings.mla_chunk_multiplier) {
    throw InvalidArgument("chunked_prefill_size * mla_chunk_multiplier",
                          std::to_string(settings.chunked_prefill_size) + " * " +
                              std::to_string(settings.mla_chunk_multiplier) + " is beyond " +
                              std::to_string(max_supported_chunk_capacity));
  }
  return settings.chunked_prefill_size * settings.mla_chunk_multiplier;
}

}  // namespace chunked_prefill
