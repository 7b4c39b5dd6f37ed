"""Keeps most drawn traces away from the circumstances of known bugs, so that a campaign reaches what they hide.

Circumstances are what can be read from a trace without running it: values of configuration switches, and traits. Of
the drawn traces to which they apply, `Workload.avoided` percent are drawn again and the others kept: what shows only
under the same circumstances must be found as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...targets.base.alphabet import Trait, changed
from ...targets.base.trace import Arrive, Config, Step, Trace, Turn, tag_of
from .overrides import RANKS

REDRAWS_MAX = 8
"""Draws after which a trace is kept in any case: the overrides may leave nothing else."""


class Circumstances(Struct, frozen=True):
    """Circumstances under which a known bug shows: each switch has one of its values, and the trace has all traits."""

    switches: Mapping[str, Sequence[str]] = {}
    traits: Sequence[str] = ()

    def apply_to(self, trace: Trace) -> bool:
        """Return True if a trace may show the bug. Circumstances without traits apply to no trace: a configuration as
        a whole is never avoided."""
        if not self.traits:
            return False
        values = switch_values(trace.config)
        if any(values.get(name, "") not in allowed for name, allowed in self.switches.items()):
            return False
        return set(self.traits) <= traits_of(trace)


def switch_values(config: Config) -> dict[str, str]:
    """Return the value of each switch of a configuration as text."""
    values = {
        "async_depth": str(config.async_depth),
        "num_speculative_tokens": str(config.num_speculative_tokens),
        "eagle_block_drop": str(config.eagle_block_drop).lower(),
        "policy": config.policy,
        "long_prefill_token_threshold": "0" if not config.long_prefill_token_threshold else "set",
        "mamba_cache_mode": config.mamba_cache_mode,
        "groups": str(len(config.groups)),
        RANKS: config.options.get(RANKS, "1"),
    }
    return values | dict(config.options)


def traits_of(trace: Trace) -> frozenset[str]:
    """Return what can be read from the events of a trace without running it."""
    return frozenset(_traits(trace))


def _traits(trace: Trace) -> Iterator[str]:
    k = trace.config.num_speculative_tokens
    arrived = 0
    for event in trace.events:
        for _, trait in changed(event, Trait):
            yield trait.words
        if isinstance(event, Turn):
            length = sum(count for _, count in event.prompt)
            arrived += 1
            if length == 1:
                yield "a prompt of one token" if arrived == 1 else "a prompt of one token beside other requests"
            if length == 1 + k:
                yield "a prompt as long as a full decode"
            if length > trace.config.max_num_batched_tokens:
                yield "a prompt of several chunks"
            if any(document == "~" for document, _ in event.prompt):
                yield "a prompt that continues an output"
        if isinstance(event, Step):
            if any(right for _, right in event.per_request.values()):
                yield "accepted drafts"
        elif not isinstance(event, Arrive):
            yield f"event {tag_of(event)}"
