// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cache_type.hpp"
#include "index_type.hpp"

namespace chunked_prefill::cli {

/// What `chunked_prefill plan` was asked to do.
struct PlanArguments {
  std::string batch;  ///< path of the batch, `-` for standard input
  std::vector<Policy> policies{Policy::equal};
  std::int64_t grain = 1;  ///< of the packed policy
  IndexType index_type = IndexType::int32;
  std::string execution_space;  ///< one of `startup::execution_spaces()`
  bool check = false;
  std::optional<std::string> json;  ///< path, `-` for standard output
  std::optional<std::string> svg;   ///< path, `-` for standard output
};

/// What `chunked_prefill replay` was asked to do.
struct ReplayArguments {
  std::string trace;                    ///< path
  std::int64_t batch_size = 16;         ///< requests of a step
  std::int64_t steps = 0;               ///< at most; 0: as many as the trace has
  std::int64_t chunk_capacity = 32768;  ///< tokens
  std::int64_t page_size = 64;          ///< tokens
  std::int64_t cache_pages = 1 << 20;
  Policy policy = Policy::equal;
  std::int64_t grain = 1;
  IndexType index_type = IndexType::int32;
  std::string execution_space;  ///< one of `startup::execution_spaces()`
  bool verify = false;
  std::optional<std::string> json;  ///< path, `-` for standard output
  std::optional<std::string> svg;   ///< path, `-` for standard output
};

/// What `chunked_prefill attend` was asked to do.
struct AttendArguments {
  std::string batch;                           ///< path of the batch, `-` for standard input
  std::int64_t grain = 1;                      ///< of the packed policy
  std::int64_t new_tokens = 1;                 ///< of each sequence
  std::int64_t heads = 4;                      ///< and of each of them
  std::int64_t nope_dim = 128, rope_dim = 64;  ///< its query and key,
  std::int64_t value_dim = 128;                ///< its value
  std::int64_t latent_dim = 512;               ///< of a cached row, beside rope_dim
  CacheType cache_type = CacheType::fp32;
  std::int64_t seed = 1;
  std::string execution_space;      ///< one of `startup::execution_spaces()`
  std::optional<std::string> json;  ///< path, `-` for standard output
  std::optional<std::string> svg;   ///< path, `-` for standard output
};

/// A text that was asked for instead of work: the help or the version.
struct Answer {
  std::string text;
};

/// Reads the command line.
/// \throws InvalidArgument naming the option or argument at fault.
[[nodiscard]] std::variant<PlanArguments, ReplayArguments, AttendArguments, Answer> parse_arguments(
    int argc, const char* const* argv);

}  // namespace chunked_prefill::cli
