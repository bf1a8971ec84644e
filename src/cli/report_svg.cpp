// SPDX-License-Identifier: MIT
#include "report_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "svg.hpp"
#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

/// Neighbours that share a column or a row of the picture, because there are more than can be told
/// apart.
struct Bins {
  std::size_t count = 0;  ///< of what is binned
  std::size_t size = 1;   ///< of one bin; the last may hold fewer

  [[nodiscard]] std::size_t bins() const { return (count + size - 1) / size; }
  [[nodiscard]] std::size_t begin(std::size_t bin) const { return bin * size; }
  [[nodiscard]] std::size_t end(std::size_t bin) const { return std::min(count, (bin + 1) * size); }
};

/// The size of a bin so that there are at most `most`.
std::size_t bin_size(std::size_t count, std::size_t most) { return (count + most - 1) / most; }

/// Loops that share a row, because there are more than can be told apart.
std::size_t loops_per_row(const Build& build) { return bin_size(build.loops(), 80); }

/// What the panels of a picture have in common.
struct Scale {
  Bins sequences;
  double cell_width = 0, cell_height = 0;

  Scale(const Batch& batch, const std::vector<Build>& builds) {
    const double width = builds.size() == 1 ? 768 : 384;
    std::size_t rows = 1;
    for (const Build& build : builds)
      rows = std::max(rows, Bins{build.loops(), loops_per_row(build)}.bins());
    const std::size_t batch_size = batch.prefix_lens.size();
    sequences = {batch_size, bin_size(batch_size, 256)};
    cell_width = std::min(width / static_cast<double>(sequences.bins()), 96.);
    cell_height = std::clamp(640. / static_cast<double>(rows), 8., 44.);
  }
};

/// The loops of one build.
class Panel {
 public:
  Panel(const Batch& batch, const Build& build, const Scale& scale, double begin)
      : m_batch(batch),
        m_plan(build.plan),
        m_lens(build.len_in_chunk),
        m_sequences(scale.sequences),
        m_loops{build.loops(), loops_per_row(build)},
        m_cell_width(scale.cell_width),
        m_cell_height(scale.cell_height),
        m_full_cell(std::ranges::max(m_plan.max_chunk_len_per_loop())),
        m_begin(begin),
        m_left(begin + std::max(84., 34 + text_width(row_name(m_loops.bins() - 1)))) {}

  [[nodiscard]] double end() const {
    const double tokens = bar_width + 8 + text_width(grouped(m_plan.chunk_capacity()));
    return std::max(m_begin + 620, bars() + std::max(tokens, 160.) + 20);
  }
  [[nodiscard]] double bottom() const { return y(m_loops.bins()) + (prefixes() ? 35 : 18); }

  void draw(Svg& svg) const {
    headings(svg);
    for (std::size_t row = 0; row < m_loops.bins(); ++row) loop_row(svg, row);
    sequence_axis(svg);
  }

 private:
  static constexpr double top = 158, bar_width = 100;

  [[nodiscard]] double x(std::size_t column) const {
    return m_left + m_cell_width * static_cast<double>(column);
  }
  [[nodiscard]] double y(std::size_t row) const {
    return top + m_cell_height * static_cast<double>(row);
  }
  [[nodiscard]] double right() const { return x(m_sequences.bins()); }
  [[nodiscard]] double bars() const { return right() + 14; }
  [[nodiscard]] double gap() const {
    return m_cell_width < 3 ? 0 : std::min(2., m_cell_width * 0.15);
  }

  void headings(Svg& svg) const {
    svg.text("heading", m_begin + 20, 82,
             fmt::format("policy {}: {}, {}", policy_words(m_plan),
                         counted(m_plan.chunked_loop_num(), "loop"),
                         counted(m_plan.total_tokens(), "token")));
    const bool packed = m_plan.policy() == Policy::packed;
    svg.text("muted", m_begin + 20, 101,
             fmt::format("Loop c covers the {0} [c × {1}, (c + 1) × {1})",
                         packed ? "tokens" : "positions", grouped(m_plan.chunk_len())));
    svg.text(
        "muted", m_begin + 20, 118,
        fmt::format("of {}{}; a cell filled to its foot is {}",
                    packed ? "all prefixes end to end" : "every sequence",
                    m_plan.grain() > 1 ? ", in whole grains" : "", counted(m_full_cell, "token")));
    svg.text("muted end", m_left - 10, top - 12, m_loops.size > 1 ? "loops" : "loop");
    svg.text("muted", bars(), top - 12,
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

  void loop_row(Svg& svg, std::size_t row) const {
    const std::string_view tone = row % 2 == 0 ? "even" : "odd";
    const double height = m_cell_height - 1;
    std::string chunks, numbers;
    svg.put(
        "<rect class=\"empty\" x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n",
        m_left, y(row), right() - m_left - gap(), height);
    for (std::size_t column = 0; column < m_sequences.bins(); ++column) {
      const std::int64_t tokens = cell_tokens(row, column);
      if (tokens == 0) continue;
      const auto cells = (m_loops.end(row) - m_loops.begin(row)) *
                         (m_sequences.end(column) - m_sequences.begin(column));
      const double share = static_cast<double>(tokens) /
                           (static_cast<double>(m_full_cell) * static_cast<double>(cells));
      const double w = m_cell_width - gap();
      chunks += fmt::format("M{:.2f} {:.2f}h{:.2f}v{:.2f}h{:.2f}z", x(column), y(row), w,
                            std::max(1.5, share * height), -w);
      const std::string number = grouped(tokens);
      if (cells == 1 && w >= text_width(number) && share * height >= 15) {
        numbers += fmt::format("<text class=\"{}on middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                               row % 2 == 0 ? "" : "odd-", x(column) + w / 2,
                               y(row) + share * height / 2 + 4, number);
      }
    }
    svg.put("<path class=\"{}\" d=\"{}\"><title>{}</title></path>\n{}", tone, chunks,
            row_summary(row), numbers);
    row_ends(svg, row, tone);
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
  void row_ends(Svg& svg, std::size_t row, std::string_view tone) const {
    const double foot = y(row) + std::min(m_cell_height / 2 + 4, m_cell_height - 1);
    const double tokens = mean_tokens(row);
    const double bar_height = std::min(m_cell_height - 2, 14.);
    const double bar_y = y(row) + (m_cell_height - 1 - bar_height) / 2;
    svg.put(
        "<rect class=\"empty\" x=\"{0:.1f}\" y=\"{1:.2f}\" width=\"{2:.0f}\" height=\"{3:.2f}\"/>\n"
        "<rect class=\"{4}\" x=\"{0:.1f}\" y=\"{1:.2f}\" width=\"{5:.2f}\" height=\"{3:.2f}\"/>\n",
        bars(), bar_y, bar_width, bar_height, tone,
        tokens == 0
            ? 0
            : std::max(1., bar_width * tokens / static_cast<double>(m_plan.chunk_capacity())));
    if (row % label_step(m_cell_height, 13) != 0) return;
    svg.text("end", m_left - 10, foot, row_name(row));
    svg.text("", bars() + bar_width + 8, foot, grouped(static_cast<std::int64_t>(tokens + 0.5)));
  }

  /// Whether each sequence's prefix length has room below it.
  [[nodiscard]] bool prefixes() const {
    return m_sequences.size == 1 &&
           m_cell_width >=
               text_width(grouped(m_plan.shard().local_tokens(m_plan.max_prefix_len()))) + 4;
  }

  void sequence_axis(Svg& svg) const {
    const double foot = y(m_loops.bins()) + 18;
    const std::string last = grouped(static_cast<std::int64_t>(m_sequences.count) - 1);
    const std::size_t step = label_step(m_cell_width, text_width(last) + 12);
    for (std::size_t column = 0; column < m_sequences.bins(); column += step) {
      const double middle = x(column) + (m_cell_width - gap()) / 2;
      const std::size_t i = m_sequences.begin(column);
      svg.text("middle", middle, foot, grouped(static_cast<std::int64_t>(i)));
      if (prefixes()) {
        svg.text("muted middle", middle, foot + 17, grouped(m_batch.held_tokens(i)));
      }
    }
    svg.text("muted end", m_left - 10, foot, "sequence");
    if (prefixes()) svg.text("muted end", m_left - 10, foot + 17, "prefix");
  }

  const Batch& m_batch;
  const ChunkPlan& m_plan;
  const Table& m_lens;
  Bins m_sequences;
  Bins m_loops;
  double m_cell_width, m_cell_height;
  std::int32_t m_full_cell;
  double m_begin, m_left;
};

/// What shares a column or a row; empty where nothing does.
std::string footnote(const Scale& scale, const std::vector<Build>& builds) {
  std::string words;
  if (scale.sequences.size > 1) {
    words = fmt::format("A column is the mean of {} neighbouring sequences. ",
                        grouped(static_cast<std::int64_t>(scale.sequences.size)));
  }
  for (const Build& build : builds) {
    const std::size_t loops = loops_per_row(build);
    if (loops == 1) continue;
    words += fmt::format("A row{} is the mean of {} loops. ",
                         builds.size() == 1 ? "" : fmt::format(" of {}", name(build.plan.policy())),
                         grouped(static_cast<std::int64_t>(loops)));
  }
  return words;
}

}  // namespace

void report_svg(const Batch& batch, const std::vector<Build>& builds, Output& output) {
  const ChunkPlan& plan = builds.front().plan;
  if (plan.chunked_loop_num() == 0) {
    return draw_words(
        "No loops",
        fmt::format("No sequence of {} has a cached prefix.", grouped(plan.batch_size())), output);
  }
  const Scale scale(batch, builds);
  const std::string note = footnote(scale, builds);
  std::vector<Panel> panels;
  double width = 0, bottom = 0;
  for (const Build& build : builds) {
    panels.emplace_back(batch, build, scale, width);
    width = panels.back().end();
    bottom = std::max(bottom, panels.back().bottom());
  }
  Svg svg(output, width, bottom + (note.empty() ? 18 : 42),
          "Which part of which sequence each loop covers");
  svg.text(
      "muted", 20, 53,
      fmt::format("{}, chunk_capacity {}, page_size {}{}", counted(plan.batch_size(), "sequence"),
                  grouped(plan.chunk_capacity()), grouped(batch.page_size),
                  batch.shard.world_size == 1 ? "" : ", " + shard_words(batch.shard)));
  for (const Panel& panel : panels) panel.draw(svg);
  if (!note.empty()) svg.text("muted", 20, bottom + 24, note);
  svg.finish();
}

}  // namespace chunked_prefill::cli
