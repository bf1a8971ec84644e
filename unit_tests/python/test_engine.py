# SPDX-License-Identifier: MIT
"""Buffers that are built into step after step, on streams and in graphs."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from conftest import Where
from oracle import Batch, build, draw
from test_build import as_lists

import chunked_prefill as cp
from chunked_prefill import _frameworks


def metadata(where: Where, **more: Any) -> cp.ChunkedPrefillMetadata:
    options = {"batch_size": 4, "max_prefix_len": 50, "total_tokens": 100, "chunk_capacity": 40}
    return cp.ChunkedPrefillMetadata(where.tensor([0]), **(options | more))


def padded(rng: random.Random) -> Batch:
    live = [rng.randint(0, 25) for _ in range(rng.randint(0, 4))]
    batch = Batch(live + [0] * (4 - len(live)), 4, 40)
    batch.draw_pages(rng)
    batch.req_to_page = [(row + [0] * 14)[:14] for row in batch.req_to_page]
    return batch


def tensors(where: Where, batch: Batch) -> list[Any]:
    return [
        where.tensor(batch.prefix_lens),
        where.tensor(batch.req_to_page),
        where.tensor(batch.req_pool_indices),
    ]


def enqueue(engine: cp.ChunkedPrefillMetadata, inputs: list[Any]) -> None:
    lens, table, rows = inputs
    engine.enqueue(lens, table, rows, page_size=4)


def test_results_until_the_next_build(where: Where) -> None:
    engine = metadata(where)
    rng = random.Random(2)
    first, second = padded(rng), padded(rng)
    lens, table, rows = tensors(where, first)
    arrays = engine.build(lens, where.on_cpu(first.prefix_lens), table, rows, 4)
    assert as_lists(arrays) == build(first) == as_lists(engine.arrays())
    kept = engine.copy()
    lens, table, rows = tensors(where, second)
    engine.build(lens, where.on_cpu(second.prefix_lens), table, rows, 4)
    assert as_lists(engine.arrays()) == build(second)
    assert as_lists(kept) == build(first)
    assert engine.plan.total_tokens == sum(second.prefix_lens)


def test_fewer_sequences_than_the_bound(where: Where) -> None:
    engine = metadata(where)
    batch = Batch([7, 20], 4, 40)
    batch.draw_pages(random.Random(3))
    lens, table, rows = tensors(where, batch)
    assert as_lists(engine.build(lens, [7, 20], table, rows, 4)) == build(batch)


def test_beyond_the_bounds(where: Where) -> None:
    engine = metadata(where)
    with pytest.raises(cp.ChunkedPrefillError, match="plan: nothing was built yet"):
        engine.arrays()
    batch = Batch([50, 50, 20], 4, 40)
    batch.draw_pages(random.Random(3))
    lens, table, rows = tensors(where, batch)
    with pytest.raises(cp.InvalidArgument, match="total_tokens: 120 is beyond the bound 100"):
        engine.build(lens, [50, 50, 20], table, rows, 4)
    with pytest.raises(cp.InvalidArgument, match="max_prefix_len: 51 is beyond the bound 50"):
        engine.build(lens, [51, 0, 0], table, rows, 4)
    with pytest.raises(cp.InvalidArgument, match="batch_size: 5 is beyond the bound 4"):
        engine.build(lens, [1] * 5, table, rows, 4)


def test_replayed_is_of_what_was_enqueued(where: Where) -> None:
    engine = metadata(where)
    with pytest.raises(cp.ChunkedPrefillError, match="replayed: nothing was enqueued yet"):
        engine.replayed([1, 2, 3, 4])
    enqueue(engine, tensors(where, padded(random.Random(9))))
    with pytest.raises(cp.InvalidArgument) as raised:
        engine.replayed([1, 2, 3])
    assert str(raised.value) == (
        "prefix_lens_cpu: has 3 elements, and a replay 4: padding sequences have length 0"
    )
    with pytest.raises(cp.InvalidArgument, match="max_prefix_len: 51 is beyond the bound 50"):
        engine.replayed([51, 0, 0, 0])


def test_bound_of_the_cache(where: Where) -> None:
    """More tokens than the sequences can have are a bound all the same."""
    engine = metadata(where, total_tokens=10**6)
    assert engine.shape.total_tokens == 200
    assert "batch_size=4, max_prefix_len=50, total_tokens=200" in repr(engine)


def test_enqueued_for_bounds(where: Where) -> None:
    engine = metadata(where)
    rng = random.Random(4)
    for _ in range(20):
        batch = padded(rng)
        enqueue(engine, tensors(where, batch))
        assert as_lists(engine.replayed(batch.prefix_lens)) == build(batch)


def test_torch_graph(torch_cuda: Where) -> None:
    torch = torch_cuda.module
    rng = random.Random(5)
    batch = padded(rng)
    inputs = [torch.empty_like(tensor) for tensor in tensors(torch_cuda, batch)]
    for tensor in inputs:
        tensor.zero_()
    inputs[1] = torch.zeros((8, 14), dtype=torch.int32, device="cuda:0")
    engine = metadata(torch_cuda)
    enqueue(engine, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        enqueue(engine, inputs)
    for _ in range(30):
        batch = padded(rng)
        live = tensors(torch_cuda, batch)
        inputs[0].copy_(live[0])
        inputs[1][: live[1].shape[0]].copy_(live[1])
        inputs[2].copy_(live[2])
        graph.replay()
        assert as_lists(engine.replayed(batch.prefix_lens)) == build(batch)


def test_behind_other_work(torch_cuda: Where) -> None:
    """Lengths and pages that a busy stream writes before the build runs, read after it, without
    a wait in between."""
    torch = torch_cuda.module
    rng = random.Random(6)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(10):
            batch = draw(rng)
            live = tensors(torch_cuda, batch)
            late = [torch.zeros_like(tensor) for tensor in live]
            torch.cuda._sleep(20_000_000)
            for to, tensor in zip(late, live):
                to.copy_(tensor)
            arrays = cp.build_chunked_prefill_metadata_arrays(
                late[0], batch.prefix_lens, late[1], late[2], batch.page_size,
                chunk_capacity=batch.chunk_capacity, policy=batch.policy, grain=batch.grain,
                shard=batch.shard,
            )  # fmt: skip
            sums = [slots.sum() for slots in arrays[1]]
            for tensor in late:
                tensor.zero_()
            assert [int(total) for total in sums] == [sum(slots) for slots in build(batch)[1]]


@pytest.mark.parametrize("name", ["torch-cpu", "torch-cuda"])
def test_torch_without_short_ways(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a torch that lacks the ways to memory of its compiled programs: the same results."""
    where = Where(name)
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", None)
    by_long_ways = _frameworks.Torch()
    assert by_long_ways._current_device is None
    monkeypatch.setitem(_frameworks._frameworks, where.module.Tensor, by_long_ways)
    rng = random.Random(8)
    for _ in range(20):
        batch = draw(rng)
        lens, table, rows = tensors(where, batch)
        arrays = cp.build_chunked_prefill_metadata_arrays(
            lens, where.on_cpu(batch.prefix_lens), table, rows, batch.page_size,
            chunk_capacity=batch.chunk_capacity, policy=batch.policy, grain=batch.grain,
            shard=batch.shard, index_type=rng.choice(["int32", "int64"]),
        )  # fmt: skip
        assert as_lists(arrays) == build(batch)


@pytest.mark.parametrize("name", ["torch-cuda", "cupy-cuda"])
def test_named_stream(name: str) -> None:
    """A build on a stream that is not the current one, in memory that the current one does not
    write to any more, with a check that waits for the build's."""
    torch = Where("torch-cuda").module
    where = Where(name)
    stream, rng = torch.cuda.Stream(), random.Random(7)
    for _ in range(10):
        batch = draw(rng)
        live = tensors(where, batch)
        freed = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (100, 3000, 100000)]
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        for tensor in freed:
            tensor.fill_(255)
        del freed, tensor
        check = cp.DeviceCheck(live[0])
        arrays = cp.build_chunked_prefill_metadata_arrays(
            live[0], where.on_cpu(batch.prefix_lens), live[1], live[2], batch.page_size,
            chunk_capacity=batch.chunk_capacity, policy=batch.policy, grain=batch.grain,
            shard=batch.shard, stream=stream.cuda_stream, check=check,
        )  # fmt: skip
        assert check.first_fault() is None
        torch.cuda.synchronize()
        assert as_lists(arrays) == build(batch)


def test_threads(where: Where) -> None:
    failures = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        engine = metadata(where)
        for _ in range(30):
            batch = padded(rng)
            lens, table, rows = tensors(where, batch)
            arrays = engine.build(lens, where.on_cpu(batch.prefix_lens), table, rows, 4)
            if as_lists(arrays) != build(batch):
                failures.append(batch)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


BUILD = """
import numpy as np, chunked_prefill as cp
lens = np.array([10, 3], np.int32)
def build():
    return cp.build_chunked_prefill_metadata_arrays(
        lens, lens, np.zeros((2, 3), np.int32), lens * 0, 4)
"""


def test_process_ends_well() -> None:
    ended = run(
        f"{BUILD}\ncheck = cp.DeviceCheck(lens)\nkept = build()\nprint(kept.chunked_loop_num)"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


def test_process_ends_well_under_daemon_threads() -> None:
    ended = run(
        f"""{BUILD}
import threading, time
def work():
    while True:
        cp.plan_chunks(np.full(3000, 50, np.int32), chunk_capacity=3000)
        build()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("ends")
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "ends\n"), ended.stderr


def test_fork() -> None:
    ended = run(
        f"""{BUILD}
build()
check = cp.DeviceCheck(lens)
import os
if os.fork() == 0:
    print(cp.plan_chunks(lens).total_tokens, flush=True)
    for refused in (build, check.first_fault):
        try:
            refused()
        except cp.ChunkedPrefillError as error:
            print(error, flush=True)
    del check, refused
    os._exit(0)
os.wait()
print(build().chunked_loop_num)
"""
    )
    words = "this process was forked off one in which Kokkos ran: start it with spawn"
    assert (ended.returncode, ended.stdout) == (0, f"13\n{words}\n{words}\n1\n"), ended.stderr


def test_bad_environment() -> None:
    ended = run(
        f"{BUILD}\ntry: build()\nexcept ValueError as error: print(error)", KOKKOS_NUM_THREADS="x"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith('KOKKOS_NUM_THREADS: "x" in the environment is not an integer')


def test_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    cp.show_config()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"chunked_prefill {cp.__version__}"
    assert lines[1].startswith("Kokkos ")
    assert "Serial" in lines[2]
