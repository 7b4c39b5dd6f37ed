"""The page: one file without scripts or external resources, for light and dark displays.

`render` has its title and the order of its sections, which `sections` and `findings` make. The template holds no words.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template

from ..harness.draw.trace_files import write_atomically
from ..harness.markup import Markup, Section, join, tag
from ..harness.tell.timeline_svg import stylesheet
from .data import Data
from .findings import findings_section
from .sections import (
    canary_section,
    defaults_section,
    known_section,
    mutants_section,
    nodes_section,
    oracles_section,
    overview,
    rates_section,
    silence_section,
    states_section,
    verdict,
)


def render(data: Data) -> str:
    """Return the whole page."""
    parts: list[Section | None] = []
    badge = None
    if summary := data.summary:
        kind, words = verdict(summary, data.findings)
        badge = tag("span", words, class_=f"verdict {kind}")
        parts = [
            overview(summary),
            findings_section(data.findings),
            known_section(summary.known_bugs),
            canary_section(summary.canary),
            mutants_section(data.rows),
            silence_section(summary, data.samples),
            rates_section(data.samples),
            nodes_section(summary),
            states_section(summary),
            defaults_section(summary),
            oracles_section(summary),
        ]
    else:
        parts = [findings_section(data.findings) if data.findings else None, mutants_section(data.rows)]
    about = [data.folder]
    if data.summary:
        release = data.summary.version
        about = [
            *([f"version {release}"] if release and release not in data.title else []),
            f"seed {data.summary.seed}",
        ]
    sections = [part for part in parts if part]
    header = tag(
        "header", tag("p", "hybridfuzz", class_="brand"), tag("h1", data.title, badge),
        tag("p", " · ".join(about), class_="dim"), _contents(sections),
    )  # fmt: skip
    footer = tag("footer", f"hybridfuzz {_version()} · {data.folder}")
    template = Template(_file("page.html"))
    style = _file("style.css") + stylesheet()
    title = join(f"hybridfuzz: {data.title}")
    main = tag("main", *(section.html() for section in sections))
    return template.substitute(title=title, style=style, body=join(header, main, footer))


def write_report(data: Data, path: Path) -> None:
    """Write the page atomically. Raises OSError."""
    write_atomically(path, render(data).encode())


def _contents(sections: Sequence[Section]) -> Markup:
    return tag("nav", *(tag("a", section.title, href=f"#{section.anchor}") for section in sections))


def _file(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return version("hybridfuzz")
    except PackageNotFoundError:
        return ""
