// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "arguments.hpp"
#include "batch.hpp"
#include "normal.hpp"
#include "stages.hpp"

namespace chunked_prefill::cli {

/// What attention is computed of and with, but for the cache.
struct AttentionData {
  std::vector<float> kv_b;   ///< (latent_dim, num_heads * (nope_dim + value_dim))
  std::vector<float> query;  ///< (query_tokens, num_heads, nope_dim + rope_dim)
  std::vector<float> rows;   ///< (query_tokens, latent_dim + rope_dim) of the new tokens
  float softmax_scale = 1;
};

/// What the loop gave.
struct AttentionResult {
  std::vector<float> values;  ///< (query_tokens, num_heads, value_dim)
  std::vector<float> lse;     ///< (query_tokens, num_heads) natural
  std::int64_t loops = 0;
  StageSeconds seconds{};  ///< with a fence after each stage
};

/// The attention component on one execution space, with a cache of its own. Initialises Kokkos for
/// as long as it lives, so there can be one in a process.
class Attention {
 public:
  virtual ~Attention() = default;

  /// Row of the cache, as it was rounded. (latent_dim + rope_dim)
  virtual void cached_row(std::int64_t slot, std::span<float> row) const = 0;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
  /// A step, timed after kernels and memory have been used once.
  /// \param after_loop called with the number of loops done and all; no part of the times.
  [[nodiscard]] virtual AttentionResult run(
      const PlanOptions& options,
      const std::function<void(std::int64_t, std::int64_t)>& after_loop) = 0;
};

/// Whether this build has the attention component.
[[nodiscard]] bool has_attention();

/// \param batch, \param data must outlive the result.
/// \param slots of the cache, filled with `values`, row after row.
[[nodiscard]] std::unique_ptr<Attention> make_attention(const Batch& batch,
                                                        const AttendArguments& arguments,
                                                        const AttentionData& data,
                                                        std::int64_t slots, Normal values);

}  // namespace chunked_prefill::cli
