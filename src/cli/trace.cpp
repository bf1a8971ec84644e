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
#include <string_view>

#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

std::vector<std::string> fields(std::string_view line) {
  std::vector<std::string> fields;
  while (true) {
    const std::size_t comma = line.find(',');
    fields.emplace_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

Trace::Trace(const std::string& path) : m_path(path), m_file(path) {
  if (std::filesystem::is_directory(path)) throw InvalidArgument(path, "is a folder");
  if (!m_file) throw InvalidArgument(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  std::error_code no_size;
  const auto size = std::filesystem::file_size(path, no_size);
  if (!no_size) m_size = static_cast<double>(size);
  if (!read_line()) return;
  if (m_line.starts_with('{')) {
    m_line_waits = true;
  } else {
    read_header();
  }
}

double Trace::share_read() const { return m_size > 0 ? std::min(1., m_read / m_size) : 0; }

bool Trace::read_line() {
  while (std::getline(m_file, m_line)) {
    ++m_line_number;
    m_read += static_cast<double>(m_line.size() + 1);
    if (m_line.ends_with('\r')) m_line.pop_back();
    if (!m_line.empty()) return true;
  }
  if (m_file.bad()) throw InvalidArgument(m_path, "cannot be read to its end");
  return false;
}

void Trace::refuse(const std::string& what) const {
  throw InvalidArgument(fmt::format("{}:{}", m_path, m_line_number), what);
}

void Trace::read_header() {
  m_columns = fields(m_line);
  for (const char* column : {"input_length", "cached_prefix"}) {
    const auto count = std::ranges::count(m_columns, column);
    if (count == 1) continue;
    refuse(fmt::format("neither a JSON object nor a CSV header: {} column {}",
                       count == 0 ? "no" : "more than one", column));
  }
}

bool Trace::next(Request& request) {
  if (!m_line_waits && !read_line()) return false;
  m_line_waits = false;
  if (has_blocks()) {
    parse_json(request);
  } else {
    parse_csv(request);
  }
  return true;
}

void Trace::parse_json(Request& request) const {
  const auto row = nlohmann::json::parse(m_line, nullptr, false);
  if (!row.is_object()) refuse("not a JSON object");
  const auto at = [&](const char* key) -> const nlohmann::json& {
    const auto found = row.find(key);
    if (found == row.end()) refuse(fmt::format("no key {}", key));
    return *found;
  };
  const auto& length = at("input_length");
  if (!length.is_number_integer() || length < 1 || length > INT32_MAX) {
    refuse(fmt::format("input_length: {} is no number of tokens in [1, {}]", length.dump(),
                       INT32_MAX));
  }
  request.input_length = length;
  const auto& ids = at("hash_ids");
  const std::int64_t blocks = (request.input_length + block_size - 1) / block_size;
  if (!ids.is_array() || static_cast<std::int64_t>(ids.size()) != blocks) {
    refuse(fmt::format("hash_ids: not the {} that {} have, one for each started block of {}",
                       counted(blocks, "id"), counted(request.input_length, "token"), block_size));
  }
  request.blocks.clear();
  for (const auto& id : ids) {
    if (!id.is_number_integer()) {
      refuse(fmt::format("hash_ids[{}]: {} is no id", request.blocks.size(), id.dump()));
    }
    request.blocks.push_back(id);
  }
}

void Trace::parse_csv(Request& request) const {
  const auto values = fields(m_line);
  if (values.size() != m_columns.size()) {
    refuse(fmt::format("{} where the header has {}",
                       counted(static_cast<std::int64_t>(values.size()), "column"),
                       m_columns.size()));
  }
  const auto number = [&](const char* column, std::int64_t least, std::int64_t most) {
    const auto k = std::ranges::find(m_columns, column) - m_columns.begin();
    const std::string& text = values[static_cast<std::size_t>(k)];
    std::int64_t value = 0;
    const auto* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || rest != end || value < least || value > most) {
      refuse(
          fmt::format("{}: \"{}\" is no number of tokens in [{}, {}]", column, text, least, most));
    }
    return value;
  };
  request.blocks.clear();
  request.input_length = number("input_length", 1, INT32_MAX);
  request.cached_prefix = number("cached_prefix", 0, request.input_length - 1);
}

}  // namespace chunked_prefill::cli
