// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace chunked_prefill::cli {

/// A count, 1234567 as "1,234,567".
[[nodiscard]] std::string grouped(std::int64_t number);
/// "1 loop", "1,200 loops".
[[nodiscard]] std::string counted(std::int64_t number, std::string_view noun);
/// The text in one line that no terminal takes for a command: control characters are spaces.
[[nodiscard]] std::string one_line(std::string_view text);
/// A value as a message shows it: the beginning of a long one.
[[nodiscard]] std::string elided(std::string value);
/// The end of a long name, behind "...", in at most `most` bytes.
[[nodiscard]] std::string name_end(std::string_view name, std::size_t most);

}  // namespace chunked_prefill::cli
