// SPDX-License-Identifier: MIT
#include "report_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

constexpr const char* style = R"(<style>
  text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #24292f; }
  .title { font-size: 17px; font-weight: 600; }
  .muted { fill: #59636e; }
  .end { text-anchor: end; }
  .middle { text-anchor: middle; }
  .page { fill: #ffffff; }
  .empty { fill: #f0f2f5; }
  .even { fill: #0b62b8; }
  .odd { fill: #4f9be3; }
  .on { fill: #ffffff; font-size: 11px; }
  .odd-on { fill: #06294d; font-size: 11px; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .muted { fill: #9aa5b1; }
    .page { fill: #0d1117; }
    .empty { fill: #1b222c; }
    .even { fill: #58a6ff; }
    .odd { fill: #2b6cb8; }
    .on { fill: #04172e; }
    .odd-on { fill: #ffffff; }
  }
</style>
)";

/// Neighbours that share a column or a row of the picture, because there are more than can be told
/// apart.
struct Bins {
  std::size_t count = 0;  ///< of what is binned
  std::size_t size = 1;   ///< of one bin; the last may hold fewer

  Bins(std::size_t all, std::size_t most) : count(all), size((all + most - 1) / most) {}
  [[nodiscard]] std::size_t bins() const { return (count + size - 1) / size; }
  [[nodiscard]] std::size_t begin(std::size_t bin) const { return bin * size; }
  [[nodiscard]] std::size_t end(std::size_t bin) const { return std::min(count, (bin + 1) * size); }
};

/// Every how many labels one is written, so that each has `room`.
std::size_t label_step(double distance, double room) {
  for (std::size_t unit = 1;; unit *= 10) {
    for (const std::size_t step : {unit, 2 * unit, 5 * unit}) {
      if (static_cast<double>(step) * distance >= room) return step;
    }
  }
}

class Picture {
 public:
  Picture(const Batch& batch, const Build& build, Output& output)
      : m_batch(batch),
        m_plan(build.plan),
        m_lens(build.len_in_chunk),
        m_output(output),
        m_sequences(batch.prefix_lens.size(), 256),
        m_loops(build.loops(), 80),
        m_cell_width(std::clamp(768. / static_cast<double>(m_sequences.bins()), 3., 96.)),
        m_cell_height(std::clamp(640. / static_cast<double>(m_loops.bins()), 8., 44.)),
        m_full_cell(std::ranges::max(m_plan.max_chunk_len_per_loop())) {}

  void draw() {
    const double width = std::max(720., right() + 225);
    const double height = bottom() + (footnote().empty() ? 50 : 74);
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {0:.0f} {1:.0f}" )"
        R"(width="{0:.0f}" height="{1:.0f}">)",
        width, height);
    put("\n<title>Which part of which sequence each loop covers</title>\n");
    m_output.write(style);
    put("<rect class=\"page\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", width, height);
    headings();
    for (std::size_t row = 0; row < m_loops.bins(); ++row) loop_row(row);
    sequence_axis();
    m_output.write("</svg>\n");
  }

 private:
  static constexpr double left = 76, top = 112, bar_width = 100;

  [[nodiscard]] double right() const {
    return left + m_cell_width * static_cast<double>(m_sequences.bins());
  }
  [[nodiscard]] double bottom() const { return y(m_loops.bins()); }
  [[nodiscard]] double x(std::size_t column) const {
    return left + m_cell_width * static_cast<double>(column);
  }
  [[nodiscard]] double y(std::size_t row) const {
    return top + m_cell_height * static_cast<double>(row);
  }
  [[nodiscard]] double gap() const { return std::min(2., m_cell_width * 0.15); }

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    m_output.write(fmt::format(format, std::forward<Args>(args)...));
  }
  void text(std::string_view style_class, double at_x, double at_y, std::string_view words) {
    put("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style_class, at_x, at_y, words);
  }

  void headings() {
    text("title", 20, 32, "Which part of which sequence each loop covers");
    text("muted", 20, 53,
         fmt::format("{}, {}; policy {}, chunk_capacity {}: {}",
                     counted(m_plan.batch_size(), "sequence"),
                     counted(m_plan.total_tokens(), "cached token"), policy_words(m_plan),
                     grouped(m_plan.chunk_capacity()), counted(m_plan.chunked_loop_num(), "loop")));
    const std::string of = m_plan.policy() == Policy::packed ? "tokens" : "positions";
    const std::string whose = m_plan.policy() == Policy::packed
                                  ? "all prefixes end to end, in whole grains"
                                  : "every sequence";
    text("muted", 20, 71,
         fmt::format("Loop c covers the {0} [c × {1}, (c + 1) × {1}) of {2}; a cell filled to its "
                     "foot is {3}",
                     of, grouped(m_plan.chunk_len()), whose, counted(m_full_cell, "token")));
    text("muted end", left - 10, top - 12, m_loops.size > 1 ? "loops" : "loop");
    text("muted", right() + 14, top - 12,
         m_loops.size > 1 ? "tokens, mean of a loop" : "tokens, of chunk_capacity");
  }

  /// Tokens that the loops of `row` take from the sequences of `column`.
  [[nodiscard]] std::int64_t cell_tokens(std::size_t row, std::size_t column) const {
    std::int64_t tokens = 0;
    for (std::size_t loop = m_loops.begin(row); loop < m_loops.end(row); ++loop) {
      const auto lens = m_lens.row(loop);
      for (std::size_t i = m_sequences.begin(column); i < m_sequences.end(column); ++i) {
        tokens += lens[i];
      }
    }
    return tokens;
  }

  void loop_row(std::size_t row) {
    const std::string_view tone = row % 2 == 0 ? "even" : "odd";
    const double height = m_cell_height - 1;
    std::string chunks, numbers;
    put("<rect class=\"empty\" x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n",
        left, y(row), right() - left - gap(), height);
    for (std::size_t column = 0; column < m_sequences.bins(); ++column) {
      const std::int64_t tokens = cell_tokens(row, column);
      if (tokens == 0) continue;
      const auto cells = (m_loops.end(row) - m_loops.begin(row)) *
                         (m_sequences.end(column) - m_sequences.begin(column));
      const double share = static_cast<double>(tokens) /
                           (static_cast<double>(m_full_cell) * static_cast<double>(cells));
      const double w = m_cell_width - gap();
      chunks += fmt::format("M{:.2f} {:.2f}h{:.2f}v{:.2f}h{:.2f}z", x(column), y(row), w,
                            std::max(0.5, share * height), -w);
      if (cells == 1 && m_cell_width >= 40 && share * height >= 15) {
        numbers += fmt::format("<text class=\"{}on middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                               row % 2 == 0 ? "" : "odd-", x(column) + w / 2,
                               y(row) + share * height / 2 + 4, grouped(tokens));
      }
    }
    put("<path class=\"{}\" d=\"{}\"><title>{}</title></path>\n{}", tone, chunks, row_summary(row),
        numbers);
    row_ends(row, tone);
  }

  [[nodiscard]] double mean_tokens(std::size_t row) const {
    const std::int64_t tokens =
        m_plan.offsets()[m_loops.end(row)] - m_plan.offsets()[m_loops.begin(row)];
    return static_cast<double>(tokens) / static_cast<double>(m_loops.end(row) - m_loops.begin(row));
  }

  [[nodiscard]] std::string row_name(std::size_t row) const {
    const auto first = static_cast<std::int64_t>(m_loops.begin(row));
    const auto last = static_cast<std::int64_t>(m_loops.end(row)) - 1;
    return first == last ? grouped(first) : grouped(first) + "–" + grouped(last);
  }

  [[nodiscard]] std::string row_summary(std::size_t row) const {
    if (m_loops.size > 1) {
      return fmt::format("loops {}: {:.0f} tokens on average", row_name(row), mean_tokens(row));
    }
    const auto loop = static_cast<std::int32_t>(row);
    const SeqRange range = m_plan.seq_range(loop);
    return fmt::format("loop {}: {}, longest chunk {}, {} of sequences [{}, {})", row_name(row),
                       counted(m_plan.tokens(loop), "token"), grouped(m_plan.max_chunk_len(loop)),
                       grouped(m_plan.non_empty_seqs(loop)), range.begin, range.end);
  }

  /// The loop's number on its left, its tokens on its right.
  void row_ends(std::size_t row, std::string_view tone) {
    const double foot = y(row) + std::min(m_cell_height / 2 + 4, m_cell_height - 1);
    const double tokens = mean_tokens(row);
    const double bar_height = std::min(m_cell_height - 2, 14.);
    const double bar_y = y(row) + (m_cell_height - 1 - bar_height) / 2;
    put("<rect class=\"empty\" x=\"{0:.1f}\" y=\"{1:.2f}\" width=\"{2:.0f}\" height=\"{3:.2f}\"/>\n"
        "<rect class=\"{4}\" x=\"{0:.1f}\" y=\"{1:.2f}\" width=\"{5:.2f}\" height=\"{3:.2f}\"/>\n",
        right() + 14, bar_y, bar_width, bar_height, tone,
        std::max(0.5, bar_width * tokens / static_cast<double>(m_plan.chunk_capacity())));
    if (row % label_step(m_cell_height, 13) != 0) return;
    text("end", left - 10, foot, row_name(row));
    text("", right() + 22 + bar_width, foot, grouped(static_cast<std::int64_t>(tokens + 0.5)));
  }

  void sequence_axis() {
    const bool prefixes = m_sequences.size == 1 && m_cell_width >= 40;
    const std::size_t step = label_step(m_cell_width, 38);
    for (std::size_t column = 0; column < m_sequences.bins(); column += step) {
      const double middle = x(column) + (m_cell_width - gap()) / 2;
      const std::size_t i = m_sequences.begin(column);
      text("middle", middle, bottom() + 18, grouped(static_cast<std::int64_t>(i)));
      if (prefixes) text("muted middle", middle, bottom() + 35, grouped(m_batch.prefix_lens[i]));
    }
    text("muted end", left - 10, bottom() + 18, "sequence");
    if (prefixes) text("muted end", left - 10, bottom() + 35, "prefix");
    text("muted", left, bottom() + 58, footnote());
  }

  /// What shares a column or a row; empty where nothing does.
  [[nodiscard]] std::string footnote() const {
    std::string words;
    if (m_sequences.size > 1) {
      words = fmt::format("A column is the mean of {} neighbouring sequences. ",
                          grouped(static_cast<std::int64_t>(m_sequences.size)));
    }
    if (m_loops.size > 1) {
      words += fmt::format("A row is the mean of {} loops.",
                           grouped(static_cast<std::int64_t>(m_loops.size)));
    }
    return words;
  }

  const Batch& m_batch;
  const ChunkPlan& m_plan;
  const Table& m_lens;
  Output& m_output;
  Bins m_sequences;
  Bins m_loops;
  double m_cell_width;
  double m_cell_height;
  std::int32_t m_full_cell;
};

/// What is drawn where there are no loops.
void draw_nothing(const Build& build, Output& output) {
  output.write(R"(<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 720 80" )"
               "width=\"720\" height=\"80\">\n");
  output.write(style);
  output.write(
      fmt::format("<rect class=\"page\" width=\"720\" height=\"80\"/>\n"
                  "<text class=\"title\" x=\"20\" y=\"32\">No loops</text>\n"
                  "<text class=\"muted\" x=\"20\" y=\"54\">No sequence of {} has a cached "
                  "prefix.</text>\n</svg>\n",
                  grouped(build.plan.batch_size())));
}

}  // namespace

void report_svg(const Batch& batch, const Build& build, Output& output) {
  if (build.loops() == 0) return draw_nothing(build, output);
  Picture(batch, build, output).draw();
}

}  // namespace chunked_prefill::cli
