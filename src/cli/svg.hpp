// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "output.hpp"

namespace chunked_prefill::cli {

/// A picture on its way to an output, for light and dark pages. Lengths are pixels.
class Svg {
 public:
  Svg(Output& output, double width, double height, std::string_view title);

  /// Elements as they are written here.
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    m_output.write(fmt::format(format, std::forward<Args>(args)...));
  }
  /// \param style_classes of the style sheet.
  void text(std::string_view style_classes, double x, double y, std::string_view words);
  /// The picture is whole.
  void finish() { m_output.write("</svg>\n"); }

 private:
  Output& m_output;
};

/// A picture of words alone, where there is nothing to draw.
void draw_words(std::string_view title, std::string_view words, Output& output);

/// Any words as an XML document takes them.
[[nodiscard]] std::string xml_words(std::string_view words);

/// About how long words are, rather more than less.
[[nodiscard]] double text_width(std::string_view words);

/// Every how many labels one is written, so that each has `room`: 1, 2, 5, 10...
[[nodiscard]] std::size_t label_step(double distance, double room);

}  // namespace chunked_prefill::cli
