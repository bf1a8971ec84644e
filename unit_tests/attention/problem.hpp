// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/attention/prefix_attention.hpp>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "../batch.hpp"

namespace test {

/// A prefill step with all that attention takes, on the host. What a rank of a context-parallel
/// group caches is found by `holds`.
struct Problem {
  cp::MlaShape shape;
  std::vector<std::int32_t> prefix_lens;
  std::vector<std::int32_t> new_lens;
  std::int64_t page_size = 16;
  std::uint32_t seed = 1;

  // Made by `fill`:
  std::vector<std::vector<float>> rows;  ///< of sequence i, its prefix and then its new tokens
  std::vector<float> kv_b, query;

  [[nodiscard]] std::size_t row_dim() const {
    return static_cast<std::size_t>(shape.latent_dim + shape.rope_dim);
  }
  [[nodiscard]] std::int32_t query_tokens() const {
    std::int32_t sum = 0;
    for (const std::int32_t count : new_lens) sum += count;
    return sum;
  }
  [[nodiscard]] float softmax_scale() const {
    return 1 / std::sqrt(static_cast<float>(shape.query_dim()));
  }

  void fill() {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < prefix_lens.size(); ++i) {
      auto& of =
          rows.emplace_back(static_cast<std::size_t>(prefix_lens[i] + new_lens[i]) * row_dim());
      for (float& value : of) value = normal(random);
    }
    kv_b.resize(static_cast<std::size_t>(shape.latent_dim * shape.key_value_columns()));
    for (float& value : kv_b) {
      value = normal(random) / std::sqrt(static_cast<float>(shape.latent_dim));
    }
    query.resize(static_cast<std::size_t>(query_tokens() * shape.num_heads * shape.query_dim()));
    for (float& value : query) value = 2 * normal(random);
  }
};

/// Attention computed at once, in double, from the definition; and how far from it a result may be
/// whose cached rows were rounded.
struct Unchunked {
  std::vector<double> values;  ///< (query_tokens, num_heads, value_dim)
  std::vector<double> lse;     ///< (query_tokens, num_heads) natural
  std::vector<double> bounds;  ///< as `values`, from the rounding of cached rows alone
};

/// Error of a cached element: relative to it, and at least.
struct CacheError {
  double relative = 0;
  double absolute = 0;
};

/// \param cached what of a sequence's rows is from the cache, with an error: the prefix.
///
/// The bound: rows off by e give scores off by at most d = softmax_scale sum |q| |W|^T e over a
/// sequence's keys, hence weights within a factor exp(2 d), and values v off by |W|^T e; so the
/// output is off by at most (exp(2 d) - 1) sum p |v| + exp(2 d) sum p |W|^T e.
inline Unchunked unchunked(const Problem& problem, const CacheError& error = {},
                           bool with_new_tokens = true) {
  const cp::MlaShape& shape = problem.shape;
  const auto columns = static_cast<std::size_t>(shape.key_value_columns());
  const std::size_t latent_dim = static_cast<std::size_t>(shape.latent_dim);
  Unchunked result;
  std::size_t token = 0;
  for (std::size_t i = 0; i < problem.prefix_lens.size(); ++i) {
    const auto prefix = static_cast<std::size_t>(problem.prefix_lens[i]);
    const auto all = prefix + static_cast<std::size_t>(problem.new_lens[i]);
    const auto row = [&](std::size_t k) { return problem.rows[i].data() + k * problem.row_dim(); };
    const auto off = [&](std::size_t k, double value) {
      return k < prefix ? std::max(error.relative * std::abs(value), error.absolute) : 0.0;
    };
    // Keys and values of all tokens, and by how much they may be off.
    std::vector<double> key_values(all * columns, 0), key_values_off(all * columns, 0);
    for (std::size_t k = 0; k < all; ++k) {
      for (std::size_t j = 0; j < latent_dim; ++j) {
        const double value = row(k)[j];
        const double value_off = off(k, value);
        for (std::size_t c = 0; c < columns; ++c) {
          const double weight = problem.kv_b[j * columns + c];
          key_values[k * columns + c] += value * weight;
          key_values_off[k * columns + c] += value_off * std::abs(weight);
        }
      }
    }
    for (std::size_t q = 0; q < static_cast<std::size_t>(problem.new_lens[i]); ++q, ++token) {
      for (std::size_t h = 0; h < static_cast<std::size_t>(shape.num_heads); ++h) {
        const auto nope = static_cast<std::size_t>(shape.nope_dim);
        const auto rope = static_cast<std::size_t>(shape.rope_dim);
        const auto value_dim = static_cast<std::size_t>(shape.value_dim);
        const float* query =
            problem.query.data() +
            (token * static_cast<std::size_t>(shape.num_heads) + h) * (nope + rope);
        const std::size_t column = h * (nope + value_dim);
        const std::size_t seen = with_new_tokens ? prefix + q + 1 : prefix;
        std::vector<double> scores(seen, 0);
        double most = -INFINITY, scores_off = 0;
        for (std::size_t k = 0; k < seen; ++k) {
          double score_off = 0;
          for (std::size_t d = 0; d < nope; ++d) {
            scores[k] += double(query[d]) * key_values[k * columns + column + d];
            score_off += std::abs(query[d]) * key_values_off[k * columns + column + d];
          }
          for (std::size_t d = 0; d < rope; ++d) {
            const double value = row(k)[latent_dim + d];
            scores[k] += double(query[nope + d]) * value;
            score_off += std::abs(query[nope + d]) * off(k, value);
          }
          scores[k] *= problem.softmax_scale();
          scores_off = std::max(scores_off, score_off * problem.softmax_scale());
          most = std::max(most, scores[k]);
        }
        double total = 0;
        for (double& score : scores) total += score = std::exp(score - most);
        result.lse.push_back(most + std::log(total));
        for (std::size_t d = 0; d < value_dim; ++d) {
          double value = 0, size = 0, value_off = 0;
          for (std::size_t k = 0; k < seen; ++k) {
            const std::size_t at = k * columns + column + nope + d;
            value += scores[k] / total * key_values[at];
            size += scores[k] / total * std::abs(key_values[at]);
            value_off += scores[k] / total * key_values_off[at];
          }
          result.values.push_back(value);
          result.bounds.push_back(std::expm1(2 * scores_off) * size +
                                  std::exp(2 * scores_off) * value_off);
        }
      }
    }
  }
  return result;
}

/// How a problem is cut, and what is done wrong on purpose.
struct Run {
  cp::PlanOptions options;
  std::int32_t world_size = 1;  ///< ranks whose states are merged
  std::int32_t interleave = 1;
  float cache_scale = 1;
  bool with_new_tokens = true;
  bool share_pages = false;  ///< sequences of equal rows share pages
  bool swap_pages = false;   ///< the first pages of sequences 0 and 1 change places
  bool drop_loop = false;    ///< the last loop with tokens holds none
  bool wrong_base = false;   ///< a loop's LSE is taken for one in base 2
};

/// A chunked run of a problem on `Space`, with a cache of `Element`.
struct Attended {
  std::vector<float> values, lse;
  std::int32_t loops = 0;
  std::size_t workspace_bytes = 0;
};

template <class Space, class View, class T>
void upload(const View& to, const std::vector<T>& from) {
  const auto host = Kokkos::create_mirror_view(to);
  using Value = typename View::non_const_value_type;
  std::ranges::transform(from, host.data(), [](T value) { return static_cast<Value>(value); });
  Kokkos::deep_copy(to, host);
}

template <class Space, class CacheElement>
Attended attended(const Problem& problem, const Run& run) {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const cp::MlaShape& shape = problem.shape;
  const auto size = [](std::int32_t n) { return static_cast<std::size_t>(n); };
  const auto query_tokens = size(problem.query_tokens());
  const auto heads = size(shape.num_heads);

  cp::MlaLayer<MemorySpace> layer{
      .shape = shape,
      .kv_b = cp::Array2D<float, MemorySpace>("test::kv_b", size(shape.latent_dim),
                                              size(shape.key_value_columns())),
      .softmax_scale = problem.softmax_scale()};
  upload<Space>(layer.kv_b, problem.kv_b);
  const cp::Array3D<float, MemorySpace> query("test::query", query_tokens, heads,
                                              size(shape.query_dim()));
  upload<Space>(query, problem.query);
  std::vector<std::int32_t> cum{0};
  for (const std::int32_t count : problem.new_lens) cum.push_back(cum.back() + count);
  const cp::QueryBatch<MemorySpace> queries{query, to_device<std::int32_t, MemorySpace>(cum)};

  const cp::AttentionWorkspace<MemorySpace> workspace(shape, run.options.chunk_capacity,
                                                      problem.query_tokens());
  const typename cp::AttentionWorkspace<MemorySpace>::State state{
      cp::Array3D<float, MemorySpace>("test::values", query_tokens, heads, size(shape.value_dim)),
      cp::Array2D<float, MemorySpace>("test::lse", query_tokens, heads)};
  cp::clear_state(space, state);

  Attended result;
  result.workspace_bytes = workspace.bytes();
  for (std::int32_t rank = 0; rank < run.world_size; ++rank) {
    Batch batch = make_batch(problem.prefix_lens, run.options.chunk_capacity, problem.page_size);
    batch.policy = run.options.policy;
    batch.grain = run.options.grain;
    batch.shard = {run.world_size, rank, run.interleave};
    if (run.share_pages) {  // sequence 1 begins as sequence 0 does
      const auto common = static_cast<std::ptrdiff_t>(
          std::min(problem.prefix_lens[0], problem.prefix_lens[1]) / problem.page_size);
      auto& of_0 = batch.req_to_page[size(batch.req_pool_indices[0])];
      std::copy_n(of_0.begin(), common, batch.req_to_page[size(batch.req_pool_indices[1])].begin());
    }
    // The rank's cache: each of its tokens at its slot.
    std::int32_t most_page = 0;
    for (const auto& row : batch.req_to_page)
      most_page = std::max(most_page, std::ranges::max(row));
    const auto slots_num = static_cast<std::size_t>((most_page + 1) * problem.page_size);
    std::vector<float> cached(slots_num * problem.row_dim(), NAN);
    for (std::size_t i = 0; i < problem.prefix_lens.size(); ++i) {
      std::int64_t place = 0;
      for (std::int64_t position = 0; position < problem.prefix_lens[i]; ++position) {
        if (!holds(batch.shard, position)) continue;
        const auto& row = batch.req_to_page[size(batch.req_pool_indices[i])];
        const std::int64_t slot =
            row[static_cast<std::size_t>(place / problem.page_size)] * problem.page_size +
            place % problem.page_size;
        for (std::size_t k = 0; k < problem.row_dim(); ++k) {
          cached[static_cast<std::size_t>(slot) * problem.row_dim() + k] =
              problem.rows[i][static_cast<std::size_t>(position) * problem.row_dim() + k] /
              run.cache_scale;
        }
        ++place;
      }
    }
    const cp::Array2D<CacheElement, MemorySpace> cache("test::cache", slots_num, problem.row_dim());
    upload<Space>(cache, cached);
    if (run.swap_pages) {
      std::swap(batch.req_to_page[size(batch.req_pool_indices[0])][0],
                batch.req_to_page[size(batch.req_pool_indices[1])][0]);
    }
    const DeviceBatch<MemorySpace> device(batch);
    cp::ChunkedPrefillMetadata<MemorySpace> metadata;
    cp::ChunkPlan plan = cp::plan_chunks(problem.prefix_lens, batch.options());
    cp::fill(space, plan, device.prefix(), metadata);
    result.loops = plan.chunked_loop_num();
    if (run.drop_loop) {
      const auto last = metadata.cum_seq_lens(plan.chunked_loop_num() - 1);
      Kokkos::deep_copy(last, 0);
    }
    if (run.wrong_base) {
      auto base_two = state;
      base_two.base = cp::LseBase::two;
      cp::attend_prefix(space, plan, metadata, cache, run.cache_scale, layer, queries, workspace,
                        base_two);
    } else {
      cp::attend_prefix(space, plan, metadata, cache, run.cache_scale, layer, queries, workspace,
                        state);
    }
    space.fence();
  }
  if (run.with_new_tokens) {
    const cp::Array2D<float, MemorySpace> latent("test::latent", query_tokens,
                                                 size(shape.latent_dim));
    const cp::Array2D<float, MemorySpace> rope("test::rope", query_tokens, size(shape.rope_dim));
    std::vector<float> latent_rows, rope_rows;
    for (std::size_t i = 0; i < problem.prefix_lens.size(); ++i) {
      for (std::int32_t k = 0; k < problem.new_lens[i]; ++k) {
        const auto row =
            problem.rows[i].begin() +
            static_cast<std::ptrdiff_t>(size(problem.prefix_lens[i] + k) * problem.row_dim());
        latent_rows.insert(latent_rows.end(), row, row + shape.latent_dim);
        rope_rows.insert(rope_rows.end(), row + shape.latent_dim,
                         row + shape.latent_dim + shape.rope_dim);
      }
    }
    upload<Space>(latent, latent_rows);
    upload<Space>(rope, rope_rows);
    cp::attend_new_tokens(space, latent, rope, layer, queries, workspace, state);
  }
  space.fence();
  const auto values = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.values);
  const auto lse = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.lse);
  result.values.assign(values.data(), values.data() + values.size());
  result.lse.assign(lse.data(), lse.data() + lse.size());
  return result;
}

/// The largest difference of the values from `expected`, in units of the largest value.
inline double largest_difference(const Attended& result, const Unchunked& expected) {
  double most = 0, difference = 0;
  for (std::size_t k = 0; k < expected.values.size(); ++k) {
    most = std::max(most, std::abs(expected.values[k]));
    const double off = std::abs(double(result.values[k]) - expected.values[k]);
    difference = std::isnan(off) ? INFINITY : std::max(difference, off);
  }
  return difference / most;
}

}  // namespace test
