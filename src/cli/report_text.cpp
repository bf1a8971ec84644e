// SPDX-License-Identifier: MIT
#include "report_text.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

/// Breaks prose between words.
std::string wrapped(std::string_view prose, std::size_t width) {
  std::string text;
  std::size_t column = 0;
  while (!prose.empty()) {
    const std::size_t end = std::min(prose.find(' '), prose.size());
    if (column > 0 && column + 1 + end > width) {
      text += '\n';
      column = 0;
    }
    if (column > 0) {
      text += ' ';
      ++column;
    }
    text += prose.substr(0, end);
    column += end;
    prose.remove_prefix(std::min(end + 1, prose.size()));
  }
  return text + '\n';
}

/// Which of `count` rows are shown: all, or the first, the last and `always`.
std::vector<std::size_t> shown_rows(std::size_t count, std::size_t always) {
  constexpr std::size_t most = 24, first = 14, last = 8;
  std::set<std::size_t> rows;
  for (std::size_t r = 0; r < count; ++r) {
    if (count <= most || r < first || r >= count - last) rows.insert(r);
  }
  if (count > 0) rows.insert(always);
  return {rows.begin(), rows.end()};
}

/// "57 loops left out, of 128 to 13,056 tokens"
template <class Tokens>
std::string left_out_words(const Tokens& left_out, std::string_view noun) {
  const auto [least, most] = std::ranges::minmax(left_out);
  std::string words =
      fmt::format("{} left out, of ", counted(static_cast<std::int64_t>(left_out.size()), noun));
  if (most > least) words += grouped(least) + " to ";
  return words + counted(most, "token");
}

std::string heading(const Batch& batch, const std::vector<Build>& builds, std::size_t width) {
  const ChunkPlan& any = builds.front().plan;
  std::string text =
      wrapped(fmt::format("{}: {}, {}, page_size {}", name_end(one_line(batch.source), width / 2),
                          counted(any.batch_size(), "sequence"),
                          counted(any.total_tokens(), "cached token"), grouped(batch.page_size)),
              width);
  if (batch.shard.world_size > 1) {
    text += wrapped(
        fmt::format("{}: tokens and positions are those that it holds", shard_words(batch.shard)),
        width);
  }
  for (const auto& build : builds) {
    const ChunkPlan& plan = build.plan;
    text += wrapped(
        fmt::format("policy {}, chunk_capacity {}, chunk_len {}: {}, built on {}",
                    policy_words(plan), grouped(plan.chunk_capacity()), grouped(plan.chunk_len()),
                    counted(plan.chunked_loop_num(), "loop"), build.execution_space),
        width);
  }
  if (batch.identity_table) {
    text += wrapped(
        "no page table was given, so an identity table was made: sequence i on row i, pages "
        "numbered consecutively",
        width);
  }
  return text;
}

/// "policy equal: 30 loops; policy packed, grain 64: 1 loop"
std::string comparison(const std::vector<Build>& builds) {
  std::string words;
  for (const Build& build : builds) {
    words += fmt::format("{}policy {}: {}", words.empty() ? "" : "; ", policy_words(build.plan),
                         counted(build.plan.chunked_loop_num(), "loop"));
  }
  return words + '\n';
}

using Cells = std::vector<std::string>;

/// The words and numbers of the loop table, a row a loop.
Cells loop_cells(const Build& build, std::size_t loop) {
  const ChunkPlan& plan = build.plan;
  const auto c = static_cast<std::int32_t>(loop);
  const SeqRange range = plan.seq_range(c);
  return {grouped(c),
          grouped(plan.tokens(c)),
          grouped(plan.max_chunk_len(c)),
          fmt::format("[{}, {})", range.begin, range.end),
          grouped(plan.non_empty_seqs(c)),
          fmt::format("{:.1f} %", 100. * static_cast<double>(plan.tokens(c)) /
                                      static_cast<double>(plan.chunk_capacity()))};
}

/// A share of the capacity; something shows wherever there is something.
std::string bar(double share, std::size_t columns) {
  static constexpr const char* eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto filled = std::max<std::size_t>(
      1, static_cast<std::size_t>(share * static_cast<double>(8 * columns) + 0.5));
  std::string text;
  for (std::size_t k = 0; k < filled / 8; ++k) text += "█";
  return text + eighths[filled % 8];
}

std::string loop_table(const Build& build, std::size_t width) {
  const ChunkPlan& plan = build.plan;
  const auto rows = shown_rows(build.loops(), build.loops() - 1);
  const Cells names = {"loop", "tokens", "longest chunk", "sequences", "non-empty", "of capacity"};
  std::vector<Cells> table = {names};
  for (const std::size_t loop : rows) table.push_back(loop_cells(build, loop));

  std::vector<std::size_t> widths(names.size(), 0);
  for (const Cells& cells : table) {
    for (std::size_t k = 0; k < cells.size(); ++k) widths[k] = std::max(widths[k], cells[k].size());
  }
  std::size_t used = std::reduce(widths.begin(), widths.end());
  const std::string_view gap = used + 2 * (widths.size() - 1) <= width ? "  " : " ";
  used += gap.size() * (widths.size() - 1);
  const std::size_t bar_columns =
      std::min<std::size_t>(width > used + 3 ? width - used - 3 : 0, 20);

  const auto line = [&](const Cells& cells) {
    std::string text;
    for (std::size_t k = 0; k < cells.size(); ++k)
      text += fmt::format("{}{:>{}}", k == 0 ? "" : gap, cells[k], widths[k]);
    return text;
  };
  std::string text = line(names) + '\n';
  std::size_t next = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] > next) {
      const auto left_out = plan.tokens_per_loop().subspan(next, rows[r] - next);
      text += fmt::format("{:>{}}  {}\n", "⋮", widths[0], left_out_words(left_out, "loop"));
    }
    next = rows[r] + 1;
    const double share = static_cast<double>(plan.tokens_per_loop()[rows[r]]) /
                         static_cast<double>(plan.chunk_capacity());
    text += line(table[r + 1]);
    if (bar_columns > 0 && share > 0) text += "  " + bar(share, bar_columns);
    text += '\n';
  }
  return text;
}

/// The drawing's scale.
struct Scale {
  std::size_t columns = 0;
  std::int64_t longest = 0;
  std::size_t loops_per_mark = 1;

  [[nodiscard]] std::size_t column(std::int64_t position) const {
    return static_cast<std::size_t>(position * static_cast<std::int64_t>(columns) / longest);
  }
  [[nodiscard]] std::size_t column_after(std::int64_t position) const {
    return static_cast<std::size_t>((position * static_cast<std::int64_t>(columns) + longest - 1) /
                                    longest);
  }
};

/// Every loop gets a mark where the marks and their digits have room, else every 2nd, 5th, 10th...
std::size_t loops_per_mark(const Build& build, std::size_t sequence, std::size_t columns) {
  std::size_t spanned = 0;
  for (std::size_t loop = 0; loop < build.loops(); ++loop) {
    if (build.len_in_chunk.row(loop)[sequence] > 0) ++spanned;
  }
  const std::size_t room = std::to_string(build.loops() - 1).size() + 2;
  for (std::size_t unit = 1;; unit *= 10) {
    for (const std::size_t step : {unit, 2 * unit, 5 * unit}) {
      if (step * columns >= room * spanned) return step;
    }
  }
}

/// One sequence: `0━━━━1━━━━2━━`.
std::string sequence_line(const Batch& batch, const Build& build, std::size_t sequence,
                          const Scale& scale) {
  const std::int64_t prefix_len = batch.held_tokens(sequence);
  if (prefix_len == 0) return " empty";
  Cells cells(scale.column_after(prefix_len), "━");
  std::size_t free = 0;  // first column that no mark has taken
  std::size_t marked = SIZE_MAX;
  for (std::size_t loop = 0; loop < build.loops(); ++loop) {
    if (build.len_in_chunk.row(loop)[sequence] == 0) continue;
    const std::size_t mark = loop / scale.loops_per_mark;
    if (mark == std::exchange(marked, mark)) continue;
    const std::string label = std::to_string(loop);
    const std::size_t column = scale.column(build.starts.row(loop)[sequence]);
    if (column < free) continue;
    if (column + label.size() <= cells.size()) {
      for (std::size_t k = 0; k < label.size(); ++k) cells[column + k] = label[k];
      free = column + label.size();
    } else {
      cells[column] = "╋";  // no room for its number
    }
  }
  std::string text;
  for (const std::string& cell : cells) text += cell;
  return text;
}

std::string drawing(const Batch& batch, const Build& build, std::size_t width) {
  const auto longest = static_cast<std::size_t>(build.plan.longest_sequence());
  const auto rows = shown_rows(batch.prefix_lens.size(), longest);
  const std::size_t number_width =
      std::max<std::size_t>(8, grouped(static_cast<std::int64_t>(rows.back())).size());
  const std::int64_t most = batch.held_tokens(longest);
  const std::size_t length_width = std::max<std::size_t>(6, grouped(most).size());
  const std::size_t used = number_width + length_width + 5;
  Scale scale{.columns = width - used - 1, .longest = std::max<std::int64_t>(most, 1)};
  scale.loops_per_mark = loops_per_mark(build, longest, scale.columns);

  std::string text =
      fmt::format("{:>{}}  {:>{}}\n", "sequence", number_width, "prefix", length_width);
  std::size_t next = 0;
  for (const std::size_t sequence : rows) {
    if (sequence > next) {
      std::vector<std::int64_t> left_out;
      for (std::size_t i = next; i < sequence; ++i) left_out.push_back(batch.held_tokens(i));
      text += fmt::format("{:>{}}  {}\n", "⋮", number_width, left_out_words(left_out, "sequence"));
    }
    next = sequence + 1;
    text += fmt::format("{:>{}}  {:>{}}  │{}\n", grouped(static_cast<std::int64_t>(sequence)),
                        number_width, grouped(batch.held_tokens(sequence)), length_width,
                        sequence_line(batch, build, sequence, scale));
  }
  const std::string end = grouped(scale.longest);
  text += fmt::format("{:{}}└0{:>{}}\n", "", used - 1, end, scale.columns - 1);
  std::string legend = fmt::format(
      "position in the prefix, {:.4g} tokens a column; a number stands where that loop's chunk "
      "begins",
      static_cast<double>(scale.longest) / static_cast<double>(scale.columns));
  if (scale.loops_per_mark > 1) {
    legend += fmt::format(", one number in {} loops",
                          grouped(static_cast<std::int64_t>(scale.loops_per_mark)));
  }
  return text + wrapped(legend, width);
}

}  // namespace

int terminal_width() {
  winsize size{};
  const bool terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return terminal ? std::clamp<int>(size.ws_col, 64, 160) : 80;
}

std::string report_text(const Batch& batch, const std::vector<Build>& builds, int width) {
  const auto columns = static_cast<std::size_t>(width);
  std::string text = heading(batch, builds, columns);
  if (builds.front().loops() == 0) {
    return text + "no sequence has a cached prefix: there is nothing to do\n";
  }
  for (const Build& build : builds) {
    text += '\n';
    if (builds.size() > 1) text += fmt::format("policy {}\n", policy_words(build.plan));
    text += loop_table(build, columns) + '\n' + drawing(batch, build, columns);
  }
  return builds.size() > 1 ? text + '\n' + comparison(builds) : text;
}

}  // namespace chunked_prefill::cli
