// SPDX-License-Identifier: MIT
#include <KokkosBlas3_gemm.hpp>
#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/impl/attend.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/search.hpp>
#include <chunked_prefill/impl/spaces.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

namespace {

/// One team a query token and head. Keys come in blocks: their scores, the running maximum and sum
/// of the exponentials, and the weighted values, which are scaled down when the maximum rises
/// (Milakov and Gimelshein, arXiv:1805.02867).
template <class Space>
struct Attend {
  using MemorySpace = typename Space::memory_space;
  template <class Runner>
  using Scratch = Kokkos::View<float*, typename Runner::scratch_memory_space,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  static constexpr std::int32_t block = 256;

  MlaShape shape;
  float softmax_scale;
  QueryBatch<MemorySpace> queries;
  KeyBuffers<MemorySpace> keys;
  KeyRanges ranges;
  Array3D<float, MemorySpace> values;
  Array2D<float, MemorySpace> lse;

  /// Keys [begin, end) that a query sees.
  struct Range {
    std::int32_t begin;
    std::int32_t end;
  };
  KOKKOS_FUNCTION Range range(std::int32_t token) const {
    const std::int32_t* const cum = queries.cum_query_lens.data();
    const std::int32_t sequence = last_at_most(
        cum, 0, static_cast<std::int32_t>(queries.cum_query_lens.extent(0)) - 1, token);
    if (ranges.cum_keys != nullptr) {
      return {.begin = ranges.cum_keys[sequence], .end = ranges.cum_keys[sequence + 1]};
    }
    const auto count = static_cast<std::int32_t>(keys.latent.extent(0));
    return {.begin = Kokkos::max(cum[sequence] - ranges.first_new, 0),
            .end = Kokkos::min(token + 1 - ranges.first_new, count)};
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t token = team.league_rank() / shape.num_heads;
    const std::int32_t head = team.league_rank() % shape.num_heads;
    const Range seen = range(token);
    const std::int32_t key_column = head * (shape.nope_dim + shape.value_dim);
    const Scratch<typename Team::execution_space> weights(team.team_scratch(0), block);
    const Scratch<typename Team::execution_space> sums(team.team_scratch(0), shape.value_dim);
    const float* const query = &queries.query(token, head, 0);

    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, shape.value_dim),
                         [&](const std::int32_t d) { sums(d) = 0; });
    float most = -Kokkos::Experimental::infinity_v<float>;
    float total = 0;
    for (std::int32_t first = seen.begin; first < seen.end; first += block) {
      const std::int32_t left = seen.end - first;
      const std::int32_t count = left < block ? left : block;
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, count), [&](const std::int32_t k) {
        const float* const key = &keys.key_values(first + k, key_column);
        const float* const rope = keys.rope.data() + std::int64_t{first + k} * shape.rope_dim;
        float score = 0;
        Kokkos::parallel_reduce(
            Kokkos::ThreadVectorRange(team, shape.query_dim()),
            [&](const std::int32_t d, float& sum) {
              sum += query[d] * (d < shape.nope_dim ? key[d] : rope[d - shape.nope_dim]);
            },
            score);
        Kokkos::single(Kokkos::PerThread(team), [&] { weights(k) = score * softmax_scale; });
      });
      team.team_barrier();
      float block_most = most;
      Kokkos::parallel_reduce(
          Kokkos::TeamVectorRange(team, count),
          [&](const std::int32_t k, float& to) { to = Kokkos::fmax(to, weights(k)); },
          Kokkos::Max<float>(block_most));
      block_most = Kokkos::fmax(block_most, most);
      float block_total = 0;
      Kokkos::parallel_reduce(
          Kokkos::TeamVectorRange(team, count),
          [&](const std::int32_t k, float& sum) {
            weights(k) = Kokkos::exp(weights(k) - block_most);
            sum += weights(k);
          },
          block_total);
      team.team_barrier();
      const float shrink = Kokkos::exp(most - block_most);
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, shape.value_dim),
                           [&](const std::int32_t d) {
                             float sum = sums(d) * shrink;
                             const std::int32_t column = key_column + shape.nope_dim + d;
                             for (std::int32_t k = 0; k < count; ++k) {
                               sum += weights(k) * keys.key_values(first + k, column);
                             }
                             sums(d) = sum;
                           });
      team.team_barrier();
      total = total * shrink + block_total;
      most = block_most;
    }
    const bool is_empty = seen.begin >= seen.end;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, shape.value_dim), [&](const std::int32_t d) {
      values(token, head, d) = is_empty ? 0 : sums(d) / total;
    });
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      lse(token, head) =
          is_empty ? -Kokkos::Experimental::infinity_v<float> : most + Kokkos::log(total);
    });
  }
};

}  // namespace

template <ExecutionSpace Space>
void up_project(const Space& space, const MlaLayer<typename Space::memory_space>& layer,
                const KeyBuffers<typename Space::memory_space>& keys) {
  KokkosBlas::gemm(space, "N", "N", 1.0F, keys.latent, layer.kv_b, 0.0F, keys.key_values);
}

template <ExecutionSpace Space>
void attend(const Space& space, const MlaLayer<typename Space::memory_space>& layer,
            const QueryBatch<typename Space::memory_space>& queries,
            const KeyBuffers<typename Space::memory_space>& keys, const KeyRanges& ranges,
            const Array3D<float, typename Space::memory_space>& values,
            const Array2D<float, typename Space::memory_space>& lse) {
  using Kernel = Attend<Space>;
  if (queries.query.extent(0) == 0) return;
  launch_teams("chunked_prefill::attend", space,
               static_cast<std::int64_t>(queries.query.extent(0)) * layer.shape.num_heads,
               runs_on_host<Space> ? 1 : 4,
               Kernel{.shape = layer.shape,
                      .softmax_scale = layer.softmax_scale,
                      .queries = queries,
                      .keys = keys,
                      .ranges = ranges,
                      .values = values,
                      .lse = lse},
               Kernel::template Scratch<Space>::shmem_size(Kernel::block) +
                   Kernel::template Scratch<Space>::shmem_size(
                       static_cast<std::size_t>(layer.shape.value_dim)));
}

#define CHUNKED_PREFILL_ATTENTION(KEYWORDS, SPACE)                                                \
  KEYWORDS void up_project(const SPACE&, const MlaLayer<SPACE::memory_space>&,                    \
                           const KeyBuffers<SPACE::memory_space>&);                               \
  KEYWORDS void attend(                                                                           \
      const SPACE&, const MlaLayer<SPACE::memory_space>&, const QueryBatch<SPACE::memory_space>&, \
      const KeyBuffers<SPACE::memory_space>&, const KeyRanges&,                                   \
      const Array3D<float, SPACE::memory_space>&, const Array2D<float, SPACE::memory_space>&);
CHUNKED_PREFILL_FOR_EACH_SPACE(CHUNKED_PREFILL_ATTENTION, template)

}  // namespace chunked_prefill::impl
