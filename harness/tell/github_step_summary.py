"""The page of a GitHub workflow's run: every step of it appends a section of Markdown.

What stands in a section is made by `face.outputs.job_summary` for a campaign, by `gate.job_summary` for the gate.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..group.findings.finding_store import OutputError
from ..quoting import markdown_text

VARIABLE = "GITHUB_STEP_SUMMARY"


def step_summary() -> Path | None:
    """Return the page's file, None outside of a workflow."""
    return Path(path) if (path := os.environ.get(VARIABLE)) else None


def append_section(page: Path, title: str, paragraphs: Iterable[str]) -> None:
    """Append a section with a title, which is text, and paragraphs of Markdown; empty ones are left out.

    Raises OutputError.
    """
    parts = [f"## {markdown_text(title)}", *filter(None, paragraphs)]
    try:
        with page.open("a", encoding="utf-8") as file:
            file.write("\n\n".join(parts) + "\n\n")
    except OSError as error:
        raise OutputError(f"cannot write to {page}: {error.strerror}") from error
