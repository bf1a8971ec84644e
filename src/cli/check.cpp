// SPDX-License-Identifier: MIT
#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace chunked_prefill::cli {
namespace {

void expect(const char* array, const std::string& where, std::int64_t got, std::int64_t expected) {
  if (got == expected) return;
  throw CheckFailed(fmt::format("{}: {}: got {}, expected {}", array, where, got, expected));
}

/// What the chunks of one loop add up to.
struct LoopSums {
  std::int64_t tokens = 0;
  std::int64_t max_chunk_len = 0;
  std::int64_t seq_begin = 0;
  std::int64_t seq_end = 0;
  std::int64_t non_empty_seqs = 0;

  void add(std::int64_t sequence, std::int64_t len) {
    if (len == 0) return;
    if (non_empty_seqs == 0) seq_begin = sequence;
    seq_end = sequence + 1;
    ++non_empty_seqs;
    tokens += len;
    max_chunk_len = std::max(max_chunk_len, len);
  }
};

/// Whether the rank holds the token at `position` of a sequence.
bool holds(const ContextShard& shard, std::int64_t position) {
  return shard.world_size == 1 || position / shard.interleave % shard.world_size == shard.rank;
}

/// Positions [start, end) of a sequence in a loop, and how many of the rank's are before them.
struct Range {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t held_start = 0;
  std::int64_t held_end = 0;
};

/// The loops of a batch one after another, from the definition of the policy.
class Loops {
 public:
  Loops(const Batch& batch, Policy policy, std::int64_t grain)
      : m_lens(batch.prefix_lens),
        m_shard(batch.shard),
        m_policy(policy),
        m_grain(grain),
        m_capacity(batch.chunk_capacity),
        m_ranges(batch.prefix_lens.size()),
        m_held_to(batch.prefix_lens.size()) {}

  /// Moves on to the next loop; false when there is none.
  bool next() { return m_policy == Policy::packed ? next_packed() : next_equal(); }
  [[nodiscard]] const std::vector<Range>& ranges() const { return m_ranges; }

 private:
  /// The rank's tokens of a number that goes up from call to call, counted one by one.
  struct Held {
    std::int64_t tokens = 0;
    std::int64_t held = 0;

    std::int64_t to(std::int64_t end, const ContextShard& shard) {
      if (shard.world_size == 1) return end;
      for (; tokens < end; ++tokens) held += holds(shard, tokens) ? 1 : 0;
      return held;
    }
  };

  /// As many positions of every sequence, from where the last loop ended.
  bool next_equal() {
    if (m_lens.empty() || m_position >= std::ranges::max(m_lens)) return false;
    const std::int64_t chunk_len = m_capacity / static_cast<std::int64_t>(m_lens.size());
    const std::int64_t held_start = m_held_to_position.to(m_position, m_shard);
    for (std::size_t i = 0; i < m_lens.size(); ++i) {
      const auto end = std::min<std::int64_t>(m_lens[i], m_position + chunk_len);
      m_ranges[i] = {m_position, end, held_start, m_held_to[i].to(end, m_shard)};
    }
    m_position += chunk_len;
    return true;
  }
  /// Grain after grain of sequence after sequence, while the loop has room for a whole one.
  bool next_packed() {
    for (auto& range : m_ranges) {
      range.start = range.end;
      range.held_start = range.held_end;
    }
    bool any = false;
    for (std::int64_t room = m_capacity; room >= m_grain && m_sequence < m_lens.size();) {
      auto& range = m_ranges[m_sequence];
      const std::int64_t length = m_lens[m_sequence];
      if (range.end == length) {
        ++m_sequence;
        continue;
      }
      range.end = std::min(length, range.end + m_grain);
      range.held_end = m_held_to[m_sequence].to(range.end, m_shard);
      room -= m_grain;
      any = true;
    }
    return any;
  }

  const std::vector<std::int32_t>& m_lens;
  ContextShard m_shard;
  Policy m_policy;
  std::int64_t m_grain, m_capacity;
  std::int64_t m_position = 0;  ///< equal: where the next loop begins
  std::size_t m_sequence = 0;   ///< packed: which the next loop takes from
  Held m_held_to_position;
  std::vector<Range> m_ranges;
  std::vector<Held> m_held_to;  ///< the end of each sequence's range
};

LoopSums check_loop(const Batch& batch, const Build& build, std::size_t loop,
                    const std::vector<Range>& ranges) {
  LoopSums sums;
  const auto slots = build.slots(loop);
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    const auto [start, end, held_start, held_end] = ranges[i];
    const std::int64_t len = std::max<std::int64_t>(0, held_end - held_start);
    const auto at = [&](const char* array, std::int64_t got, std::int64_t expected) {
      if (got != expected)
        expect(array, fmt::format("loop {}, sequence {}", loop, i), got, expected);
    };
    at("starts", build.starts.row(loop)[i], held_start);
    at("ends", build.ends.row(loop)[i], held_end);
    at("len_in_chunk", build.len_in_chunk.row(loop)[i], len);
    at("cum_seq_lens", build.cum_seq_lens.row(loop)[i], sums.tokens);
    std::int64_t place = held_start;  // of the rank's tokens of the sequence
    for (std::int64_t position = start; position < end; ++position) {
      if (!holds(batch.shard, position)) continue;
      const std::int64_t page = batch.page_id(i, static_cast<std::size_t>(place / batch.page_size));
      const std::int64_t slot = page * batch.page_size + place % batch.page_size;
      const auto k = static_cast<std::size_t>(sums.tokens + place - held_start);
      ++place;
      if (k >= slots.size())
        at("chunk_kv_offsets", static_cast<std::int64_t>(slots.size()), sums.tokens + len);
      if (slots[k] != slot) {
        expect("chunk_kv_indices",
               fmt::format("loop {}, sequence {}, position {}", loop, i, position), slots[k], slot);
      }
    }
    sums.add(static_cast<std::int64_t>(i), len);
  }
  return sums;
}

}  // namespace

void check(const Batch& batch, const Build& build) {
  const auto batch_size = static_cast<std::int64_t>(batch.prefix_lens.size());
  Loops loops(batch, build.options.policy, build.options.grain);
  std::size_t loop = 0;
  std::int64_t tokens = 0;
  for (; loops.next(); ++loop) {
    if (loop >= build.loops()) continue;  // counted
    const std::string where = fmt::format("loop {}", loop);
    expect("chunk_kv_offsets", where, build.chunk_kv_offsets[loop], tokens);
    const LoopSums sums = check_loop(batch, build, loop, loops.ranges());
    tokens += sums.tokens;
    expect("chunk_kv_offsets", fmt::format("loop {}", loop + 1), build.chunk_kv_offsets[loop + 1],
           tokens);
    expect("cum_seq_lens", where + ", total", build.cum_seq_lens.row(loop).back(), sums.tokens);
    expect("tokens_per_loop", where, build.plan.tokens_per_loop()[loop], sums.tokens);
    expect("max_chunk_len_per_loop", where, build.plan.max_chunk_len_per_loop()[loop],
           sums.max_chunk_len);
    expect("seq_begin_per_loop", where, build.plan.seq_begin_per_loop()[loop], sums.seq_begin);
    expect("seq_end_per_loop", where, build.plan.seq_end_per_loop()[loop], sums.seq_end);
    expect("non_empty_seqs_per_loop", where, build.plan.non_empty_seqs_per_loop()[loop],
           sums.non_empty_seqs);
    expect("has_empty_seq_per_loop", where,
           build.plan.has_empty_seq(static_cast<std::int32_t>(loop)) ? 1 : 0,
           sums.non_empty_seqs < batch_size ? 1 : 0);
  }
  expect("chunked_loop_num", "whole batch", build.plan.chunked_loop_num(),
         static_cast<std::int64_t>(loop));
}

}  // namespace chunked_prefill::cli
