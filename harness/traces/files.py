"""Traces as JSON files: strict reading with one-line errors, atomic writing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from ...targets.base.trace import SCHEMA_VERSION, Trace, TraceError

_decoder = msgspec.json.Decoder(Trace)
TRACE_BYTES_MAX = 8 << 20


class _Schema(msgspec.Struct):
    schema: int = SCHEMA_VERSION


def encode_trace(trace: Trace) -> bytes:
    """JSON with one event a line; ends with a newline."""
    encode = msgspec.json.encode
    events = b",\n  ".join(encode(event) for event in trace.events)
    head = b'{"schema": %d,\n "origin": %s,\n "config": ' % (trace.schema, encode(trace.origin))
    return head + encode(trace.config) + b',\n "events": [\n  ' + events + b"\n ]\n}\n"


def decode_trace(data: bytes, where: str = "trace") -> Trace:
    """Parse and validate. TraceError says where and why."""
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
    except (msgspec.ValidationError, RecursionError) as error:
        raise TraceError(f"{where}: not a trace ({error})") from None
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: not a trace ({error}); is the file truncated?") from None
    if schema != SCHEMA_VERSION:
        cure = "; update hybridfuzz" if schema > SCHEMA_VERSION else ""
        raise TraceError(
            f"{where}: schema {schema} is not supported by this version (it reads schema {SCHEMA_VERSION}){cure}"
        )
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{where}: {error}") from None


def load_trace(path: str | Path) -> Trace:
    """Read a trace file. TraceError for anything that keeps it from being used."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(TRACE_BYTES_MAX + 1)  # a device has no size, and no end
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > TRACE_BYTES_MAX:
        raise TraceError(f"{path}: too large for a trace (more than {TRACE_BYTES_MAX} bytes)")
    return decode_trace(data, str(path))


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace file so that a reader sees the old content or the new one, never a part. Raises OSError."""
    write_atomically(Path(path), encode_trace(trace))


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path`, flush to disk, rename. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        temporary.unlink()
        raise
