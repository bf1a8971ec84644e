// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chunked_prefill/capacity.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/impl/check_range.hpp>
#include <chunked_prefill/impl/divisor.hpp>
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
    const std::int32_t chunk_len = equal_chunk_len(batch_size, options);
    const std::int32_t loops = loops_for(max_prefix_len, chunk_len, options);
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

  static ChunkShape bound(const BatchBounds& bounds, const PlanOptions& options) {
    impl::check_range("bounds.batch_size", bounds.batch_size, 0, INT32_MAX);
    impl::check_range("bounds.max_prefix_len", bounds.max_prefix_len, 0, INT32_MAX);
    impl::check_range("bounds.total_tokens", bounds.total_tokens, 0,
                      bounds.batch_size * bounds.max_prefix_len);
    check_options(static_cast<std::size_t>(bounds.batch_size), options);
    const auto batch_size = static_cast<std::int32_t>(bounds.batch_size);
    const std::int32_t chunk_len = equal_chunk_len(batch_size, options);
    const auto max_prefix_len =
        static_cast<std::int32_t>(std::min(bounds.max_prefix_len, bounds.total_tokens));
    return {.batch_size = batch_size,
            .chunk_len = chunk_len,
            .chunked_loop_num = loops_for(max_prefix_len, chunk_len, options),
            .max_prefix_len = max_prefix_len,
            .total_tokens = bounds.total_tokens};
  }

 private:
  static void check_options(std::size_t batch_size, const PlanOptions& options) {
    const std::int64_t capacity = options.chunk_capacity;
    impl::check_range("chunk_capacity", capacity, 1, max_supported_chunk_capacity);
    if (batch_size > static_cast<std::size_t>(capacity)) {
      throw InvalidArgument("chunk_capacity",
                            std::to_string(capacity) + " tokens cannot be split equally among " +
                                std::to_string(batch_size) + " sequences (batch_size)");
    }
  }

  static std::int32_t equal_chunk_len(std::int32_t batch_size, const PlanOptions& options) {
    return batch_size == 0 ? 0 : static_cast<std::int32_t>(options.chunk_capacity / batch_size);
  }
  static std::int32_t loops_for(std::int32_t max_prefix_len, std::int32_t chunk_len,
                                const PlanOptions& options) {
    const std::int64_t loops = max_prefix_len == 0 ? 0 : (max_prefix_len - 1) / chunk_len + 1;
    if (loops < INT32_MAX) return static_cast<std::int32_t>(loops);
    throw InvalidArgument("chunk_capacity", std::to_string(options.chunk_capacity) + " needs " +
                                                std::to_string(loops) + " loops for " +
                                                std::to_string(max_prefix_len) + " tokens");
  }

  /// Returns the first sequence of the longest prefix; 0 for an empty batch.
  template <class Length>
  static std::size_t check_lengths(std::span<const Length> prefix_lens) {
    Length most = 0;
    Length bits = 0;  // negative when any length is
    for (const Length length : prefix_lens) {
      most = std::max(most, length);
      bits |= length;
    }
    if (bits < 0 || most > INT32_MAX) {
      for (std::size_t i = 0; i < prefix_lens.size(); ++i) {
        impl::check_range("prefix_lens[" + std::to_string(i) + "]", prefix_lens[i], 0, INT32_MAX);
      }
    }
    if (most == 0) return 0;
    return static_cast<std::size_t>(std::ranges::find(prefix_lens, most) - prefix_lens.begin());
  }

  /// All memory first: nothing after this throws.
  static void reserve(ChunkPlan& plan, std::int32_t loops_needed) {
    const auto loops = static_cast<std::size_t>(loops_needed);
    plan.m_tokens_per_loop.reserve(loops);
    plan.m_offsets.reserve(loops + 1);
    plan.m_max_chunk_len_per_loop.reserve(loops);
    plan.m_seq_begin_per_loop.reserve(loops);
    plan.m_seq_end_per_loop.reserve(loops);
    plan.m_non_empty_seqs_per_loop.reserve(loops);
  }

  /// A sequence fills every loop before its last one, and leaves between 1 and chunk_len tokens for
  /// that. Both are counted in the last loop and summed from the end, so that the cost is
  /// O(batch_size + loops) and not their product.
  template <class Length>
  static void split_equally(std::span<const Length> prefix_lens, std::int32_t loops_needed,
                            ChunkPlan& plan) {
    const auto loops = static_cast<std::size_t>(loops_needed);
    auto& tokens = plan.m_tokens_per_loop;
    auto& longest = plan.m_max_chunk_len_per_loop;
    auto& begin = plan.m_seq_begin_per_loop;
    auto& end = plan.m_seq_end_per_loop;
    auto& non_empty = plan.m_non_empty_seqs_per_loop;
    tokens.assign(loops, 0);
    longest.assign(loops, 0);
    begin.assign(loops, plan.m_batch_size);
    end.assign(loops, 0);
    non_empty.assign(loops, 0);
    plan.m_offsets.resize(loops + 1);

    // Sequences that end in a loop and the tokens they leave for it, below 2^31 each, are counted
    // as the halves of one number.
    constexpr int half = 32;
    const std::int32_t chunk_len = plan.m_chunk_len;
    const impl::Divisor by_chunk_len(std::max(chunk_len, 1));
    for (std::int32_t i = 0; i < plan.m_batch_size; ++i) {
      const auto length = static_cast<std::int32_t>(prefix_lens[i]);
      if (length == 0) continue;
      const std::int32_t last = by_chunk_len.quotient(length - 1);
      const std::int32_t rest = length - last * chunk_len;
      tokens[last] += (std::int64_t{1} << half) + rest;
      longest[last] = std::max(longest[last], rest);
      begin[last] = std::min(begin[last], i);
      end[last] = i + 1;
    }
    std::int32_t filling = 0;  // sequences that go on after the loop
    for (std::size_t loop = loops; loop-- > 0;) {
      const auto ending = static_cast<std::int32_t>(tokens[loop] >> half);
      const auto rest = static_cast<std::int32_t>(tokens[loop]);
      tokens[loop] = std::int64_t{filling} * chunk_len + rest;
      if (filling > 0) {
        longest[loop] = chunk_len;
        begin[loop] = std::min(begin[loop], begin[loop + 1]);
        end[loop] = std::max(end[loop], end[loop + 1]);
      }
      filling += ending;
      non_empty[loop] = filling;
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

ChunkShape bounding_shape(const BatchBounds& bounds, const PlanOptions& options) {
  return Planner::bound(bounds, options);
}

}  // namespace chunked_prefill
