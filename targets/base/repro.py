"""Stand-alone reproducers: what an engine's folder may offer so that a failure runs where hybridfuzz is not installed.

`targets/ENGINE/repro.py` offers `write_scripts(variant, trace, failure) -> Sequence[Script]`, the plainest first: the
first one that fails as it promises is handed out. `TargetError` for a failure that no script of it can show.
"""

from __future__ import annotations

from msgspec import Struct

from .trace import Event


class Failure(Struct, frozen=True):
    """What a script has to show: a violation, and what the explanation knows beyond it.

    events   everything that happened up to it, draining steps included
    depth    tokens after which a state is missing, -1 if it is not about one
    holder   a request whose state it is
    """

    oracle: str
    field: str
    message: str
    events: tuple[Event, ...]
    step: int
    request: str = ""
    group: int = -1
    block: int = -1
    depth: int = -1
    holder: str = ""


class Script(Struct, frozen=True):
    """A Python script that fails where the bug is and passes where it is not.

    promise   what the last line of its standard error contains when it fails as it should
    needs     what has to be importable
    places    where to look in the source, most likely first
    """

    text: str
    promise: str
    needs: str
    places: tuple[str, ...] = ()


def python_comment(text: str) -> str:
    """Return text for one line of a comment or docstring; it cannot end either."""
    line = "".join(one if one.isprintable() and one != "\\" else ascii(one)[1:-1] for one in " ".join(text.split()))
    line = line.replace('"""', "'''")
    return f"{line[:-1]}'" if line.endswith('"') else line


def python_format(text: str) -> str:
    """Return text that stands for itself in a double-quoted f-string."""
    escapes = {'"': '\\"', "{": "{{", "}": "}}"}
    return "".join(escapes.get(one) or ascii(one)[1:-1] for one in text)
