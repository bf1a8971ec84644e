// SPDX-License-Identifier: MIT
#include "unchunked.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace chunked_prefill::cli {

std::vector<QueryHead> some_query_heads(const Batch& batch, const AttendArguments& arguments,
                                        double keys) {
  const std::int64_t heads = arguments.heads, pairs = arguments.new_tokens * heads;
  double all = 0;
  for (const std::int32_t length : batch.prefix_lens) {
    // Taking the query to the rows and the sum from them costs as much as half as many keys as a
    // head has columns.
    all += static_cast<double>(pairs) *
           (length + 0.5 * static_cast<double>(arguments.new_tokens + arguments.nope_dim +
                                               arguments.value_dim));
  }
  const auto count =
      std::max(static_cast<std::int64_t>(static_cast<double>(pairs) * std::min(keys / all, 1.)),
               std::int64_t{1});
  // Steps of about the golden section are spread whatever their number, and meet no pair twice.
  auto step = static_cast<std::int64_t>(0.618 * static_cast<double>(pairs)) + 1;
  while (std::gcd(step, pairs) != 1) ++step;
  std::vector<QueryHead> some;
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    std::int64_t pair = static_cast<std::int64_t>(i) % pairs;
    for (std::int64_t k = 0; k < count; ++k, pair = (pair + step) % pairs) {
      some.push_back({.sequence = i, .token = pair / heads, .head = pair % heads});
    }
  }
  return some;
}

Unchunked unchunked(const Batch& batch, const AttendArguments& arguments, const AttentionData& data,
                    const Attention& cache, const QueryHead& of) {
  const auto size = [](std::int64_t extent) { return static_cast<std::size_t>(extent); };
  const std::size_t nope = size(arguments.nope_dim), rope = size(arguments.rope_dim),
                    value_dim = size(arguments.value_dim), latent = size(arguments.latent_dim),
                    heads = size(arguments.heads), columns = heads * (nope + value_dim);
  const std::size_t first_new = of.sequence * size(arguments.new_tokens);
  const std::size_t prefix = size(batch.prefix_lens[of.sequence]);
  const std::size_t keys = prefix + size(of.token) + 1;  // causal
  const float* const query =
      data.query.data() + ((first_new + size(of.token)) * heads + size(of.head)) * (nope + rope);
  const float* const weights = data.kv_b.data() + size(of.head) * (nope + value_dim);

  std::vector<float> cached(latent + rope);
  const auto row = [&](std::size_t key) -> std::span<const float> {
    if (key >= prefix) {
      return std::span(data.rows).subspan((first_new + key - prefix) * cached.size(),
                                          cached.size());
    }
    const std::size_t page_size = size(batch.page_size);
    const std::int64_t page = batch.page_id(of.sequence, key / page_size);
    cache.cached_row(page * batch.page_size + static_cast<std::int64_t>(key % page_size), cached);
    return cached;
  };

  std::vector<double> on_row(latent + rope, 0);
  for (std::size_t j = 0; j < latent; ++j) {
    for (std::size_t d = 0; d < nope; ++d) {
      on_row[j] += static_cast<double>(query[d]) * weights[j * columns + d];
    }
  }
  std::copy_n(query + nope, rope, on_row.begin() + static_cast<std::ptrdiff_t>(latent));
  std::vector<double> scores(keys);
  for (std::size_t key = 0; key < keys; ++key) {
    const auto of_key = row(key);
    scores[key] =
        data.softmax_scale * std::inner_product(on_row.begin(), on_row.end(), of_key.begin(), 0.);
  }

  const double most = std::ranges::max(scores);
  double sum = 0;
  std::vector<double> weighted(latent, 0);
  for (std::size_t key = 0; key < keys; ++key) {
    const double weight = std::exp(scores[key] - most);
    const auto of_key = row(key);
    sum += weight;
    for (std::size_t j = 0; j < latent; ++j) weighted[j] += weight * of_key[j];
  }
  Unchunked result{.values = std::vector<double>(value_dim, 0), .lse = most + std::log(sum)};
  for (std::size_t j = 0; j < latent; ++j) {
    for (std::size_t d = 0; d < value_dim; ++d) {
      result.values[d] += weighted[j] / sum * weights[j * columns + nope + d];
    }
  }
  return result;
}

}  // namespace chunked_prefill::cli
