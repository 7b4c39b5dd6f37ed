"""What requests ask for beside tokens, on the released vLLM: structured output, log-probabilities of prompts, several
samples. The grammars are ours, everything that serves them is vLLM's."""

from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.trace import Abort, AnyEvent, Arrive, Config, Group, Preempt, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
DATA = Path(__file__).parents[3] / "data"
GROUPS = Group("mamba", 8), Group("attention", 8)


@pytest.mark.parametrize(("runner", "depth"), [("v2", 1), ("v1", 1), ("v1", 0)])
def test_grammars_wait_cut_drafts_and_change_answers(worker: WorkerClient, runner: str, depth: int) -> None:
    """Before a step is planned, or before it samples; a sample of the same prompt is not restricted less."""
    config = Config(
        60, GROUPS, num_speculative_tokens=3, async_depth=depth, max_num_batched_tokens=32, options={"runner": runner}
    )
    steps = (Step(drafts=3, right=1),) * 4
    events = (
        Arrive("r0", (("a", 20),), 9, structured=1), Arrive("r1", (("b", 9),), 9), *steps,
        *[Arrive(name, (("a", 20),), 6, structured=3) for name in ("r2", "r2.1")], *steps, Abort("r2", ("r2.1",)),
    )  # fmt: skip
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    for state in (
        "drafts cut by a grammar", "model's first choice forbidden by a grammar",
        "request computed after it waited for its grammar",
        "structured and free answers in one step", "samples of one prompt admitted in one step",
        "samples of one prompt aborted together",
    ):  # fmt: skip
        assert outcome.reached.get(state), state


@pytest.mark.parametrize(("runner", "depth"), [("v2", 1), ("v2", 0), ("v1", 1), ("v1", 0)])
def test_a_draft_counts_if_a_grammar_leaves_it(worker: WorkerClient, runner: str, depth: int) -> None:
    """What the model would say is refused where the grammar forbids it, and what stands there instead is accepted. A
    draft that is known when its step is planned is not even computed then."""
    config = Config(60, GROUPS, num_speculative_tokens=3, async_depth=depth, options={"runner": runner})
    requests = [Arrive(f"r{length}", (("a", length),), 12, structured=1) for length in (5, 6, 7)]
    outcome = worker.run(Trace(config, (*requests, *[Step(drafts=3, right=3)] * 12)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached.get("draft accepted is what a grammar leaves")
    assert outcome.reached.get("draft forbidden by a grammar is the model's first choice", 0) >= depth


@pytest.mark.parametrize(("runner", "depth"), [("v2", 1), ("v2", 0), ("v1", 1), ("v1", 0)])
def test_a_grammar_holds_behind_the_reasoning(worker: WorkerClient, runner: str, depth: int) -> None:
    """Also where a draft ends it with drafts behind it, and after a preemption within it and at its end."""
    config = Config(60, GROUPS, num_speculative_tokens=3, async_depth=depth, options={"runner": runner})
    requests = [
        Arrive(f"r{length}", (("a", length),), 14, structured=1, reasoning=length - 4) for length in range(5, 9)
    ]
    events: list[AnyEvent] = [*requests]
    for right in (3, 1, 3, 0, 2, 3, 3, 3, 3, 3, 3, 3):
        events += [Step(drafts=3, right=right), Preempt("r7" if right % 2 else "r8")]
    outcome = worker.run(Trace(config, (*events, *[Step(drafts=3, right=3)] * 12)))
    assert outcome.violation is None, outcome.violation.message
    for state in (
        "reasoning ended before structured output", "reasoning ended by a draft with drafts behind it",
        "preempted during its reasoning", "model's first choice forbidden by a grammar",
    ):  # fmt: skip
        assert outcome.reached.get(state), state


@pytest.mark.parametrize(("runner", "depth"), [("v2", 1), ("v1", 0)])
def test_the_context_ends_an_answer_that_must_have_more_tokens(worker: WorkerClient, runner: str, depth: int) -> None:
    config = Config(60, GROUPS, async_depth=depth, max_model_len=32, options={"runner": runner})
    events = (Arrive("r0", (("a", 28),), 4, min_tokens=6), Arrive("r1", (("b", 28),), 4, stop_at=2, min_tokens=7))
    outcome = worker.run(Trace(config, (*events, *[Step()] * 8)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["stop token held back"] > 1


def test_a_prompt_with_log_probabilities_reads_no_cache(worker: WorkerClient) -> None:
    config = Config(40, GROUPS, max_num_batched_tokens=16)
    events = (
        Arrive("r0", (("a", 20),), 4), *[Step()] * 7,
        Arrive("r1", (("a", 20),), 4, prompt_logprobs=True), *[Step()] * 7,
    )  # fmt: skip
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["cached prefix not read for the log-probabilities of a prompt"]


def test_a_step_behind_the_end_of_a_structured_answer_counts_for_nothing(worker: WorkerClient) -> None:
    """Trace 18 of seed 4, reduced: an accepted draft behind the stop token, of which the grammar never hears."""
    assert worker.run(load_trace(DATA / "vllm-structured-behind-an-end.json")).violation is None


@pytest.mark.parametrize(("runner", "depth"), [("v2", 1), ("v1", 0)])
def test_a_grammar_that_does_not_compile_ends_its_request_alone(worker: WorkerClient, runner: str, depth: int) -> None:
    """At once, after some steps, and beside one that compiles; another is aborted before vLLM learns of its error."""
    config = Config(60, GROUPS, async_depth=depth, max_num_batched_tokens=32, options={"runner": runner})
    events = (
        Arrive("r0", (("a", 20),), 9), Arrive("r1", (("a", 20),), 9, bad_grammar=1),
        Arrive("r2", (("b", 9),), 5, bad_grammar=4), Arrive("r3", (("b", 9),), 5, structured=2),
        Arrive("r4", (("b", 9),), 5, bad_grammar=4), *[Step()] * 2, Abort("r4"), *[Step()] * 12,
    )  # fmt: skip
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["request ended with an error by its grammar"] == 2
    assert outcome.reached["error by a grammar while others run"]
