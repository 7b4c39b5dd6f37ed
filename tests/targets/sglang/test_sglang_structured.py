"""Structured output on the released SGLang: the grammars are ours, everything that serves them is SGLang's."""

import msgspec
import pytest
from support import of_release

from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import AnyEvent, Arrive, Config, Group, Preempt, Step, Trace
from hybridfuzz.targets.sglang.deployment import deployment

LATEST = "0.5.23"
SPEC = f"sglang@{LATEST}"
CASES = [
    of_release("sglang", LATEST, *case)
    for case in (("ngram", "1", 0), ("ngram", "1", 1), ("eagle", "1", 0), ("eagle", "1", 1), ("eagle", "2", 1))
]
"""What makes drafts, how many may follow the same token, steps in flight."""
AGAIN = [of_release("sglang", LATEST, reasoning, drafts) for reasoning in (0, 3) for drafts in (0, 3)]
"""Place of the reasoning's end, drafts in a verification."""
REACHED = (
    "reasoning ended before structured output", "reasoning ended by a draft with drafts behind it",
    "preempted during its reasoning", "model's first choice forbidden by a grammar",
)  # fmt: skip


FORGETS_FIRST = """\
--- a/sglang/srt/constrained/reasoner_grammar_backend.py
+++ b/sglang/srt/constrained/reasoner_grammar_backend.py
@@ -211,3 +211,5 @@
     def rollback(self, k):
+        for _ in range(k):
+            self.rollback_state()
         if self.grammar is not None:
             if self.reasoning_in_grammar:
@@ -223,4 +225,2 @@
                 del self._opening[self._generated :]
                 self._opening_text = self.decode(self._opening)
-        for _ in range(k):
-            self.rollback_state()
"""
"""A roll-back counts the tokens behind the reasoning when it has forgotten them."""


KEEPS_THE_FIRST = """\
--- a/sglang/srt/constrained/grammar_manager.py
+++ b/sglang/srt/constrained/grammar_manager.py
@@ -311,5 +311,5 @@
                 )
                 req.grammar = InvalidGrammarObject(f"Grammar compilation failed: {e}")
-            self.grammar_backend.set_cache(req.grammar_key, req.grammar.copy())
+            self.grammar_backend.set_cache(req.grammar_key, req.grammar)
             self._apply_request_reasoning_config(req)
             if isinstance(req.grammar, InvalidGrammarObject):
"""
"""The grammar that is kept for other requests is that of the first, wherever its answer is."""


def reasoning(drafter: str, breadth: str, depth: int) -> Trace:
    """Return a trace in which answers with and without reasoning are verified and retracted. One is complete."""
    config = Config(
        80, (Group("mamba", 8), Group("attention", 4)), "slots", num_speculative_tokens=3, async_depth=depth,
        max_model_len=64, options={"strategy": "extra_buffer", "drafter": drafter, "breadth": breadth},
    )  # fmt: skip
    events: list[AnyEvent] = [
        *[Arrive(f"r{length}", (("a", length),), 14, structured=1, reasoning=length - 4) for length in range(5, 9)],
        Arrive("q0", (("b", 5),), 14, structured=1),
        Arrive("q1", (("b", 5),), 14, structured=2, reasoning=3, stop_at=9),
    ]
    for right in (3, 1, 3, 0, 2, 3, 3, 3, 3, 3, 3, 3):
        events += [Step(drafts=3, right=right), Preempt("r7" if right % 2 else "r8")]
    return Trace(config, (*events, *[Step(drafts=3, right=3)] * 14))


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize(("drafter", "breadth", "depth"), CASES)
def test_a_grammar_holds_behind_the_reasoning(worker: WorkerClient, drafter: str, breadth: str, depth: int) -> None:
    """Also where a draft ends it with drafts behind it, and after a retraction within it."""
    outcome = worker.run(reasoning(drafter, breadth, depth))
    assert outcome.violation is None, outcome.violation.message
    for state in REACHED:
        assert outcome.reached.get(state), state


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize(("drafter", "breadth", "depth"), CASES[::4])
def test_a_grammar_that_is_not_rolled_back_with_its_reasoning_is_seen(drafter: str, breadth: str, depth: int) -> None:
    """Behind wrong drafts it is at another place than the answer."""
    broken = f"sglang@{patched(prepare(SPEC, print), [parse_patch(FORGETS_FIRST, 'forgets first')]).tree}"
    with WorkerClient(broken, prepare(broken, print), trace_seconds=300) as worker:
        worker.start()
        violation = worker.run(reasoning(drafter, breadth, depth)).violation
    assert violation is not None and violation.oracle == "S6"


def again(reasoning: int, drafts: int) -> Trace:
    """Return a trace in which the same is asked for while it is answered, and once more when it was."""
    config = Config(
        80, (Group("mamba", 8), Group("attention", 4)), "slots", num_speculative_tokens=drafts, async_depth=1,
        max_model_len=64, options={"strategy": "extra_buffer", "drafter": "eagle"},
    )  # fmt: skip
    first = Arrive("r0", (("a", 5),), 12, structured=1, reasoning=reasoning)
    second, third = (msgspec.structs.replace(first, name=f"r{number}", structured=3) for number in (1, 2))
    right, wrong = Step(drafts=drafts, right=drafts), Step(drafts=drafts, right=drafts // 2)
    return Trace(config, (first, *[right] * 5, second, *[wrong] * 14, third, *[right] * 16))


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize(("asked", "drafts"), AGAIN)
def test_a_grammar_that_is_kept_begins_again(worker: WorkerClient, asked: int, drafts: int) -> None:
    outcome = worker.run(again(asked, drafts))
    assert outcome.violation is None, outcome.violation.message


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_a_grammar_that_is_kept_where_an_answer_is_is_seen() -> None:
    broken = f"sglang@{patched(prepare(SPEC, print), [parse_patch(KEEPS_THE_FIRST, 'keeps the first')]).tree}"
    with WorkerClient(broken, prepare(broken, print), trace_seconds=300) as worker:
        worker.start()
        plain, behind_reasoning = (worker.run(again(asked, 0)).violation for asked in (0, 3))
    assert plain is not None and plain.oracle == "S6"
    assert behind_reasoning is not None and behind_reasoning.oracle == "CRASH"


def test_a_server_with_structured_output_has_a_reasoning_parser() -> None:
    asked = reasoning("ngram", "1", 0)
    described = deployment("", asked, "0.5.23")
    assert ("--reasoning-parser", "qwen3") in list(zip(described.flags, described.flags[1:], strict=False))
    free = Trace(asked.config, (Arrive("r0", (("a", 5),), 3), Step()))
    assert "--reasoning-parser" not in deployment("", free, "0.5.23").flags
