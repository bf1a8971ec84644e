# SPDX-License-Identifier: MIT
class ChunkedPrefillError(ValueError):
    pass

class InvalidArgument(ChunkedPrefillError):
    pass

class ChunkPlan:
    """How a batch's cached prefixes are walked, as plain host numbers."""

    @property
    def policy(self) -> str:
        """"equal" or "packed\""""

    @property
    def grain(self) -> int:
        """
        tokens between the places where a sequence may be cut; 1 for an equal split
        """

    @property
    def batch_size(self) -> int:
        """sequences"""

    @property
    def chunk_capacity(self) -> int:
        """tokens one loop may hold"""

    @property
    def chunk_len(self) -> int:
        """tokens one sequence gives to one loop at most"""

    @property
    def chunked_loop_num(self) -> int:
        """loops"""

    @property
    def total_tokens(self) -> int:
        """tokens of all loops together"""

    @property
    def max_prefix_len(self) -> int:
        """tokens of the longest prefix"""

    @property
    def shard(self) -> tuple[int, int, int]:
        """(world_size, rank, interleave) of the rank that the numbers are of"""

    @property
    def tokens_per_loop(self) -> list[int]:
        """tokens of each loop"""

    @property
    def offsets(self) -> list[int]:
        """where each loop begins among the slots, and the total"""

    @property
    def max_chunk_len_per_loop(self) -> list[int]:
        """tokens of the longest sequence chunk of each loop"""

    @property
    def seq_range_per_loop(self) -> list[tuple[int, int]]:
        """the shortest half-open range that holds each loop's sequences"""

    @property
    def non_empty_seqs_per_loop(self) -> list[int]:
        """sequences with a token in each loop"""

    @property
    def has_empty_seq_per_loop(self) -> list[bool]:
        """whether a sequence of the batch has no token in each loop"""

    @property
    def shape(self) -> ChunkShape: ...

    def _repr_svg_(self) -> str: ...

    def __repr__(self) -> str: ...

class ChunkShape:
    """What sizes a build: of a plan, or of bounds."""

    @property
    def batch_size(self) -> int:
        """sequences"""

    @property
    def chunk_len(self) -> int:
        """tokens one sequence gives to one loop at most"""

    @property
    def chunked_loop_num(self) -> int:
        """loops"""

    @property
    def max_prefix_len(self) -> int:
        """tokens"""

    @property
    def total_tokens(self) -> int:
        """tokens of all loops together"""

    def check_bounds(self, plan: ChunkPlan) -> None:
        """
        Raises InvalidArgument naming what of plan is beyond this shape's bounds.
        """

    def check_replay(self, plan: ChunkPlan) -> None:
        """
        Raises InvalidArgument naming what of plan a replay of this shape does not hold.
        """

class Layout:
    """Where the arrays of a build are in its buffer, in words."""

    @property
    def words(self) -> int: ...

    @property
    def chunk_kv_indices(self) -> int: ...

    @property
    def len_in_chunk(self) -> int: ...

    @property
    def starts(self) -> int: ...

    @property
    def ends(self) -> int: ...

    @property
    def cum_seq_lens(self) -> int: ...

    @property
    def offsets(self) -> int: ...

    @property
    def is_int64(self) -> bool: ...

def layout(shape: ChunkShape, index_type: object | None) -> Layout: ...

class DeviceCheck:
    """
    Opt-in check of what only the device can see: give one to a build, and ask it for the first fault when you next wait for the device.
    """

    def __init__(self, like: object) -> None:
        """For builds of tensors on the device of `like`."""

    def first_fault(self, stream: int | None = None) -> str | None:
        """
        What the first faulty build since the last call had wrong, or None. Waits for the stream of the last build, or that with the handle `stream`: where a graph with the builds is replayed on another.
        """

def get_max_chunk_capacity(chunked_prefill_size: int = 8192, mla_chunk_multiplier: int = 4) -> int:
    """chunk_capacity in tokens: the product of the two engine settings."""

def plan_chunks(prefix_lens_cpu: object, chunk_capacity: int = 32768, policy: str = 'equal', grain: int = 1, shard: tuple[int, int, int] | None = None) -> ChunkPlan:
    """
    Splits a batch's cached prefixes into loops; host arithmetic alone.

    prefix_lens_cpu: (batch_size) int32 or int64 on the CPU, or a list; tokens.
    policy: "equal" as the reference splits, or "packed": the fewest loops.
    grain: packed cuts are multiples of this many tokens.
    shard: (world_size, rank, interleave) of a context-parallel rank, or None.
    """

def bounding_shape(batch_size: int, max_prefix_len: int, total_tokens: int, chunk_capacity: int = 32768, policy: str = 'equal', grain: int = 1, shard: tuple[int, int, int] | None = None) -> ChunkShape:
    """The shape that holds every batch within these bounds."""

def fill_plan(plan: ChunkPlan, prefix_lens_cpu: object | None, prefix_lens: object | None, req_to_page: object | None, req_pool_indices: object | None, page_size: object | None, num_pages: object | None, layout: Layout, buffer: object | None, stream: object | None, check: object | None) -> None: ...

def fill_shape(shape: ChunkShape, prefix_lens: object | None, req_to_page: object | None, req_pool_indices: object | None, page_size: object | None, num_pages: object | None, layout: Layout, buffer: object | None, stream: object | None, check: object | None) -> None: ...

def host_table(plan: ChunkPlan, prefix_lens_cpu: object | None, layout: Layout, buffer: object | None) -> None: ...

def table_layout(prefix_lens: object | None, num_chunks: object | None, batch_size: object | None) -> Layout: ...

def chunking(prefix_lens: object | None, num_chunks: object | None, batch_size: object | None, chunk_len: object | None, layout: Layout, buffer: object | None, stream: object | None) -> None: ...

def integer(name: str, value: object | None) -> int:
    """Raises InvalidArgument for what is no integer, or beyond int64."""

def configuration() -> str: ...

def finalize() -> None: ...

version: str = '0.1.0'
