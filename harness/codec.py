"""Traces as JSON files: strict reading with one-line errors, atomic writing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from ..targets.base.trace import SCHEMA_VERSION, Trace, TraceError

_decoder = msgspec.json.Decoder(Trace)
TRACE_BYTES_MAX = 8 << 20


class _Schema(msgspec.Struct):
    schema: int = SCHEMA_VERSION


def encode_trace(trace: Trace) -> bytes:
    """JSON, indented, one event's fields readable; ends with a newline."""
    return msgspec.json.format(msgspec.json.encode(trace), indent=1) + b"\n"


def decode_trace(data: bytes, where: str = "trace") -> Trace:
    """Parse and validate. TraceError says where and why."""
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: not a trace ({error}); is the file truncated?") from None
    if schema != SCHEMA_VERSION:
        raise TraceError(
            f"{where}: schema {schema} is not supported by this version (it reads schema {SCHEMA_VERSION}); "
            "update hybridfuzz"
        )
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: {error}") from None


def load_trace(path: str | Path) -> Trace:
    """Read a trace file. TraceError for anything that keeps it from being used."""
    try:
        size = os.stat(path).st_size
        if size > TRACE_BYTES_MAX:
            raise TraceError(f"{path}: {size} bytes is too large for a trace (at most {TRACE_BYTES_MAX})")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    return decode_trace(data, str(path))


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace file so that a reader sees the old content or the new one, never a part. Raises OSError."""
    write_atomically(Path(path), encode_trace(trace))


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path`, flush to disk, rename. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
