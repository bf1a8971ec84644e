// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <string>

namespace chunked_prefill::cli {

/// A file that a signal which ends the process (interrupt, termination, hang-up) removes first, for
/// as long as this object lives.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(std::string path);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  std::string m_path;
  std::atomic<const char*>* m_place = nullptr;  ///< where the signal finds the path
};

}  // namespace chunked_prefill::cli
