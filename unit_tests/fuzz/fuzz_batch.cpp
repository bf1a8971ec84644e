// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "batch.hpp"
#include "input.hpp"

// Whatever `chunked_prefill plan` is given: the reader returns a batch that the library takes, or
// throws the library's error.

namespace {

namespace cp = chunked_prefill;
using cp::cli::Batch;

void expect_consistent(const Batch& batch) {
  EXPECT(batch.page_size >= 1 && batch.page_size <= INT32_MAX);
  EXPECT(batch.chunk_capacity >= 1 && batch.chunk_capacity <= INT32_MAX);
  const auto& shard = batch.shard;
  EXPECT(shard.world_size >= 1 && shard.rank >= 0 && shard.rank < shard.world_size);
  EXPECT(shard.interleave >= 1 && shard.interleave <= INT32_MAX / shard.world_size);
  EXPECT(batch.req_to_page.size() == batch.max_requests * batch.max_pages);
  EXPECT(batch.req_pool_indices.size() == batch.prefix_lens.size());
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    EXPECT(batch.prefix_lens[i] >= 0);
    EXPECT(batch.held_tokens(i) >= 0 && batch.held_tokens(i) <= batch.prefix_lens[i]);
    const std::int64_t row = batch.req_pool_indices[i];
    EXPECT(row >= 0 && row < static_cast<std::int64_t>(batch.max_requests));
    const std::int64_t pages = (batch.held_tokens(i) + batch.page_size - 1) / batch.page_size;
    EXPECT(pages <= static_cast<std::int64_t>(batch.max_pages));
    if (!batch.identity_table) continue;
    for (std::int64_t page = 0; page < pages; ++page) {
      EXPECT(batch.page_id(i, static_cast<std::size_t>(page)) >= 0);
    }
  }
}

/// What the tool walks only once it knows that there is memory for as many slots.
void expect_pages_checked(const Batch& batch) {
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) tokens += batch.held_tokens(i);
  if (tokens > 100000) return;
  for (const auto type : {cp::cli::IndexType::int32, cp::cli::IndexType::int64}) {
    try {
      check_pages(batch, type);
    } catch (const cp::InvalidArgument&) {
      continue;
    }
    for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
      for (std::int64_t place = 0; place < batch.held_tokens(i); ++place) {
        const std::int64_t page =
            batch.page_id(i, static_cast<std::size_t>(place / batch.page_size));
        const std::int64_t slot = page * batch.page_size + place % batch.page_size;
        EXPECT(slot >= 0 && slot <= largest_slot(type));
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Batch batch = cp::cli::read_batch(fuzz::as_file(data, size));
    EXPECT(std::find(data, data + size, 0) == data + size);
    EXPECT(nlohmann::json::accept(data, data + size));
    expect_consistent(batch);
    expect_pages_checked(batch);
  } catch (const cp::InvalidArgument& error) {
    EXPECT(!error.argument().empty());
  }
  return 0;
}
