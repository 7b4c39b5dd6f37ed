"""Acknowledged bugs, so that a gate or a night goes red only for news: known.toml.

[[known]]
signature = "M2-step-mamba-key"
target = "vllm*"                # optional; * and ? as in a shell
reason = "vLLM #57580"
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec import Struct

from ...targets.base.trace import TraceError


class Known(Struct, frozen=True, forbid_unknown_fields=True):
    """One acknowledged bug."""

    signature: str
    reason: str
    target: str = "*"

    def covers(self, signature: str, target: str) -> bool:
        """Whether a violation on a target is this bug."""
        return fnmatchcase(signature, self.signature) and fnmatchcase(target, self.target)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    known: tuple[Known, ...] = ()


def load_known(path: Path) -> tuple[Known, ...]:
    """Read a file. TraceError, of one line, for anything that keeps it from being used."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).known
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TraceError(f"{path}: {error}") from None


def reason_for(known: Sequence[Known], signature: str, target: str) -> str:
    """Why a violation is no news, "" if it is."""
    return next((one.reason for one in known if one.covers(signature, target)), "")
