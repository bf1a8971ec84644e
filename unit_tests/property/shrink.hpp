// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "../draw.hpp"

namespace test {

/// Whether the numbers of `of` are ones that the library takes.
[[nodiscard]] inline bool is_valid(const Case& of) {
  const Batch& batch = of.batch;
  const cp::ContextShard& shard = batch.shard;
  if (shard.world_size < 1 || shard.rank < 0 || shard.rank >= shard.world_size ||
      shard.interleave < 1 || batch.page_size < 1 || batch.chunk_capacity < 1) {
    return false;
  }
  if (batch.policy == cp::Policy::packed) {
    return batch.grain >= 1 && batch.grain <= batch.chunk_capacity;
  }
  return batch.grain == 1 && batch.chunk_capacity >= std::ssize(batch.prefix_lens);
}

/// Makes a case that fails smaller, step by step, for as long as it still fails.
class Shrinker {
 public:
  using Fails = std::function<bool(const Case&)>;

  /// \param fails of a case with its page table.
  Shrinker(Case of, Fails fails) : m_case(std::move(of)), m_fails(std::move(fails)) {}

  /// \returns a case of which no sequence can be left out and no number lowered.
  Case shrink() {
    do {
      m_shrunk = false;
      drop_sequences();
      simplify();
      lower_numbers();
    } while (m_shrunk && m_tries < most_tries);
    return m_case;
  }

 private:
  static constexpr int most_tries = 20000;

  /// Takes what `change` makes of the case, if that fails too.
  template <class Change>
  bool take(const Change& change) {
    if (m_tries >= most_tries) return false;
    Case smaller = m_case;
    change(smaller);
    if (!is_valid(smaller)) return false;
    lay_pages(smaller);
    ++m_tries;
    if (!m_fails(smaller)) return false;
    m_case = std::move(smaller);
    m_shrunk = true;
    return true;
  }

  /// Leaves out half of the sequences, a quarter, and so on down to single ones; with the capacity
  /// as it is, or as much less as keeps the chunk length of an equal split. What cannot be left
  /// out may be empty.
  void drop_sequences() {
    const auto sequences = [&] { return std::ssize(m_case.batch.prefix_lens); };
    for (auto count = sequences(); count > 0; count /= 2) {
      for (std::ptrdiff_t begin = 0; begin < sequences();) {
        const auto end = std::min(begin + count, sequences());
        const auto drop = [&](Case& of) {
          auto& lens = of.batch.prefix_lens;
          lens.erase(lens.begin() + begin, lens.begin() + end);
        };
        const auto drop_capacity = [&](Case& of) {
          const auto before = std::ssize(of.batch.prefix_lens);
          drop(of);
          of.batch.chunk_capacity =
              of.batch.chunk_capacity / before * std::ssize(of.batch.prefix_lens);
        };
        const auto empty = [&](Case& of) {
          auto& lens = of.batch.prefix_lens;
          std::fill(lens.begin() + begin, lens.begin() + end, 0);
        };
        if (take(drop) || take(drop_capacity)) continue;
        const auto& lens = m_case.batch.prefix_lens;
        const bool live = std::any_of(lens.begin() + begin, lens.begin() + end,
                                      [](std::int32_t length) { return length > 0; });
        if (live) take(empty);
        begin = end;
      }
    }
    const auto halve = [](Case& of) {
      for (auto& length : of.batch.prefix_lens) length /= 2;
    };
    while (m_case.longest() > 0 && take(halve)) {
    }
  }

  /// Whatever else is not what it is by default.
  void simplify() {
    const Batch& batch = m_case.batch;
    if (m_case.pages != 0) {
      take([](Case& of) { of.pages = 0; });
    }
    if (batch.shard != cp::ContextShard{}) {
      take([](Case& of) { of.batch.shard = {}; });
    }
    if (batch.policy != cp::Policy::equal) {
      take([](Case& of) {
        of.batch.policy = cp::Policy::equal;
        of.batch.grain = 1;
      });
    }
    for (const auto flag : {&Case::wide_lengths, &Case::wide_requests, &Case::wide_slots}) {
      if (m_case.*flag) {
        take([&](Case& of) { of.*flag = false; });
      }
    }
  }

  void lower_numbers() {
    lower(
        [](Case & of) -> auto& { return of.more_longest; }, 0);
    lower(
        [](Case & of) -> auto& { return of.more_tokens; }, 0);
    lower(
        [](Case & of) -> auto& { return of.spare; }, 0);
    for (std::size_t i = 0; i < m_case.batch.prefix_lens.size(); ++i) {
      lower(
          [&](Case & of) -> auto& { return of.batch.prefix_lens[i]; }, 0);
    }
    lower(
        [](Case & of) -> auto& { return of.batch.page_size; }, 1);
    lower(
        [](Case & of) -> auto& { return of.batch.grain; }, 1);
    lower(
        [](Case & of) -> auto& { return of.batch.chunk_capacity; }, 1);
    lower(
        [](Case & of) -> auto& { return of.batch.shard.rank; }, 0);
    lower(
        [](Case & of) -> auto& { return of.batch.shard.world_size; }, 1);
    lower(
        [](Case & of) -> auto& { return of.batch.shard.interleave; }, 1);
  }
  /// Lowers a number by as much as it can be, then by half of that, and so on down to 1.
  template <class Number>
  void lower(const Number& number, std::int64_t least) {
    for (std::int64_t step = number(m_case) - least; step > 0; step /= 2) {
      while (number(m_case) - step >= least && take([&](Case& of) {
               auto& value = number(of);
               value = static_cast<std::remove_reference_t<decltype(value)>>(value - step);
             })) {
      }
    }
  }

  Case m_case;
  Fails m_fails;
  int m_tries = 0;
  bool m_shrunk = false;
};

}  // namespace test
