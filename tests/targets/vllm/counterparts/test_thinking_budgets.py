"""A budget of thinking tokens leaves its request's answer as it is.

Runs in the engine's environment (test_interpreter_process): the module imports vLLM. `test_sampling` shows the budgets
on an engine.
"""

import pytest

from hybridfuzz.reference.tokens import Truth

pytestmark = pytest.mark.engine


def allowed(budget: int, truth: Truth, end: int, start: int, stop: int) -> bool:
    """Return True if vLLM's rule, written out, asks only for tokens that the answer has anyway."""
    for position in range(truth.prompt_length, end):
        before = truth.tokens[:position]
        starts = [place for place, token in enumerate(before) if token == start]
        stops = [place for place, token in enumerate(before) if token == stop]
        if starts and (not stops or starts[-1] > stops[-1]):
            is_forced = position - starts[-1] - 1 >= budget
            if is_forced and truth.tokens[position] != stop:
                return False
    return True


def test_a_budget_asks_for_the_end_marker_only_where_the_answer_has_it() -> None:
    """A smaller one than the least would change the answer."""
    pytest.importorskip("vllm.v1")
    from hybridfuzz.targets.vllm.counterparts import thinking_budgets
    from hybridfuzz.targets.vllm.shadow_config import END_OF_REASONING, START_OF_REASONING

    forced = 0
    for index in range(400):
        truth = Truth((("a", 6 + index % 30), ("b", index % 7), (f"d{index}", 3)))
        end = truth.prompt_length + 40
        truth.reach(end)
        budget, places = thinking_budgets.budget_of(f"r{index}", truth, end)
        if budget is None:
            assert not places
            continue
        assert allowed(budget, truth, end, START_OF_REASONING, END_OF_REASONING)
        assert all(truth.tokens[place] == END_OF_REASONING for place in places)
        if budget and budget not in thinking_budgets.BUDGETS:
            assert not allowed(budget - 1, truth, end, START_OF_REASONING, END_OF_REASONING)
        forced += len(places)
    assert forced
