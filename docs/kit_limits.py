"""The tables of docs/reference/kits.md: what the kits of each engine cannot do, and what its adapter sets behind the
front door, from `targets/ENGINE/kit_limits.py` and `targets/ENGINE/front_door.py`.

    python docs/kit_limits.py    # prints the tables

They are not kept, since `hybridfuzz targets ENGINE` prints them, too: MkDocs loads this module as a hook, which puts
them into the page of the site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridfuzz.targets.base.registry import behind_the_door, engines, kit_limits

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

MARKER = "<!-- tables of docs/kit_limits.py -->"


def tables() -> str:
    """Return a table for each kit of each engine, in Markdown."""
    parts = []
    for engine in engines():
        limits = kit_limits(engine)
        for kit in dict.fromkeys(limit.kit for limit in limits):
            rows = [f"| {limit.feature} | {limit.reason} |" for limit in limits if limit.kit == kit]
            parts.append("\n".join([f"## {engine}: {kit}", "", "| feature | reason given |", "| --- | --- |", *rows]))
        if behind := behind_the_door(engine):
            rows = [f"| {one.reason} | {', '.join(f'`{field}`' for field in one.fields)} |" for one in behind]
            head = [f"## {engine}: behind the front door", "", "| what, and why | fields |", "| --- | --- |"]
            parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the tables where a page asks for them (MkDocs calls this)."""
    return markdown.replace(MARKER, tables()) if MARKER in markdown else markdown


if __name__ == "__main__":
    print(tables())
