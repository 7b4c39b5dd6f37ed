"""What an exploration knows: states, how each was reached first, and the failures. No process is started here.

States are numbered as they are met: level by level, each level in the order of its parents and of the alphabet. So
numbers, first traces and the digest do not depend on how many workers there are.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import AnyEvent, Trace
from ..judge.violation import Violation
from .expand import Branch, Compare, Grown, Parent
from .scope import Alphabet, Scope, disturbs

ROOT = -1
SAMPLES = 200
"""States whose trace is kept for `explore --check`."""
ALIKE_MAX = 50
"""Failing traces of one configuration, signature and length that are kept to be told apart by cause, the first ones."""


class Level(Struct, frozen=True):
    """Traces of one length: how many ran (`transitions`), led to a new state, led to one that was seen, and failed."""

    events: int
    transitions: int
    states: int
    merged: int
    failing: int


class Failure(Struct):
    """A failure: the first trace that shows it, a shortest one of the scope, and how many others do."""

    violation: Violation
    trace: Trace
    times: int = 1


class Search:
    """Fed with the branches of each parent, in order."""

    def __init__(self, scope: Scope, capabilities: Capabilities, disturbances: int | None, check_every: int) -> None:
        self.scope = scope
        self.disturbances = disturbances
        self.check_every = check_every
        """Every so many merges are checked, 0 for none."""
        self.alphabets = [Alphabet(scope, config, capabilities) for config in scope.configuration]
        self.levels: list[Level] = []
        self.failures: dict[str, Failure] = {}
        self.failing: list[tuple[Trace, Violation]] = []
        """Failing traces, the shorter ones first, at most `ALIKE_MAX` that are alike."""
        self._alike: Counter[tuple[int, str, int]] = Counter()
        self.merges = 0
        self.to_check: list[Compare] = []
        """Merges of this level that are to be checked."""
        self._seen: dict[int, int] = {}
        """Fingerprint -> the state that was met first, or last if it was met again after fewer disturbances."""
        self._prints = array("Q")
        self._parents = array("l")
        self._events = array("L")
        self._disturbed = array("B")
        self._interned: dict[bytes, int] = {}
        self._alphabet: list[AnyEvent] = []
        self._first = 0
        self._counts = [0, 0, 0, 0]
        for index in range(len(scope.configuration)):
            self._add(0, ROOT - index, 0, 0)
        self._end = len(self._prints)
        self._roots = self._end

    @property
    def states(self) -> int:
        """Return the number of states."""
        return len(self._seen)

    @property
    def transitions(self) -> int:
        """Return how many traces ran, up to now."""
        return sum(level.transitions for level in self.levels) + self._counts[0]

    @property
    def frontier(self) -> range:
        """Return the states that this level continues."""
        return range(self._first, self._end)

    def _add(self, fingerprint: int, parent: int, event: int, disturbed: int) -> int:
        self._prints.append(fingerprint)
        self._parents.append(parent)
        self._events.append(event)
        self._disturbed.append(disturbed)
        return len(self._prints) - 1

    def trace_of(self, state: int) -> tuple[int, tuple[AnyEvent, ...]]:
        """Return the number of the configuration and the events that reached a state first."""
        events = []
        while (parent := self._parents[state]) > ROOT:
            events.append(self._alphabet[self._events[state]])
            state = parent
        return ROOT - parent, tuple(reversed(events))

    def parent(self, state: int) -> Parent:
        """Return what is asked for a state."""
        index, events = self.trace_of(state)
        alphabet = self.alphabets[index]
        left = None if self.disturbances is None else self.disturbances - self._disturbed[state]
        branches = tuple(event for event in alphabet.after(events) if left is None or disturbs(event) <= left)
        contexts = tuple(alphabet.context((*events, event)) for event in branches)
        return Parent(self.scope.configuration[index], events, branches, alphabet.context(events), contexts)

    def take(self, state: int, parent: Parent, grown: Grown) -> str:
        """Take the branches of a state. Return what is wrong if the trace led to another state than before."""
        if state < self._roots:
            self._prints[state] = grown.fingerprint
            self._seen.setdefault(grown.fingerprint, state)
        elif self._prints[state] != grown.fingerprint:
            return f"the same events lead to another state when they run again: {_told(parent.events)}"
        for event, branch in zip(parent.branches, grown.branches, strict=True):
            self._branch(state, parent, event, branch)
        return ""

    def _branch(self, state: int, parent: Parent, event: AnyEvent, branch: Branch) -> None:
        self._counts[0] += 1
        violation = branch.violation or branch.drained
        if violation:
            self._counts[3] += 1
            self._fail(violation, Trace(parent.config, (*parent.events, event), origin="explored"))
        if branch.violation:
            return  # the behaviour after a broken invariant is undefined
        disturbed = self._disturbed[state] + disturbs(event)
        before = self._seen.get(branch.fingerprint)
        if before is not None:
            self._merge(before, parent, event)
            if self.disturbances is None or self._disturbed[before] <= disturbed:
                return
        else:
            self._counts[1] += 1
        number = self._interned.setdefault(msgspec.json.encode(event), len(self._alphabet))
        if number == len(self._alphabet):
            self._alphabet.append(event)
        self._seen[branch.fingerprint] = self._add(branch.fingerprint, state, number, disturbed)

    def _fail(self, violation: Violation, trace: Trace) -> None:
        failure = self.failures.get(violation.signature)
        if failure:
            failure.times += 1
        else:
            self.failures[violation.signature] = Failure(violation, trace)
        alike = self.scope.configuration.index(trace.config), violation.signature, len(trace.events)
        self._alike[alike] += 1
        if self._alike[alike] <= ALIKE_MAX:
            self.failing.append((trace, violation))

    def _merge(self, before: int, parent: Parent, event: AnyEvent) -> None:
        self._counts[2] += 1
        self.merges += 1
        if self.check_every and self.merges % self.check_every == 0:
            index, events = self.trace_of(before)
            longer = (*parent.events, event)
            branches = tuple(self.alphabets[index].after(longer))
            self.to_check.append(Compare(parent.config, events, longer, branches))

    def end_level(self) -> Level:
        """End a level; the states that are new are the next frontier."""
        level = Level(len(self.levels) + 1, *self._counts)
        self.levels.append(level)
        self._counts = [0, 0, 0, 0]
        self._first, self._end = self._end, len(self._prints)
        self.to_check = []
        return level

    def collision_chance(self) -> float:
        """Return the chance that two of the states have one fingerprint of 64 bits, n^2 / 2^65."""
        return float(self.states) ** 2 / 2.0**65

    def sample(self) -> Iterator[tuple[int, tuple[AnyEvent, ...], int]]:
        """Yield some states: configuration, events, fingerprint."""
        count = len(self._prints)
        for index in range(min(SAMPLES, count)):
            state = index * count // min(SAMPLES, count)
            if self._prints[state]:
                yield (*self.trace_of(state), self._prints[state])

    def digest(self, more: Iterable[object]) -> str:
        """Return a digest of all states in their order, of the levels, of the failures, and of `more`."""
        digest = hashlib.sha256(self._prints.tobytes())
        failures: Mapping[str, int] = {name: failure.times for name, failure in self.failures.items()}
        for part in (self.levels, failures, self.merges, *more):
            digest.update(msgspec.json.encode(part))
        return digest.hexdigest()


def _told(events: Sequence[AnyEvent]) -> str:
    return msgspec.json.encode(events).decode()
