// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
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
/// What else the rows have is not looked at, so they may be in any order of time.
class Trace {
 public:
  static constexpr std::int64_t block_size = 512;     ///< tokens of one of Mooncake's ids
  static constexpr std::size_t most_bytes = 1 << 27;  ///< of a line; a request of INT32_MAX tokens
                                                      ///< has 4 million ids

  /// \throws InvalidArgument naming the path.
  explicit Trace(const std::string& path);

  /// Reads the next request; false behind the last, and where a signal interrupts the reading.
  /// \throws InvalidArgument naming path, line and what is wrong there.
  bool next(Request& request);

  /// Path and line of the last request: "trace.jsonl:3".
  [[nodiscard]] std::string place() const;
  /// How much of the file has been read, from 0 to 1; 0 where that is not known.
  [[nodiscard]] double share_read() const;
  /// Whether all of it has.
  [[nodiscard]] bool at_end() const { return std::feof(m_file.get()) != 0; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  bool read_line();
  [[noreturn]] void refuse(const std::string& what) const;
  void read_header();
  void parse_json(Request& request) const;
  void parse_csv(Request& request) const;

  std::string m_path;
  std::unique_ptr<std::FILE, CloseFile> m_file;
  double m_size = 0;  ///< bytes
  double m_read = 0;
  std::string m_line;
  std::int64_t m_line_number = 0;
  bool m_line_waits = false;   ///< the first line of a JSONL, which told the format
  std::int64_t m_columns = 0;  ///< of a CSV; 0 for a JSONL
  std::int64_t m_length_column = 0, m_prefix_column = 0;
};

}  // namespace chunked_prefill::cli
