"""Names of an engine that a patch's added lines need, written into the patch: it may fit where they are gone.

A patch fits by the lines around it. If a version of the engine has renamed something that stands only in the added
lines, the patched engine would raise: that looks like a bug of the engine. So a packaged patch says in its head which
names of the release's file its added lines use, and it does not apply to a file that lacks one of them:

    # names vllm/v1/core/sched/scheduler.py: num_computed_tokens num_spec_tokens

Names that the added lines define themselves are not among them.

`python -m hybridfuzz.targets.base.patch_names TREE PATCH...` writes the heads, with the release's tree.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .patches import FilePatch, Patch, parse_patch

_TEXT = re.compile(r"""\"[^"\n]*\"|'[^'\n]*'|#[^\n]*""")
_WORD = re.compile(r"(?<![\w.])[^\W\d]\w*|(?<=\.)[^\W\d]\w*")
_DEFINED = re.compile(
    r"\b(?:def|class|as|for|import)\s+(\w+)|^\s*(\w+)(?:\s*:[^=\n]+)?\s*=(?!=)|[(,]\s*(\w+)\s*:", re.MULTILINE
)
"""Functions, classes, imports, loop variables, local variables, parameters."""
_COMMON = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "cls"}


def names_of(text: str) -> set[str]:
    """Return the names that stand in a piece of Python, outside of its texts and comments."""
    return set(_WORD.findall(_TEXT.sub("", text))) - _COMMON


def needed(file: FilePatch) -> set[str]:
    """Return the names that the added lines of a file use and do not define."""
    added = "".join(text for hunk in file.hunks for marker, text in hunk.lines if marker == "+")
    defined = {name for found in _DEFINED.findall(_TEXT.sub("", added)) for name in found if name}
    return names_of(added) - defined


def lacking(patch: Patch, read: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """Yield (file, name) for each name that a patch says to need and that its file has not."""
    for file in patch.files:
        wanted = needed(file) & set(patch.names.get(file.path, ()))
        there = names_of(read(file.path) or "") if wanted else set()
        for name in sorted(wanted - there):
            yield file.path, name


def with_head(text: str, patch: Patch, read: Callable[[str], str | None]) -> str:
    """Return the text of a patch with the names that it needs in its head; `read` returns the release's files."""
    own = [line for line in text.splitlines(keepends=True) if not line.startswith("# names ")]
    first = next(number for number, line in enumerate(own) if line.startswith(("--- ", "diff ")))
    heads = []
    for file in patch.files:
        if names := sorted(needed(file) & names_of(read(file.path) or "")):
            heads.append(f"# names {file.path}: {' '.join(names)}\n")
    return "".join([*own[:first], *heads, *own[first:]])


def main(tree: Path, paths: list[Path]) -> None:
    """Write the heads of some patches."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        patch = parse_patch(text, path.stem)
        files = {file.path: tree / file.path for file in patch.files}
        read = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}.get
        path.write_text(with_head(text, patch, read), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
