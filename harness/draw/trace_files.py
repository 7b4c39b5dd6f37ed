"""Trace files: strict reading with one-line errors, atomic writing.

A trace file may come from a stranger. Limits of what is read, each with a one-line error:

    file       a regular file of at most 8 MiB, in UTF-8; no key of an object twice
    names      requests, parents, documents, slots, tiers, options and their values: 1 to 64 characters of
               A-Z a-z 0-9 _ . - (the document "~" is the model's own continuation); `origin`, `target`: 1,000 each
    events     1 to 10,000; 16 segments in a prompt; 256 requests named in one event
    tokens     2**20 in one field, 2**22 in all prompts and replies together
    blocks     4096 in the pool or in one eviction; 8 groups of at most 8 layers; 4096 rows; 64 graph sizes
    nesting    as deep as the schema, about six levels: anything deeper is refused while it is read

Reading takes less than 512 MB of memory, whatever the file contains. A configuration or a request within these limits
may still be too large for its target: a request that does not fit `max_model_len` never arrives.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ...targets.base.trace import SCHEMA_VERSION, Trace, TraceError, Turn
from ..quoting import clean, one_line

T = TypeVar("T")
_decoder = msgspec.json.Decoder(Trace)
TRACE_BYTES_MAX = 8 << 20
NAME_LENGTH_MAX = 120
STATE_BYTES_MAX = 16 << 20
"""Of any JSON file but traces. Decoded, the worst 16 MiB take about 400 MB."""
EVENTS_MAX = 10_000
TOKENS_MAX = 1 << 22
ERROR_LENGTH_MAX = 300
NO_TRACES = ("campaign.json", "species.json", "triage.json", "matrix.json", "severity.json")
"""Names of what is kept in folders of traces beside them."""
_TEMPORARY = re.compile(r"\.\w+?[a-z0-9_]{8}\.tmp$")
DOTS_MAX = 16
"""Of a key in TOML."""
_TOML_TEXTS = re.compile(rb'''"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*''')
"""Strings and comments of TOML."""
_REGEX = re.compile(r"Expected `str` matching regex '[^']*'")


class _Schema(msgspec.Struct):
    schema: int = SCHEMA_VERSION


def encode_trace(trace: Trace) -> bytes:
    """Return JSON with one event per line and a final newline."""
    encode = msgspec.json.encode
    events = b",\n  ".join(encode(event) for event in trace.events)
    target = b'\n "target": %s,' % encode(clean(trace.target)) if trace.target else b""
    head = b'{"schema": %d,\n "origin": %s,%s\n "config": ' % (trace.schema, encode(trace.origin), target)
    return head + encode(trace.config) + b',\n "events": [\n  ' + events + b"\n ]\n}\n"


def decode_trace(data: bytes, where: str = "trace") -> Trace:
    """Parse and validate. Raises TraceError with the place and the reason."""
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
    except (msgspec.ValidationError, RecursionError) as error:
        raise TraceError(f"{where}: not a trace ({error})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{where}: not a trace ({error}); is the file truncated?") from None
    if schema != SCHEMA_VERSION:
        cure = "; update hybridfuzz" if schema > SCHEMA_VERSION else ""
        raise TraceError(
            f"{where}: schema {_digits(schema)} is not supported by this version (it reads schema {SCHEMA_VERSION})"
            f"{cure}"
        )
    try:
        trace = _decoder.decode(data)
        refuse_repeated_keys(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{where}: {_explained(error)}") from None
    except ValueError as error:
        raise TraceError(f"{where}: {one_line(str(error), ERROR_LENGTH_MAX)}") from None
    check_size(trace, where)
    return trace


def _digits(number: int) -> str:
    return str(number) if abs(number) < 1 << 63 else "with more than 18 digits"


def _explained(error: Exception) -> str:
    """Return a decoder's message with the rule for names in words instead of a regular expression."""
    words = "Expected a name of 1 to 64 letters, digits, '_', '.' or '-'"
    return one_line(_REGEX.sub(words, str(error)), ERROR_LENGTH_MAX)


def refuse_repeated_keys(data: bytes) -> None:
    """Raise ValueError if an object in this JSON has a key twice. Call it for data that has its schema."""

    def pairs(items: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in items]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} appears twice in one object")

    json.loads(data, object_pairs_hook=pairs)


def check_size(trace: Trace, where: str = "trace") -> None:
    """Raise TraceError for a trace with no events, or with more events or tokens than the limits allow."""
    if not trace.events:
        raise TraceError(f"{where}: there are no events; a trace needs at least one")
    if len(trace.events) > EVENTS_MAX:
        raise TraceError(f"{where}: {len(trace.events)} events; a trace has at most {EVENTS_MAX}")
    requests = [event for event in trace.events if isinstance(event, Turn)]
    tokens = sum(event.max_new_tokens + sum(length for _, length in event.prompt) for event in requests)
    if tokens > TOKENS_MAX:
        raise TraceError(f"{where}: {tokens} tokens in prompts and replies; a trace has at most {TOKENS_MAX}")


def load_trace(path: str | Path) -> Trace:
    """Read a trace file. Raises TraceError if it cannot be read or is not a valid trace."""
    return decode_trace(read_regular(path, TRACE_BYTES_MAX, "a trace"), clean(str(path)))


def read_regular(path: str | Path, limit: int, what: str) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; never wait for a pipe or a device.

    Raises TraceError otherwise; `what` names the kind of file in its message.
    """
    where = clean(str(path))
    try:
        # O_NONBLOCK: opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
                raise TraceError(f"{where}: cannot be read: it is {kind}")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TraceError(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # a null byte or a surrogate in the path
        raise TraceError(f"{where}: cannot be read: {error}") from None
    if len(data) > limit:
        raise TraceError(f"{where}: too large for {what} (more than {limit} bytes)")
    return data


def read_toml(path: Path, limit: int, what: str) -> dict[str, object]:
    """Return the content of a TOML file of at most `limit` bytes. Raises TraceError, in one line, for any other."""
    data, where = read_regular(path, limit, what), clean(str(path))
    if number := _dotted(data):
        raise TraceError(f"{where}: line {number}: a key of more than {DOTS_MAX} parts; there are none so deep")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of Unicode and of TOML, also its integers
        raise TraceError(f"{where}: {one_line(str(error), ERROR_LENGTH_MAX)}") from None


def _dotted(data: bytes) -> int:
    """Return the number of a line with a key of too many parts, 0 if there is none.

    The parser makes a table of each part, and what it needs for a key grows with the square of their number.
    """
    text = _TOML_TEXTS.sub(lambda match: b"x" + b"\n" * match[0].count(b"\n"), data)
    return next((number for number, line in enumerate(text.split(b"\n"), 1) if line.count(b".") > DOTS_MAX), 0)


def encode_json(value: object) -> bytes:
    """Return the content of a file that `read_json` reads, for people, too."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def read_json(path: Path, kind: type[T], what: str, cure: str = "", limit: int = STATE_BYTES_MAX) -> T | None:
    """Return the content of a state file of at most `limit` bytes; None if there is no file.

    Raises TraceError, in one line that ends with `cure`, for a file that cannot be used.
    """
    if not os.path.lexists(path):
        return None
    data = read_regular(path, limit, what)
    try:
        value = msgspec.json.decode(data, type=kind)
        if not _fits(value):
            raise ValueError("a number has more than 64 bits")
    except (ValueError, RecursionError) as error:  # of Unicode and of msgspec, too
        raise TraceError(f"{clean(str(path))}: {one_line(str(error), ERROR_LENGTH_MAX)}{cure}") from None
    return value


def _fits(value: object) -> bool:
    """Return True if every integer in decoded data has at most 64 bits: arithmetic on more may overflow a float."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    if isinstance(value, str | float):
        return True
    if isinstance(value, msgspec.Struct):
        return all(_fits(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, Mapping):
        return all(map(_fits, value.values()))
    return all(map(_fits, value)) if isinstance(value, Sequence) else True


def file_name(signature: str) -> str:
    """Return a signature or a name as the stem of a file name."""
    return re.sub(r"[^\w.@+-]", "_", signature, flags=re.ASCII)[:NAME_LENGTH_MAX]


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace file atomically. Raises OSError."""
    write_atomically(Path(path), encode_trace(trace))


def sweep(folder: Path, seconds: float = 60.0) -> None:
    """Remove what a killed process left in a folder while it replaced files (`write_atomically`).

    Younger files may be another process's, which is about to rename them.
    """
    for path in folder.glob("*.tmp"):
        with suppress(OSError):
            status = path.lstat()
            if (
                _TEMPORARY.search(path.name)
                and stat.S_ISREG(status.st_mode)
                and time.time() - status.st_mtime > seconds
            ):
                path.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path`, flush it to disk, rename it. Raises OSError.

    Readers see the old content or the new one. A symbolic link at `path` is replaced, not followed.
    """
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


def json_below(folder: Path) -> list[Path]:
    """Return the files below a folder that may be traces, sorted."""
    return sorted(path for path in folder.rglob("*.json") if path.name not in NO_TRACES)
