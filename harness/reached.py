"""Reached states: semantic situations that a campaign must have been in before its silence means anything.

Each state has a name, and what a target must be able to do for the state to be required of it. Counting happens in
lockstep; a required state with count 0 makes a campaign vacuous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..targets.base.observe import Copied, Forward, Planned, Record, SlotWrite, View, Zeroed
from ..targets.base.protocol import Capabilities
from ..targets.base.trace import Abort, Event, ResetPrefixCache
from .oracles.base import Context

REQUIRES: dict[str, str] = {
    "chunked prefill": "",
    "first chunk of one token": "",
    "chunk shorter than the convolution window": "",
    "batch of three or more": "",
    "preempted": "",
    "preempted with a partial block": "",
    "resumed from a hit": "caching",
    "prefix hit": "caching",
    "hit on content written by decoding": "caching",
    "block shared by two requests": "caching",
    "duplicate key": "caching",
    "cached block evicted": "caching",
    "block reused by another kind of group": "",
    "blocks zeroed": "",
    "aborted while running": "abort",
    "prefix cache reset": "reset_prefix_cache",
    "dummy run after requests": "dummy_run",
    "padding rows": "padding",
    "state copied to the running column": "align",
    "boundary state copied back": "speculation align",
    "window moved by accepted drafts": "speculation align",
    "all drafts accepted": "speculation",
    "draft rejected": "speculation",
    "boundary crossed in a step with a rejection": "speculation",
    "columns left of a window given back": "sliding-window",
    "hit behind a sliding window": "sliding-window caching",
    "proposals written by the drafter": "draft-group speculation",
    "dummy run beside a drafter": "draft-group dummy_run speculation",
    "planned ahead of execution": "async",
    "preempted with a step in flight": "async",
}
"""State -> features (space separated) without which it cannot occur."""


def features(capabilities: Capabilities, overrides: Mapping[str, object]) -> set[str]:
    """The features of `REQUIRES` that a target has and that fixed configuration fields do not switch off."""
    modes = {str(overrides["mamba_cache_mode"])} if "mamba_cache_mode" in overrides else set(capabilities.modes)
    if str(overrides.get("enable_prefix_caching", "")).lower() == "false":
        modes = {"none"}
    has = set(capabilities.events) | set(capabilities.reaches) | modes
    if capabilities.windows:
        has.add("sliding-window")
    if capabilities.draft_block_sizes:
        has.add("draft-group")
    if "groups" in overrides:
        has -= {"sliding-window", "draft-group"}
    if has & {"align", "all"}:
        has.add("caching")
    if int(str(overrides.get("num_speculative_tokens", capabilities.max_speculative_tokens))):
        has.add("speculation")
    if int(str(overrides.get("async_depth", capabilities.max_async_depth))):
        has.add("async")
    return has


def required_states(capabilities: Capabilities, overrides: Mapping[str, object] | None = None) -> list[str]:
    """States that a campaign over everything the target can do has to reach, as far as `overrides` leave it open."""
    has = features(capabilities, overrides or {})
    return [state for state, needs in REQUIRES.items() if set(needs.split()) <= has]


def missing_states(
    capabilities: Capabilities, reached: Mapping[str, int], overrides: Mapping[str, object] | None = None
) -> list[str]:
    """Required states that were never reached."""
    return [state for state in required_states(capabilities, overrides) if not reached.get(state)]


class ReachedStates:
    """Counts states of one trace."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._computed: Counter[str] = Counter()

    def after_record(self, record: Record, context: Context) -> None:
        """Called once the oracles are content with a record and before the reference takes it over."""
        if isinstance(record, Planned):
            self._planned(record, context)
        elif isinstance(record, Copied):
            self._copied(record)
        elif isinstance(record, Forward):
            self._forward(record, context)
        elif isinstance(record, Zeroed):
            self.counts["blocks zeroed"] += 1

    def _planned(self, planned: Planned, context: Context) -> None:
        counts = self.counts
        if len(context.reference.pending) > 1:
            counts["planned ahead of execution"] += 1
        if len(planned.rows) >= 3:
            counts["batch of three or more"] += 1
        if max(planned.view.references, default=0) > 1:
            counts["block shared by two requests"] += 1
        published = planned.view.published
        if len(set(published.values())) < len(published):
            counts["duplicate key"] += 1
        if context.before.published.keys() - published.keys():
            counts["cached block evicted"] += 1
        windows = [index for index, group in enumerate(context.layout.groups) if group.window]
        for row in planned.rows:
            for index in windows:
                passed = planned.view.tables[row.name][index][:1] == (context.null,)
                state = "hit behind a sliding window" if row.admitted else "columns left of a window given back"
                counts[state] += passed
            life = context.reference.lives[row.name]
            if row.admitted and row.hit:
                counts["prefix hit"] += 1
                self._hit(row.name, row.hit, context)
            if row.admitted and row.num_tokens == 1 and not row.hit and life.truth.prompt_length > 1:
                counts["first chunk of one token"] += 1
            unfinished = row.start + row.num_tokens < life.truth.prompt_length
            counts["chunked prefill"] += unfinished
            counts["chunk shorter than the convolution window"] += (
                unfinished and row.num_tokens < context.layout.conv_width - 1
            )

    def _hit(self, name: str, hit: int, context: Context) -> None:
        self.counts["resumed from a hit"] += bool(self._computed[name])
        tag = context.reference.lives[name].truth.tag(hit)
        for key, truth in context.reference.truths.items():
            if key.depth == hit and key.tag == tag and truth.prompt_length < hit:
                self.counts["hit on content written by decoding"] += 1
                return

    def _copied(self, copied: Copied) -> None:
        self.counts["window moved by accepted drafts"] += bool(copied.shift)
        if copied.destination_column < copied.source_column:
            self.counts["boundary state copied back"] += 1
        else:
            self.counts["state copied to the running column"] += 1

    def _forward(self, forward: Forward, context: Context) -> None:
        counts = self.counts
        dead = sum(row.request is None for row in forward.rows)
        counts["dummy run after requests"] += forward.dummy and bool(self._computed)
        counts["padding rows"] += bool(dead) and not forward.dummy
        self._drafter(forward, context)
        sizes = [group.block_size for group in context.layout.groups if group.kind == "mamba"]
        for row in forward.rows:
            if row.request is None:
                continue
            self._computed[row.request] += 1
            if row.drafts:
                accepted = len(row.sampled) - 1
                counts["all drafts accepted"] += accepted == row.drafts
                counts["draft rejected"] += accepted < row.drafts
                after = row.position + 1 + accepted
                crossed = any(after // size > row.position // size for size in sizes)
                counts["boundary crossed in a step with a rejection"] += crossed and accepted < row.drafts
        groups, facts = context.layout.groups, context.reference.ledger.facts
        for block in context.reference.handed_out:
            previous = facts[block].previous_group
            if previous >= 0 and groups[previous].kind != groups[facts[block].group].kind:
                counts["block reused by another kind of group"] += 1
                break

    def _drafter(self, forward: Forward, context: Context) -> None:
        drafting = [index for index, group in enumerate(context.layout.groups) if group.draft]
        if not drafting:
            return
        if forward.dummy:
            self.counts["dummy run beside a drafter"] += (
                bool(self._computed) and context.layout.num_speculative_tokens > 1
            )
        rows = forward.rows
        self.counts["proposals written by the drafter"] += any(
            isinstance(one, SlotWrite)
            and one.group in drafting
            and one.position >= rows[one.row].position + len(rows[one.row].tokens) - rows[one.row].drafts
            and one.position > rows[one.row].position
            for one in forward.accesses
        )

    def after_event(self, event: Event, context: Context, view: View) -> None:
        """Called after the oracles judged the view at the end of an event; `context.before` is the one before."""
        counts = self.counts
        gone = [name for name in context.before.running if name in view.waiting]
        if gone:
            counts["preempted"] += 1
            for name in gone:
                life = context.reference.lives.get(name)
                sizes = [group.block_size for group in context.layout.groups]
                counts["preempted with a partial block"] += life is not None and any(
                    life.settled % size for size in sizes
                )
            counts["preempted with a step in flight"] += bool(context.reference.pending)
        if isinstance(event, Abort) and event.name in context.before.running:
            counts["aborted while running"] += 1
        if isinstance(event, ResetPrefixCache) and context.before.published and not view.published:
            counts["prefix cache reset"] += 1
