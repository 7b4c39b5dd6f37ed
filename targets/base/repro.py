"""Stand-alone reproducers: scripts that show a failure without the hybridfuzz harness.

`targets/ENGINE/repro.py` may offer `write_scripts(variant, trace, failure) -> Sequence[Script]`, the simplest first.
The first one that fails as it promises is used. `TargetError` for a failure that it cannot write a script for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from ...reference.tokens import CONTINUATION
from .deployment import Deployment
from .trace import NAME_MAX, Event, Prompt, Turn

SCENARIO = "def reproduce("
MACHINERY = "# ---- Machinery."
"""Begins the line behind which nothing of a script is about its failure."""
DEVIATION = "# The deviation that is reported is of the next call:"
"""The line of a script before which it must not fail: what fails earlier is another defect."""

WRONG_TOKENS = "wrong tokens"
"""Stands in the promise of a script that shows what clients receive."""
OTHER = "-2"
"""Suffix of a document that takes the place of another one."""
E = TypeVar("E", bound=Event)


class Failure(Struct, frozen=True):
    """The violation that a script has to show, with facts from its history.

    events   all events up to the violation, draining steps included
    depth    number of tokens of the expected state, -1 if no state is expected
    holder   a request whose state it is
    sentence  the message without the id of the rule
    tolerance  difference of two log-probabilities up to which they are the same, 0 if no number was compared
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
    tolerance: float = 0.0
    sentence: str = ""


class Place(Struct, frozen=True):
    """Where a script has to fail: elsewhere it meets another defect. `DEVIATION` marks the first call that may fail.

    step      the first step in which a client can receive a wrong token, -1 for any
    client    the client that has to receive wrong ones, unless one does that asks again; "" for any
    function  the function that raises, "" for an assertion of the script
    """

    step: int = -1
    client: str = ""
    function: str = ""


class Sizes(Struct, frozen=True):
    """Values of a limit with which a trace was seen to fail. `value`: its own; `high`: None for a very large one."""

    value: int
    low: int
    high: int | None = None


class Script(Struct, frozen=True):
    """A Python script that fails where the bug is and passes where it is not.

    promise    text of the exception with which it ends when it fails as expected
    place      where that has to be
    more       what else the script does, in a sentence for readers of a report
    needs      the packages that have to be importable, the engine's first, separated by ", "
    body       lines of the function that is about the failure, where a script has one
    machinery  what `body` uses, as the text of a module
    limits     field of a configuration -> its name in the script, and what the script adds to its value
    """

    text: str
    promise: str
    needs: str
    body: Sequence[str] = ()
    machinery: str = ""
    place: Place = Place()
    more: str = ""
    limits: Mapping[str, tuple[str, int]] = {}

    @property
    def first_line(self) -> int:
        """The number of the line `DEVIATION`, 0 without one."""
        lines = self.text.splitlines()
        return next((number for number, line in enumerate(lines, 1) if line.strip() == DEVIATION), 0)

    @property
    def scenario(self) -> str:
        """The function that is about the failure, "" where a script does not tell it apart."""
        before, line, _ = self.text.partition(f"\n{MACHINERY}")
        return before[max(before.find(SCENARIO), 0) :].strip() if line else ""


def served(script: Script, server: Deployment) -> Script:
    """Return a script whose machinery begins with the command of the server that it stands for, if there is one."""
    before, line, after = script.text.partition(MACHINERY)
    if not server.shell or not line:
        return script
    command = [f"#     {_inside(part)}" for part in server.shell]
    sizes = f", in its own lengths ({server.scale.what} of {server.scale.block} tokens)" if server.scale else ""
    told = "\n".join(["#", f"# A server with the same settings{sizes}:", "#", " \\\n".join(command)])
    note, gap, rest = after.partition("\n\n")
    return structs.replace(script, text=f"{before}{line}{note}\n{told}{gap}{rest}")


def with_sizes(script: Script, sizes: Mapping[str, Sizes]) -> Script:
    """Return a script that says beside each limit with which values of it the trace fails."""
    before, line, after = script.text.partition(MACHINERY)
    for field, one in sizes.items():
        name, more = script.limits.get(field, ("", 0))
        # Where a script has more room than its trace, nothing was run.
        given = re.search(rf"^ +{name}={one.value + more},(?P<note>  # .*)?$", before, re.MULTILINE)
        if not name or not given:
            continue
        if one.low == one.high:  # other values may fail in another way: nothing is claimed
            continue
        told = f"fails with {one.low + more} to {one.high + more}" if one.high else "larger ones fail, too"
        note = f"{given[0]}; {told}" if given["note"] else f"{given[0]}  # {told}"
        before = before[: given.start()] + note + before[given.end() :]
    return structs.replace(script, text=f"{before}{line}{after}")


def python_comment(text: str) -> str:
    """Return text for one line of a comment or docstring; it cannot end either."""
    line = _inside(text)
    return f"{line[:-1]}'" if line.endswith('"') else line


def _inside(text: str) -> str:
    """Return text for the middle of a line of a docstring."""
    line = "".join(one if one.isprintable() and one != "\\" else ascii(one)[1:-1] for one in " ".join(text.split()))
    return line.replace('"""', "'''")


def python_format(text: str) -> str:
    """Return text that stands for itself in a double-quoted f-string."""
    escapes = {'"': '\\"', "{": "{{", "}": "}}"}
    return "".join(escapes.get(one) or ascii(one)[1:-1] for one in text)


def with_other_prompts(events: Sequence[E]) -> tuple[E, ...]:
    """Return events whose prompts have other documents, of the same lengths and shared in the same way."""

    kept = NAME_MAX - len(OTHER)

    def other(prompt: Prompt) -> Prompt:
        return tuple((name if name == CONTINUATION else name[:kept] + OTHER, size) for name, size in prompt)

    return tuple(
        structs.replace(event, prompt=other(event.prompt)) if isinstance(event, Turn) else event for event in events
    )
