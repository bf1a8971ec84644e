// SPDX-License-Identifier: MIT
#include "text.hpp"

#include <fmt/format.h>

namespace chunked_prefill::cli {

std::string grouped(std::int64_t number) {
  if (number < 1000) return std::to_string(number);
  return fmt::format("{},{:03}", grouped(number / 1000), number % 1000);
}

std::string counted(std::int64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return line;
}

std::string elided(std::string value) {
  constexpr std::size_t most = 40;
  if (value.size() <= most) return value;
  value.resize(most);
  while (!value.empty() && (value.back() & 0xC0) == 0x80) value.pop_back();  // inside a character
  if (!value.empty() && (value.back() & 0x80) != 0) value.pop_back();
  return value + "...";
}

std::string name_end(std::string_view name, std::size_t most) {
  if (name.size() <= most) return std::string(name);
  name.remove_prefix(name.size() - most + 3);
  while (!name.empty() && (name[0] & 0xC0) == 0x80) name.remove_prefix(1);  // inside a character
  return fmt::format("...{}", name);
}

}  // namespace chunked_prefill::cli
