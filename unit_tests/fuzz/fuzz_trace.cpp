// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "input.hpp"
#include "page_cache.hpp"
#include "trace.hpp"

// Whatever `chunked_prefill replay` is given: the reader returns requests that the cache takes, or
// throws the library's error.

namespace {

namespace cp = chunked_prefill;
using cp::cli::PageCache;
using cp::cli::Request;
using cp::cli::Trace;

void expect_consistent(const Request& request) {
  EXPECT(request.input_length >= 1 && request.input_length <= INT32_MAX);
  if (request.blocks.empty()) {
    EXPECT(request.cached_prefix >= 0 && request.cached_prefix < request.input_length);
  } else {
    EXPECT(std::ssize(request.blocks) ==
           (request.input_length + Trace::block_size - 1) / Trace::block_size);
  }
}

void expect_consistent(const PageCache::Prefix& prefix, const Request& request,
                       std::int64_t page_size, std::int64_t cache_pages) {
  EXPECT(prefix.length >= 0 && prefix.length < request.input_length);
  EXPECT(std::ssize(prefix.pages) == (prefix.length + page_size - 1) / page_size);
  EXPECT(std::ranges::all_of(prefix.pages,
                             [&](std::int32_t page) { return page >= 0 && page < cache_pages; }));
}

/// The lines of a trace that are not empty, without a byte order mark.
std::vector<std::string_view> lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (lines.empty() && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    lines.push_back(line);
  }
  return lines;
}

/// A whole trace was taken: every line is a request, and all of it JSON where there is no header.
void expect_all_read(std::string_view text, std::int64_t requests) {
  const auto rows = lines(text);
  const bool json = !rows.empty() && rows[0].starts_with('{');
  EXPECT(requests == std::ssize(rows) - (json || rows.empty() ? 0 : 1));
  for (const std::string_view row : rows) {
    EXPECT(!json || row.find('\0') == std::string_view::npos);
    EXPECT(!json || nlohmann::json::accept(row));
  }
}

void replay(const std::string& path, std::string_view text, std::int64_t page_size) {
  constexpr std::int64_t cache_pages = 64, batch_size = 3;
  Trace trace(path);
  PageCache cache(page_size, cache_pages);
  Request request;
  std::int64_t requests = 0;
  while (trace.next(request)) {
    ++requests;
    expect_consistent(request);
    expect_consistent(cache.start(request), request, page_size, cache_pages);
    EXPECT(trace.share_read() >= 0 && trace.share_read() <= 1);
    if (requests % batch_size == 0) cache.finish();
  }
  EXPECT(trace.at_end());
  expect_all_read(text, requests);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzz::as_file(data, size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::int64_t page_size : {48, 1000000000}) {
    try {
      replay(path, text, page_size);
    } catch (const cp::InvalidArgument& error) {
      EXPECT(!error.argument().empty());
    }
  }
  return 0;
}
