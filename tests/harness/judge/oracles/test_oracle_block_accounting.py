"""M1, M7 and M9 fire: the partition of blocks, the admission estimate, what is left at the end."""

from collections import Counter
from typing import Any

import pytest
from support import ATTENTION, Case, arrive, broken, change_view, check_case, make_trace, steps

from hybridfuzz.targets.base.trace import Abort, Preempt
from hybridfuzz.targets.hybrid.host.block_pool import BlockPool
from hybridfuzz.targets.hybrid.host.block_tables import AttentionGroup
from hybridfuzz.targets.hybrid.host.cache_manager import CacheManager
from hybridfuzz.targets.hybrid.layout import NULL_BLOCK
from hybridfuzz.targets.hybrid.worker.input_batch import InputBatch
from hybridfuzz.targets.hybrid.worker.model_runner import ModelRunner

ONE = make_trace(arrive("r0", 12, new=3), *steps(6))
TWICE = make_trace(arrive("r0", 20, new=3), *steps(6), arrive("r1", 20, new=3), *steps(6))


class StaysFree(BlockPool):
    """An allocated block is put back into the free queue."""

    def allocate(self, count: int) -> list[int]:
        blocks = super().allocate(count)
        self.free.update(dict.fromkeys(blocks[:1]))
        return blocks


class CountsTwice(BlockPool):
    """A new block counts as referenced twice."""

    def allocate(self, count: int) -> list[int]:
        blocks = super().allocate(count)
        for block in blocks[:1]:
            self.references[block] = 2
        return blocks


class LosesBlocks(BlockPool):
    """A released block never returns to the free queue."""

    def release(self, blocks: Any) -> None:
        super().release(blocks)
        while self.free and self.references[next(reversed(self.free))] == 0 and len(self.free) > 50:
            self.free.popitem()


class HandsOutNull(BlockPool):
    """kvcached #398: the null block is free to be handed out."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.free[NULL_BLOCK] = None


class HitWithoutReference(BlockPool):
    """A revived block leaves the free queue, but its reference count stays 0."""

    def touch(self, block: int) -> None:
        self.free.pop(block, None)


class EstimatesOneMore(CacheManager):
    """The admission check is off by one."""

    def estimate(self, *arguments: Any) -> int:
        return super().estimate(*arguments) + 1


class ForgetsRevivedBlocks(CacheManager):
    """The admission check forgets that a hit takes its blocks out of the free queue."""

    def estimate(self, name: str, span: Any, hit: Any) -> int:
        revived = {block for table in hit.blocks for block in table} if hit else set()
        return super().estimate(name, span, hit) - len(revived & self.pool.free.keys())


class KeepsZeroList(CacheManager):
    """The list of blocks to zero is read but never emptied."""

    def take_blocks_to_zero(self) -> list[int]:
        return list(self.to_zero)


class KeepsCounters(AttentionGroup):
    """A finished request's publication counter stays behind."""

    def free(self, name: str) -> None:
        self.pool.release(reversed(self.tables.pop(name, [])))


class KeepsRequests(ModelRunner):
    """The worker never forgets a request."""

    def update_batch(self, plan: Any) -> None:
        before = dict(self.requests)
        super().update_batch(plan)
        self.requests = before | self.requests


class KeepsRows(InputBatch):
    """A row of the batch is cleared, but stays taken."""

    def remove(self, name: str) -> None:
        if name in self.names and len(self.names) > 1:
            super().remove(name)


CASES = [
    Case("block in use stays free", broken(StaysFree), ONE, "M1", "free", ("block 1 .*r0",)),
    Case("reference too many", broken(CountsTwice), ONE, "M1", "references", ("held by r0",)),
    Case("released block lost", broken(LosesBlocks), ONE, "M1", "free", ("absent",)),
    Case("null block handed out", broken(HandsOutNull), ONE, "M1", "free", ("block 0",)),
    Case("hit not counted", broken(HitWithoutReference), TWICE, "M1", "references", ("r1",)),
    Case(
        "free queue lists a block twice",
        change_view(free=lambda view: [*view.free, view.free[0]]),
        ONE,
        "M1",
        "free",
        ("2 times",),
    ),
    Case(
        "table names a block that does not exist",
        change_view(tables=lambda view: {name: [[999], []] for name in view.tables}),
        ONE,
        "M1",
        "id",
        ("block 999.*r0",),
    ),
    Case(
        "null block published",
        change_view(published=lambda view: dict(zip([0], view.published.values(), strict=False))),
        ONE,
        "M1",
        "null-hashed",
        ("block 0",),
    ),
    Case("estimate off by one", broken(EstimatesOneMore), ONE, "M7", "blocks", ("r0 estimated",)),
    Case("revived blocks not foreseen", broken(ForgetsRevivedBlocks), TWICE, "M7", "blocks", ("r1",)),
    Case("zero list not drained", broken(KeepsZeroList), ONE, "M9", "blocks-to-zero"),
    Case("counters left", broken(KeepsCounters), ONE, "M9", "publication-counters", ("ended",)),
    Case("worker requests left", broken(KeepsRequests), ONE, "M9", "worker-requests", ("ended",)),
    Case("worker row left", broken(KeepsRows), ONE, "M9", "worker-rows", ("ended",)),
    Case(
        "blocks left",
        change_view(free=lambda view: list(view.free), pins=lambda view: {}, leftovers=lambda view: {"requests": 1}),
        ONE,
        "M9",
        "requests",
        ("ended, but requests are left: 1",),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_fires(case: Case) -> None:
    check_case(case)


def test_pure_attention_models_drain_the_zero_list_too() -> None:
    trace = make_trace(arrive("r0", 12), *steps(4), groups=(ATTENTION,))
    check_case(Case("", broken(KeepsZeroList), trace, "M9", "blocks-to-zero"))


def test_a_leak_by_abort_or_preemption_is_found() -> None:
    """What only some ways out of the batch forget to release is still missing at the end."""

    class AbortLeaks(AttentionGroup):
        def free(self, name: str) -> None:
            counter = self.num_published.get(name)
            super().free(name)
            if name == "aborted" and counter is not None:
                self.num_published[name] = counter

    first = (arrive("r0", 9, new=4), arrive("aborted", 9, new=9), *steps(2))
    trace = make_trace(*first, Preempt("r0"), Abort("aborted"), *steps(3))
    violation = check_case(Case("", broken(AbortLeaks), trace, "M9", "publication-counters"))
    assert violation.event >= len(trace.events)


def test_cases_cover_their_oracles_twice() -> None:
    counts = Counter(case.oracle for case in CASES)
    assert {"M1", "M7", "M9"} == counts.keys()
    assert min(counts.values()) >= 2
