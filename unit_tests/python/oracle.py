# SPDX-License-Identifier: MIT
"""What a build gives, token by token from the definitions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Batch:
    prefix_lens: list[int]
    page_size: int
    chunk_capacity: int
    policy: str = "equal"
    grain: int = 1
    shard: tuple[int, int, int] = (1, 0, 1)
    req_to_page: list[list[int]] = field(default_factory=list)
    req_pool_indices: list[int] = field(default_factory=list)

    def holds(self, position: int) -> bool:
        world_size, rank, interleave = self.shard
        return position // interleave % world_size == rank

    def draw_pages(self, rng: random.Random) -> None:
        pages = max(self.prefix_lens, default=0) // self.page_size + 2
        rows = len(self.prefix_lens) + 2
        self.req_to_page = [[rng.randrange(10000) for _ in range(pages)] for _ in range(rows)]
        self.req_pool_indices = rng.sample(range(rows), len(self.prefix_lens))


def loop_of_tokens(batch: Batch) -> list[list[int]]:
    """Of each sequence, the loop of each of its tokens, on whichever rank."""
    if batch.policy == "equal":
        chunk_len = batch.chunk_capacity // max(len(batch.prefix_lens), 1)
        return [[position // chunk_len for position in range(n)] for n in batch.prefix_lens]
    chunk_len = batch.chunk_capacity // batch.grain * batch.grain
    loops, before = [], 0
    for n in batch.prefix_lens:
        loops.append([(before + position) // chunk_len for position in range(n)])
        before += -(-n // batch.grain) * batch.grain
    return loops


def build(batch: Batch) -> tuple[int, list[list[int]], list[list[int]], list[list[int]], list[int]]:
    """Loops, slots of each, lengths of each, their cumulative sums, the longest of each."""
    of_tokens = loop_of_tokens(batch)
    loop_num = 1 + max((loops[-1] for loops in of_tokens if loops), default=-1)
    slots: list[list[int]] = [[] for _ in range(loop_num)]
    lens = [[0] * len(batch.prefix_lens) for _ in range(loop_num)]
    for i, loops in enumerate(of_tokens):
        held = 0
        row = batch.req_to_page[batch.req_pool_indices[i]]
        for position, loop in enumerate(loops):
            if not batch.holds(position):
                continue
            page, within = divmod(held, batch.page_size)
            slots[loop].append(row[page] * batch.page_size + within)
            lens[loop][i] += 1
            held += 1
    cum = [[sum(row[:k]) for k in range(len(row) + 1)] for row in lens]
    return loop_num, slots, lens, cum, [max(row, default=0) for row in lens]


def draw(rng: random.Random) -> Batch:
    batch_size = rng.randint(1, 12)
    longest = rng.choice([1, 5, 64, 300, 900])
    lens = [rng.choice([0, 1, longest, rng.randint(0, longest)]) for _ in range(batch_size)]
    policy = rng.choice(["equal", "packed"])
    capacity = rng.randint(batch_size, 40 * batch_size + 30)
    batch = Batch(lens, rng.choice([1, 3, 16, 48, 64]), capacity, policy)
    if policy == "packed":
        batch.grain = rng.choice([1, rng.randint(1, capacity), min(16, capacity)])
    if rng.random() < 0.3:
        world_size = rng.randint(1, 4)
        batch.shard = (world_size, rng.randrange(world_size), rng.choice([1, 3, 16]))
    batch.draw_pages(rng)
    return batch
