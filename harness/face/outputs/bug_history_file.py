"""Keeps the bug history of the output folder (`group.bug_history`) up to date while a campaign runs.

It is written within a second of each new finding, so that the history of a killed campaign is as good as that of one
that ended. Merging is idempotent, so a resumed campaign may repeat what it reported before.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from ...campaign_events import CampaignEnded, CampaignEvent, Merged, Retested, Tick
from ...campaign_summary import Finding, Summary
from ...group.bug_history import BugHistory, bug_key, load_bug_history, merge, retried, save_bug_history, without
from ...group.findings.finding_store import OutputError, read_state
from .handler import CampaignInfo

COUNTS_SECONDS = 5.0
"""How often mere changes of counts are written."""


def make_handler(options: argparse.Namespace) -> BugHistoryFile:
    """Return the handler."""
    del options
    return BugHistoryFile()


class BugHistoryFile:
    """Writes triage.json."""

    name = "bug history"

    def __init__(self) -> None:
        self._campaign: CampaignInfo | None = None
        self._history: BugHistory = {}
        self._summary: Summary | None = None
        """The one merged last."""
        self._merged_at = float("-inf")

    def start(self, campaign: CampaignInfo) -> None:
        """Load the history, and merge the state that a killed campaign left."""
        self._campaign = campaign
        self._history = load_bug_history(campaign.out)
        if state := read_state(campaign.out):
            self._merge(state)

    def handle_event(self, event: CampaignEvent) -> None:
        """Merge new findings soon, changed counts now and then, and everything at the end."""
        if isinstance(event, Retested):
            self._retested(event)
        elif isinstance(event, Merged) and self._summary:
            self._save(without(self._history, self._summary, event.name))
        elif isinstance(event, CampaignEnded) or (isinstance(event, Tick) and self._is_due(event.summary)):
            self._merge(event.summary)

    def _is_due(self, summary: Summary) -> bool:
        merged = self._summary.findings if self._summary else ()
        if summary.findings == merged:
            return False
        is_new = [_essence(one) for one in summary.findings] != [_essence(one) for one in merged]
        return is_new or time.monotonic() - self._merged_at >= COUNTS_SECONDS

    def _merge(self, summary: Summary) -> None:
        assert self._campaign
        now = datetime.now(UTC).isoformat(timespec="seconds")
        merged = merge(self._history, summary, self._campaign.known, now)
        self._summary, self._merged_at = summary, time.monotonic()
        self._save(merged)

    def _retested(self, event: Retested) -> None:
        assert self._campaign
        key = bug_key(event.target, event.signature)
        bug = retried(self._history[key], shown=event.shown, tried=event.tried, known=self._campaign.known)
        self._save({**self._history, key: bug})

    def _save(self, history: BugHistory) -> None:
        assert self._campaign
        if history == self._history:
            return
        self._history = history
        try:
            save_bug_history(self._campaign.out, history)
        except OSError as error:
            raise OutputError(f"cannot write the bug history in {self._campaign.out}: {error.strerror}") from error

    def shutdown(self) -> None:
        """Do nothing: the history is written."""


def _essence(finding: Finding) -> tuple[str, int, bool]:
    """Return what makes writing urgent if it changes."""
    return finding.id, finding.events, finding.reduced
