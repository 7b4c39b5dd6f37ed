"""Writes the page of a campaign, OUT/report.html, when it ends."""

from __future__ import annotations

import argparse

from ..harness.campaign_events import CampaignEnded, CampaignEvent
from ..harness.face.outputs.handler import CampaignInfo
from ..harness.group.findings.finding_store import STATE_FILE, OutputError
from .data import load_folder
from .page import write_report

PAGE = "report.html"


def make_handler(options: argparse.Namespace) -> ReportPage:
    """Return the handler."""
    del options
    return ReportPage()


class ReportPage:
    """Writes the page from what the other handlers have left in the folder, so it comes after them."""

    name = "report"

    def __init__(self) -> None:
        self._campaign: CampaignInfo | None = None

    def start(self, campaign: CampaignInfo) -> None:
        """Remember the folder."""
        self._campaign = campaign

    def handle_event(self, event: CampaignEvent) -> None:
        """Write the page after the last event."""
        if isinstance(event, CampaignEnded):
            assert self._campaign
            page = self._campaign.out / PAGE
            if not (self._campaign.out / STATE_FILE).exists():  # no worker was ever ready: there is nothing to show
                return
            try:
                write_report(load_folder(self._campaign.out), page)
            except OSError as error:
                raise OutputError(f"cannot write {page}: {error.strerror}") from error

    def shutdown(self) -> None:
        """Do nothing: the page is written."""
