// SPDX-License-Identifier: MIT
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <chunked_prefill/capacity.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/plan.hpp>
#include <chunked_prefill/version.hpp>
#include <cstdio>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "gil.hpp"
#include "kernels.hpp"

namespace chunked_prefill::python {

using namespace nb::literals;

namespace {

/// Made in one go: a plan has such a list of each of its numbers, and thousands of loops.
template <class T>
nb::typed<nb::list, int> to_list(std::span<const T> values) {
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(values.size()));
  if (list == nullptr) throw nb::python_error();
  for (std::size_t k = 0; k < values.size(); ++k) {
    PyObject* const value = PyLong_FromLongLong(values[k]);
    if (value == nullptr) {
      Py_DECREF(list);
      throw nb::python_error();
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(k), value);
  }
  return nb::steal<nb::typed<nb::list, int>>(list);
}

/// Lengths on the host as the planner takes them, contiguous.
template <class Use>
void with_lens(const Integers& lens, const Use& use) {
  const auto call = [&]<class T>(const T* data) {
    if (lens.stride == 1) return use(std::span<const T>(data, lens.size));
    std::vector<T> gathered(lens.size);
    for (std::size_t i = 0; i < lens.size; ++i) gathered[i] = data[i * lens.stride];
    use(std::span<const T>(gathered));
  };
  if (lens.is_int64) {
    call(static_cast<const std::int64_t*>(lens.data));
  } else {
    call(static_cast<const std::int32_t*>(lens.data));
  }
}

bool is_list(nb::handle object) {
  return nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object);
}

ChunkPlan plan_chunks(nb::handle prefix_lens, nb::handle chunk_capacity, nb::handle policy,
                      nb::handle grain, nb::handle shard) {
  const PlanOptions options = plan_options(chunk_capacity, policy, grain, shard);
  ChunkPlan plan;
  if (is_list(prefix_lens)) {
    std::vector<std::int64_t> lens;
    lens.reserve(nb::len(prefix_lens));
    for (const nb::handle length : prefix_lens) {
      lens.push_back(
          integer(("prefix_lens_cpu[" + std::to_string(lens.size()) + "]").c_str(), length));
    }
    const GilReleased released;
    chunked_prefill::plan_chunks(std::span<const std::int64_t>(lens), options, plan);
    return plan;
  }
  const Tensor tensor("prefix_lens_cpu", prefix_lens);
  tensor.require(Device{}, "the lengths that are planned for must be");
  const Integers lens = tensor.integers();
  const GilReleased released;
  with_lens(lens, [&](auto span) { chunked_prefill::plan_chunks(span, options, plan); });
  return plan;
}

ChunkShape bounding_shape(nb::handle batch_size, nb::handle max_prefix_len, nb::handle total_tokens,
                          nb::handle chunk_capacity, nb::handle policy, nb::handle grain,
                          nb::handle shard) {
  return chunked_prefill::bounding_shape(
      {.batch_size = integer("batch_size", batch_size),
       .max_prefix_len = integer("max_prefix_len", max_prefix_len),
       .total_tokens = integer("total_tokens", total_tokens)},
      plan_options(chunk_capacity, policy, grain, shard));
}

/// The loop table, as `repr` shows it.
std::string to_string(const ChunkPlan& plan) {
  constexpr std::int32_t shown = 20;
  std::string text = std::string("ChunkPlan(") + name(plan.policy());
  const auto add = [&](const char* word, std::int64_t value) {
    text += std::string(", ") + word + '=' + std::to_string(value);
  };
  if (plan.policy() == Policy::packed) add("grain", plan.grain());
  add("batch_size", plan.batch_size());
  add("chunk_capacity", plan.chunk_capacity());
  add("chunk_len", plan.chunk_len());
  add("total_tokens", plan.total_tokens());
  if (plan.shard().world_size > 1) {
    add("world_size", plan.shard().world_size);
    add("rank", plan.shard().rank);
    add("interleave", plan.shard().interleave);
  }
  text += ")\n loop     tokens  max_chunk_len  seq_range            non_empty_seqs";
  char line[160];
  for (std::int32_t loop = 0; loop < std::min(plan.chunked_loop_num(), shown); ++loop) {
    const SeqRange range = plan.seq_range(loop);
    const std::string sequences =
        '[' + std::to_string(range.begin) + ", " + std::to_string(range.end) + ')';
    std::snprintf(line, sizeof line, "\n%5d %10lld %14d  %-20s %14d", loop,
                  static_cast<long long>(plan.tokens(loop)), plan.max_chunk_len(loop),
                  sequences.c_str(), plan.non_empty_seqs(loop));
    text += line;
  }
  if (plan.chunked_loop_num() > shown) {
    text += "\n  ... " + std::to_string(plan.chunked_loop_num() - shown) + " more loops";
  }
  return text;
}

void check_bounds(const ChunkShape& bounds, const ChunkPlan& plan) {
  const auto check = [](const char* name, std::int64_t value, std::int64_t bound) {
    if (value <= bound) return;
    throw InvalidArgument(name,
                          std::to_string(value) + " is beyond the bound " + std::to_string(bound));
  };
  check("batch_size", plan.batch_size(), bounds.batch_size);
  check("max_prefix_len", plan.max_prefix_len(), bounds.max_prefix_len);
  check("total_tokens", plan.total_tokens(), bounds.total_tokens);
}

void check_replay(const ChunkShape& bounds, const ChunkPlan& plan) {
  check_bounds(bounds, plan);
  if (plan.batch_size() != bounds.batch_size) {
    throw InvalidArgument("prefix_lens_cpu", "has " + std::to_string(plan.batch_size()) +
                                                 " elements, and a replay " +
                                                 std::to_string(bounds.batch_size) +
                                                 ": padding sequences have length 0");
  }
  check_within(plan, bounds);
}

void check_sequences(std::int64_t batch_size, const Integers& prefix_lens) {
  if (batch_size == static_cast<std::int64_t>(prefix_lens.size)) return;
  throw InvalidArgument("batch_size", std::to_string(batch_size) + ", and prefix_lens have " +
                                          std::to_string(prefix_lens.size) + " elements");
}

/// Null for None.
Check* device_check(nb::handle check) {
  if (check.is_none()) return nullptr;
  Check* held = nullptr;
  if (!nb::try_cast(check, held)) {
    throw InvalidArgument("check", "of type " + kind_of(check) + " is no DeviceCheck");
  }
  return held;
}

/// What `fill` is given beside the split: see kernels.hpp.
void fill(const Split& split, nb::handle prefix_lens, nb::handle req_to_page,
          nb::handle req_pool_indices, nb::handle page_size, nb::handle num_pages,
          const Layout& layout, nb::handle buffer, nb::handle stream, Check* check) {
  // They can run code of the caller's, so before any memory of the caller's is looked at.
  const std::int64_t page_tokens = integer("page_size", page_size);
  const std::int64_t cache_pages = integer("num_pages", num_pages);
  const Tensor lens("prefix_lens", prefix_lens);
  const Tensor table("req_to_page", req_to_page);
  const Tensor requests("req_pool_indices", req_pool_indices);
  const Tensor memory("buffer", buffer);
  const Device device = lens.device();
  table.require(device, "prefix_lens are");
  requests.require(device, "prefix_lens are");
  memory.require(device, "prefix_lens are");
  const Prefix prefix{.prefix_lens = lens.integers(),
                      .req_to_page = table.pages(),
                      .req_pool_indices = requests.integers(),
                      .page_size = page_tokens,
                      .num_pages = cache_pages};
  if (split.plan != nullptr &&
      prefix.prefix_lens.size != static_cast<std::size_t>(split.plan->batch_size())) {
    throw InvalidArgument("prefix_lens", "has " + std::to_string(prefix.prefix_lens.size) +
                                             " elements, and prefix_lens_cpu " +
                                             std::to_string(split.plan->batch_size()));
  }
  std::int32_t* const out = memory.buffer(layout.words);
  const std::uintptr_t handle = stream_handle(stream, prefix_lens, device);
  const GilReleased released;
  fill(device, handle, split, prefix, layout, out, check);
}

void fill_plan(const ChunkPlan& plan, nb::handle prefix_lens_cpu, nb::handle prefix_lens,
               nb::handle req_to_page, nb::handle req_pool_indices, nb::handle page_size,
               nb::handle num_pages, const Layout& layout, nb::handle buffer, nb::handle stream,
               nb::handle check) {
  Split split{.plan = &plan};
  std::optional<Tensor> lens;
  if (!check.is_none()) {
    if (is_list(prefix_lens_cpu)) {
      throw InvalidArgument("prefix_lens_cpu", "is a list, and with a check must be a tensor");
    }
    lens.emplace("prefix_lens_cpu", prefix_lens_cpu);
    lens->require(Device{}, "the lengths that are planned for must be");
    split.prefix_lens_host = lens->integers();
  }
  fill(split, prefix_lens, req_to_page, req_pool_indices, page_size, num_pages, layout, buffer,
       stream, device_check(check));
}

}  // namespace

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // of what a program still holds when it ends
  nb::exception<Error>(module, "ChunkedPrefillError", PyExc_ValueError);
  nb::exception<InvalidArgument>(module, "InvalidArgument", module.attr("ChunkedPrefillError"));

  nb::class_<ChunkPlan>(module, "ChunkPlan",
                        "How a batch's cached prefixes are walked, as plain host numbers.")
      .def_prop_ro(
          "policy", [](const ChunkPlan& plan) { return name(plan.policy()); },
          "\"equal\" or \"packed\"")
      .def_prop_ro("grain", &ChunkPlan::grain,
                   "tokens between the places where a sequence may be cut; 1 for an equal split")
      .def_prop_ro("batch_size", &ChunkPlan::batch_size, "sequences")
      .def_prop_ro("chunk_capacity", &ChunkPlan::chunk_capacity, "tokens one loop may hold")
      .def_prop_ro("chunk_len", &ChunkPlan::chunk_len,
                   "tokens one sequence gives to one loop at most")
      .def_prop_ro("chunked_loop_num", &ChunkPlan::chunked_loop_num, "loops")
      .def_prop_ro("total_tokens", &ChunkPlan::total_tokens, "tokens of all loops together")
      .def_prop_ro("max_prefix_len", &ChunkPlan::max_prefix_len, "tokens of the longest prefix")
      .def_prop_ro(
          "shard",
          [](const ChunkPlan& plan) {
            const ContextShard shard = plan.shard();
            return std::tuple(shard.world_size, shard.rank, shard.interleave);
          },
          "(world_size, rank, interleave) of the rank that the numbers are of")
      .def_prop_ro(
          "tokens_per_loop", [](const ChunkPlan& plan) { return to_list(plan.tokens_per_loop()); },
          "tokens of each loop")
      .def_prop_ro(
          "offsets", [](const ChunkPlan& plan) { return to_list(plan.offsets()); },
          "where each loop begins among the slots, and the total")
      .def_prop_ro(
          "max_chunk_len_per_loop",
          [](const ChunkPlan& plan) { return to_list(plan.max_chunk_len_per_loop()); },
          "tokens of the longest sequence chunk of each loop")
      .def_prop_ro(
          "seq_range_per_loop",
          [](const ChunkPlan& plan) {
            nb::typed<nb::list, std::tuple<int, int>> ranges;
            for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
              const SeqRange range = plan.seq_range(loop);
              ranges.append(nb::make_tuple(range.begin, range.end));
            }
            return ranges;
          },
          "the shortest half-open range that holds each loop's sequences")
      .def_prop_ro(
          "non_empty_seqs_per_loop",
          [](const ChunkPlan& plan) { return to_list(plan.non_empty_seqs_per_loop()); },
          "sequences with a token in each loop")
      .def_prop_ro(
          "has_empty_seq_per_loop",
          [](const ChunkPlan& plan) {
            nb::typed<nb::list, bool> flags;
            for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
              flags.append(plan.has_empty_seq(loop));
            }
            return flags;
          },
          "whether a sequence of the batch has no token in each loop")
      .def_prop_ro("shape", &ChunkPlan::shape)
      .def("_repr_svg_",
           [](nb::object plan) -> nb::str {
             return nb::str(nb::module_::import_("chunked_prefill._picture").attr("svg")(plan));
           })
      .def("__repr__", &to_string);

  nb::class_<ChunkShape>(module, "ChunkShape", "What sizes a build: of a plan, or of bounds.")
      .def_ro("batch_size", &ChunkShape::batch_size, "sequences")
      .def_ro("chunk_len", &ChunkShape::chunk_len, "tokens one sequence gives to one loop at most")
      .def_ro("chunked_loop_num", &ChunkShape::chunked_loop_num, "loops")
      .def_ro("max_prefix_len", &ChunkShape::max_prefix_len, "tokens")
      .def_ro("total_tokens", &ChunkShape::total_tokens, "tokens of all loops together")
      .def("check_bounds", &check_bounds, "plan"_a,
           "Raises InvalidArgument naming what of plan is beyond this shape's bounds.")
      .def("check_replay", &check_replay, "plan"_a,
           "Raises InvalidArgument naming what of plan a replay of this shape does not hold.");

  nb::class_<Layout>(module, "Layout", "Where the arrays of a build are in its buffer, in words.")
      .def_ro("words", &Layout::words)
      .def_ro("chunk_kv_indices", &Layout::chunk_kv_indices)
      .def_ro("len_in_chunk", &Layout::len_in_chunk)
      .def_ro("starts", &Layout::starts)
      .def_ro("ends", &Layout::ends)
      .def_ro("cum_seq_lens", &Layout::cum_seq_lens)
      .def_ro("offsets", &Layout::offsets)
      .def_ro("is_int64", &Layout::is_int64);
  module.def(
      "layout",
      [](const ChunkShape& shape, nb::handle index_type) {
        return layout(shape, is_int64_type("index_type", index_type));
      },
      "shape"_a, "index_type"_a.none());

  nb::class_<Check>(module, "DeviceCheck",
                    "Opt-in check of what only the device can see: give one to a build, and ask it "
                    "for the first fault when you next wait for the device.")
      .def(
          "__init__",
          [](Check* self, nb::handle like) { new (self) Check(Tensor("like", like).device()); },
          nb::sig("def __init__(self, like: object) -> None"), "like"_a.none(),
          "For builds of tensors on the device of `like`.")
      .def(
          "first_fault",
          [](Check& check, nb::handle stream) {
            std::optional<std::uintptr_t> handle;
            if (!stream.is_none()) handle = static_cast<std::uintptr_t>(integer("stream", stream));
            const GilReleased released;
            return check.first_fault(handle);
          },
          nb::sig("def first_fault(self, stream: int | None = None) -> str | None"),
          "stream"_a.none() = nb::none(),
          "What the first faulty build since the last call had wrong, or None. Waits for the "
          "stream of the last build, or that with the handle `stream`: where a graph with the "
          "builds is replayed on another.");

  module.def(
      "get_max_chunk_capacity",
      [](nb::handle size, nb::handle multiplier) {
        return get_max_chunk_capacity(
            {.chunked_prefill_size = integer("chunked_prefill_size", size),
             .mla_chunk_multiplier = integer("mla_chunk_multiplier", multiplier)});
      },
      nb::sig("def get_max_chunk_capacity(chunked_prefill_size: int = 8192, mla_chunk_multiplier: "
              "int = 4) -> int"),
      "chunked_prefill_size"_a.none() = 8192, "mla_chunk_multiplier"_a.none() = 4,
      "chunk_capacity in tokens: the product of the two engine settings.");
  module.def(
      "plan_chunks", &plan_chunks,
      nb::sig("def plan_chunks(prefix_lens_cpu: object, chunk_capacity: int = 32768, policy: "
              "str = 'equal', grain: int = 1, shard: tuple[int, int, int] | None = None) -> "
              "ChunkPlan"),
      "prefix_lens_cpu"_a.none(), "chunk_capacity"_a.none() = 32768, "policy"_a.none() = "equal",
      "grain"_a.none() = 1, "shard"_a.none() = nb::none(),
      "Splits a batch's cached prefixes into loops; host arithmetic alone.\n\n"
      "prefix_lens_cpu: (batch_size) int32 or int64 on the CPU, or a list; tokens.\n"
      "policy: \"equal\" as the reference splits, or \"packed\": the fewest loops.\n"
      "grain: packed cuts are multiples of this many tokens.\n"
      "shard: (world_size, rank, interleave) of a context-parallel rank, or None.");
  module.def("bounding_shape", &bounding_shape,
             nb::sig("def bounding_shape(batch_size: int, max_prefix_len: int, total_tokens: int, "
                     "chunk_capacity: int = 32768, policy: str = 'equal', grain: int = 1, shard: "
                     "tuple[int, int, int] | None = None) -> ChunkShape"),
             "batch_size"_a.none(), "max_prefix_len"_a.none(), "total_tokens"_a.none(),
             "chunk_capacity"_a.none() = 32768, "policy"_a.none() = "equal", "grain"_a.none() = 1,
             "shard"_a.none() = nb::none(),
             "The shape that holds every batch within these bounds.");

  module.def("fill_plan", &fill_plan, "plan"_a, "prefix_lens_cpu"_a.none(), "prefix_lens"_a.none(),
             "req_to_page"_a.none(), "req_pool_indices"_a.none(), "page_size"_a.none(),
             "num_pages"_a.none(), "layout"_a, "buffer"_a.none(), "stream"_a.none(),
             "check"_a.none());
  module.def(
      "fill_shape",
      [](const ChunkShape& shape, nb::handle prefix_lens, nb::handle req_to_page,
         nb::handle req_pool_indices, nb::handle page_size, nb::handle num_pages,
         const Layout& layout, nb::handle buffer, nb::handle stream, nb::handle check) {
        fill(Split{.shape = shape}, prefix_lens, req_to_page, req_pool_indices, page_size,
             num_pages, layout, buffer, stream, device_check(check));
      },
      "shape"_a, "prefix_lens"_a.none(), "req_to_page"_a.none(), "req_pool_indices"_a.none(),
      "page_size"_a.none(), "num_pages"_a.none(), "layout"_a, "buffer"_a.none(), "stream"_a.none(),
      "check"_a.none());

  module.def(
      "host_table",
      [](const ChunkPlan& plan, nb::handle prefix_lens_cpu, const Layout& layout,
         nb::handle buffer) {
        const Tensor lens("prefix_lens_cpu", prefix_lens_cpu);
        const Tensor memory("buffer", buffer);
        memory.require(Device{}, "the table of the CPU must be");
        const Integers integers = lens.integers();
        std::int32_t* const out = memory.buffer(layout.words);
        const GilReleased released;
        host_table(plan, integers, layout, out);
      },
      "plan"_a, "prefix_lens_cpu"_a.none(), "layout"_a, "buffer"_a.none());
  module.def(
      "table_layout",
      [](nb::handle prefix_lens, nb::handle num_chunks, nb::handle batch_size) {
        const std::int64_t sequences = integer("batch_size", batch_size);
        const std::int64_t loops = integer("num_chunks", num_chunks);
        check_sequences(sequences, Tensor("prefix_lens", prefix_lens).integers());
        return table_layout(loops, sequences);
      },
      "prefix_lens"_a.none(), "num_chunks"_a.none(), "batch_size"_a.none());
  module.def(
      "chunking",
      [](nb::handle prefix_lens, nb::handle num_chunks, nb::handle batch_size, nb::handle chunk_len,
         const Layout& layout, nb::handle buffer, nb::handle stream) {
        const Tensor lens("prefix_lens", prefix_lens);
        const Tensor memory("buffer", buffer);
        memory.require(lens.device(), "prefix_lens are");
        const Integers integers = lens.integers();
        const std::int64_t sequences = integer("batch_size", batch_size);
        check_sequences(sequences, integers);
        const std::int64_t loops = integer("num_chunks", num_chunks);
        const std::int64_t tokens = integer("chunk_len", chunk_len);
        std::int32_t* const out = memory.buffer(layout.words);
        const std::uintptr_t handle = stream_handle(stream, prefix_lens, lens.device());
        const GilReleased released;
        chunking(lens.device(), handle, integers, loops, tokens, layout, out);
      },
      "prefix_lens"_a.none(), "num_chunks"_a.none(), "batch_size"_a.none(), "chunk_len"_a.none(),
      "layout"_a, "buffer"_a.none(), "stream"_a.none());

  module.def("integer", &integer, "name"_a, "value"_a.none(),
             "Raises InvalidArgument for what is no integer, or beyond int64.");
  module.def("configuration", &configuration);
  module.def("finalize", [] {
    GilReleased::leave();
    forget_last_type();
    finalize();
  });
  module.attr("version") = version;
}

}  // namespace chunked_prefill::python
