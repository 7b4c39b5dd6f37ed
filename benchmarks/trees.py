"""Unpacked engines with lines exchanged, to see what the harness sees (fixes of known causes: corpus/vllm/fixes)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """Exchange `old`, which stands exactly once in `file` (relative to the unpacked tree), for `new`."""

    file: str
    old: str
    new: str


def edited_tree(source: Path, edits: Sequence[Edit], into: Path) -> Path:
    """A copy of `source` made of hard links, with the edited files written anew. ValueError if an edit does not fit."""
    shutil.rmtree(into, ignore_errors=True)
    # Linked folders, as an overlay has them, are copied: an edit must not reach what they link to.
    shutil.copytree(source, into, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in edits:
        path = into / edit.file
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{edit.file}: the text to exchange stands there {text.count(edit.old)} times: {edit.old!r}"
            )
        path.unlink()
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    return into
