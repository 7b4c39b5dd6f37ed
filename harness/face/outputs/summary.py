"""The summary of a campaign as one JSON object, the last line on standard output: `--json`."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from ...campaign_events import CampaignEnded, CampaignEvent
from ...campaign_summary import Summary
from ...group.bug_history import bugs_of, load_bug_history
from ...risk.estimates import estimate
from .handler import CampaignInfo


def make_handler(options: argparse.Namespace) -> JsonSummary | None:
    """Return the handler for --json."""
    return JsonSummary() if options.json else None


def as_json(summary: Summary) -> dict[str, object]:
    """Return everything of the summary, the rate, and estimates of what is left: the keys that scripts may rely on."""
    risk = msgspec.to_builtins(estimate(summary.seen))
    return {**msgspec.to_builtins(summary), "steps_per_second": round(summary.steps_per_second, 1), "risk": risk}


class JsonSummary:
    """Prints the summary and the bugs that the campaign met."""

    name = "--json"

    def __init__(self) -> None:
        self._campaign: CampaignInfo | None = None

    def start(self, campaign: CampaignInfo) -> None:
        """Remember the folder."""
        self._campaign = campaign

    def handle_event(self, event: CampaignEvent) -> None:
        """Print one line after the last event."""
        if isinstance(event, CampaignEnded):
            assert self._campaign
            history = load_bug_history(self._campaign.out)
            bugs = bugs_of(history, event.summary)
            line = {**as_json(event.summary), "bugs": msgspec.to_builtins(bugs)}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    def shutdown(self) -> None:
        """Do nothing: the line is printed."""
