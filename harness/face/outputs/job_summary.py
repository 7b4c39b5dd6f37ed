"""A campaign on the page of a GitHub workflow's run: verdict, findings, and what its silence is worth."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ...campaign_events import CampaignEnded, CampaignEvent, Summary
from ...group.finding_store import OutputError, title_line
from ...quoting import markdown_text
from ...tell.silence import silence_lines
from .console import verdict
from .handler import CampaignInfo

VARIABLE = "GITHUB_STEP_SUMMARY"
FINDINGS_SHOWN = 50
"""GitHub cuts a page of more than a megabyte."""


def make_handler(options: argparse.Namespace) -> JobSummary | None:
    """Return the handler if there is such a page."""
    del options
    return JobSummary(Path(path)) if (path := os.environ.get(VARIABLE)) else None


class JobSummary:
    """Appends to the page, which other steps write to as well."""

    name = "job summary"

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, campaign: CampaignInfo) -> None:
        """Do nothing: all is in the summary."""

    def handle_event(self, event: CampaignEvent) -> None:
        """Append after the last event."""
        if isinstance(event, CampaignEnded):
            try:
                with self._path.open("a", encoding="utf-8") as page:
                    page.write(markdown(event.summary))
            except OSError as error:
                raise OutputError(f"cannot write to {self._path}: {error.strerror}") from error

    def shutdown(self) -> None:
        """Do nothing: the page is written."""


def markdown(summary: Summary) -> str:
    """Return the section of a campaign."""
    heading, said = f"## hybridfuzz fuzz: {markdown_text(summary.target)}", verdict(summary).plain.strip()
    found = "\n".join(f"- {markdown_text(title_line(one))}" for one in summary.findings[:FINDINGS_SHOWN])
    parts = [heading, markdown_text(said), found, *map(markdown_text, silence_lines(summary.seen))]
    return "\n\n".join(filter(None, parts)) + "\n"
