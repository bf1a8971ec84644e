// SPDX-License-Identifier: MIT
#pragma once

// The whole public interface.
#include <chunked_prefill/build.hpp>
#include <chunked_prefill/capacity.hpp>
#include <chunked_prefill/chunks.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/device_check.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/fill.hpp>
#include <chunked_prefill/kv_indices.hpp>
#include <chunked_prefill/metadata.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <chunked_prefill/plan.hpp>
#include <chunked_prefill/version.hpp>
