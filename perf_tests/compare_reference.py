#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds with the reference and with this library in one process, on the GPU: first that all five
results are equal, then how long each takes with a wait for the device, as a table.

usage: compare_reference.py REFERENCE.py [--batches N] [--cases CASES.json] [--json OUT.json]

REFERENCE.py has `build_chunked_prefill_metadata_arrays` and a dict CONFIG of the two settings.
CASES.json is a list of {name, prefix_lens, page_size, chunk_capacity}; by default those of the
benchmarks.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import pathlib
import random
import statistics
import time
from typing import Any, Callable

import torch

import chunked_prefill as cp

CASES = pathlib.Path(__file__).with_name("perf_cases.json")


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(lens: list[int], page_size: int, rng: torch.Generator) -> tuple[Any, ...]:
    pages, requests = (max(lens) + page_size - 1) // page_size + 3, len(lens) + 5
    table = torch.randperm(requests * pages, generator=rng).to(torch.int32)
    rows = torch.randperm(requests, generator=rng)[: len(lens)].to(torch.int32)
    host = torch.tensor(lens, dtype=torch.int32)
    return host.cuda(), host, table.reshape(requests, pages).cuda(), rows.cuda(), page_size


def same(ours: Any, theirs: Any) -> bool:
    return (
        ours[0] == theirs[0]
        and len(ours[1]) == len(theirs[1])
        and all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1]))
        and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours[2:4], theirs[2:4]))
        and ours[4] == theirs[4]
    )


def times_us(build: Callable[[], Any], wait: bool, runs: int) -> list[float]:
    """Results live on until the clock has stopped, as in a step of an engine."""
    times = []
    gc.disable()
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = build()
        if wait:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
        del result
    gc.enable()
    return times


def medians_us(
    builds: dict[str, Callable[[], Any]], wait: bool = True, turns: int = 20, runs: int = 20
) -> dict[str, float]:
    """In turns, so that what else the host does falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in builds}
    for _ in range(turns):
        for name, build in builds.items():
            times[name] += times_us(build, wait, runs)
    return {name: statistics.median(of_build) for name, of_build in times.items()}


def print_row(*columns: str) -> None:
    print("| " + " | ".join(columns) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--cases", type=pathlib.Path, default=CASES)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    reference = load(arguments.reference)
    rng, tensors_rng = random.Random(1), torch.Generator().manual_seed(2)

    for k in range(arguments.batches):
        batch_size = rng.choice([1, 2, 3, 7, 16, 64, 200])
        longest = rng.choice([1, 50, 700, 5000])
        lens = [rng.choice([0, longest, rng.randint(0, longest)]) for _ in range(batch_size)]
        capacity = rng.randint(batch_size, batch_size * rng.choice([20, 300, 2000]))
        capacity = max(capacity, batch_size * (max(lens) // 60 + 1))  # its launches grow with loops
        tensors = inputs(lens, rng.choice([1, 16, 48, 64]), tensors_rng)
        reference.CONFIG.update(chunked_prefill_size=capacity, mla_chunk_multiplier=1)
        expected = reference.build_chunked_prefill_metadata_arrays(*tensors)
        built = cp.build_chunked_prefill_metadata_arrays(*tensors, chunk_capacity=capacity)
        if not same(built, expected):
            raise SystemExit(f"batch {k} differs: prefix_lens {lens}, chunk_capacity {capacity}")
    print(f"{arguments.batches} batches: all five results equal")

    one = torch.zeros(1, device="cuda")
    fill_us = medians_us({"fill": lambda: one.fill_(0)})["fill"]
    versions = f"torch {torch.__version__}, chunked_prefill {cp.__version__}"
    print(f"{torch.cuda.get_device_name()}, {versions}")
    print(f"a tensor of one element filled by torch, with the same wait: {fill_us:.1f} us\n")
    rows: list[dict[str, Any]] = [{"name": "torch_fill", "torch_us": fill_us}]
    print_row("case", "loops", "reference, us", "drop-in, us", "times", "object, us", "times")
    print_row("---", *["---:"] * 6)
    for case in json.loads(arguments.cases.read_text()):
        lens, capacity = case["prefix_lens"], case["chunk_capacity"]
        tensors = inputs(lens, case["page_size"], tensors_rng)
        reference.CONFIG.update(chunked_prefill_size=capacity, mla_chunk_multiplier=1)
        engine = cp.ChunkedPrefillMetadata(
            tensors[0],
            batch_size=len(lens),
            max_prefix_len=max(lens),
            total_tokens=sum(lens),
            chunk_capacity=capacity,
        )

        def drop_in() -> Any:
            return cp.build_chunked_prefill_metadata_arrays(*tensors, chunk_capacity=capacity)

        def theirs() -> Any:
            return reference.build_chunked_prefill_metadata_arrays(*tensors)

        builds = {"ours": drop_in, "engine": lambda: engine.build(*tensors)}
        row: dict[str, Any] = {"name": case["name"], "loops": drop_in().chunked_loop_num}
        for name, us in medians_us(builds, wait=False).items():
            row[f"{name}_enqueue_us"] = us
        try:
            if not same(drop_in(), theirs()):
                raise SystemExit(f"{case['name']} differs")
            builds["reference"] = theirs
        except (RuntimeError, ZeroDivisionError, ValueError) as error:
            row["reference_error"] = f"{type(error).__name__}: {error}"[:200]
        for name, us in medians_us(builds).items():
            row[f"{name}_us"] = us
        rows.append(row)
        theirs_us = row.get("reference_us")
        columns = [case["name"], f"{row['loops']:,}", f"{theirs_us:,.0f}" if theirs_us else "fails"]
        for ours_us in (row["ours_us"], row["engine_us"]):
            columns += [f"{ours_us:.1f}", f"{theirs_us / ours_us:.1f}" if theirs_us else ""]
        print_row(*columns)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
