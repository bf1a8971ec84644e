// SPDX-License-Identifier: MIT
#include "report_json.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

namespace chunked_prefill::cli {
namespace {

/// Writes an object's members one by one; nothing is held but a piece of a row.
class ObjectWriter {
 public:
  explicit ObjectWriter(Output& output) : m_output(output) {}

  void member(std::string_view name, std::string_view word) {
    begin(name);
    put("\"");
    put(word);
    put("\"");
  }
  void member(std::string_view name, std::int64_t number) {
    begin(name);
    put(fmt::format_int(number));
  }
  void member(std::string_view name, const ContextShard& shard) {
    begin(name);
    put(fmt::format("{{\"world_size\": {}, \"rank\": {}, \"interleave\": {}}}", shard.world_size,
                    shard.rank, shard.interleave));
  }
  template <class T>
  void member(std::string_view name, std::span<const T> numbers) {
    begin(name);
    list(numbers);
  }
  template <class Row>
  void rows(std::string_view name, std::size_t count, const Row& row) {
    begin(name);
    put("[");
    for (std::size_t r = 0; r < count; ++r) {
      put(r == 0 ? "\n    " : ",\n    ");
      list(row(r));
    }
    put(count == 0 ? "]" : "\n  ]");
  }
  void finish() {
    put(m_first ? "{}\n" : "\n}\n");
    flush();
  }

 private:
  void begin(std::string_view name) {
    put(m_first ? "{\n  \"" : ",\n  \"");
    put(name);
    put("\": ");
    m_first = false;
  }
  template <class T>
  void list(std::span<const T> numbers) {
    put("[");
    bool first = true;
    for (const T number : numbers) {
      if (!first) put(", ");
      first = false;
      if constexpr (std::is_same_v<T, bool>) {
        put(number ? "true" : "false");
      } else {
        put(fmt::format_int(number));
      }
      if (m_text.size() > 65536) flush();
    }
    put("]");
  }
  void put(std::string_view text) { m_text.append(text.data(), text.data() + text.size()); }
  void put(const fmt::format_int& number) { put(std::string_view(number.data(), number.size())); }
  void flush() {
    m_output.write({m_text.data(), m_text.size()});
    m_text.clear();
  }

  Output& m_output;
  fmt::memory_buffer m_text;
  bool m_first = true;
};

}  // namespace

void report_json(const Batch& batch, const Build& build, Output& output) {
  const ChunkPlan& plan = build.plan;
  const std::size_t loops = build.loops();
  const auto has_empty_seq = std::make_unique<bool[]>(loops);
  for (std::size_t loop = 0; loop < loops; ++loop) {
    has_empty_seq[loop] = plan.has_empty_seq(static_cast<std::int32_t>(loop));
  }

  ObjectWriter object(output);
  object.member("policy", name(plan.policy()));
  object.member("grain", plan.grain());
  object.member("shard", plan.shard());
  object.member("execution_space", build.execution_space);
  object.member("index_type", name(build.index_type));
  object.member("batch_size", plan.batch_size());
  object.member("page_size", batch.page_size);
  object.member("chunk_capacity", plan.chunk_capacity());
  object.member("chunk_len", plan.chunk_len());
  object.member("chunked_loop_num", plan.chunked_loop_num());
  object.member("prefix_lens", std::span<const std::int32_t>(batch.prefix_lens));
  object.member("tokens_per_loop", plan.tokens_per_loop());
  object.member("max_chunk_len_per_loop", plan.max_chunk_len_per_loop());
  object.member("seq_begin_per_loop", plan.seq_begin_per_loop());
  object.member("seq_end_per_loop", plan.seq_end_per_loop());
  object.member("non_empty_seqs_per_loop", plan.non_empty_seqs_per_loop());
  object.member("has_empty_seq_per_loop", std::span<const bool>(has_empty_seq.get(), loops));
  const auto table = [&](std::string_view name, const Table& rows) {
    object.rows(name, loops, [&](std::size_t loop) { return rows.row(loop); });
  };
  table("starts", build.starts);
  table("ends", build.ends);
  table("len_in_chunk", build.len_in_chunk);
  table("cum_seq_lens", build.cum_seq_lens);
  object.member("chunk_kv_offsets", std::span<const std::int64_t>(build.chunk_kv_offsets));
  object.rows("chunk_kv_indices", loops, [&](std::size_t loop) { return build.slots(loop); });
  object.finish();
}

}  // namespace chunked_prefill::cli
