"""The canonical form of a state: two traces that lead to one form are continued once.

A state is that of the lockstep: the reference, the oracles that remember something, and the target. Of a target that
can be inspected, all attributes of all parts are in it; of another, its view and the content of its blocks
(`Form.is_whole`).

What is renamed, so that states which differ in nothing else are one: blocks by the order of the free queue, then by
their first place in a table; since that order decides what is allocated next, nothing is sorted. Steps count from the
oldest one in flight. Requests that ended have no name. (Names and documents are symmetric already in what is
enumerated: `Alphabet`.)

What the form does not see is `UNSEEN`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import msgspec
from msgspec import Struct

from ...reference.ledger import BlockFacts
from ...reference.model import PlanFacts
from ...reference.prefix_cache import Key
from ...reference.request import Life
from ...reference.tokens import Truth
from ...targets.base.inspection import Inspected, Inspection, Mark, Marks
from ...targets.base.observe import View
from ...targets.base.trace import AnyEvent, ExternalLoad, Step
from ..judge.lockstep import Lockstep
from ..judge.oracles.base import Oracle

UNSEEN = (
    "numbers of steps: only the distance to the oldest step in flight is seen",
    "which step or request wrote a page last, and who had a block before: messages say it, no verdict does",
    "counts of checks and of reached states",
    "requests that ended, by name",
    "prefixes of keys that are neither published nor stored",
    "what an oracle remembers of the last view or of one step, since the next one replaces it",
)
"""What the form leaves out, for certificates and documentation."""
UNSEEN_WITHOUT_INSPECTION = "all that the target's view and the content of its blocks do not show"

_OF_THE_LAST_VIEW = Marks(
    {
        "left out": (
            "Oracle.exercised", "Hash._judged", "Hash._known", "Hash._aliases", "Hash._tables", "Hash._lives",
            "Partition._checked", "Writer._step", "Writer._writers", "Checkpoint._contents", "Checkpoint._stored",
        )
    }
)  # fmt: skip
_ATOMS = frozenset({int, str, bool, float, bytes, type(None)})
_CODE = (FunctionType, BuiltinFunctionType, MethodType, type)
_pack = msgspec.msgpack.Encoder().encode


def _attributes(value: object) -> Iterable[tuple[str, Any]]:
    """Yield the attributes of an object."""
    kind: Any = type(value)
    for name in _declared(kind):
        if hasattr(value, name):
            yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


@cache
def _declared(kind: Any) -> tuple[str, ...]:
    """Return the attributes that a class declares: slots, and those of a compiled class."""
    names = [name for base in kind.__mro__ for name in (*_listed(base, "__slots__"), *_listed(base, "__mypyc_attrs__"))]
    return tuple(dict.fromkeys(name for name in names if name not in ("__dict__", "__weakref__")))


def _listed(kind: type, name: str) -> tuple[str, ...]:
    listed: str | tuple[str, ...] = kind.__dict__.get(name, ())
    return (listed,) if isinstance(listed, str) else tuple(listed)


class Form:
    """The form of the state after `events`: fields by name, as plain values.

    `without` leaves fields out, to test that they matter.
    """

    def __init__(self, lockstep: Lockstep, events: Sequence[AnyEvent], without: frozenset[str] = frozenset()) -> None:
        self._view = view = lockstep.context.before
        self._reference = lockstep.context.reference
        self._null = lockstep.context.null
        self._labels = self._relabelled(view, lockstep.target.layout.num_blocks)
        self._order = sorted(self._labels, key=self._labels.__getitem__)
        self._marks = Marks({})
        self._parts: dict[int, str] = {}
        self._met: dict[int, int] = {}
        self.fields: dict[str, object] = {}
        self._of_reference()
        self._of_oracles(lockstep.oracles)
        self.fields["asleep"] = lockstep.asleep
        target = lockstep.target
        self.is_whole = isinstance(target, Inspected)
        if isinstance(target, Inspected):
            self._of_parts(target.inspect())
        else:
            self._of_view(lockstep)
            self.fields["drafts"] = _proposed(events, lockstep.config.async_depth)
            self.fields["loads asked for"] = _asked(events, self._reference.lives)
        for name in without:
            del self.fields[name]

    def fingerprint(self, context: bytes = b"") -> int:
        """Return 64 bits of a digest of the form, and of what else tells states apart."""
        digest = hashlib.blake2b(context + _pack(self.fields), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def _relabelled(self, view: View, blocks: int) -> dict[int, int]:
        """Return block -> its label."""
        held = (block for table in view.tables.values() for columns in table for block in columns)
        null = () if self._null is None else (self._null,)  # plain caches have none
        order = dict.fromkeys((*null, *view.free, *held, *range(blocks)))
        return {block: label for label, block in enumerate(order)}

    def _block(self, block: int) -> int:
        return self._labels.get(block, -1000 - block)

    def _blocks(self, value: Any) -> Any:
        """Return a value of block ids with labels instead; `Key`s stay."""
        kind = type(value)
        if kind is int:
            return self._labels.get(value, -1000 - value)
        if kind is list or kind is tuple:
            return [self._blocks(item) for item in value]
        if kind is Key or kind in _ATOMS:
            return value
        if isinstance(value, dict):
            return [[self._blocks(key), self._blocks(item)] for key, item in value.items()]
        if isinstance(value, set):
            return sorted(self._blocks(item) for item in value)
        return [self._blocks(item) for item in value]

    def _table_of(self, tables: Mapping[str, Sequence[Sequence[int]]]) -> list[object]:
        return [[name, self._blocks(list(table))] for name, table in tables.items() if name in self._reference.lives]

    # The reference and the oracles

    def _of_reference(self) -> None:
        reference, fields = self._reference, self.fields
        order = {step: index for index, step in enumerate(reference.pending)}
        known = {id(life): name for name, life in reference.lives.items()}
        published = self._view.published
        fields["lives"] = [self._life(life) for life in reference.lives.values()]
        fields["ledger"] = [self._facts(reference.ledger.facts.get(block)) for block in self._order]
        fields["flights"] = [self._plan(plan, known) for plan in reference.pending.values()]
        fields["loads"] = [[name, self._plan(plan, known)] for name, plan in reference.loading.items()]
        first = min(order, default=-1)
        fields["published since"] = [
            [self._block(block), order.get(step, len(order) if order and step > first else -1)]
            for block, (_, step) in reference.published_since.items()
        ]
        fields["unknown prefixes"] = [
            key for key in (*published.values(), *self._view.stored) if key not in reference.truths
        ]
        fields["entered tables"] = self._table_of(reference._entered_tables)
        fields["tables before"] = [
            [name if name in reference.lives else "", self._blocks([list(columns) for columns in table])]
            for name, table in reference._tables_before.items()
        ]
        fields["batch"] = reference.batch
        fields["ended in flight"] = sorted(
            {name for plan in reference.pending.values() for name in plan.lives} & reference.withdrawn
        )

    def _life(self, life: Life) -> list[object]:
        return [
            life.name, life.session, life.parked, life.max_new_tokens, life.settled, life.delivered, life.resumed,
            life.speculated, life.load_breaks_off, life.aborted, life.prompt_logprobs, life.logprobs_from,
            life.structured, life.grammar_fails,
            _truth(life.truth, life.total_length),
        ]  # fmt: skip

    def _facts(self, facts: BlockFacts | None) -> object:
        if facts is None:
            return None
        owner = facts.owner if facts.owner in self._reference.lives else ""
        return [owner, facts.group, [[cell.zeroed, cell.temporal, cell.conv, cell.slots] for cell in facts.cells]]

    def _plan(self, plan: PlanFacts, known: Mapping[int, str]) -> list[object]:
        return [
            [[name, known.get(id(life)) or self._life(life)] for name, life in plan.lives.items()],
            list(plan.admitted.items()),
            list(plan.reused.items()),
            self._blocks({name: list(table) for name, table in plan.tables.items()}),
            [plan.references[block] for block in self._order if block < len(plan.references)],
            self._blocks(dict(plan.published)),
            self._blocks({name: list(table) for name, table in plan.loaded.items()}),
        ]

    def _of_oracles(self, oracles: Iterable[Oracle]) -> None:
        """Take what oracles remember of requests that live."""
        lives, remembered = self._reference.lives, []
        for oracle in oracles:
            kind = type(oracle)
            for name, value in vars(oracle).items():
                if isinstance(value, View) or _OF_THE_LAST_VIEW.of(kind, name):
                    continue
                live = value
                if isinstance(value, dict):
                    live = {key: item for key, item in value.items() if not isinstance(key, str) or key in lives}
                remembered.append([kind.__name__, name, self._walk(live)])
        self.fields["oracles"] = remembered

    # A target that is not inspected

    def _of_view(self, lockstep: Lockstep) -> None:
        view, fields = self._view, self.fields
        fields["queues"] = [list(view.waiting), list(view.running), list(view.parked)]
        fields["free"] = [self._block(block) for block in view.free]
        fields["references"] = [view.references[block] for block in self._order if block < len(view.references)]
        fields["keys"] = [self._blocks(dict(view.published)), self._walk(dict(view.labels or {}))]
        fields["tables"] = [[name, self._blocks([list(c) for c in table])] for name, table in view.tables.items()]
        fields["pins"] = [self._blocks(dict(view.pins)), self._blocks(dict(view.copies))]
        fields["leftovers"] = [list(view.leftovers.items()), list(view.drained.items()), list(view.caches.items())]
        fields["stored"] = [[key, self._walk(list(pages))] for key, pages in view.stored.items()]
        fields["sent"] = [[key, self._walk(list(pages))] for key, pages in view.sent.items()]
        fields["content"] = [] if lockstep.asleep else self._content(lockstep)

    def _content(self, lockstep: Lockstep) -> list[object]:
        """Return the pages that are in a table or that a lookup reaches, and plain caches."""
        view, read, seen = self._view, lockstep.target.read, []
        for index, group in enumerate(lockstep.target.layout.groups):
            held = [block for table in view.tables.values() for block in table[index] if block != self._null]
            cached = [block for block, key in view.published.items() if key.group == index]
            for block in dict.fromkeys((*held, *cached, *view.caches.values())):
                seen += [self._walk(read(index, layer, block)) for layer in range(group.layers)]
        return seen

    # A target that is inspected

    def _of_parts(self, inspection: Inspection) -> None:
        self._marks = marks = inspection.marks
        self._parts = {id(part): name for name, part in inspection.parts.items()}
        for name, part in inspection.parts.items():
            kind = type(part)
            for attribute, value in _attributes(part):
                mark = marks.of(kind, attribute)
                if mark != "left out" and id(value) not in self._parts:
                    self.fields[f"{name}.{attribute}"] = self._marked(value, mark)
        self.fields["pages"] = [[self._walk(pages[block]) for block in self._order] for pages in inspection.pages]

    def _marked(self, value: Any, mark: Mark) -> Any:
        if not mark:
            return self._walk(value)
        if mark == "ids":
            return self._blocks(value)
        if mark == "ids second":
            return value and [self._walk(value[0]), self._blocks(value[1]), *map(self._walk, value[2:])]
        if mark == "ids last":
            return [[*map(self._walk, item[:-1]), self._block(item[-1])] for item in value]
        return [self._walk(value[block]) for block in self._order]

    def _walk(self, value: Any) -> Any:
        """Return a value of any kind as plain lists. What is met twice is a reference, since it may change."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is list or kind is tuple or kind is deque:
            return [self._walk(item) for item in value]
        if kind is dict or kind is OrderedDict:
            return [[self._walk(key), self._walk(item)] for key, item in value.items()]
        if kind is set or kind is frozenset:
            return sorted((self._walk(item) for item in value), key=repr)
        if kind is Truth:
            return _truth(value, value.prompt_length)
        if (part := self._parts.get(id(value))) is not None:
            return f"<{part}>"
        if isinstance(value, _CODE):
            return f"<{value.__qualname__}>"
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return self._named(value, kind, kind._fields)
        if isinstance(value, tuple | list):
            return [self._walk(item) for item in value]
        if isinstance(value, Mapping):
            return [[self._walk(key), self._walk(item)] for key, item in value.items()]
        if isinstance(value, Enum | range):
            return repr(value)
        if isinstance(value, Struct) and value.__struct_config__.frozen:
            return self._named(value, kind, value.__struct_fields__)
        return self._object(value, kind)

    def _named(self, value: Any, kind: type, names: Iterable[str]) -> object:
        """Return a value that does not change: met twice, it is the same as two equal ones."""
        marks = ((name, self._marks.of(kind, name)) for name in names)
        return [
            kind.__name__,
            *(self._marked(getattr(value, name), mark) for name, mark in marks if mark != "left out"),
        ]

    def _object(self, value: Any, kind: type) -> object:
        if (number := self._met.get(id(value))) is not None:
            return [number]
        self._met[id(value)] = len(self._met)
        names = value.__struct_fields__ if isinstance(value, Struct) else None
        if names is None and not _declared(kind) and not hasattr(value, "__dict__"):
            raise TypeError(f"the state of a {kind.__module__}.{kind.__name__} cannot be seen")
        items = ((name, getattr(value, name)) for name in names) if names else _attributes(value)
        seen = []
        for name, item in items:
            mark = self._marks.of(kind, name)
            if mark != "left out":
                seen.append([name, self._marked(item, mark)])
        return [kind.__name__, seen]


def _proposed(events: Sequence[AnyEvent], ahead: int) -> list[object]:
    """Return which drafts the last steps proposed, and how many of them will be accepted: no view shows it."""
    steps = [event for event in events if isinstance(event, Step)][-1 - ahead :]
    return [[step.drafts, step.right, list(step.per_request.items())] for step in steps]


def _asked(events: Sequence[AnyEvent], lives: Collection[str]) -> list[object]:
    """Return what was said of the loads of requests that are there, and how many steps ago: a view shows what another
    engine has stored, not how long its load will take or whether it breaks off."""
    found: list[object] = []
    steps = 0
    for event in reversed(events):
        if isinstance(event, ExternalLoad) and event.name in lives:
            found.append([event.name, event.length, event.states, event.breaks_off, event.delay, steps])
        steps += isinstance(event, Step)
    return found


def _truth(truth: Truth, length: int) -> list[object]:
    """Return what tells a truth from others up to `length` tokens."""
    return [truth.prompt_length, truth.adapter, truth.salt, length, truth.tag(length)]
