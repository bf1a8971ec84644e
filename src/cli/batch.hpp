// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "index_type.hpp"

namespace chunked_prefill::cli {

/// A prefill step's input, complete and consistent.
struct Batch {
  std::vector<std::int32_t> prefix_lens;  ///< (batch_size) tokens
  std::int64_t page_size = 0;             ///< tokens
  std::int64_t chunk_capacity = 0;        ///< tokens

  std::vector<std::int32_t> req_to_page;  ///< (max_requests, max_pages) page ids, row after row
  std::size_t max_requests = 0;
  std::size_t max_pages = 0;
  std::vector<std::int64_t> req_pool_indices;  ///< (batch_size) rows of `req_to_page`

  std::string source;           ///< what was read, for headings
  bool identity_table = false;  ///< the page table was made here

  /// Page that holds the tokens from `page * page_size` on of sequence `i`.
  [[nodiscard]] std::int32_t page_id(std::size_t i, std::size_t page) const {
    return req_to_page[static_cast<std::size_t>(req_pool_indices[i]) * max_pages + page];
  }
};

/// Reads and validates a batch: a JSON object, from a file or, for `-`, from standard input.
///
/// Without `req_to_page` and `req_pool_indices` an identity table is made: sequence `i` on row `i`,
/// pages numbered consecutively from 0 through the batch. Page ids past a sequence's prefix are
/// never looked at.
///
/// \throws InvalidArgument naming the key, with the index for an element of a list.
[[nodiscard]] Batch read_batch(const std::string& path, IndexType index_type);

}  // namespace chunked_prefill::cli
