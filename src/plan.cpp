// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chunked_prefill/capacity.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/plan.hpp>
#include <numeric>
#include <string>

namespace chunked_prefill {

/// Writes a ChunkPlan: first every check, then every number.
class Planner {
 public:
  template <class Length>
  static void plan(std::span<const Length> prefix_lens, const PlanOptions& options,
                   ChunkPlan& plan) {
    check_options(prefix_lens.size(), options);
    const auto longest = check_lengths(prefix_lens);
    const auto batch_size = static_cast<std::int32_t>(prefix_lens.size());
    const auto max_prefix_len =
        batch_size == 0 ? 0 : static_cast<std::int32_t>(prefix_lens[longest]);
    const auto chunk_len =
        batch_size == 0 ? 0 : static_cast<std::int32_t>(options.chunk_capacity / batch_size);
    const std::size_t loops = max_prefix_len == 0 ? 0 : (max_prefix_len - 1) / chunk_len + 1;
    reserve(plan, loops);

    plan.m_batch_size = batch_size;
    plan.m_chunk_capacity = options.chunk_capacity;
    plan.m_chunk_len = chunk_len;
    plan.m_max_prefix_len = max_prefix_len;
    plan.m_longest_sequence = static_cast<std::int32_t>(longest);
    split_equally(prefix_lens, loops, plan);
    plan.m_offsets[0] = 0;
    std::inclusive_scan(plan.m_tokens_per_loop.begin(), plan.m_tokens_per_loop.end(),
                        plan.m_offsets.begin() + 1);
  }

 private:
  static void check_options(std::size_t batch_size, const PlanOptions& options) {
    const std::int64_t capacity = options.chunk_capacity;
    if (capacity < 1 || capacity > max_supported_chunk_capacity) {
      throw InvalidArgument("chunk_capacity", std::to_string(capacity) + " is outside [1, " +
                                                  std::to_string(max_supported_chunk_capacity) +
                                                  "]");
    }
    if (batch_size > static_cast<std::size_t>(capacity)) {
      throw InvalidArgument("chunk_capacity",
                            std::to_string(capacity) + " tokens cannot be split equally among " +
                                std::to_string(batch_size) + " sequences (batch_size)");
    }
  }

  /// Returns the first sequence of the longest prefix; 0 for an empty batch.
  template <class Length>
  static std::size_t check_lengths(std::span<const Length> prefix_lens) {
    std::size_t longest = 0;
    for (std::size_t i = 0; i < prefix_lens.size(); ++i) {
      if (prefix_lens[i] < 0 || prefix_lens[i] > INT32_MAX) {
        throw InvalidArgument("prefix_lens[" + std::to_string(i) + "]",
                              std::to_string(prefix_lens[i]) + " is outside [0, 2147483647]");
      }
      if (prefix_lens[i] > prefix_lens[longest]) longest = i;
    }
    return longest;
  }

  /// All memory first: nothing after this throws.
  static void reserve(ChunkPlan& plan, std::size_t loops) {
    plan.m_tokens_per_loop.reserve(loops);
    plan.m_offsets.reserve(loops + 1);
    plan.m_max_chunk_len_per_loop.reserve(loops);
    plan.m_seq_begin_per_loop.reserve(loops);
    plan.m_seq_end_per_loop.reserve(loops);
    plan.m_non_empty_seqs_per_loop.reserve(loops);
  }

  /// Each sequence fills `length / chunk_len` loops whole and gives the rest to the next. The whole
  /// ones are counted where they end and summed from the last loop back, so that the cost is
  /// O(batch_size + loops) and not their product.
  template <class Length>
  static void split_equally(std::span<const Length> prefix_lens, std::size_t loops,
                            ChunkPlan& plan) {
    auto& tokens = plan.m_tokens_per_loop;
    auto& longest = plan.m_max_chunk_len_per_loop;
    auto& begin = plan.m_seq_begin_per_loop;
    auto& end = plan.m_seq_end_per_loop;
    auto& non_empty = plan.m_non_empty_seqs_per_loop;
    auto& whole_until = plan.m_offsets;  // until the offsets are known
    tokens.assign(loops, 0);
    longest.assign(loops, 0);
    begin.assign(loops, plan.m_batch_size);
    end.assign(loops, 0);
    non_empty.assign(loops, 0);
    whole_until.assign(loops + 1, 0);

    for (std::int32_t i = 0; i < plan.m_batch_size; ++i) {
      const auto length = static_cast<std::int32_t>(prefix_lens[i]);
      if (length == 0) continue;
      const std::int32_t whole = length / plan.m_chunk_len;
      const std::int32_t rest = length % plan.m_chunk_len;
      const std::int32_t last_loop = rest > 0 ? whole : whole - 1;
      ++whole_until[whole];
      if (rest > 0) {
        tokens[whole] += rest;
        longest[whole] = std::max(longest[whole], rest);
        ++non_empty[whole];
      }
      begin[last_loop] = std::min(begin[last_loop], i);
      end[last_loop] = i + 1;
    }

    std::int32_t whole = 0;  // sequences that fill the loop
    for (std::size_t loop = loops; loop-- > 0;) {
      whole += static_cast<std::int32_t>(whole_until[loop + 1]);
      tokens[loop] += std::int64_t{whole} * plan.m_chunk_len;
      non_empty[loop] += whole;
      if (whole > 0) longest[loop] = plan.m_chunk_len;
      if (loop + 1 < loops) {
        begin[loop] = std::min(begin[loop], begin[loop + 1]);
        end[loop] = std::max(end[loop], end[loop + 1]);
      }
    }
  }
};

void plan_chunks(std::span<const std::int32_t> prefix_lens, const PlanOptions& options,
                 ChunkPlan& plan) {
  Planner::plan(prefix_lens, options, plan);
}

void plan_chunks(std::span<const std::int64_t> prefix_lens, const PlanOptions& options,
                 ChunkPlan& plan) {
  Planner::plan(prefix_lens, options, plan);
}

ChunkPlan plan_chunks(std::span<const std::int32_t> prefix_lens, const PlanOptions& options) {
  ChunkPlan plan;
  Planner::plan(prefix_lens, options, plan);
  return plan;
}

ChunkPlan plan_chunks(std::span<const std::int64_t> prefix_lens, const PlanOptions& options) {
  ChunkPlan plan;
  Planner::plan(prefix_lens, options, plan);
  return plan;
}

}  // namespace chunked_prefill
