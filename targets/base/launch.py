"""Interpreter and environment of a process that can drive a target."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

WORKERS = "HYBRIDFUZZ_WORKERS"
"""Environment variable of a worker: how many workers of its campaign share this machine."""


class Launch(Struct, frozen=True):
    """An interpreter, and environment variables to add to the current ones. `version` is for reports.

    tree    folder on PYTHONPATH that the engine is imported from, and that patches apply to (`overlay`); "" for none
    """

    python: str
    env: Mapping[str, str]
    version: str = ""
    tree: str = ""
