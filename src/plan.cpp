// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chunked_prefill/capacity.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/token_shard.hpp>
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
    const std::int32_t chunk_len = chunk_len_for(batch_size, options);
    const bool packed = options.policy == Policy::packed;
    const std::int64_t to_cover =
        packed ? padded_tokens(prefix_lens, options.grain) : std::int64_t{max_prefix_len};
    const std::int32_t loops = loops_for(to_cover, chunk_len, options);
    reserve(plan, loops);

    plan.m_policy = options.policy;
    plan.m_grain = static_cast<std::int32_t>(options.grain);
    plan.m_shard = options.shard;
    plan.m_batch_size = batch_size;
    plan.m_chunk_capacity = options.chunk_capacity;
    plan.m_chunk_len = chunk_len;
    plan.m_max_prefix_len = max_prefix_len;
    plan.m_longest_sequence = static_cast<std::int32_t>(longest);
    clear(plan, loops);
    if (options.shard.world_size == 1) {
      split(prefix_lens, impl::WholeSequence(), plan);
    } else {
      split(prefix_lens, impl::TokenShard(options.shard), plan);
    }
    plan.m_offsets[0] = 0;
    std::inclusive_scan(plan.m_tokens_per_loop.begin(), plan.m_tokens_per_loop.end(),
                        plan.m_offsets.begin() + 1);
  }

  static ChunkShape bound(BatchBounds bounds, const PlanOptions& options) {
    impl::check_range("bounds.batch_size", bounds.batch_size, 0, INT32_MAX);
    impl::check_range("bounds.max_prefix_len", bounds.max_prefix_len, 0, INT32_MAX);
    impl::check_range("bounds.total_tokens", bounds.total_tokens, 0, INT64_MAX);
    bounds.total_tokens = std::min(bounds.total_tokens, bounds.batch_size * bounds.max_prefix_len);
    check_options(static_cast<std::size_t>(bounds.batch_size), options);
    const auto batch_size = static_cast<std::int32_t>(bounds.batch_size);
    const std::int32_t chunk_len = chunk_len_for(batch_size, options);
    const auto max_prefix_len =
        static_cast<std::int32_t>(std::min(bounds.max_prefix_len, bounds.total_tokens));
    std::int64_t to_cover = max_prefix_len;
    if (options.policy == Policy::packed) {
      // Each prefix that is not empty is padded by less than a grain, and to no more than the
      // longest is.
      to_cover = std::min(bounds.total_tokens + std::min(bounds.batch_size, bounds.total_tokens) *
                                                    (options.grain - 1),
                          bounds.batch_size * Grains(options.grain).padded(max_prefix_len));
    }
    // A rank holds at most a turn's share more than its part of a sequence.
    const ContextShard& shard = options.shard;
    const std::int64_t sequences = std::min(bounds.batch_size, bounds.total_tokens);
    const std::int64_t share =
        (bounds.total_tokens + sequences * (shard.world_size - 1) * shard.interleave) /
        shard.world_size;
    const std::int64_t total_tokens = std::min(
        {bounds.total_tokens, share, bounds.batch_size * shard.local_tokens(max_prefix_len)});
    return {.policy = options.policy,
            .grain = static_cast<std::int32_t>(options.grain),
            .shard = shard,
            .batch_size = batch_size,
            .chunk_len = chunk_len,
            .chunked_loop_num = loops_for(to_cover, chunk_len, options),
            .max_prefix_len = max_prefix_len,
            .total_tokens = total_tokens};
  }

 private:
  static void check_options(std::size_t batch_size, const PlanOptions& options) {
    const std::int64_t capacity = options.chunk_capacity;
    impl::check_range("chunk_capacity", capacity, 1, max_supported_chunk_capacity);
    impl::check_range("batch_size", static_cast<std::int64_t>(batch_size), 0, INT32_MAX);
    impl::check_shard(options.shard);
    if (options.policy == Policy::packed) {
      if (options.grain > capacity) {
        throw InvalidArgument("grain", std::to_string(options.grain) +
                                           " is beyond chunk_capacity " + std::to_string(capacity));
      }
      impl::check_range("grain", options.grain, 1, capacity);
      return;
    }
    if (options.grain != 1) {
      throw InvalidArgument("grain", std::to_string(options.grain) +
                                         " belongs to the packed policy; an equal split has 1");
    }
    if (batch_size > static_cast<std::size_t>(capacity)) {
      throw InvalidArgument("chunk_capacity",
                            std::to_string(capacity) + " tokens cannot be split equally among " +
                                std::to_string(batch_size) + " sequences (batch_size)");
    }
  }

  static std::int32_t chunk_len_for(std::int32_t batch_size, const PlanOptions& options) {
    const std::int64_t capacity = options.chunk_capacity;
    if (options.policy == Policy::packed) {
      return static_cast<std::int32_t>(capacity - capacity % options.grain);
    }
    return batch_size == 0 ? 0 : static_cast<std::int32_t>(capacity / batch_size);
  }
  /// \param tokens that loops of `chunk_len` cover: of the longest prefix, or of all when packed.
  static std::int32_t loops_for(std::int64_t tokens, std::int32_t chunk_len,
                                const PlanOptions& options) {
    const std::int64_t loops = tokens == 0 ? 0 : (tokens - 1) / chunk_len + 1;
    if (loops < INT32_MAX) return static_cast<std::int32_t>(loops);
    throw InvalidArgument("chunk_capacity", std::to_string(options.chunk_capacity) + " needs " +
                                                std::to_string(loops) + " loops for " +
                                                std::to_string(tokens) + " tokens");
  }

  /// Lengths in whole grains, in tokens.
  class Grains {
   public:
    explicit Grains(std::int64_t grain) : m_by_grain(static_cast<std::int32_t>(grain)) {}
    [[nodiscard]] std::int64_t padded(std::int32_t length) const {
      if (length == 0 || m_by_grain.value() == 1) return length;
      return (m_by_grain.quotient(length - 1) + std::int64_t{1}) * m_by_grain.value();
    }

   private:
    impl::Divisor m_by_grain;
  };
  template <class Length>
  static std::int64_t padded_tokens(std::span<const Length> prefix_lens, std::int64_t grain) {
    const Grains grains(grain);
    std::int64_t sum = 0;
    for (const Length length : prefix_lens) sum += grains.padded(static_cast<std::int32_t>(length));
    return sum;
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

  /// Loops without a token.
  static void clear(ChunkPlan& plan, std::int32_t loops_needed) {
    const auto loops = static_cast<std::size_t>(loops_needed);
    plan.m_tokens_per_loop.assign(loops, 0);
    plan.m_offsets.resize(loops + 1);
    plan.m_max_chunk_len_per_loop.assign(loops, 0);
    plan.m_seq_begin_per_loop.assign(loops, 0);
    plan.m_seq_end_per_loop.assign(loops, 0);
    plan.m_non_empty_seqs_per_loop.assign(loops, 0);
  }

  template <class Length, impl::Shard Held>
  static void split(std::span<const Length> prefix_lens, const Held& shard, ChunkPlan& plan) {
    if (plan.m_policy == Policy::packed) {
      pack(prefix_lens, shard, plan);
    } else {
      split_equally(prefix_lens, shard, plan);
    }
  }

  /// Sequence after sequence, and of each loop after loop: a loop ends in at most one sequence that
  /// goes on, so that there are fewer than batch_size + loops steps.
  template <class Length, impl::Shard Held>
  static void pack(std::span<const Length> prefix_lens, const Held& shard, ChunkPlan& plan) {
    const Grains grains(plan.m_grain);
    std::size_t loop = 0;
    std::int64_t room = plan.m_chunk_len;  // padded tokens that the loop can still take
    std::int64_t tokens = 0;
    std::int32_t longest = 0, begin = 0, end = 0, non_empty = 0;
    const auto take = [&](std::int32_t sequence, std::int32_t here) {
      begin = non_empty == 0 ? sequence : begin;
      end = here > 0 ? sequence + 1 : end;
      non_empty += here > 0 ? 1 : 0;
      tokens += here;
      longest = std::max(longest, here);
    };
    const auto close = [&] {
      plan.m_tokens_per_loop[loop] = tokens;
      plan.m_max_chunk_len_per_loop[loop] = longest;
      plan.m_seq_begin_per_loop[loop] = non_empty == 0 ? 0 : begin;
      plan.m_seq_end_per_loop[loop] = end;
      plan.m_non_empty_seqs_per_loop[loop] = non_empty;
      ++loop;
      room = plan.m_chunk_len;
      tokens = 0;
      longest = end = non_empty = 0;
    };
    for (std::int32_t i = 0; i < plan.m_batch_size; ++i) {
      const auto length = static_cast<std::int32_t>(prefix_lens[i]);
      std::int64_t needs = grains.padded(length);  // room for what is left of it
      std::int32_t cut = 0;                        // its tokens in loops so far
      std::int32_t held = 0;                       // those of the rank
      while (needs > room) {
        cut += static_cast<std::int32_t>(room);
        needs -= room;
        const std::int32_t through = shard.local(cut);
        take(i, through - held);
        held = through;
        close();
      }
      take(i, shard.local(length) - held);
      room -= needs;
    }
    if (room < plan.m_chunk_len) close();
  }

  /// A sequence fills every loop before its last one, and leaves at least a token for that. Both
  /// are counted in the last loop and summed from the end, so that the cost is O(batch_size +
  /// loops) and not their product.
  template <class Length, impl::Shard Held>
  static void split_equally(std::span<const Length> prefix_lens, const Held& shard,
                            ChunkPlan& plan) {
    auto& tokens = plan.m_tokens_per_loop;
    auto& longest = plan.m_max_chunk_len_per_loop;
    auto& begin = plan.m_seq_begin_per_loop;
    auto& end = plan.m_seq_end_per_loop;
    auto& non_empty = plan.m_non_empty_seqs_per_loop;

    // Sequences that end in a loop and the tokens they leave for it, below 2^31 each, are counted
    // as the halves of one number.
    constexpr int half = 32;
    const std::int32_t chunk_len = plan.m_chunk_len;
    const impl::Divisor by_chunk_len(std::max(chunk_len, 1));
    for (std::int32_t i = 0; i < plan.m_batch_size; ++i) {
      const std::int32_t length = shard.local(static_cast<std::int32_t>(prefix_lens[i]));
      if (length == 0) continue;
      const std::int32_t last = by_chunk_len.quotient(shard.position(length - 1));
      const std::int32_t rest = length - shard.local(last * chunk_len);
      begin[last] = end[last] == 0 ? i : begin[last];
      end[last] = i + 1;
      tokens[last] += (std::int64_t{1} << half) + rest;
      longest[last] = std::max(longest[last], rest);
    }
    std::int32_t filling = 0;  // sequences that go on after the loop
    SeqRange range;            // of them
    const auto cut = [&](std::size_t loop) {
      return shard.local(static_cast<std::int32_t>(std::min(
          static_cast<std::int64_t>(loop) * chunk_len, std::int64_t{plan.m_max_prefix_len})));
    };
    std::int32_t cut_after = cut(tokens.size());
    for (std::size_t loop = tokens.size(); loop > 0;) {
      --loop;
      const auto ending = static_cast<std::int32_t>(tokens[loop] >> half);
      const auto rest = static_cast<std::int32_t>(tokens[loop]);
      const std::int32_t cut_before = cut(loop);
      const std::int32_t full = cut_after - cut_before;
      cut_after = cut_before;
      if (ending > 0) {
        range = filling == 0
                    ? SeqRange{begin[loop], end[loop]}
                    : SeqRange{std::min(begin[loop], range.begin), std::max(end[loop], range.end)};
      }
      tokens[loop] = std::int64_t{filling} * full + rest;
      if (filling > 0 && full > 0) {
        longest[loop] = full;
        begin[loop] = range.begin;
        end[loop] = range.end;
      }
      filling += ending;
      non_empty[loop] = full > 0 ? filling : 0;
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
