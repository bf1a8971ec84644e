# SPDX-License-Identifier: MIT
"""Chunked-prefill prefix metadata for MLA attention.

Tensors are those of torch, CuPy or NumPy; what is returned is of the same framework, on the same
device. Nothing here waits for a device, except where it says so.

Errors are of `InvalidArgument`, a ValueError that names the argument, its value and the bound,
raised before anything is enqueued or written.
"""

from __future__ import annotations

import atexit
import math
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from . import _core
from ._core import (
    ChunkedPrefillError,
    ChunkPlan,
    ChunkShape,
    DeviceCheck,
    InvalidArgument,
    bounding_shape,
    get_max_chunk_capacity,
    plan_chunks,
)
from ._frameworks import Framework, framework_of

__all__ = [
    "ChunkPlan",
    "ChunkShape",
    "ChunkedPrefillError",
    "ChunkedPrefillMetadata",
    "Chunks",
    "ContextShard",
    "DeviceCheck",
    "InvalidArgument",
    "LoopSlots",
    "MetadataArrays",
    "PagedChunks",
    "__version__",
    "bounding_shape",
    "build_chunked_prefill_metadata_arrays",
    "chunking",
    "get_chunks_paged",
    "get_max_chunk_capacity",
    "plan_chunks",
    "show_config",
]

__version__: str = _core.version

# While Python and the frameworks still stand.
atexit.register(_core.finalize)


class ContextShard(NamedTuple):
    """One rank of a context-parallel group: it holds, of every sequence, the tokens whose
    `(position // interleave) % world_size` is its rank, in pages of its own."""

    world_size: int
    rank: int
    interleave: int = 1

    def page_grain(self, page_size: int) -> int:
        """A grain that keeps the cuts of every rank at the ends of its pages."""
        if self.world_size == 1 or self.interleave % page_size == 0:
            return page_size
        return self.world_size * math.lcm(page_size, self.interleave)


Shard = tuple[int, int, int]


class LoopSlots(Sequence[Any]):
    """The cache slots of each loop: `slots[loop]` is (tokens of the loop), a view into one buffer,
    made when it is asked for. `list(slots)` makes all; pickled and copied deeply it is such a
    list."""

    def __init__(
        self, framework: Framework, plan: ChunkPlan, layout: _core.Layout, buffer: Any
    ) -> None:
        self._framework = framework
        self._plan = plan
        self._buffer = buffer
        self._begin = layout.chunk_kv_indices
        self._is_int64 = layout.is_int64
        self._offsets: list[int] | None = None

    @property
    def plan(self) -> ChunkPlan:
        """Of the build: the host's numbers of each loop."""
        return self._plan

    def __len__(self) -> int:
        return self._plan.chunked_loop_num

    @overload
    def __getitem__(self, loop: int) -> Any: ...
    @overload
    def __getitem__(self, loop: slice) -> list[Any]: ...
    def __getitem__(self, loop: int | slice) -> Any:
        if isinstance(loop, slice):
            return [self[k] for k in range(len(self))[loop]]
        loops, loop = len(self), operator.index(loop)
        if not -loops <= loop < loops:
            raise IndexError(f"loop {loop} of {loops}")
        loop %= loops
        if self._offsets is None:
            self._offsets = self._plan.offsets
        begin, end = self._offsets[loop], self._offsets[loop + 1]
        words = begin * 2 if self._is_int64 else begin
        return self._framework.vector(self._buffer, self._begin + words, end - begin, self._is_int64)

    def __iter__(self) -> Iterator[Any]:
        return (self[loop] for loop in range(len(self)))

    def all(self) -> Any:
        """(total_tokens) the slots of all loops, loop after loop."""
        tokens = self._plan.total_tokens
        return self._framework.vector(self._buffer, self._begin, tokens, self._is_int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"LoopSlots of {len(self)} loops, {self._plan.total_tokens} tokens"


class MetadataArrays(NamedTuple):
    """What `build_chunked_prefill_metadata_arrays` returns, in the reference's order.

    chunked_loop_num: loops.
    chunk_kv_indices_list: per loop (tokens of the loop) cache slots.
    chunked_seq_len: (chunked_loop_num, batch_size) int32, tokens of each sequence in each loop.
    cu_chunked_seq_len: (chunked_loop_num, batch_size + 1) int32, their exclusive sums along each row.
    max_chunk_len_per_loop: per loop, on the host: tokens of the longest sequence chunk.

    `plan` has the host's other numbers, such as the range of live sequences of each loop.
    """

    chunked_loop_num: int
    chunk_kv_indices_list: LoopSlots
    chunked_seq_len: Any
    cu_chunked_seq_len: Any
    max_chunk_len_per_loop: list[int]

    @property
    def plan(self) -> ChunkPlan:
        return self.chunk_kv_indices_list.plan


class Chunks(NamedTuple):
    """Which tokens of which sequence belong to which loop: (chunked_loop_num, batch_size) int32
    each, and `cum_seq_lens` with one column more."""

    starts: Any
    ends: Any
    len_in_chunk: Any
    cum_seq_lens: Any


class PagedChunks(NamedTuple):
    """What `get_chunks_paged` returns, in the reference's order: the table on the device, the slots
    of each loop, the table on the CPU."""

    chunks: Chunks
    chunk_kv_indices_list: LoopSlots
    chunks_cpu: Chunks


class ChunkedPrefillMetadata:
    """Buffers sized by a bound, built into step after step.

    RESULTS ARE VIEWS OF THESE BUFFERS: THEY HOLD UNTIL THE NEXT BUILD ON THE SAME OBJECT. `copy()`
    gives some that stay.

    :param like: a tensor on the device where the buffers shall be.
    :param batch_size: sequences of a batch at most.
    :param max_prefix_len: tokens of the longest prefix at most.
    :param total_tokens: tokens of all prefixes together at most; such as what the cache holds.
    :param chunk_capacity: tokens that all chunks of a loop may hold together.
    :param policy: "equal" as the reference splits, or "packed": the fewest loops.
    :param grain: packed cuts are multiples of this many tokens.
    :param index_type: of the slots, "int32" or "int64".
    :param shard: a `ContextShard`, or such a tuple: the tokens of one context-parallel rank.
    """

    def __init__(
        self,
        like: Any,
        *,
        batch_size: int,
        max_prefix_len: int,
        total_tokens: int,
        chunk_capacity: int = 32768,
        policy: str = "equal",
        grain: int = 1,
        index_type: str = "int32",
        shard: Shard | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "chunk_capacity": chunk_capacity,
            "policy": policy,
            "grain": grain,
            "shard": shard,
        }
        self._shape = bounding_shape(batch_size, max_prefix_len, total_tokens, **self._options)
        self._layout = _core.layout(self._shape, index_type)
        self._framework = _framework("like", like)
        self._buffer = self._framework.buffer(self._layout.words, like)
        self._plan: ChunkPlan | None = None
        self._was_enqueued = False
        # The views of the tables are kept while their extents stay.
        self._extents: tuple[int, int] | None = None
        self._tables: tuple[Any, Any] = (None, None)

    @property
    def shape(self) -> ChunkShape:
        """That of the bounds."""
        return self._shape

    @property
    def plan(self) -> ChunkPlan:
        """Of the batch built last."""
        if self._plan is None:
            raise ChunkedPrefillError("plan: nothing was built yet")
        return self._plan

    def build(
        self,
        prefix_lens: Any,
        prefix_lens_cpu: Any,
        req_to_page: Any,
        req_pool_indices: Any,
        page_size: int,
        *,
        num_pages: int = 0,
        stream: int | None = None,
        check: DeviceCheck | None = None,
    ) -> MetadataArrays:
        """Plans, and enqueues the kernels on the current stream, or on that with the handle
        `stream`. Arguments as `build_chunked_prefill_metadata_arrays` takes them; the batch may
        have fewer sequences than the bound."""
        plan = plan_chunks(prefix_lens_cpu, **self._options)
        self._shape.check_bounds(plan)
        _fill(
            plan, prefix_lens_cpu, prefix_lens, req_to_page, req_pool_indices,
            page_size, num_pages, self._layout, self._buffer, stream, check,
        )  # fmt: skip
        self._plan = plan
        return self.arrays()

    def enqueue(
        self,
        prefix_lens: Any,
        req_to_page: Any,
        req_pool_indices: Any,
        page_size: int,
        *,
        num_pages: int = 0,
        stream: int | None = None,
        check: DeviceCheck | None = None,
    ) -> None:
        """Enqueues the build of every batch within the bounds that these tensors will hold: what
        is captured in a graph once. Each replay reads the tensors where they are; sequences beyond
        the live ones have length 0. Run it once before it is captured."""
        if stream is None:
            stream = _framework("prefix_lens", prefix_lens).stream(prefix_lens)
        _core.fill_shape(
            self._shape, prefix_lens, req_to_page, req_pool_indices, page_size, num_pages,
            self._layout, self._buffer, stream, check,
        )  # fmt: skip
        self._was_enqueued = True
        self._plan = None

    def replayed(self, prefix_lens_cpu: Any) -> MetadataArrays:
        """The results of what was enqueued, or replayed, last, with the lengths `prefix_lens_cpu`,
        those of padding sequences, 0, included. A `build` writes the same buffers: after one,
        enqueue or replay again before asking."""
        if not self._was_enqueued:
            raise ChunkedPrefillError("replayed: nothing was enqueued yet")
        plan = plan_chunks(prefix_lens_cpu, **self._options)
        self._shape.check_replay(plan)
        self._plan = plan
        return self.arrays()

    def arrays(self) -> MetadataArrays:
        """Views of the last build's results."""
        plan = self.plan
        extents = plan.chunked_loop_num, plan.batch_size
        if self._extents != extents:
            self._tables = _tables(self._framework, plan, self._layout, self._buffer)
            self._extents = extents
        return _arrays(self._framework, plan, self._layout, self._buffer, self._tables)

    def copy(self) -> MetadataArrays:
        """Results of the last build that stay as they are, on the current stream."""
        plan, buffer = self.plan, self._framework.copy(self._buffer)
        tables = _tables(self._framework, plan, self._layout, buffer)
        return _arrays(self._framework, plan, self._layout, buffer, tables)

    def __repr__(self) -> str:
        shape = self._shape
        return (
            f"ChunkedPrefillMetadata(batch_size={shape.batch_size}, "
            f"max_prefix_len={shape.max_prefix_len}, total_tokens={shape.total_tokens}), "
            f"built last: {self._plan!r}"
        )


def build_chunked_prefill_metadata_arrays(
    extend_prefix_lens: Any,
    extend_prefix_lens_cpu: Any,
    req_to_page: Any,
    req_pool_indices: Any,
    page_size: int,
    *,
    chunk_capacity: int | None = None,
    chunked_prefill_size: int | None = None,
    mla_chunk_multiplier: int | None = None,
    policy: str = "equal",
    grain: int = 1,
    index_type: str = "int32",
    shard: Shard | None = None,
    num_pages: int = 0,
    stream: int | None = None,
    check: DeviceCheck | None = None,
) -> MetadataArrays:
    """All that a prefill step hands to attention, in memory of its own.

    Asynchronous: enqueues one kernel, or two for large batches, on the current stream.

    :param extend_prefix_lens: (batch_size) int32 or int64, on the device: cached tokens of each
        sequence.
    :param extend_prefix_lens_cpu: the same on the CPU; without `check` also a list.
    :param req_to_page: (max_requests, max_pages) int32 page ids, on the device; rows may be
        any distance apart.
    :param req_pool_indices: (batch_size) int32 or int64, on the device: rows of `req_to_page`.
    :param page_size: tokens a page holds.
    :param chunk_capacity: tokens that all chunks of a loop may hold together; or, in its place:
    :param chunked_prefill_size: tokens of a prefill step, by default 8192, which is multiplied by
    :param mla_chunk_multiplier: by default 4.
    :param policy: "equal" as the reference splits, or "packed": the fewest loops.
    :param grain: packed cuts are multiples of this many tokens.
    :param index_type: of the slots, "int32" or "int64".
    :param shard: a `ContextShard`, or such a tuple: the tokens of one context-parallel rank.
    :param num_pages: pages of the cache, where known: slots beyond the index type are refused, and
        `check` finds pages that the cache does not have.
    :param stream: handle of another stream than the current one.
    :param check: where given, what the device holds is checked.
    """
    chunk_capacity = _capacity(chunk_capacity, chunked_prefill_size, mla_chunk_multiplier)
    try:
        plan = plan_chunks(extend_prefix_lens_cpu, chunk_capacity, policy, grain, shard)
        framework = _framework("prefix_lens", extend_prefix_lens)
        layout = _core.layout(plan.shape, index_type)
        buffer = framework.buffer(layout.words, extend_prefix_lens, stream)
        _fill(
            plan, extend_prefix_lens_cpu, extend_prefix_lens, req_to_page, req_pool_indices,
            page_size, num_pages, layout, buffer, stream, check,
        )  # fmt: skip
    except InvalidArgument as error:  # in the words of this call
        raise InvalidArgument(re.sub(r"\bprefix_lens", "extend_prefix_lens", str(error))) from None
    tables = _tables(framework, plan, layout, buffer)
    return _arrays(framework, plan, layout, buffer, tables)


def get_chunks_paged(
    prefix_lens: Any,
    prefix_lens_cpu: Any,
    req_to_page: Any,
    req_pool_indices: Any,
    page_size: int,
    *,
    chunk_capacity: int | None = None,
    chunked_prefill_size: int | None = None,
    mla_chunk_multiplier: int | None = None,
    policy: str = "equal",
    grain: int = 1,
    index_type: str = "int32",
    shard: Shard | None = None,
    num_pages: int = 0,
    stream: int | None = None,
    check: DeviceCheck | None = None,
) -> PagedChunks:
    """The chunk table on the device, the slots of each loop, and the chunk table on the CPU.
    Arguments as `build_chunked_prefill_metadata_arrays` takes them, but for `prefix_lens_cpu`: a
    contiguous tensor."""
    chunk_capacity = _capacity(chunk_capacity, chunked_prefill_size, mla_chunk_multiplier)
    plan = plan_chunks(prefix_lens_cpu, chunk_capacity, policy, grain, shard)
    loops, batch_size = plan.chunked_loop_num, plan.batch_size
    framework = _framework("prefix_lens", prefix_lens)
    host = _framework("prefix_lens_cpu", prefix_lens_cpu)
    host_layout = _core.table_layout(prefix_lens_cpu, loops, batch_size)
    host_buffer = host.buffer(host_layout.words, prefix_lens_cpu)
    _core.host_table(plan, prefix_lens_cpu, host_layout, host_buffer)
    layout = _core.layout(plan.shape, index_type)
    buffer = framework.buffer(layout.words, prefix_lens, stream)
    _fill(
        plan, prefix_lens_cpu, prefix_lens, req_to_page, req_pool_indices, page_size,
        num_pages, layout, buffer, stream, check,
    )  # fmt: skip
    return PagedChunks(
        _chunks(framework, loops, batch_size, layout, buffer),
        LoopSlots(framework, plan, layout, buffer),
        _chunks(host, loops, batch_size, host_layout, host_buffer),
    )


def chunking(
    prefix_lens: Any,
    num_chunks: int,
    batch_size: int,
    chunk_len: int,
    *,
    stream: int | None = None,
) -> Chunks:
    """The chunk table of an equal split with `chunk_len` tokens a sequence and loop, on the device
    of `prefix_lens`, (batch_size) int32 or int64; on the current stream, or on that with the handle
    `stream`."""
    framework = _framework("prefix_lens", prefix_lens)
    num_chunks = _core.integer("num_chunks", num_chunks)
    batch_size = _core.integer("batch_size", batch_size)
    layout = _core.table_layout(prefix_lens, num_chunks, batch_size)
    buffer = framework.buffer(layout.words, prefix_lens, stream)
    if stream is None:
        stream = framework.stream(prefix_lens)
    _core.chunking(prefix_lens, num_chunks, batch_size, chunk_len, layout, buffer, stream)
    return _chunks(framework, num_chunks, batch_size, layout, buffer)


def show_config() -> None:
    """Prints the versions of this package and of Kokkos, and Kokkos's backends."""
    print(f"chunked_prefill {__version__}\n{_core.configuration()}")


def _framework(name: str, tensor: Any) -> Framework:
    framework = framework_of(tensor)
    if framework is None:
        kind = type(tensor)
        raise InvalidArgument(
            f"{name}: of type {kind.__module__}.{kind.__qualname__} is no tensor of torch, CuPy or "
            "NumPy"
        )
    return framework


def _capacity(chunk_capacity: int | None, size: int | None, multiplier: int | None) -> int:
    if chunk_capacity is None:
        return get_max_chunk_capacity(
            8192 if size is None else size, 4 if multiplier is None else multiplier
        )
    if size is not None or multiplier is not None:
        raise InvalidArgument("chunk_capacity: given, as are the settings that it is the product of")
    return chunk_capacity


def _fill(
    plan: ChunkPlan,
    prefix_lens_cpu: Any,
    prefix_lens: Any,
    req_to_page: Any,
    req_pool_indices: Any,
    page_size: int,
    num_pages: int,
    layout: _core.Layout,
    buffer: Any,
    stream: int | None,
    check: DeviceCheck | None,
) -> None:
    if stream is None:
        stream = _framework("prefix_lens", prefix_lens).stream(prefix_lens)
    _core.fill_plan(
        plan, prefix_lens_cpu, prefix_lens, req_to_page, req_pool_indices, page_size, num_pages,
        layout, buffer, stream, check,
    )  # fmt: skip


def _tables(
    framework: Framework, plan: ChunkPlan, layout: _core.Layout, buffer: Any
) -> tuple[Any, Any]:
    loops, batch_size = plan.chunked_loop_num, plan.batch_size
    return (
        framework.matrix(buffer, layout.len_in_chunk, loops, batch_size),
        framework.matrix(buffer, layout.cum_seq_lens, loops, batch_size + 1),
    )


def _arrays(
    framework: Framework,
    plan: ChunkPlan,
    layout: _core.Layout,
    buffer: Any,
    tables: tuple[Any, Any],
) -> MetadataArrays:
    return MetadataArrays(
        plan.chunked_loop_num,
        LoopSlots(framework, plan, layout, buffer),
        *tables,
        plan.max_chunk_len_per_loop,
    )


def _chunks(
    framework: Framework, loops: int, batch_size: int, layout: _core.Layout, buffer: Any
) -> Chunks:
    return Chunks(
        framework.matrix(buffer, layout.starts, loops, batch_size),
        framework.matrix(buffer, layout.ends, loops, batch_size),
        framework.matrix(buffer, layout.len_in_chunk, loops, batch_size),
        framework.matrix(buffer, layout.cum_seq_lens, loops, batch_size + 1),
    )
