// SPDX-License-Identifier: MIT
#pragma once

#include <Python.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace chunked_prefill::python {

/// Lets other threads of Python run while it lives.
///
/// Not once the interpreter leaves: CPython ends a daemon thread that asks for its lock then on the
/// spot, through frames that cannot be unwound, and the process with it. So from `leave` on the
/// lock is kept, and what was without it then is waited for.
class GilReleased {
 public:
  GilReleased() {
    if (leaving()) return;
    ++count();
    m_state = PyEval_SaveThread();
  }
  ~GilReleased() {
    if (m_state == nullptr) return;
    PyEval_RestoreThread(m_state);
    --count();
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

  /// Waits for those that live. The interpreter still stands.
  static void leave() {
    leaving() = true;
    while (count() > 0) {
      PyThreadState* const state = PyEval_SaveThread();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      PyEval_RestoreThread(state);
    }
  }

 private:
  static std::atomic<bool>& leaving() {
    static std::atomic<bool> leaving = false;
    return leaving;
  }
  static std::atomic<int>& count() {
    static std::atomic<int> count = 0;
    return count;
  }

  PyThreadState* m_state = nullptr;
};

}  // namespace chunked_prefill::python
