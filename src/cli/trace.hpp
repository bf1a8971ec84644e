// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace chunked_prefill::cli {

/// One request of a trace.
struct Request {
  std::int64_t input_length = 0;     ///< tokens
  std::vector<std::int64_t> blocks;  ///< an id for each started block; two requests have their
                                     ///< first tokens in common as far as their first ids agree
  std::int64_t cached_prefix = 0;    ///< tokens; what a trace without ids says
};

/// A trace of requests, read one by one: Mooncake's JSONL, whose rows have `input_length` and
/// `hash_ids`, or CSV with the columns `input_length` and `cached_prefix`. The first line decides.
class Trace {
 public:
  static constexpr std::int64_t block_size = 512;  ///< tokens of one of Mooncake's ids

  /// \throws InvalidArgument naming the path.
  explicit Trace(const std::string& path);

  /// Reads the next request; false behind the last.
  /// \throws InvalidArgument naming path, line and what is wrong there.
  bool next(Request& request);

  /// How much of the file has been read, from 0 to 1; 0 where that is not known.
  [[nodiscard]] double share_read() const;

 private:
  [[nodiscard]] bool has_blocks() const { return m_columns.empty(); }
  bool read_line();
  [[noreturn]] void refuse(const std::string& what) const;
  void read_header();
  void parse_json(Request& request) const;
  void parse_csv(Request& request) const;

  std::string m_path;
  std::ifstream m_file;
  double m_size = 0;  ///< bytes
  double m_read = 0;
  std::string m_line;
  std::int64_t m_line_number = 0;
  bool m_line_waits = false;           ///< the first line of a JSONL, which told the format
  std::vector<std::string> m_columns;  ///< of a CSV
};

}  // namespace chunked_prefill::cli
