"""One page for each cause, and the tables of causes: from `known.toml`, the traces, the texts, the patches, and the
severities that `hybridfuzz known severity` measured.

    python docs/cause_pages.py --write    # writes the tables into the pages that have their markers

A cause is told once: `corpus/ENGINE/fixes/RELEASE/SLUG.md` with a title, a table of fields and the mechanism, beside
`SLUG.patch` if a release of the engine takes patches. Pages link to that file, so links work in a checkout. MkDocs
loads this module as a hook: it adds the page `causes/ENGINE/RELEASE/SLUG.md` (text, traces, patch) to the site, and
turns those links to it. Pages are not kept.

`tests/test_docs.py` fails when a table shows anything else, or a text lacks a field, a patch, or an entry.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hybridfuzz.harness.campaign_summary import Severity
from hybridfuzz.harness.draw.trace_files import read_json
from hybridfuzz.harness.group.findings.severity import severity_words
from hybridfuzz.harness.group.known.cause_text import parse_cause_text
from hybridfuzz.harness.group.known.fixes import KNOWN_FILE
from hybridfuzz.harness.group.known.known_toml import load_known
from hybridfuzz.harness.group.known.recognition import SEVERITIES

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
CORPUS = DOCS.parent / "corpus"
REQUIRED = ("client", "where", "needs", "public")
OPTIONAL = ("severity", "GPU", "same", "adds", "also")
TABLES = re.compile(r"<!-- causes (\S+) (\S+): begin[^>]*-->\n.*?<!-- causes: end -->", re.DOTALL)
LINK = re.compile(r"\]\((?:\.\./)+corpus/(\w+)/fixes/([\w.]+)/([\w-]+)\.md\)")
CAPTION = {"vllm": "runner", "sglang": "where", "transformers": "families", "llamacpp": "part"}
"""What the field `where` names."""
BINARIES = frozenset({"llamacpp"})
"""Engines whose releases are binaries: no patch applies to them."""


@dataclass(frozen=True)
class Cause:
    """The text of one cause."""

    path: Path
    title: str
    fields: dict[str, str]
    text: str

    @property
    def engine(self) -> str:
        return self.path.relative_to(CORPUS).parts[0]

    @property
    def release(self) -> str:
        return self.path.parent.name

    @property
    def patch(self) -> Path:
        return self.path.with_suffix(".patch")

    @property
    def number(self) -> int:
        """The number in the title; causes without one come last."""
        found = re.match(r"\d+", self.title)
        return int(found[0]) if found else sys.maxsize

    @property
    def severity(self) -> Severity | None:
        """The severity that was measured, None if none was."""
        return severities(self.path.parent).get(self.path.stem)

    @property
    def level(self) -> str:
        """The severity for a table: measured, else as its text has it."""
        if self.severity:
            return f"{self.severity.level}, {self.severity.effect}"
        return self.fields.get("severity", "").partition(":")[0]

    @property
    def traces(self) -> list[Path]:
        """Traces of the entries of `known.toml` that have this text. Without a patch an entry may be impossible: then
        those with its name. KeyError if there is neither."""
        is_bare = self.engine in BINARIES
        named = sorted((CORPUS / self.engine).rglob(f"{self.release}--{self.path.stem}--*.json")) if is_bare else []
        told = traces_told(self.engine)
        return told[self.path] if self.path in told or not named else named


@cache
def traces_told(engine: str) -> dict[Path, list[Path]]:
    """Text -> the traces of all entries that have it."""
    found: dict[Path, list[Path]] = {}
    for entry in load_known(CORPUS / engine / KNOWN_FILE):
        if entry.text_path:
            found.setdefault(entry.text_path, []).extend(CORPUS / engine / name for name in entry.traces)
    return found


@cache
def severities(folder: Path) -> dict[str, Severity]:
    """Return the severities of the causes whose patches are in a folder, by name."""
    return read_json(folder / SEVERITIES, dict[str, Severity], "severities") or {}


def read(path: Path) -> Cause:
    """Read one text: `# title`, the rows of its first table as fields, and the rest."""
    found = parse_cause_text(path.read_text(encoding="utf-8"))
    return Cause(path, found.heading, dict(found.fields), found.whole)


def causes(engine: str = "*", release: str = "*") -> list[Cause]:
    """Return the causes of an engine's release, by number."""
    found = [read(path) for path in CORPUS.glob(f"{engine}/fixes/{release}/*.md")]
    return sorted(found, key=lambda cause: (cause.engine, cause.release, cause.number, cause.path.name))


def table(engine: str, release: str) -> Iterator[str]:
    """Yield a row for each cause: number, name, severity if any has one, where, what a client gets, public numbers."""
    found = causes(engine, release)
    rated = any(cause.level for cause in found)
    yield f"| | cause | {'severity | ' if rated else ''}{CAPTION[engine]} | what the client gets | public |"
    yield "| --- | --- | --- | --- | --- |" + (" --- |" if rated else "")
    for cause in found:
        number, _, name = cause.title.rpartition(". ")
        link = f"../../{cause.path.relative_to(DOCS.parent).as_posix()}"
        public = cause.fields["public"].partition("; ")[0]
        cells = [number, f"[{name}]({link})", *([cause.level] if rated else [])]
        yield f"| {' | '.join([*cells, cause.fields['where'], cause.fields['client'], public])} |"


def written(page: str) -> str:
    """Return the page with the tables between their markers."""

    def replaced(found: re.Match[str]) -> str:
        begin = f"<!-- causes {found[1]} {found[2]}: begin (docs/cause_pages.py --write) -->"
        return "\n".join([begin, "", *table(found[1], found[2]), "", "<!-- causes: end -->"])

    return TABLES.sub(replaced, page)


def pages() -> list[Path]:
    """Return the pages that have a table of causes."""
    return [page for page in sorted(DOCS.rglob("*.md")) if TABLES.search(page.read_text(encoding="utf-8"))]


def page(cause: Cause) -> str:
    """Return the page of a cause: its text, its traces with the shortest one's configuration and events, the patch."""
    lines = [cause.path.read_text(encoding="utf-8")]
    if cause.severity:
        lines.append(f"## Severity and reach\n\nMeasured on its traces: {severity_words(cause.severity)}.\n")
    lines.append("## Traces\n")
    events = {trace: json.loads(trace.read_bytes())["events"] for trace in cause.traces}
    lines += [f"* `{trace.relative_to(CORPUS.parent)}`: {len(events[trace])} events" for trace in events]
    if events:
        trace = min(events, key=lambda trace: len(events[trace]))
        lines.append(f"\n```json\n{trace.read_text(encoding='utf-8').rstrip()}\n```")
    else:
        lines.append("None is packaged.")
    lines.append("\n## The packaged fix\n")
    if cause.engine in BINARIES:
        lines.append("There is no patch: a release is a binary.\n")
    else:
        lines.append(f"```diff\n{cause.patch.read_text(encoding='utf-8').rstrip()}\n```\n")
    return "\n".join(lines)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the site (MkDocs calls this)."""
    from mkdocs.structure.files import File

    for cause in causes():
        uri = f"causes/{cause.engine}/{cause.release}/{cause.path.name}"
        files.append(File.generated(config, uri, content=page(cause)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to the texts into links to their pages, in every page of the site (MkDocs calls this)."""
    up = "../" * page.file.src_uri.count("/")
    markdown = LINK.sub(lambda found: f"]({up}causes/{found[1]}/{found[2]}/{found[3]}.md)", markdown)
    if page.file.src_uri.startswith("causes/"):
        markdown = re.sub(r"\]\((?:\.\./)+docs/", f"]({up}", markdown)
    return markdown


if __name__ == "__main__":
    for path in pages():
        text = written(path.read_text(encoding="utf-8"))
        if sys.argv[1:] == ["--write"]:
            path.write_text(text, encoding="utf-8")
        else:
            print(text)
