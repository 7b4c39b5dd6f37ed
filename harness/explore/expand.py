"""The side of an exploration that runs beside the target: continues traces by each event that may follow.

A branch starts from a saved state (`pickle`) of a target that can be inspected; an engine runs the trace again. For the
built-in engine a saved state is the cheapest: see docs/how-to/explore-all-traces.md, Cost.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest

import msgspec
from msgspec import Struct

from ...targets.base.inspection import Inspected
from ...targets.base.protocol import TargetFactory
from ...targets.base.trace import AnyEvent, Config
from ..judge.engines import Engines
from ..judge.lockstep import Lockstep
from ..judge.outcome import Outcome
from ..judge.violation import Violation, cleaned
from .form import Form

DRAINED_MAX = 2_000_000
"""States whose draining a process remembers."""


class Parent(Struct, frozen=True):
    """A trace to be continued by each of `branches`. `contexts` are what the alphabet knows of each longer trace,
    `context` of itself."""

    config: Config
    events: tuple[AnyEvent, ...]
    branches: tuple[AnyEvent, ...]
    context: str
    contexts: tuple[str, ...]


class Expand(Struct, frozen=True, tag="expand"):
    """Continue traces. Fields in `without` are left out of the form, to test that they matter."""

    parents: tuple[Parent, ...]
    without: frozenset[str] = frozenset()


class Branch(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A trace with one more event: the fingerprint of its state, or the violation of its last event.

    `drained` is the violation that follows when the trace ends here; one process reports it once for each state.
    """

    fingerprint: int = 0
    violation: Violation | None = None
    drained: Violation | None = None


class Grown(Struct, frozen=True, array_like=True):
    """The branches of one trace, in order, and the fingerprint of its own state: it must be the one that was seen."""

    fingerprint: int
    branches: tuple[Branch, ...]


class Expanded(Struct, frozen=True, tag="expanded"):
    """Answer to `Expand`, in its order.

    `oracles` counts what they checked; `whole` is False if the target cannot be inspected.
    """

    grown: tuple[Grown, ...]
    oracles: dict[str, int]
    whole: bool


class Compare(Struct, frozen=True, tag="compare"):
    """Continue two traces that have one form, by each branch and by draining. The answer is what differs, "" if nothing
    does."""

    config: Config
    left: tuple[AnyEvent, ...]
    right: tuple[AnyEvent, ...]
    branches: tuple[AnyEvent, ...]
    without: frozenset[str] = frozenset()


class Compared(Struct, frozen=True, tag="compared"):
    """Answer to `Compare`."""

    difference: str


class Saved:
    """A state from which branches start: saved bytes, or a trace that runs again."""

    def __init__(self, factory: TargetFactory, config: Config, events: Sequence[AnyEvent]) -> None:
        self._factory = factory
        self._config = config
        self.events = events
        self._bytes = b""

    def branch(self, go: Callable[[Lockstep], None]) -> Violation | None:
        """Give a lockstep in this state to `go`. Return a violation that came before, or when the engine was closed."""
        if self._bytes:
            go(pickle.loads(self._bytes))
            return None
        engines = Engines(self._factory, self._config)

        def drive() -> Outcome:
            lockstep = engines.open()
            if isinstance(lockstep, Violation):
                return _ended(lockstep)
            for index, event in enumerate(self.events):
                if violation := lockstep.apply(event, index):
                    return _ended(violation)
            if isinstance(lockstep.target, Inspected):
                self._bytes = _saved(lockstep)
            go(lockstep)
            return _ended(None)

        return engines.run(drive).violation


def _saved(lockstep: Lockstep) -> bytes:
    """Return a state as bytes; b"" if it cannot be saved: the classes of mutants have no name in a module."""
    try:
        return pickle.dumps(lockstep, pickle.HIGHEST_PROTOCOL)
    except pickle.PicklingError:
        return b""


def _ended(violation: Violation | None) -> Outcome:
    return Outcome(violation, 0, 0, {}, {}, 0)


class Expander:
    """Expands the traces of one process, which remembers the states that it has drained."""

    def __init__(self, factory: TargetFactory) -> None:
        self._factory = factory
        self._drained: set[int] = set()
        self._oracles: Counter[str] = Counter()
        self._whole = True

    def expand(self, request: Expand, on_event: Callable[[int], None]) -> Expanded:
        """Continue traces by each event that may follow. `on_event` is called before each."""
        self._oracles.clear()
        grown = tuple(self._grow(parent, request.without, on_event) for parent in request.parents)
        return Expanded(grown, dict(self._oracles), self._whole)

    def _grow(self, parent: Parent, without: frozenset[str], on_event: Callable[[int], None]) -> Grown:
        own, branches = 0, []
        saved, at = Saved(self._factory, parent.config, parent.events), len(parent.events)
        salt = msgspec.json.encode(parent.config)

        def look(lockstep: Lockstep) -> None:
            nonlocal own
            form = Form(lockstep, parent.events, without)
            own, self._whole = form.fingerprint(salt + parent.context.encode()), self._whole and form.is_whole

        failed = saved.branch(look)
        for event, context in zip(parent.branches, parent.contexts, strict=True):
            on_event(at)
            branches.append(self._branch(saved, (*parent.events, event), salt + context.encode(), without))
        if failed:  # it was clean when it was seen: the target is not deterministic
            return Grown(0, tuple(Branch(violation=cleaned(failed)) for _ in branches))
        return Grown(own, tuple(branches))

    def _branch(self, saved: Saved, events: tuple[AnyEvent, ...], salt: bytes, without: frozenset[str]) -> Branch:
        branch, event, at = Branch(), events[-1], len(events) - 1

        def go(lockstep: Lockstep) -> None:
            nonlocal branch
            before = lockstep.outcome(at).exercised
            if violation := lockstep.apply(event, at):
                branch = Branch(violation=cleaned(violation))
                return
            seen, drained = Form(lockstep, events, without).fingerprint(salt), None
            if seen not in self._drained:
                drained = lockstep.drain(at + 1)
                if drained is None:
                    self._remember(seen)
            self._oracles.update(lockstep.outcome(at).exercised)
            self._oracles.subtract(before)
            branch = Branch(seen, drained=drained and cleaned(drained))

        failed = saved.branch(go)
        if failed and not branch.violation and not branch.drained:
            return Branch(branch.fingerprint, drained=cleaned(failed))
        return branch

    def _remember(self, fingerprint: int) -> None:
        if len(self._drained) >= DRAINED_MAX:
            self._drained.clear()
        self._drained.add(fingerprint)

    def compare(self, request: Compare, on_event: Callable[[int], None]) -> Compared:
        """Continue two traces both ways, and compare. `on_event` is called before each event."""
        left = Saved(self._factory, request.config, request.left)
        right = Saved(self._factory, request.config, request.right)
        for event in request.branches:
            on_event(len(request.left))
            one, other = (_after(side, event, request.without) for side in (left, right))
            if difference := _difference(one, other):
                return Compared(f"after {msgspec.json.encode(event).decode()}: {difference}")
        on_event(len(request.left))
        one, other = (_drained(side, request.without) for side in (left, right))
        difference = _difference(one, other)
        return Compared(f"when drained: {difference}" if difference else "")


Seen = list[Form | str]
"""The states of a continuation, or the signature of the violation that ended it."""


def _after(saved: Saved, event: AnyEvent, without: frozenset[str]) -> Seen:
    """Return the state after one more event."""
    found: Seen = []

    def go(lockstep: Lockstep) -> None:
        violation = lockstep.apply(event, 0)
        found.append(violation.signature if violation else Form(lockstep, (*saved.events, event), without))

    failed = saved.branch(go)
    return [failed.signature] if failed else found


def _drained(saved: Saved, without: frozenset[str]) -> Seen:
    """Return the states while the trace is drained."""
    found: Seen = []

    def go(lockstep: Lockstep) -> None:
        violation = lockstep.drain(0, lambda _: found.append(Form(lockstep, saved.events, without)))
        found.append(violation.signature if violation else Form(lockstep, saved.events, without))

    failed = saved.branch(go)
    return [failed.signature] if failed else found


def _difference(left: Seen, right: Seen) -> str:
    """Return what differs first: fields of the form, or the verdict."""
    for number, (one, other) in enumerate(zip_longest(left, right, fillvalue="no state")):
        if isinstance(one, Form) and isinstance(other, Form):
            if names := [name for name, value in one.fields.items() if value != other.fields.get(name)]:
                return f"{', '.join(names)} in state {number}"
        elif one != other:
            return " and ".join(each if isinstance(each, str) else "no violation" for each in (one, other))
    return ""
