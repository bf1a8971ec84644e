#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints cases that grow by one factor at a time, for chunked_prefill_perf --cases=FILE.

usage: growth_cases.py > growth_cases.json
"""
import json


def case(name, prefix_lens, chunk_capacity=131072, page_size=64):
    return {"name": name, "prefix_lens": prefix_lens, "chunk_capacity": chunk_capacity,
            "page_size": page_size}


cases = [case(f"tokens_{16 * length}", [length] * 16) for length in (6400, 64000, 640000)]
cases += [case(f"sequences_{count}", [1024000 // count] * count)
          for count in (16, 160, 1600, 16000)]
cases += [case(f"loops_{loops}", [64000] * 16, chunk_capacity=1024000 // loops)
          for loops in (1, 10, 100, 1000)]
cases += [case(f"page_{size}", [64000] * 16, page_size=size)
          for size in (1, 15, 16, 17, 48, 63, 64, 65, 128)]
# For plan/...: a long batch, and as many loops as tokens.
cases += [case("plan_65536_sequences", [1 + i * 40503 % 64 for i in range(65536)]),
          case("plan_1000000_loops", [1000000], chunk_capacity=1)]
print(json.dumps(cases))
