"""What a worker and the processes of its other data-parallel ranks tell each other, as lines of JSON."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from ...base.trace import Config


class Join(Struct, frozen=True, tag="join"):
    """Join the group of `size` ranks, whose store is at a port."""

    size: int
    port: int


class Build(Struct, frozen=True, tag="build"):
    """Build an engine, and name it by a number."""

    engine: int
    config: Config


class Begin(Struct, frozen=True, tag="begin"):
    """Begin a trace: reset an engine."""

    engine: int


class Beside(Struct, frozen=True, tag="beside"):
    """Take part in one step of rank 0, with `rows` rows; 0: with a dummy run."""

    engine: int
    rows: int


class Close(Struct, frozen=True, tag="close"):
    """Let go of an engine."""

    engine: int


class Done(Struct, frozen=True, tag="done"):
    """It is done. `rows` are those that were computed, 0 for a dummy run and where none are asked for."""

    rows: int = 0


class Failed(Struct, frozen=True, tag="failed"):
    """It is not done, and the process ends; with `is_refusal`, it goes on.

    text       type and message of the exception, its own first line first
    where      file and line that raised it
    of_engine  True if that is the engine's code, not ours
    """

    text: str
    where: str
    of_engine: bool
    is_refusal: bool = False


Command = Join | Build | Begin | Beside | Close
Answer = Done | Failed
READY: Literal["ready"] = "ready"
"""The first line of a process that is ready for commands."""

encode = msgspec.json.encode
decode_command = msgspec.json.Decoder(Command).decode
decode_answer = msgspec.json.Decoder(Answer).decode
