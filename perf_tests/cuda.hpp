// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>

#ifdef KOKKOS_ENABLE_CUDA
#include <cstddef>
#include <stdexcept>

namespace perf {

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// A stream of our own, as an engine has.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&m_stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(m_stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return m_stream; }

 private:
  cudaStream_t m_stream = nullptr;
};

/// 20 calls of some work in one CUDA graph, captured from a stream of its own.
class Graph {
 public:
  static constexpr int captured = 20;
  static constexpr int replays = 10;
  /// How many calls of the work one replay() makes.
  static constexpr int calls = captured * replays;

  /// \param work callable with a Kokkos::Cuda; nothing but enqueues on it once it is warm.
  template <class Work>
  explicit Graph(Work&& work) {
    work(m_space);
    m_space.fence("perf::Graph");
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(m_stream.get(), cudaStreamCaptureModeThreadLocal));
    for (int call = 0; call < captured; ++call) work(m_space);
    check(cudaStreamEndCapture(m_stream.get(), &graph));
    check(cudaGraphInstantiate(&m_graph, graph, 0));
    check(cudaGraphDestroy(graph));
  }
  ~Graph() { cudaGraphExecDestroy(m_graph); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Launches the graph back to back and waits once, so that neither the launch of a graph nor the
  /// wait weighs on the time of a call.
  void replay() const {
    for (int replay = 0; replay < replays; ++replay) {
      check(cudaGraphLaunch(m_graph, m_stream.get()));
    }
    check(cudaStreamSynchronize(m_stream.get()));
  }

 private:
  Stream m_stream;
  Kokkos::Cuda m_space{m_stream.get()};
  cudaGraphExec_t m_graph = nullptr;
};

}  // namespace perf
#endif
