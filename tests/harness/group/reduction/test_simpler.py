"""What a reduction tries: names in order, one thing simpler at a time, nothing that says more than before."""

import msgspec
import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.group.reduction.reduce import Reducer, renamed, simpler_configurations, simpler_events
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    Config,
    Fork,
    Group,
    Preempt,
    Repeat,
    Resume,
    Select,
    Step,
    Trace,
    TraceError,
    Truncate,
)

FAILS = Violation("M1", "free", "M1: block 1 is lost", event=2)


def reducer(trace: Trace, run: object, seconds: float = 5) -> tuple[Reducer, list[Trace]]:
    better: list[Trace] = []
    return Reducer(trace, FAILS.signature, run, seconds, better.append), better  # type: ignore[arg-type]


def outcome(violation: Violation | None) -> Outcome:
    return Outcome(violation, 0, 0, {}, {}, 0)


def test_copies_of_a_request_follow_its_new_name_wherever_an_event_names_them() -> None:
    """`Repeat` makes copies r5.1, ... of r5; the limits of a step kept the old name once."""
    trace = make_trace(
        arrive("r5", ("a", 3)), Repeat(2), Step(chunks={"r5.1": 4}, per_request={"r5.1": (1, 0)}), Select(("r5.1",))
    )
    assert renamed(trace).events[2:] == (Step(chunks={"r0.1": 4}, per_request={"r0.1": (1, 0)}), Select(("r0.1",)))


def test_names_are_given_in_order_and_everywhere() -> None:
    """Requests and documents; the model's own continuation and names that never arrived keep theirs."""
    trace = make_trace(
        Preempt("late"),
        arrive("x", ("doc", 3), ("~", 4)),
        Arrive("b", (("other", 5), ("doc", 2)), 2, 1, session=True),
        Step(chunks={"b": 2, "ghost": 1}, per_request={"x": (2, 1), "ghost": (0, 0)}, drafts=1),
        Fork("copy", "b"),
        Fork("lost", "nobody"),
        Resume("copy", (("third", 1),), 4),
        Truncate("b", 3),
        Abort("x"),
    )
    assert renamed(trace).events == (
        Preempt("late"),
        arrive("r0", ("a", 3), ("~", 4)),
        Arrive("r1", (("b", 5), ("a", 2)), 2, 1, session=True),
        Step(chunks={"r1": 2, "ghost": 1}, per_request={"r0": (2, 1), "ghost": (0, 0)}, drafts=1),
        Fork("r2", "r1"),
        Fork("r3", "nobody"),
        Resume("r2", (("c", 1),), 4),
        Truncate("r1", 3),
        Abort("r0"),
    )
    assert renamed(trace).config == trace.config


def test_documents_beyond_the_alphabet_begin_anew() -> None:
    """Names of one letter, in the order of appearance."""
    prompts = [(f"document {number}", 1) for number in range(27)]
    [event] = renamed(make_trace(arrive("r0", *prompts))).events
    assert isinstance(event, Arrive)
    assert "".join(document for document, _ in event.prompt) == "abcdefghijklmnopqrstuvwxyza"


def test_a_step_becomes_a_default_one_first() -> None:
    step = Step(7, {"r0": 3}, 4, 2, {"r0": (2, 0)}, 4)
    first, *rest = simpler_events(step)
    assert first == Step()
    for field in Step.__struct_fields__:
        default = getattr(Step(), field)
        assert msgspec.structs.replace(step, **{field: default}) in rest
    assert [one.drafts for one in rest if one.drafts not in (0, 4)] == [2, 3]  # type: ignore[union-attr]
    assert [one.right for one in rest if one.right not in (0, 2)] == [1]  # type: ignore[union-attr]
    assert [one.budget for one in rest if one.budget not in (None, 7)] == [1, 4, 6]  # type: ignore[union-attr]


def test_a_request_gets_shorter_in_every_part() -> None:
    event = Arrive("r0", (("a", 4), ("b", 3)), 5, 2, session=True)
    simpler = list(simpler_events(event))
    replace = msgspec.structs.replace
    assert simpler[:2] == [replace(event, priority=0), replace(event, session=False)]
    assert [replace(event, max_new_tokens=number) for number in (1, 3, 4)] == simpler[2:5]
    assert [one.prompt for one in simpler[5:]] == [  # type: ignore[union-attr]
        (("b", 3),), (("a", 4),), (("a", 1), ("b", 3)), (("a", 2), ("b", 3)), (("a", 3), ("b", 3)),
        (("a", 4), ("b", 1)), (("a", 4), ("b", 2)),
    ]  # fmt: skip
    assert list(simpler_events(Arrive("r0", (("a", 1),), 1))) == []
    turn = Resume("r0", (("a", 2),), 2)
    assert list(simpler_events(turn)) == [replace(turn, max_new_tokens=1), replace(turn, prompt=(("a", 1),))]


SIMPLE = Config(num_blocks=5, groups=(Group("attention", 8),), max_model_len=4, max_num_seqs=1, conv_width=2,
                max_num_batched_tokens=8, graph_sizes=())  # fmt: skip


@pytest.mark.parametrize(("field", "value", "tried"), [
    ("async_depth", 2, [0, 1]),
    ("policy", "priority", ["fcfs"]),
    ("eagle_block_drop", True, [False]),
    ("long_prefill_token_threshold", 7, [0]),
    ("graph_sizes", (1, 2), [()]),
    ("num_speculative_tokens", 3, [0, 1, 2]),
    ("max_num_seqs", 4, [1, 2, 3]),
    ("conv_width", 4, [2, 3]),
    ("max_model_len", 8, [4, 6, 7]),
    ("max_num_batched_tokens", 2, [4]),
])  # fmt: skip
def test_each_number_of_a_configuration_goes_down(field: str, value: object, tried: list[object]) -> None:
    """To its least value first; the budget up to the length of a request, which makes fewer steps."""
    config = msgspec.structs.replace(SIMPLE, **{field: value})
    others = {repr(msgspec.structs.replace(one, **{field: value})) for one in simpler_configurations(SIMPLE)}
    seen = [getattr(one, field) for one in simpler_configurations(config) if repr(one) not in others]
    seen = [one for one in seen if one != value]
    assert list(dict.fromkeys(seen)) == tried


def test_groups_are_left_out_and_made_plain() -> None:
    groups = (Group("mamba", 8, 3), Group("attention", 4, 1, draft=True), Group("attention", 4, 1, window=9))
    tried = [one.groups for one in simpler_configurations(msgspec.structs.replace(SIMPLE, groups=groups))]
    assert tried[:3] == [groups[1:], (groups[0], groups[2]), groups[:2]]
    assert (Group("mamba", 8), *groups[1:]) in tried
    assert (groups[0], Group("attention", 4), groups[2]) in tried
    assert (*groups[:2], Group("attention", 4)) in tried
    assert all(one.groups for one in simpler_configurations(SIMPLE))


def test_the_pool_shrinks_to_what_one_request_needs() -> None:
    config = msgspec.structs.replace(SIMPLE, num_blocks=30)
    candidates = [one for one in simpler_configurations(config) if one.groups == config.groups]
    tried = [one.num_blocks for one in candidates if one.num_blocks != 30]
    assert tried == [config.smallest_pool(), (config.smallest_pool() + 30) // 2, 29]


def test_blocks_get_smaller_together_and_the_pool_keeps_its_spare_blocks() -> None:
    """Boundaries come sooner. Blocks of less than four tokens are a case of their own."""
    config = msgspec.structs.replace(SIMPLE, groups=(Group("mamba", 16), Group("attention", 8)), num_blocks=40)
    spare = config.num_blocks - config.smallest_pool()
    both = [one for one in simpler_configurations(config) if len(one.groups) == 2]
    halved = [one for one in both if one.groups[0].block_size == 8]
    assert [[group.block_size for group in one.groups] for one in halved] == [[8, 4]]
    assert halved[0].num_blocks - halved[0].smallest_pool() == spare
    for sizes in ((4, 4), (4, 1), (6, 2)):
        small = tuple(Group(kind, size) for kind, size in zip(("mamba", "attention"), sizes, strict=True))
        tried = simpler_configurations(msgspec.structs.replace(SIMPLE, groups=small, num_blocks=90))
        assert all(group in small for one in tried for group in one.groups)


def test_what_stands_behind_the_failing_event_goes_with_it() -> None:
    one, better = reducer(make_trace(*steps(9)), lambda trace: outcome(FAILS))
    assert one.attempt(make_trace(arrive("r0", 3), *steps(5)))
    assert one.best.events == (arrive("r0", 3), Step(), Step())
    assert better == [one.best]


def test_the_end_is_cut_off_first() -> None:
    """One run, and everything behind the failing event is gone; then halves, from the end."""
    tried: list[Trace] = []

    def fails_at_two(candidate: Trace) -> Outcome:
        tried.append(candidate)
        return outcome(FAILS if len(candidate.events) > 2 else None)

    trace = make_trace(*(Step(budget=number + 1) for number in range(9)))
    one, better = reducer(trace, fails_at_two)
    one.reduce()
    assert tried[0].events == trace.events[:-1]
    assert better[0].events == trace.events[:3]
    assert len(tried[1].events) == 2


def test_all_passes_together_until_none_helps() -> None:
    """One request and one step matter; another request is in the way unless it goes with all that names it."""

    def needs_both(candidate: Trace) -> Outcome:
        other = [event for event in candidate.events if getattr(event, "name", "") == "other"]
        arrived = any(isinstance(event, Arrive) and event not in other for event in candidate.events)
        fails = arrived and any(isinstance(event, Step) for event in candidate.events) and len(other) in (0, 3)
        return outcome(msgspec.structs.replace(FAILS, event=len(candidate.events) - 1) if fails else None)

    trace = make_trace(
        arrive("other", 9), arrive("big", ("x", 9), ("y", 5), new=7, priority=1), Preempt("other"),
        Step(budget=5, drafts=2), *steps(4), Abort("other"), *steps(3),
        num_speculative_tokens=3, async_depth=2, policy="priority", graph_sizes=(1, 2),
    )  # fmt: skip
    one, better = reducer(trace, needs_both)
    best = one.reduce()
    assert best.events == (arrive("r0", ("a", 1), new=1), Step())
    assert len(best.config.groups) == 1
    assert (best.config.num_speculative_tokens, best.config.async_depth, best.config.policy) == (0, 0, "fcfs")
    assert best.config.num_blocks == best.config.smallest_pool()
    assert better[-1] == best
    assert one.tries < 300, "the passes go on although none helps"


def test_what_does_not_fail_or_is_the_best_already_is_not_taken() -> None:
    trace = make_trace(*steps(2))
    one, better = reducer(trace, lambda trace: outcome(None))
    assert not one.attempt(trace)
    assert one.tries == 0
    assert not one.attempt(make_trace(Step()))
    assert (one.best, one.tries, better) == (trace, 1, [])


def test_what_fails_otherwise_or_is_refused_is_not_taken() -> None:
    """Another field is another bug; a contradictory trace, or one that the target does not take, is none."""
    slid = outcome(msgspec.structs.replace(FAILS, field="references"))
    for answer in (slid, TraceError("too small"), TargetError("not here")):

        def run(candidate: Trace, answer: Outcome | Exception = answer) -> Outcome:
            if isinstance(answer, Exception):
                raise answer
            return answer

        one, better = reducer(make_trace(*steps(9)), run)
        assert not one.attempt(make_trace(Step()))
        assert (one.tries, better) == (1, [])


def test_a_request_goes_with_everything_that_names_it() -> None:
    trace = make_trace(arrive("r0", 3), arrive("r1", 3), Step(), Preempt("r0"), Preempt("r1"), Abort("r0"), Step())

    def needs_r1(candidate: Trace) -> Outcome:
        names = [event.name for event in candidate.events if isinstance(event, Preempt | Arrive)]
        last = len(candidate.events) - 1
        return outcome(msgspec.structs.replace(FAILS, event=last) if names.count("r1") == 2 else None)

    one, _ = reducer(trace, needs_r1)
    one.drop_requests()
    assert one.best.events == (arrive("r1", 3), Step(), Preempt("r1"), Step())


def test_the_events_that_matter_are_left() -> None:
    """Any of them may be far apart: slices of every size are tried, single events last."""
    events = [Step(budget=number + 1) for number in range(23)]
    kept = {3, 4, 11, 22}

    def needs_them(candidate: Trace) -> Outcome:
        budgets = {event.budget for event in candidate.events if isinstance(event, Step)}
        last = len(candidate.events) - 1
        return outcome(msgspec.structs.replace(FAILS, event=last) if {one + 1 for one in kept} <= budgets else None)

    one, _ = reducer(make_trace(*events), needs_them)
    one.drop_events()
    assert one.best.events == tuple(events[number] for number in sorted(kept))


def test_nothing_is_tried_when_the_time_is_up() -> None:
    one, better = reducer(make_trace(*steps(9)), lambda trace: outcome(FAILS), seconds=0)
    assert one.reduce() == make_trace(*steps(9))
    assert (one.tries, better) == (0, [])
