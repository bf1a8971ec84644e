// SPDX-License-Identifier: MIT
#include <chunked_prefill/impl/check_range.hpp>
#include <chunked_prefill/metadata.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels.hpp"

namespace chunked_prefill::python {
namespace {

Layout layout(const MetadataSizes& sizes, bool is_int64) {
  Layout layout{.is_int64 = is_int64,
                .chunk_kv_indices_size = sizes.chunk_kv_indices,
                .table_size = sizes.starts,
                .cum_seq_lens_size = sizes.cum_seq_lens,
                .offsets_size = sizes.offsets};
  const auto take = [&](const char* of, std::size_t words) {
    constexpr std::size_t most = std::size_t{1} << 58;  // so that sums and bytes are no overflow
    if (words > most) {
      throw InvalidArgument(of, "takes " + std::to_string(words) + " words, beyond any memory");
    }
    const std::size_t begin = layout.words;
    layout.words += (words + 3) / 4 * 4;
    return begin;
  };
  constexpr const char* table = "chunked_loop_num * batch_size";
  layout.chunk_kv_indices = take("total_tokens", sizes.chunk_kv_indices * (is_int64 ? 2 : 1));
  layout.len_in_chunk = take(table, sizes.starts);
  layout.starts = take(table, sizes.starts);
  layout.ends = take(table, sizes.starts);
  layout.cum_seq_lens = take(table, sizes.cum_seq_lens);
  layout.offsets = take("chunked_loop_num", sizes.offsets * 2);
  return layout;
}

}  // namespace

Layout layout(const ChunkShape& shape, bool is_int64) {
  return layout(required_sizes(shape), is_int64);
}

Layout table_layout(std::int64_t chunked_loop_num, std::int64_t batch_size) {
  impl::check_range("num_chunks", chunked_loop_num, 0, INT32_MAX);
  impl::check_range("batch_size", batch_size, 0, INT32_MAX);
  return layout(required_sizes(batch_size, chunked_loop_num, 0), false);
}

void check_within(const ChunkPlan& plan, const ChunkShape& shape) {
  impl::check_within(plan.shape(), shape);
}

}  // namespace chunked_prefill::python
