"""Messages between a campaign and a worker on another node: JSON, compressed if it is long.

Long messages would go through the object store of the cluster, which may be full; short ones do not.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ....targets.base.patches import Patch
from ...record.activity import Observation
from ..messages import Answer as Serve
from ..messages import Answered, Done, Explain, Explained, Failed, Fuzz, Observe, Ready, Run
from ..results import Counts, Ran

COMPRESS_BYTES = 50_000
"""Ray passes results below 100 kB without its object store."""
_PLAIN, _COMPRESSED = b"\0", b"\1"


class Setup(Struct, frozen=True):
    """What a node needs to start a worker.

    target                 target string
    hybridfuzz, version    of the campaign; a node that has others is refused
    memory_limit           bytes of the worker process, 0 for none
    patches                of known bugs, applied to the node's copy of the engine
    """

    target: str
    hybridfuzz: str
    version: str
    memory_limit: int = 0
    patches: tuple[Patch, ...] = ()


class Pause(Struct, frozen=True, tag="pause"):
    """End the worker process; the next request starts a new one."""


class Call(Struct, frozen=True):
    """A request. `seconds` bounds how long `fuzz` goes on before it reports; a trace that runs is not cut off."""

    request: Run | Explain | Serve | Observe | Fuzz | Pause
    trace_seconds: float
    seconds: float = 0.0


class Started(Struct, frozen=True, tag="started"):
    """The worker is ready."""

    ready: Ready


class Refused(Struct, frozen=True, tag="refused"):
    """The node cannot take part."""

    reason: str


class NodeReport(Struct, frozen=True, tag="report"):
    """Answer to `fuzz`: totals of most traces, and the traces that matter by themselves. A new violation is last."""

    counts: Counts
    rans: Sequence[Ran]


class Paused(Struct, frozen=True, tag="paused"):
    """Answer to `pause`."""


class Halted(Struct, frozen=True, tag="halted"):
    """The worker was stopped."""


Answer = Started | Refused | NodeReport | Paused | Halted | Done | Explained | Answered | Observation | Failed


def pack(message: Struct) -> bytes:
    """Return a message as bytes."""
    data = msgspec.json.encode(message)
    return _PLAIN + data if len(data) < COMPRESS_BYTES else _COMPRESSED + zlib.compress(data, 1)


_setup, _call = msgspec.json.Decoder(Setup), msgspec.json.Decoder(Call)
_answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def _unpacked(data: bytes) -> bytes:
    return zlib.decompress(data[1:]) if data[:1] == _COMPRESSED else data[1:]


def unpack_setup(data: bytes) -> Setup:
    """Return the message that `pack` packed; likewise the functions below."""
    return _setup.decode(_unpacked(data))


def unpack_call(data: bytes) -> Call:
    """Return a request."""
    return _call.decode(_unpacked(data))


def unpack_answer(data: bytes) -> Answer:
    """Return an answer."""
    return _answer.decode(_unpacked(data))
