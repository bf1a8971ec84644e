// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "batch.hpp"

// Drawn batches, of the unit tests and of the property runner.
namespace test {

/// Numbers drawn from a seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : m_random(seed) {}

  std::int64_t operator()(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(m_random);
  }
  [[nodiscard]] bool one_in(std::int64_t times) { return (*this)(1, times) == 1; }
  template <class T, std::size_t count>
  T of(const T (&values)[count]) {
    return values[(*this)(0, count - 1)];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    std::ranges::shuffle(values, m_random);
  }
  std::mt19937_64& random() { return m_random; }

 private:
  std::mt19937_64 m_random;
};

/// How many sequences, and how long they may be: mostly a few short ones; some that several threads
/// or teams write, and some of more sequences than one kernel takes.
struct Extent {
  std::int64_t sequences, longest;
};
inline Extent draw_extent(Draw& draw) {
  const std::int64_t percent = draw(1, 100);
  if (percent <= 70) return {draw(1, 9), draw(0, 120)};
  if (percent <= 88) return {draw(1, 40), draw(0, 600)};
  if (percent <= 94) return {draw(1, 5), draw(0, 12000)};
  if (percent <= 98) return {draw(100, 512), draw(0, 60)};
  return {draw(513, 1500), draw(0, 30)};
}

/// Lengths up to the longest: equal, one long one beside short ones, mostly zero, or mixed, around
/// multiples of `units`.
inline std::vector<std::int32_t> draw_lengths(Draw& draw, const Extent& extent,
                                              const std::vector<std::int64_t>& units) {
  const std::int64_t longest = extent.longest;
  std::vector<std::int32_t> lens(static_cast<std::size_t>(extent.sequences),
                                 static_cast<std::int32_t>(longest));
  enum { equal, skewed, mostly_zero, mixed };
  const std::int64_t style = draw(equal, mixed + 3);
  if (style == equal) return lens;
  for (auto& length : lens) {
    std::int64_t drawn = 0;
    if (style == skewed) {
      drawn = draw(0, longest / 50 + 1);
    } else if (style == mostly_zero) {
      drawn = draw.one_in(8) ? draw(0, longest) : 0;
    } else {
      const std::int64_t kind = draw(0, 4);
      const std::int64_t unit = units[static_cast<std::size_t>(draw(0, std::ssize(units) - 1))];
      if (kind == 1) drawn = draw(0, longest);
      if (kind == 2 || kind == 3) drawn = draw(0, longest / unit) * unit + draw(-1, 1);
      if (kind == 4) drawn = longest;
    }
    length = static_cast<std::int32_t>(std::clamp<std::int64_t>(drawn, 0, longest));
  }
  if (style == skewed) {
    lens[static_cast<std::size_t>(draw(0, extent.sequences - 1))] =
        static_cast<std::int32_t>(longest);
  }
  return lens;
}

/// A batch without a page table: any page size, chunk length, grain and rank.
inline Batch draw_batch(Draw& draw, cp::Policy policy, bool sharded) {
  Batch batch;
  batch.policy = policy;
  constexpr std::int64_t page_sizes[] = {1, 2, 3, 7, 16, 31, 48, 63, 64, 100, 128, 1000};
  batch.page_size = draw.one_in(4) ? draw(1, 200) : draw.of(page_sizes);
  const Extent extent = draw_extent(draw);
  if (sharded) {
    batch.shard.world_size = static_cast<std::int32_t>(draw(1, 9));
    batch.shard.rank = static_cast<std::int32_t>(draw(0, batch.shard.world_size - 1));
    const std::int64_t interleaves[] = {1, batch.page_size, draw(1, 70), draw(1, 3000)};
    batch.shard.interleave = static_cast<std::int32_t>(draw.of(interleaves));
  }
  const std::int64_t turn = std::int64_t{batch.shard.world_size} * batch.shard.interleave;
  if (policy == cp::Policy::packed) {
    const std::int64_t grains[] = {1, batch.page_size, draw(1, 200),
                                   std::min<std::int64_t>(turn, 4000)};
    batch.grain = draw.of(grains);
  }
  std::int64_t chunk_len = draw.one_in(3) ? draw(1, 3) : draw(1, 300);
  // Beside what the batch has: what the kernels write at a time.
  batch.prefix_lens = draw_lengths(
      draw, extent, {1, batch.page_size, chunk_len, batch.grain, turn, 4, 128, 1024, 4096});

  // Tables stay small.
  constexpr std::int64_t most_chunks = 10000;
  const auto at_least = [&](std::int64_t tokens) {
    return tokens * extent.sequences / most_chunks + 1;
  };
  if (policy == cp::Policy::packed) {
    std::int64_t padded = 0;
    for (const std::int64_t length : batch.prefix_lens) {
      padded += (length + batch.grain - 1) / batch.grain * batch.grain;
    }
    const std::int64_t capacities[] = {extent.sequences * chunk_len, draw(20, 4000)};
    batch.chunk_capacity = std::max({draw.of(capacities), batch.grain, at_least(padded)});
  } else {
    chunk_len = std::max(chunk_len, at_least(*std::ranges::max_element(batch.prefix_lens)));
    batch.chunk_capacity = extent.sequences * chunk_len + draw(0, extent.sequences - 1);
  }
  return batch;
}

/// A drawn batch on a table of distinct pages.
[[nodiscard]] inline Batch random_batch(std::uint32_t seed, cp::Policy policy = cp::Policy::equal,
                                        bool sharded = false) {
  Draw draw(seed);
  Batch batch = draw_batch(draw, policy, sharded);
  make_page_table(batch, draw.random());
  return batch;
}
[[nodiscard]] inline Batch random_packed_batch(std::uint32_t seed) {
  return random_batch(seed, cp::Policy::packed);
}
/// One rank's part of a drawn batch, under either policy.
[[nodiscard]] inline Batch random_shard(std::uint32_t seed) {
  return random_batch(seed, seed % 2 == 0 ? cp::Policy::equal : cp::Policy::packed, true);
}

/// A batch, and how it is handed to the library.
struct Case {
  Batch batch;
  /// Seed of the page table; 0: sequence `i` on row `i`, pages numbered consecutively.
  std::uint64_t pages = 0;
  std::int64_t spare = 0;         ///< elements between the rows of the page table
  std::int64_t more_longest = 0;  ///< of the bounds of a captured build, beyond the batch's own
  std::int64_t more_tokens = 0;
  bool wide_lengths = false, wide_requests = false, wide_slots = false;  ///< int64
  std::uint64_t layout = 0;  ///< seed of where arrays lie and which of several calls builds

  [[nodiscard]] std::int64_t longest() const {
    const auto& lens = batch.prefix_lens;
    return lens.empty() ? 0 : *std::ranges::max_element(lens);
  }
  [[nodiscard]] std::int64_t tokens() const {
    return std::accumulate(batch.prefix_lens.begin(), batch.prefix_lens.end(), std::int64_t{0});
  }
};

/// Makes the page table of `of` for its numbers. Drawn: rows in any order, some of them shared as a
/// whole, some for the pages they begin with, some nobody's; junk in whatever no prefix covers.
inline void lay_pages(Case& of) {
  Batch& batch = of.batch;
  const std::size_t sequences = batch.prefix_lens.size();
  HeldTokens held(batch.shard);
  const auto pages_of = [&](std::int64_t tokens) {
    return static_cast<std::size_t>((held(tokens) + batch.page_size - 1) / batch.page_size);
  };
  std::size_t width = pages_of(of.longest() + of.more_longest);
  batch.req_pool_indices.resize(sequences);
  if (of.pages == 0) {
    batch.req_to_page.assign(sequences, std::vector<std::int32_t>(width, -1));
    std::int32_t next = 0;
    for (std::size_t i = 0; i < sequences; ++i) {
      batch.req_pool_indices[i] = static_cast<std::int32_t>(i);
      const std::size_t covered = pages_of(batch.prefix_lens[i]);
      for (std::size_t page = 0; page < covered; ++page) batch.req_to_page[i][page] = next++;
    }
    return;
  }

  Draw draw(of.pages);
  width += static_cast<std::size_t>(draw(0, 2));
  const std::size_t rows = sequences + static_cast<std::size_t>(draw(0, 2));
  const std::int32_t junk[] = {-1, INT32_MIN, INT32_MAX, 0};
  batch.req_to_page.assign(rows, std::vector<std::int32_t>(width, draw.of(junk)));
  std::vector<std::int32_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  draw.shuffle(order);
  // Slots fit their type; those of int64 may be far beyond int32.
  const std::int64_t last = of.wide_slots ? INT32_MAX : INT32_MAX / batch.page_size - 1;
  const std::int64_t first = of.wide_slots && draw.one_in(2) ? last - 1000000 : 0;
  std::vector<std::size_t> covered(rows, 0);
  for (std::size_t i = 0; i < sequences; ++i) {
    std::int32_t row = order[i];
    const auto earlier = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(i)));
    if (earlier < i && draw.one_in(8)) row = batch.req_pool_indices[earlier];
    batch.req_pool_indices[i] = row;
    const auto at = static_cast<std::size_t>(row);
    auto& pages = batch.req_to_page[at];
    const std::size_t needed = pages_of(batch.prefix_lens[i]);
    if (earlier < i && draw.one_in(4)) {
      const auto other = static_cast<std::size_t>(batch.req_pool_indices[earlier]);
      for (; covered[at] < std::min(needed, covered[other]); ++covered[at]) {
        pages[covered[at]] = batch.req_to_page[other][covered[at]];
      }
    }
    for (; covered[at] < needed; ++covered[at]) {
      pages[covered[at]] = static_cast<std::int32_t>(draw(first, last));
    }
  }
}

/// Batch `number` of those that `seed` gives, with its page table.
[[nodiscard]] inline Case draw_case(std::uint64_t seed, std::uint64_t number) {
  // Neighbours must not look alike (SplitMix64).
  std::uint64_t mixed = (seed << 40 ^ number) + 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
  Draw draw(mixed ^ mixed >> 31);
  Case drawn;
  const cp::Policy policies[] = {cp::Policy::equal, cp::Policy::packed};
  const cp::Policy policy = draw.of(policies);
  drawn.batch = draw_batch(draw, policy, draw.one_in(3));
  if (draw.one_in(300)) drawn.batch.prefix_lens.clear();
  drawn.pages = static_cast<std::uint64_t>(draw(1, INT64_MAX));
  drawn.spare = draw.one_in(2) ? 0 : draw(1, 9);
  if (draw.one_in(2)) drawn.more_longest = draw(0, draw.one_in(2) ? 5 : 300);
  if (draw.one_in(2)) drawn.more_tokens = draw(0, 500);
  drawn.wide_lengths = draw.one_in(2);
  drawn.wide_requests = draw.one_in(2);
  drawn.wide_slots = draw.one_in(2);
  drawn.layout = static_cast<std::uint64_t>(draw(0, INT64_MAX));
  lay_pages(drawn);
  return drawn;
}

}  // namespace test
