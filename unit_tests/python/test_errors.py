# SPDX-License-Identifier: MIT
"""Garbage of every kind is a ValueError that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Where

import chunked_prefill as cp

GARBAGE: list[Any] = [
    None, True, 3, 3.5, "text", b"bytes", [], {}, object(), int, np.ndarray,
    np.float64(1.5), np.array(3), np.array([1.5]), np.array(["a"]), np.array([None]),
    np.zeros((2, 2, 2), np.int32), np.array([1, 2], np.int16), np.array([True]), float("nan"), -1,
    2**31, 2**63, 2**200, np.zeros((0, 0), np.int32), np.array([1 + 2j]),
]  # fmt: skip


def arguments(**changed: Any) -> dict[str, Any]:
    lens = np.array([10, 3], np.int32)
    return {
        "extend_prefix_lens": lens,
        "extend_prefix_lens_cpu": lens,
        "req_to_page": np.zeros((2, 4), np.int32),
        "req_pool_indices": np.array([0, 1], np.int32),
        "page_size": 4,
        "chunk_capacity": 8,
    } | changed


@pytest.mark.parametrize(
    "name",
    [
        "extend_prefix_lens", "extend_prefix_lens_cpu", "req_to_page", "req_pool_indices",
        "page_size", "chunk_capacity", "policy", "grain", "index_type", "shard", "num_pages",
        "check",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", GARBAGE, ids=lambda value: repr(value)[:20])
def test_garbage(name: str, value: Any) -> None:
    try:
        cp.build_chunked_prefill_metadata_arrays(**arguments(**{name: value}))
    except cp.InvalidArgument as error:
        assert isinstance(error, ValueError)
        argument = str(error).partition(":")[0].split("[")[0].split(".")[0]
        blamed = {name, "extend_prefix_lens", "batch_size", "grain"}
        assert argument in blamed, error
        return
    # What is meant: integers of other kinds, and defaults.
    meant: dict[str, list[Any]] = {
        "page_size": [3, 2**31 - 1], "chunk_capacity": [None, 3],
        "shard": [None], "num_pages": [3], "check": [None],
    }  # fmt: skip
    assert any(value is right or value == right for right in meant.get(name, []))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"extend_prefix_lens_cpu": [10, 3, 1]},
            "extend_prefix_lens: has 2 elements, and extend_prefix_lens_cpu 3",
        ),
        (
            {"extend_prefix_lens_cpu": [10, 3], "check": cp.DeviceCheck(np.zeros(1, np.int32))},
            "extend_prefix_lens_cpu: is a list, and with a check must be a tensor",
        ),
        ({"check": 5}, "check: of type int is no DeviceCheck"),
        (
            {"mla_chunk_multiplier": 2},
            "chunk_capacity: given, as are the settings that it is the product of",
        ),
        ({"page_size": 0}, "page_size: 0 is outside [1, 2147483647]"),
        ({"chunk_capacity": 1}, "chunk_capacity: 1 tokens cannot be split equally among 2 sequences (batch_size)"),
        ({"policy": "best"}, 'policy: "best" is not equal or packed'),
        ({"policy": "\ud800"}, 'policy: "(no text)" is not equal or packed'),
        ({"policy": "a" + "é" * 40}, 'policy: "a' + "é" * 19 + '" is not equal or packed'),
        ({"page_size": -(10**30)}, "page_size: -1000000000000000000000000000000 is beyond int64"),
        ({"chunk_capacity": 10**5000}, "chunk_capacity: (many digits) is beyond int64"),
        ({"stream": "garbage"}, "stream: of type str is no integer"),
        ({"index_type": "int16"}, 'index_type: "int16" is not int32 or int64'),
        ({"grain": 2}, "grain: 2 belongs to the packed policy; an equal split has 1"),
        ({"shard": (2, 2, 1)}, "shard.rank: 2 is outside [0, 1]"),
        ({"shard": (2, 1)}, "shard: is no tuple of world_size, rank and interleave"),
        (
            {"extend_prefix_lens_cpu": np.array([10, -3])},
            "extend_prefix_lens[1]: -3 is outside [0, 2147483647]",
        ),
        (
            {"req_to_page": np.zeros((2, 4), np.int64)},
            "req_to_page: has elements of int64 and must have int32",
        ),
        (
            {"req_to_page": np.zeros(4, np.int32)},
            "req_to_page: has 1 dimensions and must have 2: (max_requests, max_pages)",
        ),
        (
            {"req_pool_indices": np.array([0, 1], np.int32)[::-1]},
            "req_pool_indices: has stride -1, and must not run backwards",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_words(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(cp.InvalidArgument) as raised:
        cp.build_chunked_prefill_metadata_arrays(**arguments(**changed))
    assert str(raised.value) == words


@pytest.mark.parametrize(
    ("lens", "words"),
    [
        ([10, 3], "prefix_lens_cpu: of type builtins.list is no tensor of torch, CuPy or NumPy"),
        (
            np.array([10, 0, 3, 0], np.int32)[::2],
            "prefix_lens_cpu: has stride 2 and must be contiguous",
        ),
    ],
    ids=["list", "strided"],
)
def test_lengths_of_the_host_table(lens: Any, words: str) -> None:
    device = np.array([10, 3], np.int32)
    with pytest.raises(cp.InvalidArgument) as raised:
        cp.get_chunks_paged(device, lens, np.zeros((2, 4), np.int32), device * 0, 4)
    assert str(raised.value) == words


class Interrupted(np.ndarray):
    """Ctrl-C arrives while its memory is asked for."""

    def __dlpack__(self, *arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_is_no_error_of_an_argument() -> None:
    lens = np.array([10, 3], np.int32).view(Interrupted)
    for name in ("extend_prefix_lens", "extend_prefix_lens_cpu", "req_pool_indices"):
        with pytest.raises(KeyboardInterrupt):
            cp.build_chunked_prefill_metadata_arrays(**arguments(**{name: lens}))


def test_an_interrupt_of_a_lookup_is_no_error_of_an_argument() -> None:
    class Lookup:
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cp.plan_chunks(Lookup())


def test_bounds_beyond_any_memory() -> None:
    with pytest.raises(cp.InvalidArgument, match="chunked_loop_num \\* batch_size: takes "):
        cp.ChunkedPrefillMetadata(
            np.zeros(1, np.int32), batch_size=2**31 - 1, max_prefix_len=2**31 - 2,
            total_tokens=19327352916, chunk_capacity=2**31 - 1,
        )  # fmt: skip


def test_a_tensor_without_data() -> None:
    torch = pytest.importorskip("torch")
    lens = torch.ones(4, dtype=torch.int32)
    lens.untyped_storage().resize_(0)
    with pytest.raises(cp.InvalidArgument, match="prefix_lens_cpu: has no data"):
        cp.plan_chunks(lens)


def test_words_of_a_framework_are_one_line() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(cp.InvalidArgument) as raised:
        cp.plan_chunks(torch.zeros(2, dtype=torch.int32, device="meta"))
    assert str(raised.value) == "prefix_lens_cpu: Cannot pack tensors on meta"


def test_an_empty_page_table(where: Where) -> None:
    lens, pages = where.tensor([0, 0]), where.tensor([]).reshape(0, 4)
    built = cp.build_chunked_prefill_metadata_arrays(lens, [0, 0], pages, lens, 4)
    assert built.chunked_loop_num == 0


def test_a_batch_size_is_judged_before_memory_is_taken() -> None:
    lens = np.array([10, 3], np.int32)
    with pytest.raises(cp.InvalidArgument) as raised:
        cp.chunking(lens, 1 << 20, 1 << 30, 4)
    assert str(raised.value) == "batch_size: 1073741824, and prefix_lens have 2 elements"


class Four:
    def __index__(self) -> int:
        return 4


def test_whatever_has_an_index_is_an_integer() -> None:
    lens, four = np.array([1, 2, 3, 4], np.int32), Four()
    assert cp.chunking(lens, four, four, four).starts.shape == (4, 4)  # type: ignore[arg-type]
    assert cp.plan_chunks([1, 2, 3, 4], four).chunk_len == 1  # type: ignore[arg-type]


def test_settings_off() -> None:
    with pytest.raises(cp.InvalidArgument, match="chunked_prefill_size: -1 "):
        cp.get_max_chunk_capacity(-1)


def test_device_fault(where: Where) -> None:
    lens, pages = [10, 3], [[1, -7, 2], [1, 1, 1]]
    check = cp.DeviceCheck(where.tensor(lens))

    def built() -> Any:
        return cp.build_chunked_prefill_metadata_arrays(
            where.tensor(lens), where.on_cpu(lens), where.tensor(pages), where.tensor([0, 1]), 4,
            chunk_capacity=8, check=check,
        )  # fmt: skip

    assert built().chunked_seq_len.sum() == 0
    assert check.first_fault() == (
        "req_to_page: page id -7 at position 4 of sequence 0 is not in [0, 536870911]"
    )
    pages[0][1] = 5
    assert built().chunked_seq_len.sum() == 13
    assert check.first_fault() is None


def test_mixed_devices(torch_cuda: Where) -> None:
    lens = torch_cuda.tensor([10, 3])
    with pytest.raises(cp.InvalidArgument, match="req_to_page: is on cpu, and extend_prefix_lens are on"):
        cp.build_chunked_prefill_metadata_arrays(
            lens, [10, 3], torch_cuda.on_cpu([[1, 2, 3]]), torch_cuda.tensor([0, 0]), 4
        )
    with pytest.raises(cp.InvalidArgument, match="prefix_lens_cpu: is on cuda:0"):
        cp.plan_chunks(lens)
