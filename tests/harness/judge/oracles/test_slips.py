"""Wrong engines that once slipped through, and right ones that were flagged. A mark says which one still does.

The marks are strict: a change that closes a hole must remove its mark.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from support import ATTENTION, CLEAN, HitsOneUnitLess, NeverHits, arrive, broken, make_trace, steps

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.trace import Config, Evict, ExternalLoad, Step
from hybridfuzz.targets.hybrid.host.block_tables import AttentionGroup, MambaGroup
from hybridfuzz.targets.hybrid.host.cache_manager import CacheManager
from hybridfuzz.targets.hybrid.host.scheduler import Scheduler
from hybridfuzz.targets.hybrid.target import HybridTarget

AGAIN = (arrive("r0", 40, new=3), *steps(6), arrive("r1", 40, new=3), *steps(6))


def verdict(part: type, *events: Any, **config: Any) -> str:
    """Signature on the sabotaged target; the trace is clean on the correct one."""
    trace = make_trace(*events, **config)
    assert run_trace(CLEAN, trace).violation is None
    violation = run_trace(broken(part), trace).violation
    return violation.signature if violation else ""


class CutsAtTheEnd(Scheduler):
    """Right: drafts behind the last token of a request are not accepted, although they are correct."""

    def place(self, plan: Any, request: Any, *arguments: Any, **keywords: Any) -> None:
        super().place(plan, request, *arguments, **keywords)
        plan.rows[request.name].end = request.total


class NeverPublishesStates(MambaGroup):
    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        pass


class NeverGivesBack(MambaGroup):
    def give_back_skipped(self, name: str, settled: int) -> None:
        pass


class GivesUpNoBlock(CacheManager):
    def drop_for_eagle(self, tags: Sequence[int], length: int) -> int:
        return length


class IgnoresBudget(Scheduler):
    def schedule_waiting(self, plan: Any, limits: Any) -> None:
        plan.budget += 20
        super().schedule_waiting(plan, limits)


class CannotOpen(HybridTarget):
    def __init__(self, config: Config) -> None:
        raise RuntimeError("no such kernel")


class HitsVerifiedStates(CacheManager):
    """Right: a boundary that verified drafts crossed exists, whenever it is published."""

    def settle(self, name: str, tags: Any, span: Any) -> None:
        before = set(self.pool.published_this_step)
        super().settle(name, tags, span)
        self.pool.published_this_step = before


def test_no_hit_at_all_on_a_warm_resend_in_mode_align() -> None:
    """The chunk ends on the grid, so the promised hit is always one boundary less than the chunk."""
    events = (arrive("r0", 20, new=3), *steps(6), arrive("r1", 20, new=3), *steps(6))
    assert verdict(NeverHits, *events) == "M8-step-hit"


def test_hit_one_boundary_short_after_the_first_owner_ended() -> None:
    assert verdict(HitsOneUnitLess, *AGAIN, mamba_cache_mode="all") == "M8-step-hit"


@pytest.mark.parametrize("mode", ["align", "all"])
def test_states_that_are_never_published(mode: str) -> None:
    """vLLM #54360: nothing is inserted, hits stay 0."""
    assert verdict(NeverPublishesStates, *AGAIN, mamba_cache_mode=mode) == "M8-step-mamba-unpublished"


@pytest.mark.parametrize("length", [20, 40, 42])
def test_no_block_is_given_up_for_the_drafter(length: int) -> None:
    """Where the prompt ends on a boundary the block behind the hit counts as given up; else the hit is too long."""
    events = (arrive("r0", length, new=3), *steps(6), arrive("r1", length, new=3), *steps(6))
    signature = verdict(GivesUpNoBlock, *events, eagle_block_drop=True, num_speculative_tokens=2)
    assert signature == ("" if length % 8 == 0 else "M6-step-attention-eagle-block")


def test_boundary_that_no_step_ended_at_need_not_be_published() -> None:
    """Mode align: one chunk over several boundaries leaves only the state of the last."""
    assert verdict(AttentionGroup, arrive("r0", 44, new=3), *steps(6, budget=48)) == ""


def test_states_that_are_never_given_back_while_running() -> None:
    assert verdict(NeverGivesBack, arrive("r0", 20, new=40), *steps(44)) != ""


def test_more_tokens_than_the_budget() -> None:
    events = (arrive("r0", 30), arrive("r1", ("e", 30)), *steps(5, budget=20))
    assert verdict(IgnoresBudget, *events, mamba_cache_mode="all") != ""


def test_a_crash_while_opening_is_a_finding() -> None:
    assert verdict(CannotOpen, arrive("r0", 3)).startswith("CRASH")


def test_hit_on_a_verified_state_published_in_the_same_planning_is_right() -> None:
    drafts = {"drafts": 3, "right": 3}
    events = (
        arrive("r0", 5, new=30), *steps(2, **drafts), arrive("r1", 5, ("~", 8), new=2), *steps(5, **drafts)
    )  # fmt: skip
    assert verdict(HitsVerifiedStates, *events, num_speculative_tokens=3) == ""


def test_drafts_behind_the_last_token_may_be_rejected() -> None:
    """Flagged as S6: only a session was allowed to stop at the end of its turn."""
    events = (arrive("r0", 6, new=4), *steps(4, drafts=3, right=3))
    assert verdict(CutsAtTheEnd, *events, num_speculative_tokens=3) == ""


def test_evict_is_optional() -> None:
    """Pool pressure is a hint: an engine that evicts less than asked is not wrong."""

    class EvictsNothing(HybridTarget):
        def evict(self, event: Evict) -> list[Any]:
            return []

    assert verdict(EvictsNothing, *AGAIN[:7], Evict(3), *AGAIN[7:], Step()) == ""


def test_most_recently_freed_first_is_right_too() -> None:
    """The order of the free queue is the target's own affair."""

    class KeepsOrder(AttentionGroup):
        def free(self, name: str) -> None:
            self.pool.release(self.tables.pop(name, []))
            self.num_published.pop(name, None)

    assert verdict(KeepsOrder, *AGAIN) == ""


def test_a_load_that_breaks_off_withdraws_no_key_of_others() -> None:
    """Found in our own target by M8 (publication): the hit's blocks were published in this very step by their owner."""
    broken_off = ExternalLoad("r1", 23, breaks_off=True)
    events = (arrive("r0", 10, new=1), *steps(2), arrive("r1", 17, new=1), broken_off)
    config = {"groups": (ATTENTION,), "mamba_cache_mode": "all", "options": {"connector_saves": "yes"}}
    assert run_trace(CLEAN, make_trace(*events, long_prefill_token_threshold=3, **config)).violation is None
