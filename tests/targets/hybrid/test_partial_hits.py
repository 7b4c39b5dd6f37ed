"""Hits inside a block: their length, the isolation of the blocks that they read, and the end of their keys."""

from typing import Any

import pytest
from support import ATTENTION, MAMBA, Watching, arrive, broken, make_trace, steps, watch

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.targets.base.observe import Copied, Planned
from hybridfuzz.targets.base.trace import AnyEvent, Group, Preempt
from hybridfuzz.targets.hybrid.host.partial_hits import PartialHits
from hybridfuzz.targets.hybrid.worker.state_slots import StateSlots

FINE: dict[str, Any] = {"options": {"prefix_match_unit": "4"}}
RESEND = (arrive("r0", 13, new=9), *steps(3), arrive("r1", 13), *steps(4))


def silent(*events: AnyEvent, **config: Any) -> Watching:
    watched = watch(make_trace(*events, **config))
    assert watched.outcome.violation is None, watched.outcome.violation.message
    return watched


def hits(*events: AnyEvent, **config: Any) -> list[int]:
    return [row.hit for plan in silent(*events, **config).of(Planned) for row in plan.rows if row.admitted]


def test_a_hit_may_end_inside_a_block() -> None:
    """The prompt of 13 tokens has its last boundary at 12; the request has advanced since."""
    assert hits(*RESEND) == [0, 8]
    assert hits(*RESEND, **FINE) == [0, 12]
    assert hits(*RESEND, **FINE, groups=(MAMBA, MAMBA, Group("attention", 4))) == [0, 12]


def test_only_in_mode_align_and_without_eagle() -> None:
    assert hits(*RESEND, **FINE, mamba_cache_mode="all") == [0, 8]
    assert hits(*RESEND, **FINE, num_speculative_tokens=1, eagle_block_drop=True) == [0, 0]


def test_a_key_for_a_part_of_a_block_covers_no_more() -> None:
    """A longer prompt with the same prefix hits 12; a state must be at exactly that boundary."""
    longer = (*RESEND[:4], arrive("r1", 30), *steps(6))
    assert hits(*longer, **FINE) == [0, 12]
    shorter = (*RESEND[:4], arrive("r1", 12), *steps(4))
    assert hits(*shorter, **FINE) == [0, 8], "12 of 12 tokens would leave nothing to compute"


def test_the_found_block_is_copied_before_it_is_written() -> None:
    watched = silent(*RESEND, **FINE)
    copies = [copy for copy in watched.of(Copied) if copy.source_column < 0]
    assert {(copy.group, copy.destination_column) for copy in copies} == {(0, 1), (1, 1)}
    plan = next(plan for plan in watched.of(Planned) if any(row.hit for row in plan.rows))
    assert all(copy.source not in plan.view.tables["r1"][copy.group] for copy in copies)
    assert all(plan.view.pins[copy.source] == 1 for copy in copies)


def test_pins_end_with_the_step() -> None:
    for depth in (0, 2):
        watched = silent(*RESEND, **FINE, async_depth=depth)
        assert not watched.history[-1][2].pins


def test_a_full_block_has_only_its_full_key() -> None:
    watched = silent(*RESEND, **FINE)
    published = set(watched.history[-1][2].published.values())
    depths = {key.depth for key in published if key.group == 1}
    assert 16 in depths
    assert {key.depth for key in published if key.group == 0} >= {8, 12, 16}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_with_steps_in_flight_and_preemption(depth: int) -> None:
    events = (*RESEND[:3], Preempt("r0"), arrive("r1", 13), *steps(6))
    assert 12 in hits(*events, **FINE, async_depth=depth)


def test_a_pool_without_a_block_to_spare_falls_back_to_whole_blocks() -> None:
    """A request does not stall if source and copy do not fit into the pool together."""
    watched = silent(*RESEND, **FINE, num_blocks=6, max_model_len=22, max_num_seqs=1, groups=(MAMBA, ATTENTION))
    assert len([row for plan in watched.of(Planned) for row in plan.rows if row.admitted]) >= 2


class CopiesNothing(StateSlots):
    """Never copies pages."""

    def copy_page(self, *arguments: object) -> None:
        pass


class StaysOnTheBlock(PartialHits):
    """Leaves the key on the block whose state advances."""

    def keep(self, name: str) -> list[Any]:
        return []


class OneUnitTooFar(PartialHits):
    """Publishes a key for more tokens than the block holds."""

    def publish(self, name: str, tags: Any, depth: int) -> None:
        for group in self.groups:
            block = group.tables[name][depth // group.block_size]
            if depth % group.block_size and depth + 1 < len(tags):
                self.pool.publish(block, Key(group.index, depth + 1, tags[depth + 1]))


@pytest.mark.parametrize(
    ("part", "signatures"),
    [
        (CopiesNothing, {"S1-step-mamba-temporal", "S5-step-mamba-never-written"}),
        (StaysOnTheBlock, {"M5-step-mamba-shared-write"}),
        (OneUnitTooFar, {"M2-step-mamba-key"}),
    ],
)
def test_broken_partial_keys_are_noticed(part: type, signatures: set[str]) -> None:
    violation = run_trace(broken(part), make_trace(*RESEND, **FINE)).violation
    assert violation is not None
    assert violation.signature in signatures, violation.message


def test_a_lone_request_waits_for_the_block_of_a_moved_key() -> None:
    """In the smallest pool it has no other block to take: if it preempted itself, it would do so again for ever
    (found with seed 406111327).
    """
    config: dict[str, Any] = {
        "groups": (Group("mamba", 4), Group("attention", 8)),
        "num_blocks": 12,
        "max_model_len": 32,
        "max_num_batched_tokens": 24,
        "num_speculative_tokens": 3,
        "eagle_block_drop": True,
        "async_depth": 1,
        "options": {"prefix_match_unit": "2"},
    }
    trace = make_trace(arrive("r0", 26, new=6), **config)
    assert trace.config.num_blocks == trace.config.smallest_pool()
    watched = watch(trace)
    assert watched.outcome.violation is None, watched.outcome.violation.message
    assert any(plan.view.pins and not plan.rows for plan in watched.of(Planned)), "it had nothing to wait for"
    assert not any(plan.preempted for plan in watched.of(Planned))
