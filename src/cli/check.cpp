// SPDX-License-Identifier: MIT
#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>

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

/// One loop of an equal split: positions [start, start + chunk_len) of every sequence.
LoopSums check_loop(const Batch& batch, const Build& build, std::size_t loop, std::int64_t start,
                    std::int64_t chunk_len) {
  LoopSums sums;
  const auto slots = build.slots(loop);
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    const std::int64_t end = std::min<std::int64_t>(batch.prefix_lens[i], start + chunk_len);
    const std::int64_t len = std::max<std::int64_t>(0, end - start);
    const auto at = [&](const char* array, std::int64_t got, std::int64_t expected) {
      if (got != expected)
        expect(array, fmt::format("loop {}, sequence {}", loop, i), got, expected);
    };
    at("starts", build.starts.row(loop)[i], start);
    at("ends", build.ends.row(loop)[i], end);
    at("len_in_chunk", build.len_in_chunk.row(loop)[i], len);
    at("cum_seq_lens", build.cum_seq_lens.row(loop)[i], sums.tokens);
    for (std::int64_t position = start; position < end; ++position) {
      const std::int64_t page =
          batch.page_id(i, static_cast<std::size_t>(position / batch.page_size));
      const std::int64_t slot = page * batch.page_size + position % batch.page_size;
      const auto k = static_cast<std::size_t>(sums.tokens + position - start);
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
  const std::int64_t longest = batch_size == 0 ? 0 : std::ranges::max(batch.prefix_lens);
  const std::int64_t chunk_len = batch_size == 0 ? 0 : batch.chunk_capacity / batch_size;

  std::size_t loop = 0;
  std::int64_t tokens = 0;
  for (std::int64_t start = 0; start < longest; start += chunk_len, ++loop) {
    if (loop == build.loops()) break;
    const std::string where = fmt::format("loop {}", loop);
    expect("chunk_kv_offsets", where, build.chunk_kv_offsets[loop], tokens);
    const LoopSums sums = check_loop(batch, build, loop, start, chunk_len);
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
  expect("chunked_loop_num", "whole batch", static_cast<std::int64_t>(build.loops()),
         chunk_len == 0 ? 0 : (longest + chunk_len - 1) / chunk_len);
}

}  // namespace chunked_prefill::cli
