"""Finds the releases that show a failure: one trace, several releases, as few of them as are needed.

A release that is known to fail is tried first, then the ends, then the middle between two neighbours that differ. As
long as no release fails in the way that is looked for, the middle of the largest gap is tried. A release that fails in
another way does not tell whether it has the bug; the place where one failure gives way to another is looked for all
the same. Releases that cannot be installed, refuse the configuration or do not fit the adapter are stepped over, at
both ends by halving, as a configuration that one release refuses is taken to be refused by those beyond it. Nothing is
concluded about a release that was not tried.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace, TraceError
from ..draw.trace_files import file_name
from ..judge.outcome import Outcome
from ..judge.target_exception import misfit
from ..workers.messages import Ported

State = Literal["bad", "good", "other", "not applicable"]
Attempt = Callable[[str], Outcome]
"""Runs the trace on a release. Raises TargetError or TraceError if that is impossible."""
Kind = Literal["introduced", "fixed", "other"]


class Runner(Protocol):
    """The part of a worker that an attempt uses."""

    def run(self, trace: Trace) -> Outcome:
        """Run a trace."""
        ...

    def port(self, trace: Trace) -> Ported:
        """Return the nearest trace that the target takes."""
        ...


class Nearest:
    """Runs a trace on releases. One that refuses it gets the nearest trace that it takes (`draw.adapt`).

    That trace is decisive if it fails in the way that is looked for. Otherwise it is only if it does on a release where
    the trace itself does: what was left out may be what the failure needs. `changes` are those that were made.
    """

    def __init__(self, trace: Trace, signature: str, started: Callable[[str], AbstractContextManager[Runner]]) -> None:
        self.changes: dict[str, Sequence[str]] = {}
        self._trace = trace
        self._signature = signature
        self._started = started
        self._bad = ""
        self._shows: dict[bytes, bool] = {}
        """Whether a nearest trace fails on the bad release."""

    def __call__(self, release: str) -> Outcome:
        """Run the trace on a release. Raises TraceError if neither it nor a decisive one can run."""
        with self._started(release) as worker:
            try:
                outcome = worker.run(self._trace)
            except TraceError as error:
                refusal = str(error)
            else:
                if not self._bad and self._is_it(outcome):
                    self._bad, self._signature = release, outcome.violation.signature if outcome.violation else ""
                return outcome
            near = worker.port(self._trace)
            outcome = worker.run(near.trace)
        if not self._is_it(outcome) and not self._fails_where_bad(near.trace):
            left_out = "; ".join(near.changes)
            raise TraceError(f"{refusal}; the nearest trace shows the failure on no other release ({left_out})")
        self.changes[release] = near.changes
        return outcome

    def _is_it(self, outcome: Outcome) -> bool:
        violation = outcome.violation
        wanted = self._signature
        return violation is not None and (not wanted or file_name(violation.signature) == file_name(wanted))

    def _fails_where_bad(self, trace: Trace) -> bool:
        if not self._bad:
            return False
        key = msgspec.msgpack.encode((trace.config, trace.events))
        if key not in self._shows:
            with self._started(self._bad) as worker:
                try:
                    self._shows[key] = self._is_it(worker.run(trace))
                except TraceError:
                    self._shows[key] = False
        return self._shows[key]


class Tried(Struct, frozen=True):
    """One release. `detail`: its message, or the reason why it could not be tested."""

    release: str
    state: State
    detail: str = ""
    signature: str = ""
    seconds: float = 0.0


class ReleaseChange(Struct, frozen=True):
    """Two releases that differ, with nothing between them that fails or passes; `open` were not tried.

    `kind` is "other" if one of them is bad and the other one fails in another way.
    """

    before: str
    after: str
    kind: Kind
    open: Sequence[str] = ()


def bisect(
    releases: Sequence[str], signature: str, attempt: Attempt, *, first: str = "", everything: bool = False
) -> Iterator[Tried]:
    """Yield each release as it is tried, `first` at the beginning; all of them if `everything`.

    Without a signature the first failure is the one that is looked for. One that is the name of a file may have
    characters replaced (`draw.trace_files.file_name`).
    """
    tried: dict[str, Tried] = {}
    while (release := _next(releases, tried, first, everything)) is not None:
        tried[release] = _try(release, signature, attempt)
        signature = signature or tried[release].signature
        yield tried[release]


def changes(releases: Sequence[str], tried: Mapping[str, Tried]) -> list[ReleaseChange]:
    """Return the places where good turns into bad or bad into good, and those between bad and another failure."""
    found = []
    for states in (("bad", "good"), ("bad", "other", "good")):
        known = [release for release in releases if release in tried and tried[release].state in states]
        for before, after in itertools.pairwise(known):
            ends = {tried[before].state, tried[after].state}
            if ends == ({"bad", "good"} if len(states) == 2 else {"bad", "other"}):
                between = releases[releases.index(before) + 1 : releases.index(after)]
                kind: Kind = "other" if "other" in ends else "fixed" if tried[before].state == "bad" else "introduced"
                found.append(
                    ReleaseChange(before, after, kind, [release for release in between if release not in tried])
                )
    return sorted(found, key=lambda change: releases.index(change.before))


def _next(releases: Sequence[str], tried: Mapping[str, Tried], first: str, everything: bool) -> str | None:
    untried = [release for release in releases if release not in tried]
    if everything or not untried:
        return untried[0] if untried else None
    for release in (first, releases[0], releases[-1]):
        if release in untried:
            return release
    if all(one.state != "bad" for one in tried.values()):
        return _middle(max(_gaps(releases, tried), key=len))
    known = [index for index, release in enumerate(releases) if _ran(tried, release)]
    for left, right in itertools.pairwise(known):
        between = [release for release in releases[left + 1 : right] if release in untried]
        if between and tried[releases[left]].state != tried[releases[right]].state:
            return _middle(between)
    # Beyond the outermost releases that ran: as far as the next one that was refused, unless no release is good.
    is_any_good = any(one.state == "good" for one in tried.values())
    stops = [index for index, release in enumerate(releases) if release in tried and not _ran(tried, release)]
    left = max((index for index in stops if index < known[0] and is_any_good), default=-1)
    right = min((index for index in stops if index > known[-1] and is_any_good), default=len(releases))
    for edge, beyond in ((known[0], releases[left + 1 : known[0]]), (known[-1], releases[known[-1] + 1 : right])):
        between = [release for release in beyond if release in untried]
        if between and tried[releases[edge]].state != "good":
            return _middle(between)
    return None


def _gaps(releases: Sequence[str], tried: Mapping[str, Tried]) -> list[list[str]]:
    """Return the runs of neighbouring releases that were not tried."""
    return [list(run) for is_tried, run in itertools.groupby(releases, lambda one: one in tried) if not is_tried]


def _middle(releases: Sequence[str]) -> str:
    return releases[len(releases) // 2]


def _ran(tried: Mapping[str, Tried], release: str) -> bool:
    return release in tried and tried[release].state != "not applicable"


def _try(release: str, signature: str, attempt: Attempt) -> Tried:
    began = time.monotonic()
    try:
        violation = attempt(release).violation
    except (TargetError, TraceError) as error:
        return Tried(release, "not applicable", str(error), seconds=time.monotonic() - began)
    seconds = time.monotonic() - began
    if violation is None:
        return Tried(release, "good", "clean", seconds=seconds)
    if lacking := misfit(violation):
        return Tried(release, "not applicable", f"the adapter does not fit: {lacking}", seconds=seconds)
    is_it = not signature or file_name(violation.signature) == file_name(signature)
    state: State = "bad" if is_it else "other"
    return Tried(release, state, violation.message, violation.signature, seconds)
