"""Traces in the lengths of a server: the same places of blocks, and the limits that a trace needs."""

from collections.abc import Callable

import pytest
from msgspec import structs
from support import arrive, make_trace, steps

from hybridfuzz.harness.record.history import History, RequestStep
from hybridfuzz.harness.tell.at_scale import AMPLE, Reading, at_scale, serve
from hybridfuzz.targets.base.deployment import Deployment, Scale
from hybridfuzz.targets.base.repro import Sizes
from hybridfuzz.targets.base.trace import Arrive, Group, Resume, Step, Trace


def trace(*events: object, sizes: tuple[int, int] = (8, 8), unit: int = 0) -> Trace:
    options = {"unit": str(unit)} if unit else {}
    made = make_trace(*events, options=options)
    groups = (Group("mamba", sizes[0]), Group("attention", sizes[1]))
    return structs.replace(made, config=structs.replace(made.config, groups=groups))


def lengths(scaled: Trace | None) -> list[list[int]]:
    assert scaled
    return [[length for _, length in event.prompt] for event in scaled.events if isinstance(event, Arrive | Resume)]


SCALE = Scale(1024, {"unit": 32})


@pytest.mark.parametrize(
    ("length", "unit", "served"),
    [
        (1, 0, 1), (7, 0, 1023), (8, 0, 1024), (9, 0, 1025), (15, 0, 2047), (17, 0, 2049),
        (4, 4, 32), (5, 4, 33), (3, 4, 31), (7, 4, 1023), (12, 4, 1024 + 32),
    ],
)  # fmt: skip
def test_a_length_is_as_far_from_the_nearer_boundary(length: int, unit: int, served: int) -> None:
    assert lengths(at_scale(trace(arrive("r0", length, new=1), unit=unit), SCALE)) == [[served]]


def test_parts_of_a_prompt_and_later_turns_end_at_the_same_places() -> None:
    first = structs.replace(arrive("r0", 3, new=2), prompt=(("a", 7), ("b", 2)), session=True)
    scaled = at_scale(trace(first, Resume("r0", (("c", 5),), 1)), SCALE)
    assert lengths(scaled) == [[1023, 2], [2048 - 1027]]
    assert scaled and [event.max_new_tokens for event in scaled.events if isinstance(event, Arrive)] == [2]


def test_an_answer_across_a_boundary_is_as_long_as_before_or_its_prompt_ends_where_it_did() -> None:
    """Prompts of 9 and answers up to 17 became answers of a thousand tokens: nothing else happened in time."""
    crossing = trace(arrive("r0", 9, new=8))
    short, long = (at_scale(crossing, SCALE, Reading(one)) for one in (True, False))
    assert lengths(short) == [[2049 - 8]] and lengths(long) == [[1025]]
    assert short and long
    assert [event.max_new_tokens for one in (short, long) for event in one.events if isinstance(event, Arrive)] == [
        8,
        1024,
    ]


def test_budgets_and_pools_of_single_tokens_grow_blocks_do_not() -> None:
    scaled = at_scale(trace(arrive("r0", 8), Step(budget=8)), SCALE)
    assert scaled and [event.budget for event in scaled.events if isinstance(event, Step)] == [1024]
    plain = trace(arrive("r0", 8))
    assert scaled.config.num_blocks == plain.config.num_blocks
    slots = trace(arrive("r0", 8), sizes=(8, 1))
    slots = structs.replace(slots, config=structs.replace(slots.config, mamba_cache_mode="slots", num_blocks=17))
    found = at_scale(slots, Scale(64))
    assert found and found.config.num_blocks == 129 and [one.block_size for one in found.config.groups] == [64, 1]


def drafting(length: int, drafts: int) -> Trace:
    made = trace(arrive("r0", length, new=1))
    return structs.replace(made, config=structs.replace(made.config, num_speculative_tokens=drafts))


@pytest.mark.parametrize(("length", "served"), [(5, 5), (6, 1022), (13, 1029), (3, 3), (8, 1024)])
def test_places_that_drafts_reach_may_be_told_from_the_start_of_a_block(length: int, served: int) -> None:
    assert lengths(at_scale(drafting(length, 4), SCALE, Reading(from_start=True))) == [[served]]


def test_the_reading_with_which_a_trace_fails_is_taken() -> None:
    """A prompt of 1 + k tokens became one of a block less three: no server fails with that, the report said."""
    scaled = serve(drafting(5, 4), described, lambda one: lengths(one) == [[5]])
    assert lengths(scaled.trace) == [[5]] and scaled.tried == 64
    from_end = serve(drafting(5, 4), described, lambda one: lengths(one)[0][0] in (5, 61, 29, 13))
    assert lengths(from_end.trace) == [[61]] and from_end.tried == 64


def test_an_answer_that_crosses_more_blocks_gets_as_many_further_steps() -> None:
    """A failure of the second boundary in an answer needs the steps between: it was seen in no lengths of a server."""
    crossing = trace(arrive("r0", 7, new=12), *steps(12))
    rows = [RequestStep(step, 1 + step, "r0", 0 if not step else 6 + step, 1 if step else 7, 0, not step, 0)
            for step in range(12)]  # fmt: skip
    scaled = at_scale(crossing, Scale(64), Reading(short_answers=False), History(request_steps=tuple(rows)))
    assert scaled and lengths(scaled) == [[63]]
    assert len(scaled.events) == len(crossing.events) + 64 - 8


def test_a_failure_that_has_nothing_to_do_with_blocks_keeps_its_lengths() -> None:
    """A prompt of 1 + k tokens beside one that ends at the longest length failed in no lengths of a server."""
    scaled = serve(drafting(5, 4), described, lambda one: lengths(one) == [[5]] and one.config.max_model_len < 512)
    assert lengths(scaled.trace) == [[5]] and scaled.tried == 64
    assert scaled.trace.config.groups[0].block_size == 64 <= scaled.trace.config.max_num_batched_tokens


def test_blocks_that_do_not_divide_each_other_are_not_scaled() -> None:
    assert at_scale(trace(arrive("r0", 5), sizes=(6, 4)), SCALE) is None


def described(one: Trace) -> Deployment:
    limits = {name: (f"--{name}", str(getattr(one.config, name))) for name in AMPLE}
    return Deployment("E", ("serve", "m"), ("--x",), scale=Scale(64, flags=("--block", "64")), limits=limits)


@pytest.mark.parametrize(
    ("fails", "needs"),
    [
        (lambda one: True, []),
        (lambda one: one.config.num_blocks < 100, ["num_blocks"]),
        (lambda one: one.config.num_blocks < 100 or one.config.max_num_seqs < 60, ["num_blocks"]),
        (lambda one: one.config.max_num_seqs <= one.config.max_num_batched_tokens, []),
        (lambda one: False, [*AMPLE]),
    ],
)
def test_a_server_has_the_limits_without_which_the_trace_does_not_fail(
    fails: Callable[[Trace], bool], needs: list[str]
) -> None:
    """The command had none, and a reader did not know how to make a server run out of blocks."""
    served = serve(trace(arrive("r0", 9, new=1), *steps(2)), described, fails)
    assert list(served.needs) == needs
    assert [f"--{name}" for name in needs] == [one for one in served.deployment.flags if one[2:] in AMPLE]
    assert "--block" in served.deployment.flags and lengths(served.trace) == [[65]]
    assert served.tried == (64 if fails(served.trace) else 0)


def test_of_a_limit_the_values_are_told_with_which_the_trace_fails() -> None:
    """A script had a pool of 13 blocks and steps of 128 tokens, and did not say which of the two matters."""
    one = trace(arrive("r0", 9, new=1), *steps(2))
    blocks = one.config.num_blocks
    asked = list[int]()

    def fails(other: Trace) -> bool:
        asked.append(other.config.num_blocks)
        return blocks - 1 <= other.config.num_blocks <= blocks + 2

    sizes = serve(one, described, fails).sizes
    assert sizes["num_blocks"] == Sizes(blocks, blocks - 1, blocks + 2)
    seats = one.config.max_num_seqs
    assert sizes["max_num_seqs"] == Sizes(seats, seats, None), "a very large value fails, too"
    single = structs.replace(one, config=structs.replace(one.config, max_num_seqs=1))
    seen = list[int]()
    serve(single, described, lambda other: not seen.append(other.config.max_num_seqs) and other.config.max_num_seqs < 9)
    assert min(seen) == 1, "a limit of 0 is refused"
    shortest = structs.replace(one, config=structs.replace(one.config, max_model_len=4))
    seen.clear()
    serve(shortest, described, lambda other: not seen.append(length := other.config.max_model_len) and length < 9)
    assert min(seen) == 4, "a worker refused a trace whose context had 3 tokens, and no report was written"
    asked.clear()
    late = serve(one, described, lambda other: fails(other) and blocks + 1 not in asked).sizes
    assert "num_blocks" not in late, "there was no time for all"


@pytest.mark.parametrize("needs_one", [True, False])
def test_what_was_run_in_a_servers_lengths_has_the_limits_of_its_command(needs_one: bool) -> None:
    """A command had lost `max_num_seqs=1`: the trace in its own lengths did not need it, and what was run had it."""
    one = trace(arrive("r0", 9), *steps(2))
    one = structs.replace(one, config=structs.replace(one.config, max_num_seqs=1))
    limits = {"max_num_seqs": ("--max-num-seqs", "1")}

    def described(_: Trace) -> Deployment:
        return Deployment("E", ("serve", "M"), scale=SCALE, limits=limits)

    def fails(other: Trace) -> bool:
        is_small = max(group.block_size for group in other.config.groups) == 8
        return is_small or not needs_one or other.config.max_num_seqs == 1

    served = serve(one, described, fails)
    assert served.tried > 0
    assert ("--max-num-seqs" in served.deployment.flags) == needs_one
