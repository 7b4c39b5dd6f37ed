"""A handler of a campaign's events: one line in a file for each new finding, as it is found.

    hybridfuzz fuzz --time 60s --announce found.txt

add-an-output.md describes how a package registers this module.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hybridfuzz.harness.campaign_events import CampaignEvent, Found
from hybridfuzz.harness.face.outputs.handler import CampaignInfo


class Announcer:
    """Appends to a file; an OSError (a full disk) costs the campaign this handler alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._target = ""

    def start(self, campaign: CampaignInfo) -> None:
        """Remember the target; a file that cannot be opened ends the command with exit status 2."""
        self._target = campaign.target
        self._path.touch()

    def handle_event(self, event: CampaignEvent) -> None:
        """Write a line for a finding that known.toml does not acknowledge."""
        if isinstance(event, Found) and not event.finding.known:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{self._target}: {event.finding.signature}: {event.finding.message}\n")

    def shutdown(self) -> None:
        """Do nothing: every line is on disk."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument("--announce", type=Path, metavar="FILE", help="append a line for each new finding")


def make_handler(options: argparse.Namespace) -> Announcer | None:
    """Return the handler, None without --announce."""
    return Announcer(options.announce) if options.announce else None
