"""Finds the releases that show a failure: one trace, several releases, as few of them as are needed.

The ends are tried first, then the middle between two neighbours that differ. A release that cannot be installed,
refuses the configuration, or fails in another way first does not decide; its neighbours are tried instead. Nothing is
concluded about a release that was not tried.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ...targets.base.protocol import TargetError
from ...targets.base.trace import TraceError
from ..traces.outcome import Outcome

State = Literal["bad", "good", "other", "not applicable"]
Attempt = Callable[[str], Outcome]
"""Runs the trace on a release. Raises TargetError or TraceError if that is impossible."""


class Tried(Struct, frozen=True):
    """One release. `detail`: its message, or the reason why it could not be tested."""

    release: str
    state: State
    detail: str = ""
    signature: str = ""
    seconds: float = 0.0


class Change(Struct, frozen=True):
    """Two releases, one of them bad and one good, with nothing decisive tried between them; `open` were not tried."""

    before: str
    after: str
    kind: Literal["introduced", "fixed"]
    open: Sequence[str] = ()


def bisect(releases: Sequence[str], signature: str, attempt: Attempt, *, everything: bool = False) -> Iterator[Tried]:
    """Yield each release as it is tried; all of them if `everything`."""
    tried: dict[str, Tried] = {}
    while (release := _next(releases, tried, everything)) is not None:
        tried[release] = _try(release, signature, attempt)
        yield tried[release]


def changes(releases: Sequence[str], tried: Mapping[str, Tried]) -> list[Change]:
    """Return the places where good turns into bad or bad into good."""
    decisive = [release for release in releases if _decides(tried, release)]
    found = []
    for before, after in itertools.pairwise(decisive):
        if tried[before].state != tried[after].state:
            between = releases[releases.index(before) + 1 : releases.index(after)]
            left = [release for release in between if release not in tried]
            kind: Literal["introduced", "fixed"] = "introduced" if tried[after].state == "bad" else "fixed"
            found.append(Change(before, after, kind, left))
    return found


def _next(releases: Sequence[str], tried: Mapping[str, Tried], everything: bool) -> str | None:
    untried = [release for release in releases if release not in tried]
    if everything or not untried:
        return untried[0] if untried else None
    decisive = [index for index, release in enumerate(releases) if _decides(tried, release)]
    # The ends first; if an end decides nothing, its neighbour.
    if not decisive or any(release in untried for release in releases[: decisive[0]]):
        return untried[0]
    if tail := [release for release in releases[decisive[-1] + 1 :] if release in untried]:
        return tail[-1]
    for first, last in itertools.pairwise(decisive):
        between = [release for release in releases[first + 1 : last] if release in untried]
        if between and tried[releases[first]].state != tried[releases[last]].state:
            return between[len(between) // 2]
    return None


def _decides(tried: Mapping[str, Tried], release: str) -> bool:
    return release in tried and tried[release].state in ("bad", "good")


def _try(release: str, signature: str, attempt: Attempt) -> Tried:
    began = time.monotonic()
    try:
        violation = attempt(release).violation
    except (TargetError, TraceError) as error:
        return Tried(release, "not applicable", str(error), seconds=time.monotonic() - began)
    seconds = time.monotonic() - began
    if violation is None:
        return Tried(release, "good", "clean", seconds=seconds)
    state: State = "bad" if violation.signature == signature else "other"
    return Tried(release, state, violation.message, violation.signature, seconds)
