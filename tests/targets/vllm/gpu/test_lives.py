"""The comparison with the same steps alone: a difference counts only if it does not depend on unused memory there."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hybridfuzz.targets.base.observe import RealForward  # noqa: E402
from hybridfuzz.targets.vllm.gpu.lives import Lives  # noqa: E402
from hybridfuzz.targets.vllm.gpu.plans import Segment, Solo  # noqa: E402

TOKENS = [7] * 20
LAYER = (0, 0)


def solo(logprob: float = 0.5, state: int = 3) -> Solo:
    bits = np.array([state], dtype=np.int32).tobytes()
    return Solo({15: np.array([logprob], dtype=np.float32)}, {(16, LAYER): bits})


class Alone:
    """Answers with one result for each fill; `fills` are those that were run."""

    def __init__(self, zero: Solo, nan: Solo) -> None:
        self._answers = {"zero": zero, "nan": nan}
        self.fills: list[str] = []

    def run(self, plan: Any, tokens: Any, fill: str) -> Solo:
        self.fills.append(fill)
        return self._answers[fill]


def compared(alone: Alone) -> tuple[RealForward | None, Lives]:
    """A request whose prompt of 16 tokens one step computed: log-probability 0.5, state 3."""
    lives = Lives(16, alone)  # type: ignore[arg-type]
    lives.begin("r0", ())
    lives.extend([("r0", Segment(0, 16, (), "prefill"))], lambda name: TOKENS)
    lives.keep_logprobs([("r0", 15)], np.array([[0.5]], dtype=np.float32))
    lives.keep_states([("r0", 0, 0, 5)], lambda group, layer, blocks: torch.tensor([[3]], dtype=torch.int32))
    return lives.compare(4, "r0", TOKENS), lives


def test_the_same_bits_need_one_run_alone() -> None:
    alone = Alone(solo(), solo())
    forward, lives = compared(alone)
    assert forward is not None
    assert (forward.moved, forward.rows[0].expected) == ([], forward.rows[0].logprobs)
    assert (alone.fills, lives.rows, lives.states) == (["zero"], 1, 1)


@pytest.mark.parametrize(("other", "moved"), [(solo(state=4), [("r0", 16, 0, 0)]), (solo(logprob=0.25), [])])
def test_a_difference_is_reported_if_both_fills_agree(other: Solo, moved: Any) -> None:
    alone = Alone(other, other)
    forward, _ = compared(alone)
    assert forward is not None
    assert forward.moved == moved
    assert alone.fills == ["zero", "nan"]
    assert (forward.rows[0].expected != forward.rows[0].logprobs) == (not moved)


def test_no_difference_is_reported_if_the_fills_do_not_agree() -> None:
    forward, lives = compared(Alone(solo(state=4), solo(state=5)))
    assert forward is None
    assert lives.left == {"alone, it depends on unused memory": 1}
