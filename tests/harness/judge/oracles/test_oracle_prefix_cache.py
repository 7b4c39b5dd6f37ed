"""M2, M6, the hit part of M8 and S5 fire: what is published, what a hit may rely on, since when."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from support import (
    Case,
    HitsOneUnitLess,
    NeverHits,
    arrive,
    broken,
    change_view,
    check_case,
    make_trace,
    steps,
)

from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.targets.base.trace import Evict, Step
from hybridfuzz.targets.hybrid.host.block_pool import BlockPool
from hybridfuzz.targets.hybrid.host.block_tables import AttentionGroup, MambaGroup
from hybridfuzz.targets.hybrid.worker.tag_kernels import TagKernels

ONE = make_trace(arrive("r0", 20, new=3), *steps(6))
AGAIN = (arrive("r0", 20, new=3), *steps(6), arrive("r1", 20, new=3), *steps(6))
RESEND = make_trace(*AGAIN)
RESEND_ALL = make_trace(*AGAIN, mamba_cache_mode="all")
SMALL_CHUNKS = make_trace(*AGAIN, max_num_batched_tokens=8)
WHILE_RUNNING = make_trace(
    arrive("r0", 20, new=9), *steps(4), arrive("r1", 20, new=2), *steps(6), mamba_cache_mode="all"
)
SAME_STEP = make_trace(arrive("r0", 20, new=3), arrive("r1", 20, new=3), *steps(6))
ALL = make_trace(arrive("r0", 20, new=3), *steps(6), mamba_cache_mode="all")
SCRATCH = {"num_speculative_tokens": 3}
FAR_CHUNK = make_trace(arrive("r0", 50, new=4), Step(budget=8), *steps(5), **SCRATCH)
FAR_CHUNK_ALL = make_trace(arrive("r0", 50, new=4), Step(budget=9), *steps(5), mamba_cache_mode="all", **SCRATCH)


class LabelsAnother(BlockPool):
    """The block's own label differs from the key that lookups find it by."""

    def publish(self, block: int, key: Key) -> None:
        super().publish(block, key)
        self.labels[block] = key._replace(depth=key.depth + 8)


class KeepsIndex(BlockPool):
    """A block that is handed out again is still found under its old key."""

    def allocate(self, count: int) -> list[int]:
        keys = {block: self.labels.pop(block) for block in list(self.free)[:count] if block in self.labels}
        blocks = super().allocate(count)
        assert keys.keys() <= set(blocks)
        return blocks


class PublishesPrefixOfOther(MambaGroup):
    """The key is made from the tag of one token less."""

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        super().publish_column(block, column, [0, *tags[:-1]])


class PublishesTooEarly(MambaGroup):
    """A key is published one block before its tokens are computed."""

    def publish(self, name: str, tags: Sequence[int], tokens: int) -> None:
        super().publish(name, tags, min(tokens + 8, len(tags) - 1))


class PublishesNextColumn(MambaGroup):
    """The key of a boundary lands on the block of the next column."""

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        table = next(table for table in self.tables.values() if block in table)
        if column + 1 < len(table):
            super().publish_column(table[column + 1], column, tags)


class IgnoresStates(MambaGroup):
    """vLLM #47491: the attention hit stands although the state is gone."""

    def find_hit(self, tags: Sequence[int], length: int) -> int:
        return length

    def hit_blocks(self, tags: Sequence[int], length: int) -> list[int]:
        block = self.pool.lookup(Key(self.index, length, tags[length]))
        return super().hit_blocks(tags, length) if block else [0] * (length // self.block_size)


class TakesEarlierState(MambaGroup):
    """The hit is deeper than the state that it gets."""

    def hit_blocks(self, tags: Sequence[int], length: int) -> list[int]:
        blocks = super().hit_blocks(tags, length)
        earlier = self.pool.lookup(Key(self.index, self.block_size, tags[self.block_size]))
        return [*blocks[:-1], earlier] if blocks and earlier else blocks


class SwapsBlocks(AttentionGroup):
    """The columns of a hit come in the wrong order."""

    def hit_blocks(self, tags: Sequence[int], length: int) -> list[int]:
        return super().hit_blocks(tags, length)[::-1]


class NeverDefers(MambaGroup):
    """A state is hit in the very step that is to write it."""

    def must_defer(self, blocks: Sequence[int]) -> bool:
        return False


class WritesNoBoundary(TagKernels):
    """Mode all: the states of crossed boundaries are promised, not written."""

    def stops(self, inputs: Any, at: Any) -> list[tuple[int, int, int]]:
        return super().stops(inputs, at)[-1:]


class PublishesScratch(MambaGroup):
    """Scratch blocks keep their columns, and are taken for states once the tokens reach them."""

    def movable_columns(self, table: Sequence[int], live: int) -> list[int]:
        return []


def vanished(view: Any) -> dict[int, Key]:
    return dict(list(view.published.items())[1:])


CASES = [
    Case("label disagrees", broken(LabelsAnother), ONE, "M2", "agreement", (r"has block \d as depth \d",)),
    Case(
        "index keeps a reused block",
        broken(KeepsIndex),
        make_trace(arrive("r0", 20, new=3), *steps(6), arrive("r1", ("e", 40)), *steps(4), num_blocks=12),
        "M2",
        "agreement",
    ),
    Case("lookup lost a key", change_view(published=vanished), ONE, "M2", "agreement"),
    Case("key of another prefix", broken(PublishesPrefixOfOther), ONE, "M2", "key", ("depth 16",)),
    Case("published too early", broken(PublishesTooEarly), FAR_CHUNK_ALL, "M2", "key", ("r0 has it in column",)),
    Case("key on the wrong column", broken(PublishesNextColumn), ALL, "M2", "key", ("r0 has it in column",)),
    Case(
        "attention hit without a state",
        broken(IgnoresStates),
        make_trace(arrive("r0", 20, new=3), *steps(6), Evict(2), arrive("r1", 20), *steps(3)),
        "M6",
        "length",
        ("r1 got a hit of .* mamba group 0",),
    ),
    Case(
        "state too shallow",
        broken(TakesEarlierState),
        SMALL_CHUNKS,
        "M6",
        "length",
        ("hit of 16", "column 1 of its mamba group 0"),
    ),
    Case(
        "hit blocks out of order", broken(SwapsBlocks), RESEND, "M6", "length", ("column 0 of its attention group 1",)
    ),
    Case("hit always 0", broken(NeverHits), RESEND_ALL, "M8", "hit", ("r1 got a hit of 0 tokens, but 16",)),
    Case("hit one unit short", broken(HitsOneUnitLess), WHILE_RUNNING, "M8", "hit", ("r1 got a hit of",)),
    Case("hit before the write", broken(NeverDefers), SAME_STEP, "S5", "early-hit", ("r1 hits the state after",)),
    Case("boundary never written", broken(WritesNoBoundary), ALL, "S5", "never-written", ("depth 8",)),
    # A published scratch block cannot move on with its request: it is held beyond what the request needs.
    Case("scratch block published", broken(PublishesScratch), FAR_CHUNK, "M9", "peak", ("r0 holds 8 blocks",)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_fires(case: Case) -> None:
    check_case(case)


def test_cases_cover_their_oracles_twice() -> None:
    counts = Counter(case.oracle for case in CASES)
    assert all(counts[oracle] >= 2 for oracle in ("M2", "M6", "M8", "S5"))
