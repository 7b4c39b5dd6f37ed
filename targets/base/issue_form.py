"""The form by which an engine's tracker takes a bug report: its headings, and what of a report stands under each.

REPORT.md has these headings in this order, so that it is pasted section by section (`harness/tell/bug_report.py`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Part = Literal["bug", "server", "cause", "reproduction", "expected", "more", "environment"]
"""
bug           what a client gets, with which settings
server        the command of a server with them
cause         why, with the lines of the engine; what a patch changes
reproduction  the requests, and how to run them
expected      what each client should receive and what it receives; controls
more          everything else, collapsed; related reports
environment   versions, and the output of the engine's own tool
"""


class Section(Struct, frozen=True):
    """A heading of a form, "" for none, with `text` of ours in Markdown and `parts` of a report under it."""

    heading: str
    parts: tuple[Part, ...] = ()
    text: str = ""


class Form(Struct, frozen=True):
    """A form for bugs.

    sections  its headings, in its order
    title     what it puts before the title of a report
    collects  the command whose output it asks for, "" for none
    """

    sections: tuple[Section, ...]
    title: str = ""
    collects: str = ""


PLAIN = Form(
    (
        Section("Describe the bug", ("bug", "cause")),
        Section("Reproduction", ("reproduction", "server")),
        Section("Expected behavior", ("expected", "more")),
        Section("Environment", ("environment",)),
    )
)
"""For an engine without one."""
COMMENT = Form(
    (
        Section("", ("bug",)),
        Section("Reproduction", ("reproduction",)),
        Section("Expected and received", ("expected",)),
        Section("Cause", ("cause",)),
        Section("More", ("more",)),
        Section("Environment", ("environment",)),
    )
)
"""For a defect that is public already: what is said about it is a comment there, not a form."""
