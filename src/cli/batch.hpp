// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/plan.hpp>
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
  ContextShard shard;                     ///< the rank whose pages the table has

  std::vector<std::int32_t> req_to_page;  ///< (max_requests, max_pages) page ids, row after row
  std::size_t max_requests = 0;
  std::size_t max_pages = 0;
  std::vector<std::int64_t> req_pool_indices;  ///< (batch_size) rows of `req_to_page`

  std::string source;           ///< what was read, for headings
  bool identity_table = false;  ///< the page table was made here

  /// Tokens of sequence `i` that the rank holds, one behind another in pages of its own.
  [[nodiscard]] std::int64_t held_tokens(std::size_t i) const {
    return shard.local_tokens(prefix_lens[i]);
  }
  /// Page that holds the tokens from `page * page_size` on of those.
  [[nodiscard]] std::int32_t page_id(std::size_t i, std::size_t page) const {
    return req_to_page[static_cast<std::size_t>(req_pool_indices[i]) * max_pages + page];
  }
};

/// Reads and validates a batch, but for its page ids: a JSON object, from a file or, for `-`, from
/// standard input.
///
/// Without `req_to_page` and `req_pool_indices` an identity table is made: sequence `i` on row `i`,
/// pages numbered consecutively from 0 through the batch.
///
/// \throws InvalidArgument naming the key, with the index for an element of a list.
[[nodiscard]] Batch read_batch(const std::string& path);

/// Every page that a prefix covers is a page id, and its last covered slot fits the index type.
/// Page ids past a sequence's prefix are never looked at. Takes as long as the batch has pages,
/// which can be far more than its table. \throws InvalidArgument naming the page's place in the
/// table.
void check_pages(const Batch& batch, IndexType index_type);

}  // namespace chunked_prefill::cli
