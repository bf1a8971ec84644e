# SPDX-License-Identifier: MIT
from __future__ import annotations

import copy
import json
import pathlib
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import Where
from oracle import Batch, build, draw

import chunked_prefill as cp

README = pathlib.Path(__file__).parents[2] / "README.md"
GOLDEN = pathlib.Path(__file__).parent.parent / "data" / "golden.json"


def as_lists(arrays: Any) -> tuple[int, Any, Any, Any, list[int]]:
    return (
        arrays[0],
        [slots.tolist() for slots in arrays[1]],
        arrays[2].tolist(),
        arrays[3].tolist(),
        arrays[4],
    )


def build_on(where: Where, batch: Batch, types: tuple[str, str, str], **more: Any) -> Any:
    return cp.build_chunked_prefill_metadata_arrays(
        where.tensor(batch.prefix_lens, types[0]),
        where.on_cpu(batch.prefix_lens, types[0]),
        where.tensor(batch.req_to_page),
        where.tensor(batch.req_pool_indices, types[1]),
        batch.page_size,
        chunk_capacity=batch.chunk_capacity,
        policy=batch.policy,
        grain=batch.grain,
        shard=batch.shard,
        index_type=types[2],
        **more,
    )


def test_drawn_batches(where: Where) -> None:
    rng = random.Random(1)
    for _ in range(150):
        batch = draw(rng)
        types = tuple(rng.choice(["int32", "int64"]) for _ in range(3))
        assert as_lists(build_on(where, batch, types)) == build(batch), batch  # type: ignore[arg-type]


def test_golden(where: Where) -> None:
    for case in json.loads(GOLDEN.read_text()):
        batch = Batch(case["prefix_lens"], case["page_size"], case["chunk_capacity"])
        batch.req_to_page = case["req_to_page"]
        batch.req_pool_indices = case["req_pool_indices"]
        arrays = build_on(where, batch, ("int32", "int32", "int32"))
        assert as_lists(arrays) == (
            case["chunked_loop_num"],
            case["chunk_kv_indices"],
            case["len_in_chunk"],
            case["cum_seq_lens"],
            case["max_chunk_len_per_loop"],
        )


def worked() -> Batch:
    batch = Batch([10, 0, 3], 4, 12)  # chunk_len 4
    batch.req_to_page = [[7, 8, 9], [1, 1, 1], [5, 6, 2]]
    batch.req_pool_indices = [2, 1, 0]
    return batch


def test_worked_by_hand(where: Where) -> None:
    arrays = build_on(where, worked(), ("int32", "int64", "int64"))
    assert as_lists(arrays) == (
        3,
        [[20, 21, 22, 23, 28, 29, 30], [24, 25, 26, 27], [8, 9]],
        [[4, 0, 3], [4, 0, 0], [2, 0, 0]],
        [[0, 4, 4, 7], [0, 4, 4, 4], [0, 2, 2, 2]],
        [4, 4, 2],
    )
    assert arrays.chunk_kv_indices_list.all().tolist()[-2:] == [8, 9]
    assert [slots.tolist() for slots in arrays.chunk_kv_indices_list[1:]] == [
        [24, 25, 26, 27],
        [8, 9],
    ]
    assert arrays.chunk_kv_indices_list[-1].tolist() == [8, 9]
    with pytest.raises(IndexError):
        arrays.chunk_kv_indices_list[3]
    for tensor in (arrays[2], arrays[3], *arrays[1]):
        assert where.is_one(tensor)
        assert where.device in str(getattr(tensor, "device", "cuda")).replace("Device 0", "cuda")


@pytest.mark.parametrize("lens", [[], [0, 0]])
def test_no_loops(where: Where, lens: list[int]) -> None:
    batch = Batch(lens, 4, 12, req_to_page=[[1, 2]], req_pool_indices=[0] * len(lens))
    loop_num, slots, chunked_seq_len, cum, longest = build_on(
        where, batch, ("int32", "int32", "int32")
    )
    assert (loop_num, list(slots), longest) == (0, [], [])
    assert tuple(chunked_seq_len.shape) == (0, len(lens))
    assert tuple(cum.shape) == (0, len(lens) + 1)


def test_strided_page_table(where: Where) -> None:
    batch = worked()
    wide = where.tensor([row + [99] * 5 for row in batch.req_to_page])
    arrays = cp.build_chunked_prefill_metadata_arrays(
        where.tensor(batch.prefix_lens),
        batch.prefix_lens,
        wide[:, :3],
        where.tensor(batch.req_pool_indices),
        4,
        chunk_capacity=12,
    )
    assert as_lists(arrays) == build(batch)


def test_read_only_inputs() -> None:
    """As they come out of messages and shared memory."""
    lens, table, rows = (
        np.frombuffer(np.array(values, np.int32).tobytes(), np.int32)
        for values in ([5, 3], [4, 1, 2, 9, 9, 9], [1, 0])
    )
    arrays = cp.build_chunked_prefill_metadata_arrays(
        lens, lens, table.reshape(2, 3), rows, 2, chunk_capacity=8
    )
    assert arrays.chunk_kv_indices_list.all().tolist() == [18, 19, 18, 19, 8, 9, 2, 18]


def test_slots_as_a_sequence(where: Where) -> None:
    batch = Batch([10, 3, 7], 4, 9)
    batch.draw_pages(random.Random(8))
    slots = build_on(where, batch, ("int32", "int32", "int32")).chunk_kv_indices_list
    expected = build(batch)[1]
    assert len(slots) == len(expected) == slots.plan.chunked_loop_num == 4
    assert slots[-1].tolist() == expected[-1]
    assert [loop.tolist() for loop in slots[1:3]] == expected[1:3]
    for loop in (4, -5):
        with pytest.raises(IndexError, match=f"loop {loop} of 4"):
            slots[loop]
    index = np.array(-1)
    assert slots[index].tolist() == expected[-1] and index == -1
    assert [loop.tolist() for loop in copy.deepcopy(slots)] == expected
    assert [loop.tolist() for loop in pickle.loads(pickle.dumps(slots))] == expected
    assert repr(slots) == "LoopSlots of 4 loops, 20 tokens"


def test_readme() -> None:
    """Its example prints what it says."""
    blocks = README.read_text().split("## Use it from Python", 1)[1].split("```")[1::2]
    example = next(block for block in blocks if block.startswith("python"))
    printed = blocks[blocks.index(example) + 1]
    result = subprocess.run(
        [sys.executable, "-c", example.removeprefix("python")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == printed.strip()


def test_chunks(where: Where) -> None:
    batch = worked()
    paged = cp.get_chunks_paged(
        where.tensor(batch.prefix_lens),
        where.on_cpu(batch.prefix_lens),
        where.tensor(batch.req_to_page),
        where.tensor(batch.req_pool_indices),
        4,
        chunk_capacity=12,
    )
    starts, ends = [[0] * 3, [4] * 3, [8] * 3], [[4, 0, 3], [8, 0, 3], [10, 0, 3]]
    lens, cum = build(batch)[2:4]
    alone = cp.chunking(where.tensor(batch.prefix_lens), 3, 3, 4)
    for chunks in (paged.chunks, paged.chunks_cpu, alone):
        assert [table.tolist() for table in chunks] == [starts, ends, lens, cum]
    assert [slots.tolist() for slots in paged.chunk_kv_indices_list] == build(batch)[1]


def test_context_shard() -> None:
    # Of 10 tokens with interleave 4, the second of two ranks holds positions 4 to 7.
    shard = cp.ContextShard(world_size=2, rank=1, interleave=4)
    plan = cp.plan_chunks([10], 8, shard=shard)
    assert (plan.shard, plan.tokens_per_loop) == (shard, [4, 0])
    grains = {1: 256, 16: 256, 48: 768, 64: 64}  # by interleave, of 4 ranks and pages of 64
    assert {k: cp.ContextShard(4, 0, k).page_grain(64) for k in grains} == grains
    assert cp.ContextShard(1, 0, 48).page_grain(64) == 64


def test_plan() -> None:
    plan = cp.plan_chunks([0, 300, 0, 64], 1024)
    assert plan.chunked_loop_num == 2
    assert plan.tokens_per_loop == [320, 44]
    assert plan.offsets == [0, 320, 364]
    assert plan.max_chunk_len_per_loop == [256, 44]
    assert plan.seq_range_per_loop == [(1, 4), (1, 2)]
    assert plan.non_empty_seqs_per_loop == [2, 1]
    assert plan.has_empty_seq_per_loop == [True, True]
    assert (plan.batch_size, plan.chunk_len, plan.total_tokens) == (4, 256, 364)
    assert (plan.policy, plan.grain, plan.shard) == ("equal", 1, (1, 0, 1))
    assert repr(plan).splitlines()[2].split() == ["0", "320", "256", "[1,", "4)", "2"]
    assert cp.plan_chunks([60000] + [16] * 31, 65536, "packed").chunked_loop_num == 1
    assert "980 more loops" in repr(cp.plan_chunks([1000], 1))
    assert cp.get_max_chunk_capacity() == 32768


def test_picture() -> None:
    from xml.etree import ElementTree

    name = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(cp.plan_chunks([0, 300, 0, 64], 1024)._repr_svg_())
    assert root.findtext(f"{name}title") == "equal: 2 loops for 364 tokens of 4 sequences"
    live = [r for r in root.iter(f"{name}rect") if r.get("class") == "live"]
    assert [(r.get("x"), r.get("width")) for r in live] == [("165.0", "315.0"), ("165.0", "105.0")]
    assert "and 960 more" in cp.plan_chunks([1000], 1)._repr_svg_()
    ElementTree.fromstring(cp.plan_chunks([])._repr_svg_())
    other_rank = cp.plan_chunks([3], shard=(2, 1, 64))._repr_svg_()
    assert "loop 0: no tokens" in other_rank
