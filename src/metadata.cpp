// SPDX-License-Identifier: MIT
#include <chunked_prefill/metadata.hpp>

namespace chunked_prefill {

MetadataSizes required_sizes(std::int64_t batch_size, std::int64_t chunked_loop_num,
                             std::int64_t total_tokens) {
  impl::check_range("batch_size", batch_size, 0, INT32_MAX);
  impl::check_range("chunked_loop_num", chunked_loop_num, 0, INT32_MAX);
  impl::check_range("total_tokens", total_tokens, 0, batch_size * INT32_MAX);
  return {.starts = static_cast<std::size_t>(chunked_loop_num * batch_size),
          .cum_seq_lens = static_cast<std::size_t>(chunked_loop_num * (batch_size + 1)),
          .offsets = chunked_loop_num == 0 ? 0 : static_cast<std::size_t>(chunked_loop_num + 1),
          .chunk_kv_indices = static_cast<std::size_t>(total_tokens)};
}

MetadataSizes required_sizes(const ChunkShape& shape) {
  return required_sizes(shape.batch_size, shape.chunked_loop_num, shape.total_tokens);
}

MetadataSizes required_sizes(const ChunkPlan& plan) { return required_sizes(plan.shape()); }

}  // namespace chunked_prefill
