"""Verdicts: the words of each relation, a violation's way through JSON, and files of earlier versions."""

from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest

from hybridfuzz.harness.judge.sentences import RELATIONS, Pattern, Words
from hybridfuzz.harness.judge.verdict import (
    Batch,
    Because,
    Block,
    Found,
    Holders,
    KeyOf,
    PartOf,
    Past,
    Prefix,
    Quoted,
    Request,
    Requests,
    Row,
    StateOf,
    Tokens,
    Unknown,
    Value,
    WindowOf,
    owner_of,
)
from hybridfuzz.harness.judge.violation import Violation, cleaned, has_words

VALUES: dict[str, Value] = {
    "the state of r0 after 1 token": StateOf(Prefix("r0"), 1),
    "the KV of position 3 of what r0 had before": PartOf(Prefix("r0", before=True), 3, "KV"),
    "a window whose input 1 is missing": WindowOf(1, None),
    "a window whose input 0 is the input of position 2 of r0": WindowOf(0, PartOf(Prefix("r0"), 2, "input")),
    "the state after 12 tokens of a cached prefix of 8 tokens": StateOf(Prefix(cached=8), 12),
    "the state after 1 token of what r0 had before": StateOf(Prefix("r0", before=True), 1),
    "a state that matches no known prefix": Unknown(state=True),
    "depth 8 of prefix 0012 in group 1": KeyOf(1, 8, 70012),
    "r0, r1": Requests(("r0", "r1")),
    "['r0', 'r1']": Batch(("r0", "r1")),
    "r0 has it in column 2; r1 has it in column 0": Holders((("r0", 2), ("r1", 0))),
    "dummy row 1": Row(1, dummy=True),
    "no block": Block(-1),
    "last written by padding row 2 in step 7": Past("written", Row(2), 7),
    "zeroed, not written since r0 got it in step 3": Past("zeroed", Request("r0"), 3),
    "[2, 3]": Tokens((2, 3)),
    "for position 3 it reads nothing in block 4": Because("because-slot", {"position": 3, "found": None, "block": 4}),
}


@pytest.mark.parametrize("words", VALUES)
def test_a_value_in_words(words: str) -> None:
    assert Words().format_field(VALUES[words], "") == words


def test_every_kind_of_content_has_words() -> None:
    for kind in get_args(Found):
        assert kind.__name__ in {"StateOf", "PartOf", "Empty", "Zeroed", "Foreign", "Unknown"}


def test_a_number_is_counted() -> None:
    assert [Words().format_field(n, "token") for n in (0, 1, 2)] == ["0 tokens", "1 token", "2 tokens"]
    assert Words().format_field(None, "no request") == "no request"
    assert Words().format_field(2.5, ".3g") == "2.5"


def test_a_pattern_has_no_names_and_numbers() -> None:
    pattern = Pattern("padding row 2", ["r0"])
    assert pattern.say(Holders((("r0", 2),))) == "OTHER has it in column N"
    assert pattern.say(Past("written", Row(2), 7)) == "last written by OWN in step N"
    assert pattern.say(Past("written", Row(3), 7)) == "last written by padding row N in step N"
    assert pattern.say(Quoted("KeyError: r0 in step 12 of r01")) == "KeyError: OTHER in step N of rN"


def test_the_owner_of_a_value() -> None:
    assert owner_of(WindowOf(0, PartOf(Prefix("bob"), 2, "input"))) == owner_of(StateOf(Prefix("bob"), 2)) == "bob"
    assert not any(map(owner_of, (StateOf(Prefix("bob", before=True), 2), StateOf(Prefix(cached=4), 2), "bob", None)))


def violations() -> Iterator[Violation]:
    yield from (Violation("S1", "x", expected=value, relation="budget", observed=3) for value in VALUES.values())
    yield Violation("S2", "x", request="r0", relation="kept", details=dict(enumerate_names()))


def enumerate_names() -> Iterator[tuple[str, Value]]:
    for number, name in enumerate(("settled", "known", "most")):
        yield name, number


def test_a_violation_survives_json() -> None:
    for one in violations():
        assert msgspec.json.decode(msgspec.json.encode(one), type=Violation) == one
        assert has_words(one)


def test_texts_and_lists_of_an_engine_are_bounded() -> None:
    wild = Violation("S6", "x", observed=Tokens(tuple(range(5000))), details={"what": Quoted("\x1b" * 9000)})
    tame = cleaned(wild)
    assert isinstance(tame.observed, Tokens) and len(tame.observed.ids) == 1000
    assert "\x1b" not in str(tame.details["what"])


def test_a_violation_of_a_file_may_lack_its_words() -> None:
    assert not has_words(Violation("S2", "x", relation="no such relation"))
    assert not has_words(Violation("S2", "x", relation="kept"))
    assert not has_words(Violation("S2", "x", relation="resumes", details={"column": 0, "past": Past("never")}))
    assert all(sentence.text and not sentence.text.endswith(".") for sentence in RELATIONS.values())
