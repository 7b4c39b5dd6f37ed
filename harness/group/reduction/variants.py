"""Variants of a trace that differ in one property: the questions that are put to the engine about a cause. The reducer
has candidates of its own (`reduce`).

switches    one switch of the configuration has another value, a simpler one first
neighbours  one number of one event is one larger or smaller, or one event is left out
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import structs

from ....targets.base.alphabet import AtMost, Varies, fields_with
from ....targets.base.protocol import Capabilities
from ....targets.base.trace import AnyEvent, Config, Trace, Turn
from ...draw.overrides import RANKS


class Switched(NamedTuple):
    """A configuration in which `switch` has `value` instead of what it had."""

    switch: str
    value: str
    config: Config


class Neighbour(NamedTuple):
    """A trace that differs from another one in one property; `own` if that is one of the violating request."""

    what: str
    own: bool
    trace: Trace


def switched(config: Config, capabilities: Capabilities) -> Iterator[Switched]:
    """Yield configurations in which one switch is simpler, or has another of the target's own values."""
    replace = structs.replace
    for name, values in capabilities.options.items():
        for value in dict.fromkeys(values):
            if config.options.get(name) not in (None, value):
                yield Switched(name, value, replace(config, options={**config.options, name: value}))
    if RANKS in config.options:
        options = {name: value for name, value in config.options.items() if name != RANKS}
        yield Switched(RANKS, "1", replace(config, options=options))
    for depth in range(config.async_depth):
        yield Switched("async_depth", str(depth), replace(config, async_depth=depth))
    drafts = config.num_speculative_tokens
    for fewer in sorted({0, drafts - 1} if drafts else ()):
        drop = config.eagle_block_drop and fewer > 0
        changed = replace(config, num_speculative_tokens=fewer, eagle_block_drop=drop)
        yield Switched("num_speculative_tokens", str(fewer), changed)
    if config.eagle_block_drop:
        yield Switched("eagle_block_drop", "false", replace(config, eagle_block_drop=False))
    if config.policy != "fcfs":
        yield Switched("policy", "fcfs", replace(config, policy="fcfs"))
    if config.long_prefill_token_threshold:
        yield Switched("long_prefill_token_threshold", "0", replace(config, long_prefill_token_threshold=0))
    if config.enable_prefix_caching and "none" in capabilities.modes:
        changed = replace(config, mamba_cache_mode="none", enable_prefix_caching=False)
        yield Switched("mamba_cache_mode", "none", changed)
    for index in range(len(config.groups)) if len(config.groups) > 1 else ():
        groups = config.groups[:index] + config.groups[index + 1 :]
        yield Switched("groups", str(len(groups)), replace(config, groups=groups))


def neighbours(trace: Trace, request: str) -> list[Neighbour]:
    """Return traces that differ in one property, those of the violating request first and left-out events last."""
    found: list[Neighbour] = []
    for index, event in enumerate(trace.events):
        own = bool(request) and getattr(event, "name", "") == request
        for what, changed in _nearby(event, trace.config):
            events = (*trace.events[:index], changed, *trace.events[index + 1 :])
            found.append(Neighbour(f"{index} {what}", own, structs.replace(trace, events=events)))
        if index < len(trace.events) - 1:
            events = trace.events[:index] + trace.events[index + 1 :]
            found.append(Neighbour(f"{index} left out", False, structs.replace(trace, events=events)))
    return sorted(found, key=lambda each: (not each.own, each.what.endswith("left out")))


def _nearby(event: AnyEvent, config: Config) -> Iterator[tuple[str, AnyEvent]]:
    """Yield the same event with one number changed by one."""
    if isinstance(event, Turn):
        document, length = event.prompt[-1]
        for change in (1, -1):
            if length + change >= 1:
                path = (*event.prompt[:-1], (document, length + change))
                yield f"prompt {change:+}", structs.replace(event, prompt=path)
        yield "new tokens +1", structs.replace(event, max_new_tokens=event.max_new_tokens + 1)
    bounds = dict(fields_with(type(event), AtMost))
    for field, varies in fields_with(type(event), Varies):
        value = getattr(event, field)
        most = getattr(config, bounds[field].field) if field in bounds else None
        for change in varies.by if value is not None and most != 0 else ():
            if most is None or 0 <= value + change <= most:
                yield f"{field} {change:+}", structs.replace(event, **{field: value + change})
