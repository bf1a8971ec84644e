// SPDX-License-Identifier: MIT
#include "batch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chunked_prefill/capacity.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/impl/check_range.hpp>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "memory.hpp"
#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

using Json = nlohmann::json;
using impl::check_range;

/// Where the parser stopped, of the piece of text that it names.
std::string last_character(const std::string& text) {
  if (text.empty()) return "character";
  const auto escape = text.rfind("<U+");  // how the parser shows control characters
  if (text.back() == '>' && escape != std::string::npos) return text.substr(escape);
  const auto byte = static_cast<unsigned char>(text.back());
  if (byte < 0x80) return fmt::format("'{}'", text.back());
  return fmt::format("byte 0x{:02X}", byte);
}

std::string in_quotes(const std::string& value) { return elided(Json(value).dump()); }

/// The object as it was read; what is absent stays empty.
struct Document {
  std::optional<std::vector<std::int32_t>> prefix_lens;
  std::optional<std::int64_t> page_size;
  std::optional<std::int64_t> chunk_capacity;
  std::optional<std::int64_t> chunked_prefill_size;
  std::optional<std::int64_t> mla_chunk_multiplier;
  ContextShard shard;
  std::optional<std::vector<std::int32_t>> req_to_page;
  std::size_t max_requests = 0;
  std::size_t max_pages = 0;
  std::optional<std::vector<std::int64_t>> req_pool_indices;
};

/// A file's bytes.
struct Input {
  std::FILE* file;
  bool nul = false;  ///< the parser has met one
};

/// Gives them to the parser, which would take a NUL for the end of the text: to it, that is another
/// byte that JSON never has.
class Bytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  Bytes() = default;  ///< the end of any
  explicit Bytes(Input& input) : m_input(&input) { ++*this; }

  char operator*() const {
    if (m_byte == 0) m_input->nul = true;
    return m_byte == 0 ? '\x01' : static_cast<char>(m_byte);
  }
  Bytes& operator++() {
    m_byte = std::fgetc(m_input->file);
    return *this;
  }
  friend bool operator==(const Bytes& a, const Bytes& b) {
    return (a.m_byte == EOF) == (b.m_byte == EOF);
  }

 private:
  Input* m_input = nullptr;
  int m_byte = EOF;
};

/// Takes the parser's events one by one straight into a Document, so that any size and any nesting
/// of the input costs no more than what is kept of it.
class DocumentReader final : public nlohmann::json_sax<Json> {
 public:
  DocumentReader(std::string source, const Input& input)
      : m_source(std::move(source)), m_input(input) {}
  Document document;

  bool key(string_t& name) override {
    if (m_depth == 2) return shard_key(name);
    const auto known = std::ranges::find(keys, name);
    if (known == keys.end()) {
      throw InvalidArgument(in_quotes(name),
                            fmt::format("unknown key, known are {}", fmt::join(keys, ", ")));
    }
    m_key = static_cast<Key>(known - keys.begin());
    if (std::exchange(m_seen[m_key], true)) throw InvalidArgument(name, "given twice");
    return true;
  }

  bool number_integer(number_integer_t value) override {
    take(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > INT64_MAX) refuse(std::to_string(value));
    take(static_cast<std::int64_t>(value));
    return true;
  }
  bool number_float(number_float_t, const string_t& token) override { refuse(token); }
  bool string(string_t& value) override { refuse(Json(value).dump()); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool null() override { refuse("null"); }
  bool binary(binary_t&) override { refuse("binary"); }

  bool start_object(std::size_t) override {
    if (m_depth != 0 && !(m_depth == 1 && m_key == shard)) refuse("{...}");
    ++m_depth;
    return true;
  }
  bool end_object() override {
    --m_depth;
    return true;
  }
  bool start_array(std::size_t) override {
    if (m_depth == 1 && m_key == prefix_lens) {
      document.prefix_lens.emplace();
    } else if (m_depth == 1 && m_key == req_pool_indices) {
      document.req_pool_indices.emplace();
    } else if (m_depth == 1 && m_key == req_to_page) {
      document.req_to_page.emplace();
    } else if (m_depth == 2 && m_key == req_to_page) {
      m_row_begin = document.req_to_page->size();
    } else {
      refuse("[...]");
    }
    ++m_depth;
    return true;
  }
  bool end_array() override {
    if (--m_depth == 2) end_row();
    return true;
  }

  bool parse_error(std::size_t, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int number_overflow = 406;
    if (error.id == number_overflow) refuse(token);
    const std::string_view what = error.what();
    constexpr std::string_view before = "parse error at ";
    const auto begin = what.find(before) + before.size();  // "line 1, column 2: ..."
    const auto where = what.substr(begin, what.find(':', begin) - begin);
    const bool at_end = what.find("unexpected end of input") != std::string_view::npos;
    throw InvalidArgument(m_source, fmt::format("not JSON, {}: unexpected {}", where,
                                                at_end        ? "end"
                                                : m_input.nul ? "byte 0x00"
                                                              : last_character(token)));
  }

 private:
  enum Key : std::size_t {
    prefix_lens,
    page_size,
    chunk_capacity,
    chunked_prefill_size,
    mla_chunk_multiplier,
    req_to_page,
    req_pool_indices,
    shard,
  };
  static constexpr std::array<std::string_view, 8> keys = {
      "prefix_lens",          "page_size",   "chunk_capacity",   "chunked_prefill_size",
      "mla_chunk_multiplier", "req_to_page", "req_pool_indices", "shard"};

  /// One of the object that `shard` is.
  struct ShardKey {
    std::string_view name;
    std::int32_t ContextShard::*member;
    std::int64_t least;
  };
  static constexpr std::array<ShardKey, 3> shard_keys = {
      {{"world_size", &ContextShard::world_size, 1},
       {"rank", &ContextShard::rank, 0},
       {"interleave", &ContextShard::interleave, 1}}};

  bool shard_key(const std::string& name) {
    const auto known = std::ranges::find(shard_keys, name, &ShardKey::name);
    if (known == shard_keys.end()) {
      throw InvalidArgument("shard." + in_quotes(name),
                            "unknown key, known are world_size, rank, interleave");
    }
    m_shard_key = static_cast<std::size_t>(known - shard_keys.begin());
    if (std::exchange(m_seen_of_shard[m_shard_key], true)) {
      throw InvalidArgument(place(), "given twice");
    }
    return true;
  }

  /// Asks for memory before a long list takes twice as much.
  template <class T>
  void append(std::vector<T>& list, T value) const {
    if (list.size() == list.capacity()) {
      require_memory(std::string(keys[m_key]), fmt::format("{} values and more", list.size()),
                     2. * static_cast<double>(list.size() * sizeof(T)));
    }
    list.push_back(value);
  }

  void take(std::int64_t value) {
    if (m_depth == 2 && m_key == prefix_lens) {
      append(*document.prefix_lens, int32(value, 0));
    } else if (m_depth == 2 && m_key == req_pool_indices) {
      append(*document.req_pool_indices, value);
    } else if (m_depth == 2 && m_key == shard) {
      const ShardKey& key = shard_keys[m_shard_key];
      document.shard.*key.member = int32(value, key.least);
    } else if (m_depth == 3) {
      append(*document.req_to_page, int32(value, INT32_MIN));
    } else if (m_depth == 1 && m_key == page_size) {
      document.page_size = int32(value, 1);
    } else if (m_depth == 1 && m_key == chunk_capacity) {
      document.chunk_capacity = value;
    } else if (m_depth == 1 && m_key == chunked_prefill_size) {
      document.chunked_prefill_size = value;
    } else if (m_depth == 1 && m_key == mla_chunk_multiplier) {
      document.mla_chunk_multiplier = value;
    } else {
      refuse(std::to_string(value));
    }
  }

  std::int32_t int32(std::int64_t value, std::int64_t least) const {
    if (value < least || value > INT32_MAX) check_range(place(), value, least, INT32_MAX);
    return static_cast<std::int32_t>(value);
  }

  void end_row() {
    const std::size_t pages = document.req_to_page->size() - m_row_begin;
    if (document.max_requests == 0) document.max_pages = pages;
    if (pages != document.max_pages) {
      throw InvalidArgument(place(),
                            fmt::format("{} pages where row 0 has {}", pages, document.max_pages));
    }
    ++document.max_requests;
  }

  /// The value being read: `page_size`, `prefix_lens[3]`, `req_to_page[2][5]`.
  std::string place() const {
    if (m_depth == 0) return m_source;
    std::string text(keys[m_key]);
    if (m_depth == 1) return text;
    if (m_key == prefix_lens) return text + fmt::format("[{}]", document.prefix_lens->size());
    if (m_key == req_pool_indices) {
      return text + fmt::format("[{}]", document.req_pool_indices->size());
    }
    if (m_key == shard) return fmt::format("shard.{}", shard_keys[m_shard_key].name);
    text += fmt::format("[{}]", document.max_requests);
    if (m_depth == 2) return text;
    return text + fmt::format("[{}]", document.req_to_page->size() - m_row_begin);
  }

  /// Says what would have been right where `value` stands.
  [[noreturn]] void refuse(const std::string& value) const {
    const bool list = m_key == prefix_lens || m_key == req_pool_indices;
    const char* right = "an integer";
    if (m_depth == 0) {
      right = "an object";
    } else if (m_depth == 1 && list) {
      right = "a list of integers";
    } else if (m_depth == 1 && m_key == req_to_page) {
      right = "a list of rows";
    } else if (m_depth == 2 && m_key == req_to_page) {
      right = "a list of page ids";
    } else if (m_depth == 1 && m_key == shard) {
      right = "an object of world_size, rank and interleave";
    } else if (value.find_first_not_of("-0123456789") == std::string::npos) {
      throw InvalidArgument(place(), elided(value) + " is beyond 64 bits");
    }
    throw InvalidArgument(place(), fmt::format("{} is not {}", elided(value), right));
  }

  std::string m_source;
  const Input& m_input;
  std::array<bool, keys.size()> m_seen{};
  std::array<bool, shard_keys.size()> m_seen_of_shard{};
  int m_depth = 0;  ///< 1 in the object, 2 in a list or object of it, 3 in a row of `req_to_page`
  Key m_key = prefix_lens;
  std::size_t m_shard_key = 0;  ///< in `shard_keys`
  std::size_t m_row_begin = 0;
};

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

Document read_document(const std::string& path, const std::string& source) {
  const std::unique_ptr<std::FILE, CloseFile> file(path == "-" ? stdin
                                                               : std::fopen(path.c_str(), "rb"));
  const auto refuse_unreadable = [&] {
    throw InvalidArgument(source, fmt::format("cannot be read: {}", std::strerror(errno)));
  };
  if (!file) refuse_unreadable();
  const int first = std::fgetc(file.get());
  if (std::ferror(file.get()) != 0) refuse_unreadable();
  if (first == EOF) throw InvalidArgument(source, "empty, a JSON object is needed");
  std::ungetc(first, file.get());

  Input input{file.get()};
  DocumentReader reader(source, input);
  try {
    Json::sax_parse(Bytes(input), Bytes(), &reader);
  } catch (const InvalidArgument&) {
    if (std::ferror(file.get()) != 0) refuse_unreadable();
    throw;
  }
  if (std::ferror(file.get()) != 0) refuse_unreadable();
  return std::move(reader.document);
}

std::int64_t capacity_of(const Document& document) {
  const auto& size = document.chunked_prefill_size;
  const auto& multiplier = document.mla_chunk_multiplier;
  if (!document.chunk_capacity) {
    CapacitySettings settings;
    settings.chunked_prefill_size = size.value_or(settings.chunked_prefill_size);
    settings.mla_chunk_multiplier = multiplier.value_or(settings.mla_chunk_multiplier);
    return get_max_chunk_capacity(settings);
  }
  if (size || multiplier) {
    throw InvalidArgument("chunk_capacity",
                          fmt::format("given together with {}, of which it is "
                                      "the product",
                                      size ? "chunked_prefill_size" : "mla_chunk_multiplier"));
  }
  check_range("chunk_capacity", *document.chunk_capacity, 1, max_supported_chunk_capacity);
  return *document.chunk_capacity;
}

std::int64_t pages_of(const Batch& batch, std::size_t i) {
  return (batch.held_tokens(i) + batch.page_size - 1) / batch.page_size;
}

void make_identity_table(Batch& batch) {
  batch.identity_table = true;
  const std::size_t batch_size = batch.prefix_lens.size();
  std::int64_t longest = 0, total = 0;
  for (std::size_t i = 0; i < batch_size; ++i) {
    longest = std::max(longest, pages_of(batch, i));
    total += pages_of(batch, i);
  }
  if (total > INT32_MAX) {
    throw InvalidArgument("prefix_lens",
                          fmt::format("{} pages of page_size {} are more than int32 page ids can "
                                      "number",
                                      total, batch.page_size));
  }
  batch.max_requests = batch_size;
  batch.max_pages = static_cast<std::size_t>(longest);
  require_memory("req_to_page", fmt::format("{} rows of {} pages", batch_size, longest),
                 4. * static_cast<double>(batch_size) * static_cast<double>(longest));
  batch.req_to_page.assign(batch.max_requests * batch.max_pages, -1);
  batch.req_pool_indices.resize(batch_size);
  std::int32_t next_page = 0;
  for (std::size_t i = 0; i < batch_size; ++i) {
    batch.req_pool_indices[i] = static_cast<std::int64_t>(i);
    for (std::int64_t page = 0; page < pages_of(batch, i); ++page) {
      batch.req_to_page[i * batch.max_pages + static_cast<std::size_t>(page)] = next_page++;
    }
  }
}

void take_table(Document& document, Batch& batch) {
  if (!document.req_to_page) {
    throw InvalidArgument("req_to_page", "missing, though req_pool_indices is given");
  }
  if (!document.req_pool_indices) {
    throw InvalidArgument("req_pool_indices", "missing, though req_to_page is given");
  }
  batch.req_to_page = std::move(*document.req_to_page);
  batch.max_requests = document.max_requests;
  batch.max_pages = document.max_pages;
  batch.req_pool_indices = std::move(*document.req_pool_indices);
}

/// Every sequence's row is in the table, and long enough.
void check_rows(const Batch& batch) {
  const std::size_t batch_size = batch.prefix_lens.size();
  if (batch.req_pool_indices.size() != batch_size) {
    throw InvalidArgument("req_pool_indices",
                          fmt::format("length {} where prefix_lens has length {}",
                                      batch.req_pool_indices.size(), batch_size));
  }
  for (std::size_t i = 0; i < batch_size; ++i) {
    const std::int64_t row = batch.req_pool_indices[i];
    if (row < 0 || row >= static_cast<std::int64_t>(batch.max_requests)) {
      throw InvalidArgument(fmt::format("req_pool_indices[{}]", i),
                            fmt::format("{} is not a row of req_to_page, which has {} in all", row,
                                        batch.max_requests));
    }
    if (pages_of(batch, i) > static_cast<std::int64_t>(batch.max_pages)) {
      throw InvalidArgument(
          fmt::format("prefix_lens[{}]", i),
          fmt::format(
              "{} tokens{} need {} pages of page_size {}, a row of req_to_page has {}",
              batch.held_tokens(i),
              batch.shard.world_size == 1 ? "" : fmt::format(" of rank {}", batch.shard.rank),
              pages_of(batch, i), batch.page_size, batch.max_pages));
    }
  }
}

void check_shard(const ContextShard& shard) {
  check_range("shard.rank", shard.rank, 0, shard.world_size - std::int64_t{1});
  check_range("shard.interleave", shard.interleave, 1, INT32_MAX / shard.world_size);
}

}  // namespace

void check_pages(const Batch& batch, IndexType index_type) {
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    std::int64_t tokens = batch.held_tokens(i);
    for (std::size_t page = 0; tokens > 0; ++page, tokens -= batch.page_size) {
      const std::int64_t id = batch.page_id(i, page);
      const std::int64_t last_slot = id * batch.page_size + std::min(tokens, batch.page_size) - 1;
      if (id >= 0 && last_slot <= largest_slot(index_type)) continue;
      throw InvalidArgument(
          fmt::format("req_to_page[{}][{}]", batch.req_pool_indices[i], page),
          id < 0 ? fmt::format("{} is not a page id, and prefix_lens[{}] covers it", id, i)
                 : fmt::format("page {} of page_size {} reaches slot {}, int32 slots end at {}; "
                               "use --index-type int64",
                               id, batch.page_size, last_slot, INT32_MAX));
    }
  }
}

Batch read_batch(const std::string& path) {
  Batch batch;
  batch.source = path == "-" ? "standard input" : path;
  Document document = read_document(path, batch.source);
  if (!document.prefix_lens) throw InvalidArgument("prefix_lens", "missing");
  if (!document.page_size) throw InvalidArgument("page_size", "missing");
  batch.prefix_lens = std::move(*document.prefix_lens);
  batch.page_size = *document.page_size;
  batch.chunk_capacity = capacity_of(document);
  check_shard(document.shard);
  batch.shard = document.shard;
  if (document.req_to_page || document.req_pool_indices) {
    take_table(document, batch);
    check_rows(batch);
  } else {
    make_identity_table(batch);
  }
  return batch;
}

}  // namespace chunked_prefill::cli
