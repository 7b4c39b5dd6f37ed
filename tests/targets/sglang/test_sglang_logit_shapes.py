"""What a request rules out leaves its own answer as it is, and changes that of any other."""

import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import permutations
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hybridfuzz.reference.tokens import FIRST_TOKEN, Truth
from hybridfuzz.targets.base.shadow import POISON_TOKEN
from hybridfuzz.targets.sglang.device import ranked

NAMES = ("a", "b", "c", "d", "e", "f")
"""Two of each kind."""
LENGTH = 12


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, which needs nothing of SGLang but the base class of processors."""
    for name in ("sglang", "sglang.srt", "sglang.srt.sampling"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    base = ModuleType("sglang.srt.sampling.custom_logit_processor")
    base.CustomLogitProcessor = type(  # type: ignore[attr-defined]
        "CustomLogitProcessor", (), {"to_str": classmethod(lambda processor: processor.__name__)}
    )
    monkeypatch.setitem(sys.modules, base.__name__, base)
    module = import_module("hybridfuzz.targets.sglang.logit_shapes")
    yield module
    sys.modules.pop(module.__name__)


def made(shapes: Any, drafts: int = 0, logits: str = "shaped") -> Any:
    return shapes.LogitShapes(SimpleNamespace(drafts=drafts, logits=logits))


def truth_of(name: str) -> Truth:
    return Truth(((name, 3),))


def shaped(shapes: Any, logits: torch.Tensor, *asked: Any) -> list[int]:
    """The first choices of rows behind all that is asked for each."""
    logits = logits.clone()
    for shape in asked:
        if shape.logit_bias:
            for token, bias in shape.logit_bias.items():
                logits[:, int(token)] += bias
        else:
            logits = getattr(shapes, shape.processor)()(logits, [shape.parameters] * len(logits))
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    return chosen


def said(every: Any, name: str) -> tuple[list[int], torch.Tensor]:
    """The tokens of an answer, and the model's logits at their places."""
    truth = truth_of(name)
    truth.reach(3 + LENGTH)
    own = truth.tokens[3:]
    return own, ranked(own, [every.decoy(name, truth.tag(place)) for place in range(3, 3 + LENGTH)])


@pytest.mark.parametrize(("drafts", "logits"), [(0, "shaped"), (4, "shaped"), (4, "processors")])
def test_the_own_answer_stays_and_shows_that_a_shape_is_lost(shapes: Any, drafts: int, logits: str) -> None:
    every, lost = made(shapes, drafts, logits), 0
    for name in NAMES:
        shape = every.shape(name, truth_of(name), LENGTH)
        own, model = said(every, name)
        assert shaped(shapes, model, shape) == own
        lost += sum(one != other for one, other in zip(shaped(shapes, model), own, strict=True))
    assert 0.2 < lost / len(NAMES) / LENGTH < 0.5


def test_the_shape_of_another_request_says_something_else(shapes: Any) -> None:
    """In place of the own one, or beside it. No such row says what no model says, as a poisoned state does."""
    every = made(shapes)
    asked = {name: every.shape(name, truth_of(name), LENGTH) for name in NAMES}
    for name, other in permutations(NAMES, 2):
        own, model = said(every, name)
        chosen = shaped(shapes, model, asked[other])
        assert sum(one != right for one, right in zip(chosen, own, strict=True)) > LENGTH / 2
        assert min(chosen) >= FIRST_TOKEN
        if asked[name].processor and asked[other].processor:
            both = shaped(shapes, model, asked[name], asked[other])
            assert both != own
            assert min(both) >= FIRST_TOKEN


def test_no_shape_hides_a_poisoned_state(shapes: Any) -> None:
    every = made(shapes)
    for name in NAMES:
        shape = every.shape(name, truth_of(name), LENGTH)
        assert shaped(shapes, ranked([POISON_TOKEN], [every.decoy(name, -1)]), shape) == [POISON_TOKEN]


def test_requests_are_of_three_kinds_and_beside_drafts_of_one(shapes: Any) -> None:
    def kinds(drafts: int, logits: str) -> set[str | None]:
        every = made(shapes, drafts, logits)
        asked = [every.shape(name, truth_of(name), LENGTH) for name in NAMES]
        assert all((shape.logit_bias is None) == (shape.processor is not None) for shape in asked)
        return {shape.processor for shape in asked}

    assert kinds(0, "shaped") == {None, "Forbids", "Keeps"}
    assert kinds(4, "shaped") == {None}
    assert kinds(4, "processors") == {"Forbids", "Keeps"}


def test_a_row_without_parameters_stays_as_it_is(shapes: Any) -> None:
    logits = ranked([5, 6])
    for processor in (shapes.Forbids, shapes.Keeps):
        assert torch.equal(processor()(logits.clone(), [None, None]), logits)
