"""A violation: one oracle's verdict as data, and its signature. `sentences` puts it into sentences."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Integral
from typing import Any

import msgspec
from msgspec import Struct, structs

from ..quoting import DETAILS_MAX, MESSAGE_MAX, clean
from .sentences import RELATIONS, WITH_STEP, Pattern, Words
from .verdict import Block, Request, StateOf, Value

FIELD_MAX = 100
"""Characters that are kept of a part of a signature, and of a name."""
_ITEMS_MAX = 1_000
"""Items that are kept of a list in a verdict: an engine may return any number of tokens."""


class Violation(Struct, frozen=True):
    """A broken invariant: what, where, and the expected and observed values.

    relation  id of the sentence that relates them (`sentences.RELATIONS`); `details` are further values that it names
    told      its sentence, where there is none of ours; "message" in files
    event     index of the event in the trace (len(events) or more: while draining); `event_kind` is its tag
    rank      -1 where there is only one
    """

    oracle: str
    field: str
    told: str = msgspec.field(default="", name="message")
    expected: Value = ""
    observed: Value = ""
    step: int = -1
    event: int = -1
    event_kind: str = ""
    request: str = ""
    group: int = -1
    group_kind: str = ""
    block: int = -1
    rank: int = -1
    relation: str = ""
    details: Mapping[str, Value] = {}

    @property
    def signature(self) -> str:
        """The symptom in one word: oracle, event kind, group kind, field. Several causes may show alike."""
        return "-".join(part for part in (self.oracle, self.event_kind, self.group_kind, self.field) if part)

    @property
    def message(self) -> str:
        """The oracle and one sentence."""
        return clean(self.told or f"{self.oracle}: {self.sentence}")

    @property
    def sentence(self) -> str:
        """What is wrong, and in which step."""
        if self.told:
            return self.told.removeprefix(f"{self.oracle}: ")
        step = f" (step {self.step})" if self.oracle.startswith(WITH_STEP) else ""
        return clean(f"{self._in(Words())}{step}")

    @property
    def expected_words(self) -> str:
        """The expected value, for a table."""
        return self._cell("expected", self.expected)

    @property
    def observed_words(self) -> str:
        """The observed value, for a table."""
        return self._cell("observed", self.observed)

    def pattern(self, names: Collection[str] = ()) -> str:
        """Return the first clause with the violating request as OWN, others as OTHER, and no numbers.

        Names in an engine's own text are told from other words by `names`, those of the trace's requests.
        """
        words = Pattern(self.request, names)
        text = words.quoted(self.told) if self.told else f"{words.quoted(self.oracle)}: {self._in(words)}"
        return text.partition(";")[0]

    def _in(self, words: Words) -> str:
        sentence, values = RELATIONS[self.relation], self._values()
        rank = f"rank {words.number(self.rank, '')}: " if self.rank >= 0 else ""
        named = [name for _, name, _, _ in words.parse(sentence.more) if name]
        more = sentence.more if all(values.get(name) is not None for name in named) else ""
        return rank + words.vformat(sentence.text + more, (), values)

    def _values(self) -> dict[str, Value]:
        return {
            "request": Request(self.request),
            "group": self.group,
            "kind": self.group_kind,
            "block": self.block,
            "event": self.event,
            "event_kind": self.event_kind,
            "expected": self.expected,
            "observed": self.observed,
            **self.details,
        }

    def _cell(self, name: str, value: Value) -> str:
        if not self.relation:
            return Words().format_field(value, "")
        return clean(Words().vformat(getattr(RELATIONS[self.relation], name), (), self._values()), DETAILS_MAX)


def has_words(violation: Violation) -> bool:
    """Return True if a violation has the values that its relation names: one of a file may lack some."""
    try:
        return bool(violation.message and violation.expected_words + violation.observed_words + " ")
    except (KeyError, AttributeError, ValueError):
        return False


def wanted_depth(violation: Violation) -> int:
    """Return the depth of the state that a violation expected, -1 if it expected none."""
    return violation.expected.depth if isinstance(violation.expected, StateOf) else -1


def wanted_block(violation: Violation) -> int:
    """Return the block that a violation expected, -1 if it expected none."""
    return violation.expected.number if isinstance(violation.expected, Block) else -1


def cleaned(violation: Violation) -> Violation:
    """Return the violation with valid Unicode of a bounded length in every text, and lists of a bounded length.

    Its text may be the target's: an exception's message, or a repr of what the target returned.
    """
    limits = {"told": MESSAGE_MAX, "expected": DETAILS_MAX, "observed": DETAILS_MAX, "details": DETAILS_MAX}
    values = {name: getattr(violation, name) for name in violation.__struct_fields__}
    return Violation(**{name: _cleaned(value, limits.get(name, FIELD_MAX)) for name, value in values.items()})


def _cleaned(value: Any, limit: int) -> Any:
    """Return a value with its texts cleaned."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(value, limit)
    if isinstance(value, Integral):  # an engine's own type, which has no JSON
        return int(value)
    if isinstance(value, tuple):
        return tuple(_cleaned(one, limit) for one in value[:_ITEMS_MAX])
    if isinstance(value, Mapping):
        return {name: _cleaned(one, limit) for name, one in value.items()}
    if isinstance(value, Struct):
        return structs.replace(value, **{name: _cleaned(one, limit) for name, one in structs.asdict(value).items()})
    return value
