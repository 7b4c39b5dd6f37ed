"""How much a finding matters: what a client gets, and how near a server as it comes is to one that fails.

effect  what a client gets: as the broken rule declares it (`judge.oracles.rules.Client`), and as a run of the trace
        to its end shows it (`record.answers`)
reach   what has to be set otherwise than on the stock server of the target, found by running (`measured_reach`)
level   `TABLE`, by both
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import structs

from ...campaign_summary import Effect, Finding, Level, Reach, Severity
from ...judge.oracles import client_of
from ...judge.violation import Violation
from ...record.answers import Answers

USUAL_MAX = 2
"""Settings that many servers have: one more is as far as one that few have."""
RARE_MAX = 2
"""Settings of a set with one that few servers have, itself included."""
Distance = Literal["stock", "usual", "rare", "far"]
"""From the stock server: nothing is set; at most two settings that many servers have; one that few servers have with at
most one more, or three that many have; any other combination. An implementation that is not the default is a setting
that few servers have."""
TABLE: Mapping[Effect, Mapping[Distance, Level]] = {
    "wrong tokens": {"stock": "P0", "usual": "P1", "rare": "P2", "far": "P3"},
    "corrupt cache": {"stock": "P1", "usual": "P2", "rare": "P3", "far": "P3"},
    "dead engine": {"stock": "P1", "usual": "P1", "rare": "P2", "far": "P3"},
    "hang": {"stock": "P1", "usual": "P2", "rare": "P2", "far": "P3"},
    "failed call": {"stock": "P2", "usual": "P2", "rare": "P3", "far": "P3"},
    "leak": {"stock": "P2", "usual": "P2", "rare": "P3", "far": "P3"},
    "slower": {"stock": "P3", "usual": "P3", "rare": "P3", "far": "P3"},
}
"""Severity by what a client gets and by how far from the stock server.

P0  silent wrong tokens, or another user's content, on the stock server
P1  the same, or a dead engine, with settings that many servers have; on the stock server a corrupt cache, a dead engine
    or a hang
P2  wrong tokens, a dead engine or a hang with a setting that few servers have; with settings that many have a corrupt
    cache or a hang; there or on the stock server a leak, or a call that fails
P3  lost cache hits; a corrupt cache or a leak with a setting that few servers have; anything further from the stock
    server

A corrupt cache that no client has seen counts one level less than wrong tokens that one has. There is no severity
without a declared stock server.
"""


RECEIVED = frozenset({"prompt-logprobs", "sent"})
"""Fields of violations that are wrong answers themselves, whatever tokens their clients receive, or wrong content from
which another server answers."""


def effect_of(violation: Violation, answers: Answers, declines: Collection[str] = ()) -> Effect:
    """Return what a client gets: the worst of what a run to the end shows, else what the broken rule declares.
    `declines`: kinds of events whose exceptions the engine answers with an error (`Deployment.declines`).

    Where clients receive the right tokens although the rule says that they may not, the cache is corrupt. An exception
    after the violation changes nothing: after a broken invariant it may as well be the adapter's.
    """
    declared = client_of(violation)
    if declared == "dead engine" and violation.event_kind in declines:
        return "failed call"
    if violation.field in RECEIVED or any(row.wrong_from >= 0 for row in answers.rows):
        return "wrong tokens"
    if declared != "dead engine" and any(row.end == "not finished" for row in answers.rows):
        return "hang"
    return "corrupt cache" if declared == "wrong tokens" and answers.rows else declared


def distance_of(reach: Reach) -> Distance:
    """Return how far a server that fails is from the stock server."""
    if not reach.needs:
        return "stock"
    if len(reach.rare) > 1 or len(reach.needs) > (RARE_MAX if reach.rare else USUAL_MAX + 1):
        return "far"
    return "rare" if reach.rare or len(reach.needs) > USUAL_MAX else "usual"


def level_of(effect: Effect, reach: Reach) -> Level:
    """Return the severity of what a client gets, at the reach of a trace."""
    return TABLE[effect][distance_of(reach)] if effect else ""


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by severity, those that the default implementation shows first; otherwise in their order."""
    return sorted(findings, key=rank)


def rank(finding: Finding) -> tuple[bool, str]:
    """Return the place of a finding among others, lower for one that matters more. One whose severity is unknown
    stands behind those of P1."""
    return order(severity_known(finding))


def severity_known(finding: Finding) -> Severity | None:
    """Return the severity of a finding: its own, or that of the known bug that explains it; None for neither."""
    return finding.severity or (finding.cause.severity if finding.cause else None)


def is_on_default(finding: Finding) -> bool:
    """Return False if a finding shows only on an implementation that is not the default."""
    return not rank(finding)[0]


def joined(measured: Iterable[Severity | None]) -> Severity | None:
    """Return the severity of a cause from those of its traces: the highest, of the one that needs least. A cause fails
    wherever one of its traces does. None without any."""
    known = [one for one in measured if one]
    if not known:
        return None
    best = min(known, key=lambda one: (*order(one), len(one.reach.needs) if one.reach else 0))
    if best.reach is None:
        return best
    reaches = [one.reach for one in known if one.reach]
    reach = structs.replace(
        best.reach,
        scheduling=_anywhere([one.scheduling for one in reaches]),
        implementations=_anywhere([one.implementations for one in reaches]),
        runs=sum(one.runs for one in reaches),
    )
    return structs.replace(best, reach=reach)


def _anywhere(results: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    """Return where one of several traces fails."""
    names = dict.fromkeys(name for each in results for name in each)
    return {name: any(each.get(name) for each in results) for name in names}


def order(severity: Severity | None) -> tuple[bool, str]:
    """Return the place of a severity among others, as `rank` does."""
    known = severity or Severity("", "")
    return known.reach is not None and not known.reach.is_on_default, known.level or "P1?"


def severity_words(severity: Severity) -> str:
    """Return a severity in one line: "P1, wrong tokens; needs --speculative-config; ..."."""
    head = ", ".join(filter(None, (severity.level, severity.effect or "the engine was not tested")))
    if severity.reach is None:
        return head + (f"; reach not measured: {severity.unmeasured}" if severity.unmeasured else "")
    return f"{head}; {reach_words(severity.reach)}"


def reach_words(reach: Reach, stock: str = "on the stock server") -> str:
    """Return a reach in one line: "needs --speculative-config; synchronous scheduling". `stock`: it needs nothing."""
    return "; ".join(_reach_words(reach, stock))


def _reach_words(reach: Reach, stock: str) -> Iterator[str]:
    needs = [f"{name} (not tried without)" if name in reach.untried else name for name in reach.needs]
    yield f"needs {', '.join(needs)}" if needs else stock
    yield from where(reach.scheduling, "scheduling")
    yield from where(reach.implementations, "")
    if not reach.is_complete:
        yield "not all settings were tried"


def where(results: Mapping[str, bool], noun: str) -> Iterator[str]:
    """Yield where a trace fails and where it does not, in words; nothing if that is one place."""
    fails = [name for name, failed in results.items() if failed]
    passes = [name for name, failed in results.items() if not failed]
    if len(results) > 1 and fails:
        silent = f", not {' or '.join(passes)}" if passes else ""
        yield " ".join(filter(None, (" and ".join(fails) + silent, noun)))
