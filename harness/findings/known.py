"""Acknowledged bugs in known.toml: a run fails only for new ones.

[[known]]
signature = "M2-step-mamba-key"
target = "vllm*"                # optional; * and ? as in a shell
reason = "vLLM #57580"

The file may come with a pull request: it is read up to 1 MiB, each entry needs a reason, and an entry that covers
every signature is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec import Struct

from ...targets.base.trace import TraceError
from ..quoting import clean, one_line
from ..traces.files import read_regular

KNOWN_BYTES_MAX = 1 << 20
ENTRIES_MAX = 10_000
TEXT_MAX = 500
_WILDCARDS = "*?[]!- "


class Known(Struct, frozen=True, forbid_unknown_fields=True):
    """One acknowledged bug."""

    signature: str
    reason: str
    target: str = "*"

    def covers(self, signature: str, target: str) -> bool:
        """Return True if a violation on a target is this bug."""
        return fnmatchcase(signature, self.signature) and fnmatchcase(target, self.target)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    known: tuple[Known, ...] = ()


def load_known(path: Path) -> tuple[Known, ...]:
    """Read a file. Raises TraceError, in one line, if it cannot be used."""
    data, where = read_regular(path, KNOWN_BYTES_MAX, "known bugs"), clean(str(path))
    try:
        entries = msgspec.convert(tomllib.loads(data.decode("utf-8")), _File).known
    except (ValueError, RecursionError) as error:  # of Unicode, TOML (also its integers) and msgspec
        raise TraceError(f"{where}: {one_line(str(error), TEXT_MAX)}") from None
    if len(entries) > ENTRIES_MAX:
        raise TraceError(f"{where}: {len(entries)} entries; at most {ENTRIES_MAX} are read")
    for number, entry in enumerate(entries, 1):
        if problem := _problem(entry):
            raise TraceError(f"{where}: entry {number}: {problem}")
    return entries


def _problem(entry: Known) -> str:
    """Return why an entry cannot be used; empty if it can."""
    if not entry.reason.strip():
        return f"signature {entry.signature[:TEXT_MAX]!r} has no reason; name the issue that tracks it"
    if not entry.signature.strip(_WILDCARDS):
        return f"signature {entry.signature[:TEXT_MAX]!r} covers every bug; name at least an oracle, such as 'M2-*'"
    if not entry.target.strip():
        return "its target is empty; leave it out for every target"
    if max(map(len, (entry.signature, entry.reason, entry.target))) > TEXT_MAX:
        return f"a text is longer than {TEXT_MAX} characters"
    return ""


def reason_for(known: Sequence[Known], signature: str, target: str) -> str:
    """Return the reason of the entry that covers a violation; empty if none does."""
    return next((one.reason for one in known if one.covers(signature, target)), "")
