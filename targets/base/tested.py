"""What the newest tested release of an engine has, to notice a version that seems to have less.

Adapters find out by the engine's source what it can do. Where a checkout is written differently, a capability may be
lost without an error: nothing that needs it is drawn, no state of it is required, and the silence proves nothing. So
the folder of an engine keeps what its newest tested release has (`tested.json`), in words that a notice can print.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from .pip import version_numbers
from .protocol import Capabilities
from .registry import FOLDERS, parse

TESTED_FILE = "tested.json"
SHOWN_MAX = 12


class Tested(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file: a release, and the words of its capabilities for each variant of the target."""

    release: str
    has: dict[str, tuple[str, ...]]


def newest_tested(engine: str) -> Tested | None:
    """Return what the newest tested release of an engine has, None for an engine without releases."""
    path: Path = FOLDERS / engine / TESTED_FILE
    return msgspec.json.decode(path.read_bytes(), type=Tested) if path.exists() else None


def words(capabilities: Capabilities) -> list[str]:
    """Return the capabilities as short phrases, sorted."""
    return sorted(set(_words(capabilities)))


def _words(has: Capabilities) -> Iterator[str]:
    for kind, names in (
        ("event", has.events),
        ("mode", has.modes),
        ("observation", has.observes),
        ("feature", has.features),
        ("policy", has.policies),
        ("speculation in mode", has.speculative_modes if has.max_speculative_tokens else ()),
    ):
        yield from (f"{kind} {name}" for name in names)
    taken = (*has.options.items(), *has.accepts.items())
    yield from (f"option {name}={value}" for name, values in taken for value in values)
    yield from (f"state blocks of {mamba} tokens beside attention blocks of {size}" for mamba, size in has.block_sizes)
    yield from (f"state groups and attention groups: {mamba} and {attention}" for mamba, attention in has.group_counts)
    yield from (f"drafter's group in blocks of {size or 'the same size'}" for size in has.draft_block_sizes)
    yield from (f"window of {size}" for size in has.windows)
    yield from (f"attention chunks of blocks: {size}" for size in has.attention_chunks)
    yield from (f"drafts per step: {count}" for count in range(1, has.max_speculative_tokens + 1))
    yield from (f"steps in flight: {depth}" for depth in range(1, has.max_async_depth + 1))
    if has.variable_drafts:
        yield "drafts that differ by request"
    if has.eagle_block_drop:
        yield "EAGLE's block drop"


def narrower(spec: str, version: str, capabilities: Capabilities) -> str:
    """Return, in one line, what the newest tested release has and this version lacks; "" if that is nothing.

    Older releases lack much, which is known: for them it is "".
    """
    target = parse(spec)
    known = newest_tested(target.name)
    numbers = version_numbers(version) if version[:1].isdecimal() else ()
    if known is None or target.device or (numbers and numbers < version_numbers(known.release)):
        return ""
    here = set(words(capabilities))
    lacks = [word for word in known.has.get(target.variant, ()) if word not in here]
    if not lacks:
        return ""
    shown = ", ".join(lacks[:SHOWN_MAX]) + (f" and {len(lacks) - SHOWN_MAX} more" if len(lacks) > SHOWN_MAX else "")
    return (
        f"not found in this {target.name}, though {known.release} has it, so not tested: {shown}; "
        f"if it is there, the adapter (targets/{target.name}) must learn to find it"
    )
