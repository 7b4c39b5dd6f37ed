"""A campaign on the page of a GitHub workflow's run: verdict, findings, and what its silence is worth."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ...campaign_events import CampaignEnded, CampaignEvent
from ...campaign_summary import Summary
from ...group.findings.finding_store import title_line
from ...quoting import markdown_text
from ...tell.github_step_summary import append_section, step_summary
from ...tell.silence import silence_lines
from .console import verdict
from .handler import CampaignInfo

FINDINGS_SHOWN = 50
"""GitHub cuts a page of more than a megabyte."""


def make_handler(options: argparse.Namespace) -> JobSummary | None:
    """Return the handler if there is such a page."""
    del options
    return JobSummary(page) if (page := step_summary()) else None


class JobSummary:
    """Appends to the page, which other steps write to as well."""

    name = "job summary"

    def __init__(self, page: Path) -> None:
        self._page = page

    def start(self, campaign: CampaignInfo) -> None:
        """Do nothing: all is in the summary."""

    def handle_event(self, event: CampaignEvent) -> None:
        """Append after the last event."""
        if isinstance(event, CampaignEnded):
            append_section(self._page, f"hybridfuzz fuzz: {event.summary.target}", paragraphs(event.summary))

    def shutdown(self) -> None:
        """Do nothing: the page is written."""


def paragraphs(summary: Summary) -> Iterator[str]:
    """Yield what the page says of a campaign."""
    yield markdown_text(verdict(summary).plain.strip())
    yield "\n".join(f"- {markdown_text(title_line(one))}" for one in summary.findings[:FINDINGS_SHOWN])
    yield from map(markdown_text, silence_lines(summary.seen))
