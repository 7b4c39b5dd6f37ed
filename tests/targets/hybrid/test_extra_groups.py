"""Groups beside the usual pair: sliding windows release columns, the drafter writes ahead, no oracle fires."""

from collections.abc import Sequence

import pytest
from support import ATTENTION, MAMBA, arrive, broken, make_trace, steps, watch

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.targets.base.observe import Forward, Planned, SlotRead, SlotWrite
from hybridfuzz.targets.base.trace import DummyRun, Group, Trace, TraceError, check_config
from hybridfuzz.targets.hybrid.host.block_tables import WindowGroup

WINDOW = Group("attention", 8, window=6)
DRAFT = Group("attention", 4, draft=True)
RESEND = (arrive("r0", 30, new=9), *steps(12), arrive("r1", 30, new=2), *steps(5))


def windowed(**config: object) -> Trace:
    return make_trace(*RESEND, groups=(MAMBA, ATTENTION, WINDOW), **config)


def test_columns_left_of_the_window_are_given_back_and_no_longer_read() -> None:
    watched = watch(windowed())
    assert watched.outcome.violation is None
    plans = [plan for plan in watched.of(Planned) if "r0" in plan.view.tables]
    assert plans[-1].view.tables["r0"][2][:3] == (0, 0, 0)
    assert all(plans[-1].view.tables["r0"][1])
    reads = [read for forward in watched.of(Forward) for read in forward.accesses if isinstance(read, SlotRead)]
    assert {read.first_column for read in reads if read.group == 1} == {0}
    assert max(read.first_column for read in reads if read.group == 2) == 4


def test_a_hit_takes_only_the_columns_of_the_window() -> None:
    watched = watch(windowed())
    [(plan, row)] = [(plan, row) for plan in watched.of(Planned) for row in plan.rows if row.admitted and row.hit]
    assert row.hit == 24
    assert plan.view.tables["r1"][2][:2] == (0, 0)
    assert plan.view.tables["r1"][2][2] > 0


class GivesBackTooMuch(WindowGroup):
    """Releases one column too many."""

    def first_column(self, computed: int) -> int:
        return super().first_column(computed) + (computed > 8)


class GivesBackNothing(WindowGroup):
    """Never releases a column."""

    def give_back_skipped(self, name: str, settled: int) -> None:
        pass


class PublishesLate(WindowGroup):
    """Publishes a block under the boundary after its own."""

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        depth = (column + 2) * self.block_size
        if block and block not in self.pool.labels and depth < len(tags):
            self.pool.publish(block, Key(self.index, depth, tags[depth]))


@pytest.mark.parametrize(
    ("part", "signature"),
    [
        (GivesBackTooMuch, "M3-step-attention-column"),
        (GivesBackNothing, "M9-step-attention-peak"),
        (PublishesLate, "M2-step-attention-key"),
    ],
)
def test_broken_windows_are_noticed(part: type, signature: str) -> None:
    violation = run_trace(broken(part), windowed()).violation
    assert violation is not None
    assert violation.signature == signature, violation.message


def test_the_drafter_writes_its_proposals_into_blocks_of_its_own() -> None:
    trace = make_trace(
        arrive("r0", 6, new=9), *steps(4, drafts=3, right=1), groups=(MAMBA, ATTENTION, DRAFT), num_speculative_tokens=3
    )
    watched = watch(trace)
    assert watched.outcome.violation is None
    first = watched.of(Forward)[0]
    writes = [write for write in first.accesses if isinstance(write, SlotWrite) and write.group == 2]
    assert [(write.position, len(write.tags)) for write in writes] == [(0, 6), (6, 3)]


def test_a_dummy_run_writes_no_proposals() -> None:
    trace = make_trace(
        arrive("r0", 6, new=2), *steps(3), DummyRun(2), groups=(MAMBA, ATTENTION, DRAFT), num_speculative_tokens=3
    )
    watched = watch(trace)
    assert watched.outcome.violation is None
    [dummy] = [forward for forward in watched.of(Forward) if forward.dummy]
    assert not [write for write in dummy.accesses if isinstance(write, SlotWrite)]


@pytest.mark.parametrize(
    "group", [Group("mamba", 8, draft=True), Group("mamba", 8, window=4), Group("attention", 8, window=1)]
)
def test_contradictory_groups_are_refused(group: Group) -> None:
    with pytest.raises(TraceError, match="draft, window"):
        check_config(make_trace(groups=(MAMBA, ATTENTION, group)).config)
