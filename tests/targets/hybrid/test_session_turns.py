"""Sessions in the embedded target: a turn continues with the kept blocks, and nothing leaks at its end."""

from typing import Any

import msgspec
import pytest
from support import ATTENTION, Watching, arrive, broken, make_trace, steps, watch

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Delivered, Planned, PlannedRow
from hybridfuzz.targets.base.trace import (
    Abort,
    AnyEvent,
    Arrive,
    DummyRun,
    Fork,
    Group,
    Park,
    Preempt,
    ResetPrefixCache,
    Resume,
    Sleep,
    Step,
    Truncate,
    Wake,
)
from hybridfuzz.targets.hybrid.host.block_tables import AttentionGroup
from hybridfuzz.targets.hybrid.plan import Request
from hybridfuzz.targets.hybrid.session_events import SessionEvents
from hybridfuzz.targets.hybrid.target import HybridTarget

FORK = Fork("r1", "r0")
MORE = Resume("r0", (("b", 7),), 3)
TIGHT: dict[str, Any] = {"num_blocks": 19, "mamba_cache_mode": "all"}
"""18 blocks: 6 for the session's first turn, 12 for 48 tokens of another request."""
MODES = pytest.mark.parametrize("mode", ["align", "all", "none"])


def session(prompt: int = 13, new: int = 6) -> Arrive:
    return Arrive("r0", (("a", prompt),), new, session=True)


def clean(*events: AnyEvent, **config: Any) -> Watching:
    watched = watch(make_trace(*events, **config))
    assert watched.outcome.violation is None, watched.outcome.violation.message
    return watched


def turns(watched: Watching, name: str = "r0") -> list[PlannedRow]:
    """Return the rows with which a request was admitted."""
    return [row for plan in watched.of(Planned) for row in plan.rows if row.admitted and row.name == name]


def view_after(watched: Watching, event: AnyEvent) -> Any:
    return next(view for seen, _, view in watched.history if seen == event)


@MODES
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("depth", [0, 2])
def test_a_turn_goes_on_where_the_one_before_ended(mode: str, drafts: int, depth: int) -> None:
    """All but the last token, which is not computed yet, is kept, even if drafts overshot the end."""
    watched = clean(
        session(), *steps(10, drafts=drafts, right=drafts), MORE, *steps(9, drafts=drafts, right=1),
        mamba_cache_mode=mode, num_speculative_tokens=drafts, async_depth=depth,
    )  # fmt: skip
    first, second = turns(watched)
    assert (first.kept, second.kept, second.start) == (0, 18, 18)
    assert [name for record in watched.of(Delivered) for name in record.finished] == ["r0", "r0"]


def test_a_parked_session_holds_blocks_and_no_row() -> None:
    watched = clean(session(), *steps(9), DummyRun(4), MORE)
    view = view_after(watched, DummyRun(4))
    assert view.parked == ["r0"]
    assert not view.running
    assert not view.waiting
    assert view.tables["r0"]
    assert watched.outcome.reached["dummy run after requests"], "a rank with nothing but parked sessions is idle"


@MODES
def test_a_client_may_end_a_turn_in_the_middle(mode: str) -> None:
    watched = clean(session(new=20), *steps(4, drafts=2, right=1), Park("r0"), MORE, num_speculative_tokens=2,
                    async_depth=2, mamba_cache_mode=mode)  # fmt: skip
    _, second = turns(watched)
    delivered = sum(len(tokens) for record in watched.of(Delivered) for _, tokens in record.outputs)
    assert 0 < second.kept < 13 + delivered
    assert watched.outcome.reached["turn ended by its client"]


def test_a_client_may_end_a_turn_in_its_prompt() -> None:
    watched = clean(session(prompt=30), *steps(1, budget=8), Park("r0"), MORE, *steps(2))
    assert [row.kept for row in turns(watched)] == [0, 8]


@pytest.mark.parametrize("event", [Preempt("r0"), ResetPrefixCache(preempt_running=True), Sleep()])
def test_a_session_that_lost_its_caches_computes_again(event: AnyEvent) -> None:
    watched = clean(session(), *steps(9), event, Wake(), MORE)
    assert [row.kept for row in turns(watched)] == [0, 0]


def test_a_parked_session_gives_way_to_a_request_that_runs() -> None:
    watched = clean(session(), *steps(9), arrive("r1", 45, new=9), *steps(12), MORE, **TIGHT)
    assert watched.outcome.reached["caches of a parked session evicted"]
    assert [row.kept for row in turns(watched)] == [0, 0]


def test_a_turn_that_waits_keeps_what_its_session_kept() -> None:
    """The pool has no block for the turn while another request runs: it is retried and loses nothing."""
    events = (session(), *steps(9), arrive("r1", 40, new=9), *steps(3), Resume("r0", (("b", 20),), 3))
    watched = clean(*events, *steps(14), **TIGHT)
    assert watched.outcome.reached["resumed turn waits while holding its caches"]
    assert [row.kept for row in turns(watched)] == [0, 18]


@pytest.mark.parametrize("before", [(Abort("r0"),), (Abort("r0"), MORE), (Preempt("r0"), Abort("r0"))])
def test_a_closed_session_leaves_nothing(before: tuple[AnyEvent, ...]) -> None:
    watched = clean(session(), *steps(9), *before, *steps(2), num_speculative_tokens=2)
    view = watched.target.view()
    assert not view.tables
    assert not any(view.leftovers.values())


@MODES
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_turn_that_is_aborted_leaves_its_session_as_it_was(mode: str, depth: int, before: int) -> None:
    """Whether it waits or runs, and with a step in flight: the turn behind it follows the first one."""
    aborted = Abort("r0", keeps_session=True)
    watched = clean(
        session(), *steps(10), MORE, *steps(before), aborted, Resume("r0", (("c", 5),), 3), *steps(6),
        mamba_cache_mode=mode, async_depth=depth,
    )  # fmt: skip
    assert view_after(watched, aborted).parked == ["r0"]
    assert watched.outcome.reached["turn behind an aborted one"]
    assert turns(watched)[-1].start < 13 + 6 + 5


def test_a_session_whose_first_turn_is_aborted_is_empty() -> None:
    """An abort of a turn that has ended, and of a request that is no session, is one of either."""
    aborted = Abort("r0", keeps_session=True)
    watched = clean(session(), *steps(2), aborted, aborted, MORE, *steps(9))
    assert [row.start + row.num_tokens for row in turns(watched)] == [8, 7]
    watched = clean(arrive("r0", 13, new=6), *steps(3), aborted, MORE, *steps(2))
    assert len(turns(watched)) == 1 and not any(watched.target.view().leftovers.values())


def test_what_becomes_of_an_aborted_turns_grammar_is_not_told() -> None:
    """The session goes on, whether or not the grammar would have compiled."""
    first = msgspec.structs.replace(session(), bad_grammar=2)
    aborted = Abort("r0", keeps_session=True)
    watched = clean(first, *steps(1), aborted, MORE, *steps(9), async_depth=2)
    assert [name for record in watched.of(Delivered) for name in record.finished] == ["r0"]


@pytest.mark.parametrize("event", [MORE, Resume("r9", (("b", 7),), 3), Park("r9")])
def test_only_a_parked_session_goes_on(event: AnyEvent) -> None:
    """No-op for a running session, a request without session and an unknown name."""
    watched = clean(session(), *steps(1), event, arrive("r9", 8), *steps(2))
    assert len(turns(watched)) == 1


def test_a_request_that_is_no_session_cannot_be_parked() -> None:
    watched = clean(arrive("r0", 13, new=6), *steps(3), Park("r0"), MORE, *steps(9))
    assert len(turns(watched)) == 1


def test_a_turn_that_does_not_fit_never_came() -> None:
    watched = clean(session(), *steps(9), Resume("r0", (("b", 60),), 3), *steps(2))
    assert watched.target.view().leftovers
    assert len(turns(watched)) == 1


def test_dropping_what_is_not_computed_yet_costs_nothing() -> None:
    """The last token of a turn was sampled but never computed."""
    watched = clean(session(), *steps(9), Truncate("r0", 18), MORE)
    assert [row.kept for row in turns(watched)] == [0, 18]


@pytest.mark.parametrize(("mode", "depth"), [("align", 16), ("all", 16)])
def test_a_truncated_session_goes_back_to_a_checkpoint(mode: str, depth: int) -> None:
    """Tokens between the restored state and the cut are recomputed."""
    watched = clean(session(20), *steps(9), Truncate("r0", 18), MORE, mamba_cache_mode=mode)
    _, second = turns(watched)
    assert second.kept == depth
    assert watched.outcome.reached["turn resumed from a checkpoint"]


def test_attention_alone_can_be_cut_anywhere() -> None:
    watched = clean(session(), *steps(9), Truncate("r0", 11), MORE, groups=(ATTENTION,))
    assert [row.kept for row in turns(watched)] == [0, 11]


def test_what_others_hold_is_not_cut_inside_a_block() -> None:
    other = Arrive("r1", (("a", 30),), 20)
    watched = clean(other, *steps(3), session(30, 2), *steps(4), Truncate("r0", 11), MORE, groups=(ATTENTION,))
    assert turns(watched)[-1].kept == 8


@pytest.mark.parametrize("mode", ["align", "none"])
def test_a_truncation_that_the_states_cannot_follow_is_refused(mode: str) -> None:
    """A refused truncation changes nothing: the next turn starts after all tokens of the session."""
    watched = clean(session(), *steps(9), Truncate("r0", 5), MORE, mamba_cache_mode=mode)
    assert watched.outcome.reached["truncation refused"]
    assert [row.kept for row in turns(watched)] == [0, 18]


def test_without_caches_there_is_nothing_to_roll_back() -> None:
    watched = clean(session(), *steps(9), Preempt("r0"), Truncate("r0", 5), MORE)
    assert not watched.outcome.reached.get("truncation refused")
    assert watched.target.view().parked == []
    assert [row.start for row in turns(watched)] == [0, 0]


@pytest.mark.parametrize("event", [Truncate("r0", 0), Truncate("r0", 19), Truncate("r9", 4)])
def test_truncating_nothing_does_nothing(event: AnyEvent) -> None:
    watched = clean(session(), *steps(9), event, MORE)
    assert [row.kept for row in turns(watched)] == [0, 18]


def test_a_window_that_was_given_back_is_not_gone_back_to() -> None:
    """Columns left of the window are released, so the request cannot continue from an earlier position."""
    window = Group("attention", 4, window=6)
    watched = clean(session(30, 4), *steps(9), Truncate("r0", 12), MORE, groups=(ATTENTION, window))
    assert watched.outcome.reached["truncation refused"]


def test_a_session_is_truncated_while_others_are_in_flight() -> None:
    watched = clean(
        session(20, 2), *steps(4), arrive("r1", 30, new=20), *steps(4), Truncate("r0", 18), Step(), MORE, async_depth=2
    )
    assert turns(watched)[-1].kept == 16


@MODES
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("prompt", [13, 15])
def test_a_fork_and_its_parent_go_on_by_themselves(mode: str, drafts: int, prompt: int) -> None:
    """They share full attention blocks, and neither writes a block of the other."""
    watched = clean(
        session(prompt), *steps(9, drafts=drafts, right=2), FORK, MORE, Resume("r1", (("c", 7),), 3), *steps(9),
        mamba_cache_mode=mode, num_speculative_tokens=drafts, async_depth=1,
    )  # fmt: skip
    tables = view_after(watched, FORK).tables
    assert tables["r1"][1][:2] == tables["r0"][1][:2]
    assert not set(tables["r1"][0]) & set(tables["r0"][0]) - {0}
    assert turns(watched)[-1].kept == turns(watched, "r1")[-1].kept == prompt + 5


def test_a_fork_outlives_its_parent() -> None:
    watched = clean(session(), *steps(9), FORK, Abort("r0"), *steps(1), Resume("r1", (("c", 7),), 3), *steps(5))
    assert turns(watched, "r1")[-1].kept == 18


def test_a_fork_of_a_truncated_session_begins_at_its_checkpoint() -> None:
    watched = clean(session(20), *steps(9), Truncate("r0", 18), FORK, Resume("r1", (("c", 7),), 3), MORE)
    assert [turns(watched, name)[-1].kept for name in ("r0", "r1")] == [16, 16]


def test_a_fork_without_memory_is_refused() -> None:
    watched = clean(session(), *steps(9), arrive("r1", 42, new=6), *steps(1), Fork("r2", "r0"), *steps(9), **TIGHT)
    assert not turns(watched, "r2")
    assert not watched.outcome.reached.get("session forked")


@pytest.mark.parametrize("event", [Fork("r0", "r0"), Fork("r1", "r9")])
def test_a_fork_needs_a_new_name_and_a_parked_parent(event: AnyEvent) -> None:
    watched = clean(session(), *steps(9), event, *steps(2))
    assert set(view_after(watched, event).parked) == {"r0"}


class SharesEverything(SessionEvents):
    """Shares the partial attention block, too: the first to continue overwrites the other's."""

    def __init__(self, target: HybridTarget) -> None:
        super().__init__(target)
        self.forks.fork_attention = self.share  # type: ignore[method-assign]

    def share(self, group: AttentionGroup, parent: Request, name: str) -> None:
        table = group.tables[parent.name]
        for block in table:
            self.engine.pool.touch(block)
        group.tables[name], group.num_published[name] = list(table), group.num_published[parent.name]


def test_a_shared_partial_block_is_noticed() -> None:
    trace = make_trace(session(), *steps(9), FORK, Resume("r1", (("c", 7),), 3), *steps(2))
    violation = run_trace(broken(SharesEverything), trace).violation
    assert violation is not None
    assert violation.signature == "M5-step-attention-shared-write"


@pytest.mark.parametrize(
    ("prompt", "new", "steps_of", "state"),
    [
        (11, 5, ((1, 1), (3, 1), (0, 0)), "session parked between drafts"),
        (1, 4, ((1, 1), (1, 0)), "session parked between drafts"),
    ],
)
def test_a_turn_does_not_step_over_the_column_of_rejected_drafts(
    prompt: int, new: int, steps_of: tuple[tuple[int, int], ...], state: str
) -> None:
    """It would be published with the state that the drafts left in it: the turn begins inside a block, or on a
    boundary."""
    watched = clean(
        session(prompt, new), Step(), *(Step(drafts=drafts, right=right) for drafts, right in steps_of), *steps(2),
        Resume("r0", (("a", 8),), 1), groups=(Group("mamba", 4),), num_speculative_tokens=3, max_model_len=25,
    )  # fmt: skip
    assert watched.outcome.reached[state]
    assert turns(watched)[-1].kept == prompt + new - 1


def test_a_turn_waits_for_a_copy_of_its_state() -> None:
    """r1 hits the state inside a block from which the session would continue in the same step."""
    clean(
        Arrive("r0", (("a", 12),), 1, session=True),
        *steps(2),
        Arrive("r1", (("a", 12), ("~", 1)), 1),
        Resume("r0", (("b", 1),), 1),
        *steps(4),
        num_blocks=4,
        groups=(Group("mamba", 8),),
        max_model_len=15,
        max_num_seqs=2,
        options={"connector_saves": "no", "prefix_match_unit": "4"},
    )


def test_a_fork_came_later_than_its_parent() -> None:
    """With equal rank, each would take the other's blocks without end."""
    trace = make_trace(session(), *steps(8), FORK)
    target = HybridTarget(trace.config)
    for event in trace.events:
        target.apply(event)
    ranks = [target.scheduler.requests[name].arrival for name in ("r0", "r1")]
    assert ranks == sorted(set(ranks))


@MODES
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("stop_at", range(1, 6))
def test_a_turn_ends_where_nobody_foresaw_it(mode: str, drafts: int, depth: int, stop_at: int) -> None:
    """With a step in flight the session has lost its caches, whose states that step advances."""
    first = Arrive("r0", (("a", 13),), 9, session=True, stop_at=stop_at)
    watched = clean(
        first, *steps(10, drafts=drafts, right=drafts), Resume("r0", (("b", 7),), 9, stop_at=2), *steps(9),
        mamba_cache_mode=mode, num_speculative_tokens=drafts, async_depth=depth,
    )  # fmt: skip
    tokens = [sum(len(new) for _, new in record.outputs) for record in watched.of(Delivered)]
    assert sum(tokens) == stop_at + 2
    assert watched.outcome.reached["turn ended by a stop token"] == 2
    in_flight = watched.outcome.reached.get("stop token with a step in flight")
    assert in_flight == (2 if depth else None)
    assert turns(watched)[1].kept == (0 if depth else 12 + stop_at)
