// SPDX-License-Identifier: MIT
#include "svg.hpp"

#include <algorithm>
#include <array>

namespace chunked_prefill::cli {
namespace {

constexpr const char* style = R"(<style>
  text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #24292f; }
  .title { font-size: 17px; font-weight: 600; }
  .heading { font-size: 13px; font-weight: 600; }
  .muted { fill: #59636e; }
  .end { text-anchor: end; }
  .middle { text-anchor: middle; }
  .page { fill: #ffffff; }
  .empty { fill: #f0f2f5; }
  .even { fill: #0b62b8; }
  .odd { fill: #4f9be3; }
  .on { fill: #ffffff; font-size: 11px; }
  .odd-on { fill: #06294d; font-size: 11px; }
  .grid { fill: none; stroke: #d8dee4; }
  .line { fill: none; stroke-width: 1.25; }
  .band { opacity: 0.25; }
  .line.equal { stroke: #0b62b8; }
  .line.packed { stroke: #c2410c; stroke-width: 3; stroke-dasharray: 10 2.5; }
  .band.equal { fill: #0b62b8; }
  .band.packed { fill: #c2410c; }
  .bar.equal { fill: #0b62b8; }
  .bar.packed { fill: #c2410c; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .muted { fill: #9aa5b1; }
    .page { fill: #0d1117; }
    .empty { fill: #1b222c; }
    .even { fill: #58a6ff; }
    .odd { fill: #2b6cb8; }
    .on { fill: #04172e; }
    .odd-on { fill: #ffffff; }
    .grid { stroke: #30363d; }
    .line.equal { stroke: #58a6ff; }
    .line.packed { stroke: #ffa657; }
    .band.equal { fill: #58a6ff; }
    .band.packed { fill: #ffa657; }
    .bar.equal { fill: #58a6ff; }
    .bar.packed { fill: #ffa657; }
  }
</style>
)";

/// Bytes of the character that UTF-8 text begins with; 0 where it begins with none that XML has.
std::size_t character_size(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first < 0xC0 || first > 0xF4 || text.size() < size) return 0;
  char32_t code = first & (0x7F >> size);
  for (const char next : text.substr(1, size - 1)) {
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3F);
  }
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  const bool no_character = code == 0xFFFE || code == 0xFFFF;
  return code >= least[size] && code <= 0x10FFFF && !surrogate && !no_character ? size : 0;
}

}  // namespace

Svg::Svg(Output& output, double width, double height, std::string_view title) : m_output(output) {
  put(R"(<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {0:.0f} {1:.0f}" )"
      R"(width="{0:.0f}" height="{1:.0f}">)"
      "\n<title>{2}</title>\n",
      width, height, xml_words(title));
  m_output.write(style);
  put("<rect class=\"page\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", width, height);
  text("title", 20, 32, title);
}

void Svg::text(std::string_view style_classes, double x, double y, std::string_view words) {
  put("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style_classes, x, y,
      xml_words(words));
}

void draw_words(std::string_view title, std::string_view words, Output& output) {
  Svg svg(output, 720, 80, title);
  svg.text("muted", 20, 54, words);
  svg.finish();
}

std::string xml_words(std::string_view words) {
  std::string text;
  while (!words.empty()) {
    const std::size_t size = character_size(words);
    const std::string_view character = words.substr(0, std::max<std::size_t>(size, 1));
    if (size == 0) {
      text += "\uFFFD";
    } else if (character == "&") {
      text += "&amp;";
    } else if (character == "<") {
      text += "&lt;";
    } else if (character == ">") {
      text += "&gt;";
    } else {
      text += character;
    }
    words.remove_prefix(character.size());
  }
  return text;
}

double text_width(std::string_view words) {
  return 7.7 * static_cast<double>(
                   std::ranges::count_if(words, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::size_t label_step(double distance, double room) {
  for (std::size_t unit = 1;; unit *= 10) {
    for (const std::size_t step : {unit, 2 * unit, 5 * unit}) {
      if (static_cast<double>(step) * distance >= room) return step;
    }
  }
}

}  // namespace chunked_prefill::cli
