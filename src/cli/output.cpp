// SPDX-License-Identifier: MIT
#include "output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chunked_prefill/error.hpp>
#include <cstdio>
#include <cstring>
#include <utility>

namespace chunked_prefill::cli {

namespace fs = std::filesystem;

Output::Output(const std::string& path)
    : m_name(path == "-" ? "standard output" : path), m_target(path) {
  if (path == "-") {
    m_file = stdout;
    return;
  }
  std::error_code error;
  const bool exists = fs::exists(m_target, error);
  if (exists && !fs::is_regular_file(m_target, error)) {
    m_file = std::fopen(m_target.c_str(), "wb");
    if (m_file == nullptr) refuse();
    return;
  }
  if (exists) {
    if (access(m_target.c_str(), W_OK) != 0) refuse();
    const fs::path followed = fs::canonical(m_target, error);
    if (!error) m_target = followed;  // a link stays one
  }
  m_part = m_target;
  m_part += fmt::format(".{}.part", getpid());
  m_file = std::fopen(m_part.c_str(), "wbx");
  if (m_file == nullptr) refuse();
  if (exists) fs::permissions(m_part, fs::status(m_target, error).permissions(), error);
}

Output::~Output() {
  if (m_file != nullptr && m_file != stdout) std::fclose(m_file);
  if (!m_part.empty()) std::remove(m_part.c_str());
}

void Output::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), m_file) != text.size()) refuse();
}

void Output::finish() {
  if (std::fflush(m_file) != 0) refuse();
  if (m_file != stdout && std::fclose(std::exchange(m_file, nullptr)) != 0) refuse();
}

void Output::commit() {
  if (m_part.empty()) return;
  if (std::rename(m_part.c_str(), m_target.c_str()) != 0) refuse();
  m_part.clear();
}

void Output::refuse() const {
  throw InvalidArgument(m_name, fmt::format("cannot be written: {}", std::strerror(errno)));
}

}  // namespace chunked_prefill::cli
