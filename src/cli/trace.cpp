// SPDX-License-Identifier: MIT
#include "trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chunked_prefill/error.hpp>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

using Json = nlohmann::json;

/// Calls `take` with the number and the text of each field.
template <class Take>
std::int64_t each_field(std::string_view line, const Take& take) {
  for (std::int64_t column = 0;; ++column) {
    const std::size_t comma = line.find(',');
    take(column, line.substr(0, comma));
    if (comma == std::string_view::npos) return column + 1;
    line.remove_prefix(comma + 1);
  }
}

/// Takes the parser's events one by one straight into a request, so that any row costs no more than
/// what is kept of it. Calls `m_refuse`, which does not return, with what is wrong.
template <class Refuse>
class RowReader final : public nlohmann::json_sax<Json> {
 public:
  RowReader(std::vector<std::int64_t>& ids, const Refuse& refuse) : m_ids(ids), m_refuse(refuse) {}
  std::optional<std::int64_t> input_length;
  bool has_ids = false;

  bool key(string_t& name) override {
    if (m_depth != 1) return true;
    m_key = name == "input_length" ? Key::input_length
            : name == "hash_ids"   ? Key::hash_ids
                                   : Key::other;
    const bool twice = (m_key == Key::input_length && input_length.has_value()) ||
                       (m_key == Key::hash_ids && has_ids);
    if (twice) m_refuse(name + ": given twice");
    return true;
  }
  bool number_integer(number_integer_t value) override { return take(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > INT64_MAX) return other(std::to_string(value));
    return take(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t, const string_t& token) override { return other(token); }
  bool string(string_t& value) override {
    return other(Json(value).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool null() override { return other("null"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool start_object(std::size_t) override {
    if (m_depth > 0) other("{...}");
    ++m_depth;
    return true;
  }
  bool end_object() override {
    --m_depth;
    return true;
  }
  bool start_array(std::size_t) override {
    if (m_depth == 0) return false;
    if (m_depth == 1 && m_key == Key::hash_ids) {
      has_ids = true;
    } else {
      other("[...]");
    }
    ++m_depth;
    return true;
  }
  bool end_array() override {
    --m_depth;
    return true;
  }
  bool parse_error(std::size_t, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int number_overflow = 406;
    if (error.id == number_overflow && other(token)) {
      m_refuse(fmt::format("{} is beyond a 64-bit number", elided(token)));
    }
    return false;
  }

 private:
  enum class Key : std::uint8_t { other, input_length, hash_ids };

  bool take(std::int64_t value) {
    if (m_depth == 1 && m_key == Key::input_length && value >= 1 && value <= INT32_MAX) {
      input_length = value;
    } else if (m_depth == 2 && m_key == Key::hash_ids) {
      m_ids.push_back(value);
    } else {
      return other(std::to_string(value));
    }
    return true;
  }
  /// A value that is neither a length nor an id: wrong where one belongs, and the row's own
  /// business elsewhere. False where there is no row.
  bool other(const std::string& value) {
    if (m_depth == 1 && m_key == Key::input_length) {
      m_refuse(fmt::format("input_length: {} is no number of tokens in [1, {}]", elided(value),
                           INT32_MAX));
    }
    if (m_depth == 1 && m_key == Key::hash_ids) {
      m_refuse(fmt::format("hash_ids: {} is no list of ids", elided(value)));
    }
    if (m_depth == 2 && m_key == Key::hash_ids) {
      m_refuse(fmt::format("hash_ids[{}]: {} is no id", m_ids.size(), elided(value)));
    }
    return m_depth > 0;
  }

  std::vector<std::int64_t>& m_ids;
  const Refuse& m_refuse;
  std::int64_t m_depth = 0;  ///< 1 in the row, 2 in a list of it
  Key m_key = Key::other;
};

}  // namespace

Trace::Trace(const std::string& path) : m_path(path), m_file(std::fopen(path.c_str(), "rb")) {
  if (!m_file) throw InvalidArgument(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw InvalidArgument(path, "is a folder");
  const auto size = std::filesystem::file_size(path, error);
  if (!error) m_size = static_cast<double>(size);
  if (!read_line()) return;
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (m_line.starts_with(byte_order_mark)) m_line.erase(0, byte_order_mark.size());
  if (m_line.starts_with('{')) {
    m_line_waits = true;
  } else {
    read_header();
  }
}

double Trace::share_read() const { return m_size > 0 ? std::min(1., m_read / m_size) : 0; }

bool Trace::read_line() {
  while (true) {
    m_line.clear();
    ++m_line_number;
    int byte = getc_unlocked(m_file.get());
    for (; byte != EOF && byte != '\n'; byte = getc_unlocked(m_file.get())) {
      if (m_line.size() == most_bytes) refuse(fmt::format("longer than {} bytes", most_bytes));
      m_line.push_back(static_cast<char>(byte));
    }
    if (std::ferror(m_file.get()) != 0) {
      if (errno == EINTR) return false;
      throw InvalidArgument(m_path, fmt::format("cannot be read: {}", std::strerror(errno)));
    }
    m_read += static_cast<double>(m_line.size() + 1);
    if (m_line.ends_with('\r')) m_line.pop_back();
    if (!m_line.empty()) return true;
    if (byte == EOF) return false;
  }
}

std::string Trace::place() const { return fmt::format("{}:{}", m_path, m_line_number); }

void Trace::refuse(const std::string& what) const { throw InvalidArgument(place(), what); }

void Trace::read_header() {
  std::int64_t lengths = 0, prefixes = 0;
  m_columns = each_field(m_line, [&](std::int64_t column, std::string_view name) {
    if (name == "input_length") {
      m_length_column = column;
      ++lengths;
    } else if (name == "cached_prefix") {
      m_prefix_column = column;
      ++prefixes;
    }
  });
  for (const auto& [name, count] :
       {std::pair("input_length", lengths), std::pair("cached_prefix", prefixes)}) {
    if (count == 1) continue;
    refuse(fmt::format("neither a JSON object nor a CSV header: {} column {}",
                       count == 0 ? "no" : "more than one", name));
  }
}

bool Trace::next(Request& request) {
  if (!m_line_waits && !read_line()) return false;
  m_line_waits = false;
  request.blocks.clear();
  if (m_columns == 0) {
    parse_json(request);
  } else {
    parse_csv(request);
  }
  return true;
}

void Trace::parse_json(Request& request) const {
  const auto refuse_row = [&](const std::string& what) { refuse(what); };
  RowReader reader(request.blocks, refuse_row);
  // The parser takes a NUL for the end of the text.
  if (m_line.find('\0') != std::string::npos || !Json::sax_parse(m_line, &reader)) {
    refuse("not a JSON object");
  }
  if (!reader.input_length) refuse("no key input_length");
  if (!reader.has_ids) refuse("no key hash_ids");
  request.input_length = *reader.input_length;
  const std::int64_t blocks = (request.input_length + block_size - 1) / block_size;
  if (std::ssize(request.blocks) != blocks) {
    refuse(fmt::format("hash_ids: not the {} that {} have, one for each started block of {}",
                       counted(blocks, "id"), counted(request.input_length, "token"), block_size));
  }
}

void Trace::parse_csv(Request& request) const {
  std::string_view length, prefix;
  const std::int64_t columns = each_field(m_line, [&](std::int64_t column, std::string_view field) {
    if (column == m_length_column) length = field;
    if (column == m_prefix_column) prefix = field;
  });
  if (columns != m_columns) {
    refuse(fmt::format("{} where the header has {}", counted(columns, "column"), m_columns));
  }
  const auto number = [&](const char* column, std::string_view text, std::int64_t least,
                          std::int64_t most) {
    std::int64_t value = 0;
    const auto* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || rest != end || value < least || value > most) {
      refuse(fmt::format("{}: \"{}\" is no number of tokens in [{}, {}]", column,
                         one_line(elided(std::string(text))), least, most));
    }
    return value;
  };
  request.input_length = number("input_length", length, 1, INT32_MAX);
  request.cached_prefix = number("cached_prefix", prefix, 0, request.input_length - 1);
}

}  // namespace chunked_prefill::cli
