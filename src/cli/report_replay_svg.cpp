// SPDX-License-Identifier: MIT
#include "report_replay_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report_replay.hpp"
#include "svg.hpp"
#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

/// Numbers from 0 to `most` along a line.
struct Axis {
  double begin = 0, length = 0;  ///< pixels; a negative length goes up
  std::int64_t most = 1;
  bool logarithmic = false;

  [[nodiscard]] double at(double number) const {
    const auto end = static_cast<double>(most);
    return begin + length * (logarithmic ? std::log1p(number) / std::log1p(end) : number / end);
  }

  /// Round numbers with `room` for each.
  [[nodiscard]] std::vector<std::int64_t> ticks(double room) const {
    std::vector<std::int64_t> ticks{0};
    const auto add = [&](std::int64_t tick) {
      const double distance = at(static_cast<double>(tick)) - at(static_cast<double>(ticks.back()));
      if (tick <= most && std::abs(distance) >= room) ticks.push_back(tick);
    };
    if (logarithmic) {
      for (std::int64_t unit = 1; unit <= most; unit *= 10) {
        for (const std::int64_t tick : {unit, 2 * unit, 5 * unit}) add(tick);
      }
    } else {
      const auto step =
          static_cast<std::int64_t>(label_step(std::abs(length) / static_cast<double>(most), room));
      for (std::int64_t tick = step; tick <= most; tick += step) add(tick);
    }
    return ticks;
  }
};

/// The loops under one policy.
struct Curve {
  std::string name;
  std::string_view style_class;
  const LoopCount& loops;
};

class Picture {
 public:
  Picture(const ReplayArguments& arguments, const Replay& replay, Output& output)
      : m_arguments(arguments),
        m_replay(replay),
        m_curves(curves(arguments, replay)),
        m_most_loops(most_loops(m_curves)),
        m_left(std::max(74., 34 + text_width(grouped(m_most_loops)))),
        m_svg(output, m_left + plot_width + 40, 714, "Loops of the steps of a trace") {}

  void draw() {
    const auto [trace, settings] = replay_heading(m_arguments, m_replay, 64);
    m_svg.text("muted", 20, 53, trace);
    m_svg.text("muted", 20, 71, settings);
    legend();
    steps();
    distribution();
    m_svg.finish();
  }

 private:
  static constexpr double plot_width = 800, plot_height = 190;

  static std::vector<Curve> curves(const ReplayArguments& arguments, const Replay& replay) {
    std::vector<Curve> curves{
        {arguments.grain == 1 ? "packed" : fmt::format("packed, grain {}", arguments.grain),
         "packed", replay.packed}};
    if (replay.equal.refused.empty()) curves.push_back({"equal", "equal", replay.equal});
    return curves;
  }
  static std::int64_t most_loops(const std::vector<Curve>& curves) {
    std::int64_t most = 1;
    for (const Curve& curve : curves) most = std::max(most, curve.loops.most);
    return most;
  }

  void legend() {
    const std::string& refused = m_replay.equal.refused;
    if (!refused.empty()) m_svg.text("muted", 20, 96, fmt::format("equal: none, {}", refused));
    double y = 115;
    for (const auto& [name, style_class, loops] : m_curves) {
      m_svg.put("<path class=\"line {}\" d=\"M20 {:.0f}h36\"/>\n", style_class, y - 4);
      m_svg.text("", 66, y,
                 fmt::format("{}: {}, {:.2f} a step on average, {} at most", name,
                             counted(loops.total, "loop"),
                             static_cast<double>(loops.total) / static_cast<double>(m_replay.steps),
                             grouped(loops.most)));
      y -= 19;
    }
  }

  /// A line for each tick, its number, and what the numbers are.
  template <class Label>
  void axes(const Axis& x, std::string_view x_words, const Axis& y, std::string_view y_words,
            const Label& y_label) {
    for (const std::int64_t tick : y.ticks(22)) {
      const double at = y.at(static_cast<double>(tick));
      m_svg.put("<path class=\"grid\" d=\"M{:.1f} {:.1f}h{:.1f}\"/>\n", x.begin, at, x.length);
      m_svg.text("end", x.begin - 10, at + 4, y_label(tick));
    }
    for (const std::int64_t tick : x.ticks(text_width(grouped(x.most)) + 12)) {
      const double at = x.at(static_cast<double>(tick));
      m_svg.put("<path class=\"grid\" d=\"M{:.1f} {:.1f}v5\"/>\n", at, y.begin);
      m_svg.text("middle", at, y.begin + 19, grouped(tick));
    }
    m_svg.text("muted middle", x.begin + x.length / 2, y.begin + 38, x_words);
    m_svg.text("muted end", x.begin - 10, y.begin + y.length - 14, y_words);
  }

  void steps() {
    const Axis x{m_left, plot_width, m_replay.steps}, y{378, -plot_height, m_most_loops};
    m_svg.text("heading", 20, 148, "Loops of each step");
    const std::int64_t shared = m_curves[0].loops.steps.column_size();
    if (shared > 1) {
      m_svg.text("muted", 166, 148,
                 fmt::format("line: mean of {} neighbouring steps; shade: from the fewest to the "
                             "most loops of one",
                             grouped(shared)));
    }
    axes(x, "step", y, "loops", grouped);
    if (shared > 1) {
      for (const Curve& curve : m_curves) band(x, y, curve);
    }
    for (const auto& [name, style_class, loops] : m_curves) {
      std::string line;
      std::int64_t step = 0;
      for (const auto& column : loops.steps.columns()) {
        line += fmt::format("{}{:.1f} {:.1f}H{:.1f}", line.empty() ? 'M' : 'L',
                            x.at(static_cast<double>(step)), y.at(column.mean()),
                            x.at(static_cast<double>(step + column.count)));
        step += column.count;
      }
      m_svg.put("<path class=\"line {}\" d=\"{}\"><title>{}</title></path>\n", style_class, line,
                name);
    }
  }

  /// From the least to the most of each column.
  void band(const Axis& x, const Axis& y, const Curve& curve) {
    std::string path;
    std::int64_t step = 0;
    for (const auto& column : curve.loops.steps.columns()) {
      const double begin = x.at(static_cast<double>(step));
      step += column.count;
      path += fmt::format("M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}z", begin,
                          y.at(static_cast<double>(column.least)), x.at(static_cast<double>(step)),
                          y.at(static_cast<double>(column.most)), begin);
    }
    m_svg.put("<path class=\"band {}\" d=\"{}\"/>\n", curve.style_class, path);
  }

  void distribution() {
    const std::int64_t end = m_most_loops + 1 + m_most_loops / 20;  // past the last step up
    const Axis x{m_left, plot_width, end, end > 20}, y{662, -plot_height, 100};
    m_svg.text("heading", 20, 438, "Share of the steps with at most so many loops");
    axes(x, x.logarithmic ? "loops of a step, logarithmic" : "loops of a step", y, "steps",
         [](std::int64_t percent) { return fmt::format("{} %", percent); });
    for (const auto& [name, style_class, loops] : m_curves) {
      std::string line = fmt::format("M{:.1f} {:.1f}", x.at(0), y.at(0));
      for (const auto& [number, share] : loops.distribution.cumulative()) {
        line +=
            fmt::format("H{:.1f}V{:.1f}", x.at(static_cast<double>(std::min(number, m_most_loops))),
                        y.at(100 * share));
      }
      m_svg.put("<path class=\"line {}\" d=\"{}H{:.1f}\"><title>{}</title></path>\n", style_class,
                line, x.at(static_cast<double>(end)), name);
    }
  }

  const ReplayArguments& m_arguments;
  const Replay& m_replay;
  std::vector<Curve> m_curves;  ///< as drawn: the thin line over the thick one
  std::int64_t m_most_loops;
  double m_left;
  Svg m_svg;
};

}  // namespace

void report_replay_svg(const ReplayArguments& arguments, const Replay& replay, Output& output) {
  if (replay.steps == 0) {
    return draw_words("No steps", replay_heading(arguments, replay, 64)[0], output);
  }
  Picture(arguments, replay, output).draw();
}

}  // namespace chunked_prefill::cli
