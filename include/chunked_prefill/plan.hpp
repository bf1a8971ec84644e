// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chunked_prefill/impl/check_range.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

namespace chunked_prefill {

/// How the prefixes of a batch are shared out among loops.
enum class Policy : std::uint8_t {
  equal,   ///< every sequence gives every loop the same number of tokens, as long as it has some
  packed,  ///< sequence after sequence fills loop after loop: the fewest loops, at grain 1
};

[[nodiscard]] constexpr const char* name(Policy policy) {
  return policy == Policy::packed ? "packed" : "equal";
}

/// Which tokens a rank of a context-parallel group holds: of every sequence those whose `(position
/// / interleave) mod world_size` is `rank`, in order, in pages of the rank's own. The default holds
/// all of them.
///
/// Example: of 10 tokens, with interleave 4, rank 0 of 2 holds the positions 0 to 3, 8 and 9.
struct ContextShard {
  std::int32_t world_size = 1;
  std::int32_t rank = 0;
  std::int32_t interleave = 1;  ///< tokens that one rank holds before the next rank's turn

  /// How many of the first `tokens` tokens of a sequence the rank holds; `tokens` is not negative.
  [[nodiscard]] constexpr std::int64_t local_tokens(std::int64_t tokens) const {
    const std::int64_t turn = std::int64_t{world_size} * interleave;
    return tokens / turn * interleave + std::clamp(tokens % turn - std::int64_t{rank} * interleave,
                                                   std::int64_t{0}, std::int64_t{interleave});
  }
  /// A grain that keeps the cuts of every rank at the ends of its pages: `page_size` for one rank
  /// or where the interleave is whole pages, else `world_size` times the least common multiple of
  /// page size and interleave. Both are positive.
  [[nodiscard]] constexpr std::int64_t page_grain(std::int64_t page_size) const {
    if (world_size == 1 || interleave % page_size == 0) return page_size;
    return world_size * std::lcm(page_size, std::int64_t{interleave});
  }
  friend bool operator==(const ContextShard&, const ContextShard&) = default;
};

/// What decides the cuts, beside the prefix lengths.
struct PlanOptions {
  /// Tokens that all chunks of one loop may hold together; `get_max_chunk_capacity` computes it
  /// from an engine's settings. At most INT32_MAX; at least the batch size for an equal split, and
  /// the grain for a packed one.
  std::int64_t chunk_capacity = 32768;
  Policy policy = Policy::equal;
  /// Packed: a sequence is cut at multiples of this many tokens only, such as the page size. 1
  /// gives the fewest loops.
  std::int64_t grain = 1;
  /// Whose tokens are counted. The cuts are those of all ranks together, and prefix lengths,
  /// capacity and grain count the tokens of all; numbers per loop, the chunk table and the slots
  /// are the rank's own. Works with any grain; `ContextShard::page_grain` keeps pages whole.
  ContextShard shard = {};
};

/// What `fill` needs of a plan: the shape of the chunk table, and where the device's lengths are
/// cut.
struct ChunkShape {
  Policy policy = Policy::equal;
  std::int32_t grain = 1;             ///< tokens, between cuts of a sequence
  ContextShard shard = {};            ///< whose tokens are meant by `total_tokens`
  std::int32_t batch_size = 0;        ///< sequences
  std::int32_t chunk_len = 0;         ///< tokens one sequence gives to one loop at most, all ranks
  std::int32_t chunked_loop_num = 0;  ///< loops
  std::int32_t max_prefix_len = 0;    ///< tokens, of all ranks
  std::int64_t total_tokens = 0;      ///< of all loops together
  friend bool operator==(const ChunkShape&, const ChunkShape&) = default;
};

/// Half-open range of sequences, by their index in the batch.
struct SeqRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  friend bool operator==(const SeqRange&, const SeqRange&) = default;
};

/// How a batch's cached prefixes are walked, as plain host data: the numbers that engines need on
/// the host to launch kernels, and all that `fill` needs to size and write the device's side. A
/// plan that was moved from can be planned into again, and has no numbers until then. Accessors
/// take a `loop` in [0, chunked_loop_num).
///
/// Example: prefix_lens {0, 300, 0, 64} with chunk_capacity 1024 gives chunk_len 256 and two loops:
///
///     loop  tokens  max_chunk_len  seq_range  non_empty_seqs  has_empty_seq
///        0     320            256     [1, 4)               2           true
///        1      44             44     [1, 2)               1           true
class ChunkPlan {
 public:
  [[nodiscard]] std::int32_t batch_size() const { return m_batch_size; }
  /// Tokens one loop may hold, as asked for.
  [[nodiscard]] std::int64_t chunk_capacity() const { return m_chunk_capacity; }
  [[nodiscard]] Policy policy() const { return m_policy; }
  /// Tokens between the places where a sequence may be cut; 1 for an equal split.
  [[nodiscard]] std::int32_t grain() const { return m_grain; }
  /// The rank that the numbers per loop are of.
  [[nodiscard]] ContextShard shard() const { return m_shard; }
  /// Tokens one sequence gives to one loop at most, on all ranks together: for an equal split
  /// `chunk_capacity / batch_size`, 0 for an empty batch; for a packed one `chunk_capacity` cut to
  /// whole grains.
  [[nodiscard]] std::int32_t chunk_len() const { return m_chunk_len; }
  /// Number of loops; 0 when no sequence has a cached prefix.
  [[nodiscard]] std::int32_t chunked_loop_num() const {
    return static_cast<std::int32_t>(m_tokens_per_loop.size());
  }
  /// Tokens of all loops together: the sum of the prefix lengths, or of the rank's part of them.
  [[nodiscard]] std::int64_t total_tokens() const {
    return m_offsets.empty() ? 0 : m_offsets.back();
  }
  /// Longest prefix of the batch, in tokens of all ranks, and the first sequence that has it.
  [[nodiscard]] std::int32_t max_prefix_len() const { return m_max_prefix_len; }
  [[nodiscard]] std::int32_t longest_sequence() const { return m_longest_sequence; }

  [[nodiscard]] ChunkShape shape() const {
    return {.policy = m_policy,
            .grain = m_grain,
            .shard = m_shard,
            .batch_size = m_batch_size,
            .chunk_len = m_chunk_len,
            .chunked_loop_num = chunked_loop_num(),
            .max_prefix_len = m_max_prefix_len,
            .total_tokens = total_tokens()};
  }

  // Of one loop; \throws InvalidArgument naming `loop` when there is no such.

  /// Tokens of loop `loop`, over all sequences.
  [[nodiscard]] std::int64_t tokens(std::int32_t loop) const {
    return element(m_tokens_per_loop, loop);
  }
  /// Where loop `loop` begins in the flat `chunk_kv_indices`; also valid one past the last loop.
  [[nodiscard]] std::int64_t offset(std::int32_t loop) const { return element(m_offsets, loop); }
  /// Tokens of the longest sequence chunk in loop `loop`.
  [[nodiscard]] std::int32_t max_chunk_len(std::int32_t loop) const {
    return element(m_max_chunk_len_per_loop, loop);
  }
  /// The shortest range that holds every sequence with a token in loop `loop`; [0, 0) where there
  /// is none, as a shard can have it.
  [[nodiscard]] SeqRange seq_range(std::int32_t loop) const {
    return {element(m_seq_begin_per_loop, loop), element(m_seq_end_per_loop, loop)};
  }
  /// How many sequences have a token in loop `loop`.
  [[nodiscard]] std::int32_t non_empty_seqs(std::int32_t loop) const {
    return element(m_non_empty_seqs_per_loop, loop);
  }
  /// Whether some sequence of the batch has no token in loop `loop`, so that attention needs a
  /// mask.
  [[nodiscard]] bool has_empty_seq(std::int32_t loop) const {
    return non_empty_seqs(loop) < m_batch_size;
  }

  /// The same, one element a loop (`offsets`: one more).
  [[nodiscard]] std::span<const std::int64_t> tokens_per_loop() const { return m_tokens_per_loop; }
  [[nodiscard]] std::span<const std::int64_t> offsets() const { return m_offsets; }
  [[nodiscard]] std::span<const std::int32_t> max_chunk_len_per_loop() const {
    return m_max_chunk_len_per_loop;
  }
  [[nodiscard]] std::span<const std::int32_t> seq_begin_per_loop() const {
    return m_seq_begin_per_loop;
  }
  [[nodiscard]] std::span<const std::int32_t> seq_end_per_loop() const {
    return m_seq_end_per_loop;
  }
  [[nodiscard]] std::span<const std::int32_t> non_empty_seqs_per_loop() const {
    return m_non_empty_seqs_per_loop;
  }

 private:
  friend class Planner;

  template <class T>
  static T element(const std::vector<T>& per_loop, std::int32_t loop) {
    impl::check_range("loop", loop, 0, std::ssize(per_loop) - 1);
    return per_loop[static_cast<std::size_t>(loop)];
  }

  Policy m_policy = Policy::equal;
  std::int32_t m_grain = 1;
  ContextShard m_shard;
  std::int32_t m_batch_size = 0;
  std::int64_t m_chunk_capacity = 0;
  std::int32_t m_chunk_len = 0;
  std::int32_t m_max_prefix_len = 0;
  std::int32_t m_longest_sequence = 0;
  std::vector<std::int64_t> m_tokens_per_loop;
  std::vector<std::int64_t> m_offsets = {0};
  std::vector<std::int32_t> m_max_chunk_len_per_loop;
  std::vector<std::int32_t> m_seq_begin_per_loop;
  std::vector<std::int32_t> m_seq_end_per_loop;
  std::vector<std::int32_t> m_non_empty_seqs_per_loop;
};

/// Splits the cached prefixes of a batch into loops.
///
/// Equal: loop `c` covers the positions `[c * chunk_len, (c + 1) * chunk_len)` of every sequence,
/// `chunk_len = chunk_capacity / batch_size`, as many loops as the longest prefix needs.
///
/// Packed: with each length rounded up to whole grains and laid end to end, loop `c` covers `[c *
/// chunk_len, (c + 1) * chunk_len)`, `chunk_len` being `chunk_capacity` cut to whole grains. The
/// sequences of a loop are side by side, and at most one of them goes on in the next. At grain 1
/// there are `ceil(total_tokens / chunk_capacity)` loops, and no split has fewer.
///
/// Pure host arithmetic, O(batch_size + chunked_loop_num); needs no initialised Kokkos.
///
/// \param prefix_lens (batch_size), tokens; an empty batch and all-zero lengths give zero loops.
/// \throws InvalidArgument naming `chunk_capacity` when it is outside [1, INT32_MAX], less than the
///   batch size (equal) or so small that INT32_MAX loops are needed; naming `grain` when it is
///   outside [1, chunk_capacity], or is not 1 for an equal split; naming `shard.rank` when it is
///   outside [0, world_size), `shard.world_size` or `shard.interleave` when it or their product is
///   outside [1, INT32_MAX]; naming `batch_size` when there are more than INT32_MAX lengths; naming
///   `prefix_lens[i]` when an element is outside [0, INT32_MAX].
[[nodiscard]] ChunkPlan plan_chunks(std::span<const std::int32_t> prefix_lens,
                                    const PlanOptions& options = {});
[[nodiscard]] ChunkPlan plan_chunks(std::span<const std::int64_t> prefix_lens,
                                    const PlanOptions& options = {});

/// The same into an existing plan, which keeps its memory: no allocation once it is warm.
/// `prefix_lens` must not lie in `plan`. When this throws, `plan` is as it was.
void plan_chunks(std::span<const std::int32_t> prefix_lens, const PlanOptions& options,
                 ChunkPlan& plan);
void plan_chunks(std::span<const std::int64_t> prefix_lens, const PlanOptions& options,
                 ChunkPlan& plan);

/// The largest batches of a build that is captured once and replayed; tokens of all ranks.
struct BatchBounds {
  std::int64_t batch_size = 0;      ///< sequences, padding sequences of length 0 included
  std::int64_t max_prefix_len = 0;  ///< tokens of the longest prefix
  std::int64_t total_tokens = 0;    ///< tokens of all prefixes together; of use where it is less
                                    ///< than `batch_size * max_prefix_len`
};

/// The shape that holds every batch within `bounds`, for a build that is captured in a graph and
/// replayed with other lengths and pages in the same buffers: see `fill`. (The shape of a plan
/// holds its own batch: packed with a grain, other lengths of the same total can need more loops.)
///
/// \throws InvalidArgument naming the bound that is negative or, but for `total_tokens`, beyond
///   INT32_MAX; naming what of `options` `plan_chunks` would.
[[nodiscard]] ChunkShape bounding_shape(const BatchBounds& bounds, const PlanOptions& options = {});

}  // namespace chunked_prefill
