"""Plans of requests: which steps can be repeated alone, and what a prefix hit inherits."""

import pytest

from hybridfuzz.targets.vllm.gpu.plans import Plan, Plans, Segment, runnable

TOKENS = list(range(100, 200))


def prompt(start: int, kept: int) -> Segment:
    return Segment(start, kept, (), "prefill")


def decode(start: int, kept: int = 1, drafts: tuple[int, ...] = ()) -> Segment:
    return Segment(start, kept, drafts, "decode")


@pytest.mark.parametrize(("plan", "steps"), [
    ((), 0),
    ((prompt(0, 16), prompt(16, 4), decode(20), decode(21, 2, (7, 8))), 4),
    ((prompt(0, 16), decode(16), prompt(17, 3)), 2),  # vLLM never runs a prompt chunk after a decode step
    ((decode(0), prompt(1, 4)), 0),
    ((prompt(0, 16), prompt(20, 4)), 1),  # a gap
    ((prompt(16, 4),), 0),
])  # fmt: skip
def test_only_prompt_chunks_then_decode_steps_from_the_start_can_run_alone(plan: Plan, steps: int) -> None:
    assert runnable(plan) == plan[:steps]


def test_a_request_keeps_its_steps() -> None:
    plans = Plans(16)
    plans.begin("r0", ())
    for segment in (prompt(0, 20), decode(20, 2, (5, 6, 7))):
        plans.extend("r0", TOKENS, segment)
    assert plans.end("r0") == (prompt(0, 20), decode(20, 2, (5, 6, 7)))
    assert plans.end("r0") is None


def test_what_a_connector_loads_has_no_known_plan() -> None:
    """Loaded blocks may hold what another plan computed: neither this request nor one that hits them is compared."""
    plans = Plans(16)
    plans.begin("r0", ())
    plans.extend("r0", TOKENS, prompt(0, 48))
    plans.begin("r1", TOKENS[:16], TOKENS[16:32])
    plans.extend("r1", TOKENS, prompt(32, 8))
    plans.begin("r2", TOKENS[:32])
    plans.begin("r3", TOKENS[:48])
    assert [plans.end(name) for name in ("r1", "r2", "r3")] == [None, None, None]


def test_a_hit_inherits_the_plan_of_its_prefix_cut_at_the_boundary() -> None:
    plans = Plans(16)
    plans.begin("r0", ())
    plans.extend("r0", TOKENS, prompt(0, 40))
    plans.begin("r1", TOKENS[:32])
    plans.extend("r1", TOKENS, prompt(32, 8))
    assert plans.end("r1") == (prompt(0, 32), prompt(32, 8))


@pytest.mark.parametrize("other", [(prompt(0, 16), prompt(16, 16)), (prompt(0, 31), decode(31))])
def test_a_prefix_that_two_plans_computed_has_no_known_plan(other: Plan) -> None:
    """A block may come from either, and their bits may differ."""
    plans = Plans(16)
    plans.begin("r0", ())
    plans.extend("r0", TOKENS, prompt(0, 32))
    plans.begin("r1", ())
    for segment in other:
        plans.extend("r1", TOKENS, segment)
    plans.begin("r2", TOKENS[:32])
    plans.extend("r2", TOKENS, prompt(32, 1))
    assert plans.end("r2") is None


def test_all_blocks_of_a_prefix_have_to_come_from_one_plan() -> None:
    """The state after 32 tokens is one request's, the keys of the first 16 may be another's."""
    plans = Plans(16)
    plans.begin("r0", ())
    plans.extend("r0", TOKENS, prompt(0, 32))
    plans.begin("r1", ())
    for segment in (prompt(0, 10), prompt(10, 6)):
        plans.extend("r1", TOKENS, segment)
    plans.begin("r2", TOKENS[:32])
    assert plans.end("r2") is None


def test_a_prefix_that_ends_inside_a_decode_step_has_no_plan() -> None:
    plans = Plans(16)
    plans.begin("r0", ())
    for segment in (prompt(0, 14), decode(14, 3, (1, 2))):
        plans.extend("r0", TOKENS, segment)
    plans.begin("r1", TOKENS[:16])
    assert plans.end("r1") is None
