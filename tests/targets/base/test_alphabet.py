"""What the types of events say about them: complete, and enough for a kind that no other module knows."""

from typing import Annotated, get_args

import msgspec
import pytest
from support import arrive, make_trace

from hybridfuzz.harness.draw.avoid import traits_of
from hybridfuzz.harness.group.reduction.reduce import renamed, simpler_events
from hybridfuzz.harness.group.reduction.variants import neighbours
from hybridfuzz.harness.tell.scenario import sentence
from hybridfuzz.targets.base.alphabet import (
    About,
    AtMost,
    Defines,
    Draws,
    NeedsEvent,
    NeedsFeature,
    Refers,
    Says,
    Shrinks,
    Thins,
    Trait,
    Usual,
    Varies,
    fields_with,
)
from hybridfuzz.targets.base.declarations import EVENTS
from hybridfuzz.targets.base.protocol import Feature
from hybridfuzz.targets.base.trace import KINDS, AnyEvent, Config, Event, Name, Step, Trace, needed_events

CONFIG = make_trace().config
SAMPLES: dict[str, object] = {"name": "r1", "parent": "r1", "prompt": [["a", 3]], "tier": "host", "times": 3}
"""Values for fields that have no default; 2 for the others that are numbers."""


class Touch(Event, frozen=True, tag="touch"):
    """A kind that nothing but this file knows."""

    about = About("{name} is touched with {blocks:block} and {others}", percent=5, needs="resume")

    name: Annotated[Name, Refers()]
    blocks: Annotated[int, Shrinks(1), Draws(1, 6), Varies((1,)), AtMost("max_num_seqs")]
    others: Annotated[tuple[Name, ...], Refers(), Thins(1)] = ()
    hard: Annotated[bool, Usual(False), Says(", hard"), Trait("a hard touch"), NeedsEvent("sleep")] = False


def sample(kind: type[AnyEvent]) -> AnyEvent:
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return msgspec.convert(
        {"event": kind.__struct_config__.tag, **{n: SAMPLES.get(n, _plural(n)) for n in required}}, kind
    )


def _plural(name: str) -> object:
    return {"names": ["r1"], "sources": {"r1": "r2"}}.get(name, 2)


def touched(*changes: Touch) -> Trace:
    return msgspec.structs.replace(make_trace(arrive("x", ("a", 3))), events=(arrive("x", ("a", 3)), *changes))  # type: ignore[arg-type]


def test_a_new_kind_needs_no_other_module_to_be_reduced_renamed_varied_and_told() -> None:
    touch = Touch("x", 3, ("x", "x.1"), hard=True)
    assert list(simpler_events(touch)) == [  # type: ignore[arg-type]
        Touch("x", 3, ("x.1",), True),
        Touch("x", 3, ("x",), True),
        Touch("x", 1, ("x", "x.1"), True),
        Touch("x", 2, ("x", "x.1"), True),
        Touch("x", 3, ("x", "x.1"), False),
    ]
    assert renamed(touched(touch)).events[1] == Touch("r0", 3, ("r0", "r0.1"), True)
    assert "1 blocks +1" in [each.what for each in neighbours(touched(touch), "x")]
    assert "a hard touch" in traits_of(touched(touch))
    assert needed_events([touch]) == {"touch", "sleep"}
    assert sentence(touch, CONFIG) == "x is touched with 3 blocks and x, x.1, hard"


def test_a_number_is_not_varied_beyond_its_bound() -> None:
    most = CONFIG.max_num_seqs
    assert not [each for each in neighbours(touched(Touch("x", most)), "") if "blocks" in each.what]


def test_limits_come_after_the_numbers_that_they_limit() -> None:
    assert [name for name, _ in fields_with(Step, Shrinks)] == ["drafts", "right", "budget"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_kind_names_exists(kind: type[AnyEvent]) -> None:
    assert kind.about.needs in {"", *EVENTS}
    assert {needs.tag for _, needs in fields_with(kind, NeedsEvent)} <= EVENTS
    assert {needs.feature for _, needs in fields_with(kind, NeedsFeature)} <= set(get_args(Feature))
    assert {most.field for _, most in fields_with(kind, AtMost)} <= set(Config.__struct_fields__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_with_names_of_requests_is_marked(kind: type[AnyEvent]) -> None:
    """A reduction that left a name as it is would end at another trace."""
    marked = {name for mark in (Defines, Refers) for name, _ in fields_with(kind, mark)}
    of_name = repr(get_args(Name)[1])
    names = {field.name for field in msgspec.structs.fields(kind) if of_name in repr(field.type)}
    assert names - {"tier"} == marked


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_has_a_sentence_of_its_own(kind: type[AnyEvent]) -> None:
    words = sentence(sample(kind), CONFIG)
    assert words != sentence(Touch("x", 1), CONFIG)
    assert "{" not in words and kind.about != Event.about


def test_marks_do_not_change_what_is_decoded() -> None:
    for wrong in ('{"event":"evict","blocks":0}', '{"event":"crop","tokens":0}', '{"event":"preempt","name":"a b"}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wrong, type=AnyEvent)
    assert msgspec.json.encode(Step()) == b'{"event":"step"}'
