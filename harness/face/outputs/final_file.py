"""A handler that writes one file when the campaign ends; JUnit and SARIF are made of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ...campaign_events import CampaignEnded, CampaignEvent
from ...campaign_summary import Summary
from ...draw.trace_files import write_atomically
from ...group.findings.finding_store import OutputError
from .handler import CampaignInfo


class FinalFile:
    """Writes `render(summary)` to `path` after the last event. `name` is the option that asked for it."""

    def __init__(self, name: str, path: Path, render: Callable[[Summary], bytes]) -> None:
        self.name = name
        self.path = path
        self._render = render

    def start(self, campaign: CampaignInfo) -> None:
        """Raise OutputError unless the file can be written: before the first trace, not after the last."""
        if self.path.is_dir():
            raise OutputError(f"cannot write {self.path}: it is a folder")
        try:
            with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=self.path.name):  # as it will be written
                pass
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from error

    def handle_event(self, event: CampaignEvent) -> None:
        """Write the file after the last event."""
        if isinstance(event, CampaignEnded):
            try:
                write_atomically(self.path, self._render(event.summary))
            except OSError as error:
                raise OutputError(f"cannot write {self.path}: {error.strerror}") from error

    def shutdown(self) -> None:
        """Do nothing: the file is written."""
