// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/chunked_prefill.hpp>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace perf {

/// One batch to measure.
struct Case {
  std::string name;
  std::vector<std::int32_t> prefix_lens;
  std::int64_t chunk_capacity;
  std::int64_t page_size;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Case, name, prefix_lens, chunk_capacity, page_size)

/// One way to cut prefixes into loops.
struct Policy {
  const char* name;
  chunked_prefill::PlanOptions options;  ///< but for the capacity, which is the case's

  [[nodiscard]] chunked_prefill::PlanOptions options_for(const Case& batch) const {
    auto complete = options;
    complete.chunk_capacity = batch.chunk_capacity;
    return complete;
  }
};
inline const Policy policies[] = {
    {"equal", {}},
    {"packed", {.policy = chunked_prefill::Policy::packed}},
};

inline std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return nlohmann::json::parse(file);
}

}  // namespace perf
