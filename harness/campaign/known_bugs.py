"""Known bugs in the course of a campaign: their verdicts, how many failing traces they covered, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import sqrt

from msgspec import structs

from ..campaign_summary import Finding, KnownBug, Summary
from ..group.known.fixes import Fixes, check, verdict_on
from ..group.known.known_toml import Known
from ..units import plural
from ..workers.worker_client import WorkerClient

FACTOR = 2.0
"""A share that is this many times as large as in the last campaign, or as small, is a reason to look."""
DEVIATIONS = 4.0
"""And the difference has to be this many standard deviations: few traces prove nothing."""


class KnownBugs:
    """The entries for one campaign. Used from several threads: each verdict is replaced in one go."""

    def __init__(self, fixes: Fixes | None, last: Summary | None) -> None:
        self.fixes = fixes
        self._last = last
        entries = fixes.entries if fixes else ()
        self._bugs = {
            entry.title: verdict_on(entry, fixes.problems.get(entry.title, ""), failed=0, ran=0)
            for entry in entries
            if fixes
        }

    @property
    def notices(self) -> Iterator[str]:
        """One line for each patch that does not fit."""
        for title, problem in (self.fixes.problems if self.fixes else {}).items():
            yield f"known bug {title}: {problem}; the campaign runs without this patch"

    def check(self, worker: WorkerClient) -> Iterator[KnownBug]:
        """Run the traces of all entries on the unpatched target, and yield verdicts. Raises what a worker raises."""
        if not self.fixes or not any(entry.traces for entry in self.fixes.entries):
            return
        worker.start()
        for bug in check(self.fixes.entries, self.fixes.problems, worker):
            self._bugs[bug.name] = bug
            yield bug

    def reports(self, findings: Iterable[Finding], traces: int) -> list[KnownBug]:
        """Return all entries with the numbers of failing traces that they covered so far."""
        if not self.fixes:
            return []
        met = [finding for finding in findings if finding.known]
        acknowledged = self.fixes.acknowledged
        covered = {entry.title: 0 for entry in self.fixes.entries}
        for finding in met:
            if entry := _of(acknowledged, finding):
                covered[entry.title] += finding.count
        entries = {entry.title: entry for entry in acknowledged}
        return [
            structs.replace(bug, covered=covered[name], warning=self._warning(entries.get(name), covered[name], traces))
            for name, bug in self._bugs.items()
        ]

    def _warning(self, entry: Known | None, covered: int, traces: int) -> str:
        """Return why an entry that goes by signatures should not be relied on; empty if there is no reason."""
        if entry is None or not entry.is_bare:
            return ""
        warnings = []
        if entry.expires is None:
            warnings.append("it goes by signatures alone, which hides other bugs, and has no date in expires")
        before = next((bug for bug in self._last.known_bugs if bug.name == entry.title), None) if self._last else None
        if self._last and before and differs(before.covered, self._last.traces, covered, traces):
            then = f"{before.covered:,} of {plural(self._last.traces, 'trace')}"
            warnings.append(f"its share has changed: {then} last time, {covered:,} of {plural(traces, 'trace')} now")
        return "; ".join(warnings)


def _of(entries: Sequence[Known], finding: Finding) -> Known | None:
    """Return the entry that acknowledged a finding."""
    fitting = [entry for entry in entries if entry.reason == finding.known]
    return next((entry for entry in fitting if finding.signature in entry.signatures), fitting[0] if fitting else None)


def differs(before: int, traces_before: int, now: int, traces_now: int) -> bool:
    """Return True if two shares of traces differ by `FACTOR` and by `DEVIATIONS` (two-proportion z-test)."""
    if not traces_before or not traces_now:
        return False
    first, second = before / traces_before, now / traces_now
    pooled = (before + now) / (traces_before + traces_now)
    deviation = sqrt(pooled * (1 - pooled) * (1 / traces_before + 1 / traces_now))
    far = abs(first - second) > DEVIATIONS * deviation
    return far and max(first, second) >= FACTOR * min(first, second)
