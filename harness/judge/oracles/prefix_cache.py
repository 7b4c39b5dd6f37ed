"""M2 hash, M6 hit, S5 commit: which keys may be published, and which a hit may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from ....reference.layout import cached_columns, cdiv
from ....reference.prefix_cache import (
    Key,
    attention_match,
    has_key,
    key_at,
    keys_given_up,
    keys_needed,
    longest_hit,
    partial_match,
)
from ....reference.request import Life
from ....targets.base.observe import Planned, PlannedRow, Table, View
from ..verdict import Block, Holders, Prefix, StateOf, key_of
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule


class Hash(Oracle):
    """Checks each new key, and that lookup structure and blocks agree."""

    rules = (
        Rule(
            "M2",
            "Lookup structure and blocks agree on every key. A key for depth d is on the block in the column of d of "
            "a request with that prefix, or on a copy of it that the planned step makes, and d is no more than the "
            "steps planned so far compute, nor after the end of the request's answer. With lookahead hashes that "
            "prefix has the tokens after d that the key names, too, and they are known: prompt, or delivered; drafts "
            "are not. A state that a chunk leaves inside it (`Group.inner_states`) may be of any depth and is in the "
            "column before the chunk's last. In mode slots a key may be on any slot, since a copy may have filled it, "
            "but a request with that prefix must have computed d tokens.",
            subject="cache",
            consequence=Consequence(
                "The prefix cache publishes blocks that do not hold what their keys name",
                "A later request with that prefix continues from {content}.",
                "wrong tokens",
            ),
        ),
    )
    title = "hash"
    needs = frozenset({"pool", "tables"})

    def __init__(self) -> None:
        super().__init__()
        self._judged: View | None = None
        self._known: Mapping[int, Key] = {}
        self._aliases: Mapping[int, Sequence[Key]] = {}
        self._reach: dict[str, int] = {}
        """Tokens by request that the planned steps compute, drafts and steps in flight included."""
        self._tables: Mapping[str, Table] = {}
        """Tables of the previous view: a block may be published and freed at once, by a request that ended or by one
        whose accepted drafts crossed the boundary."""
        self._lives: dict[str, Life] = {}
        """Requests when the previous view was taken. One that ended since may be in no step that is in flight."""

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        self._reach |= {row.name: row.start + row.num_tokens for row in planned.rows}
        return self._check(context, planned.view)

    def on_view(self, context: Context, view: View) -> Violation | None:
        return self._check(context, view)

    def _check(self, context: Context, view: View) -> Violation | None:
        if view is self._judged:
            return None
        if view.labels is not None and view.published != view.labels:
            return self._disagreement(context, view, view.labels)
        self._judged = view
        if view.published != self._known:
            for block, key in view.published.items():
                if self._known.get(block) != key:
                    self.exercised["M2"] += 1
                    violation = self._new_key(context, view, block, key)
                    if violation:
                        return violation
            self._known = view.published
        if view.aliases != self._aliases:
            for block, keys in view.aliases.items():
                for key in keys:
                    if key not in self._aliases.get(block, ()) and self._known.get(block) != key:
                        violation = self._alias(context, view, block, key)
                        if violation:
                            return violation
            self._aliases = view.aliases
        self._tables = view.tables
        self._lives = dict(context.reference.lives)
        return None

    def _alias(self, context: Context, view: View, block: int, key: Key) -> Violation | None:
        """A further key of an attention block names a beginning of what its own key names."""
        self.exercised["M2"] += 1
        own, group = view.published[block], context.layout.groups[key.group]
        truth = context.reference.truths.get(own)
        inside = own.group == key.group and group.kind == "attention" and 0 < own.depth - key.depth < group.block_size
        if inside and (truth is None or has_key(context.layout, key, truth)):
            return None
        return self.violation(context, "alias", own=key_of(own), observed=key_of(key), group=key.group, block=block)

    def _disagreement(self, context: Context, view: View, labels: Mapping[int, Key]) -> Violation | None:
        for block in view.published.keys() | labels.keys():
            found, own = view.published.get(block), labels.get(block)
            if found != own:
                return self.violation(context, "agreement", expected=key_of(own), observed=key_of(found), block=block)
        return None

    def _new_key(self, context: Context, view: View, block: int, key: Key) -> Violation | None:
        group = context.layout.groups[key.group]
        source = view.copies.get(block, block)
        moved = block in view.pins and key in self._known.values()
        if moved or (source != block and self._known.get(source) == key):
            return None  # a partial key moved to a copy of its block, since a request still writes to that block
        column = cdiv(key.depth, group.block_size) - 1
        unit = context.layout.hash_unit or group.block_size
        holders = []
        slots = context.layout.mode == "slots" and group.kind == "mamba"
        ended = self._lives | (context.facts.lives if context.facts else {})
        for name, table in [*view.tables.items(), *self._tables.items()]:
            columns = table[key.group]
            lives = _lives_of(context.reference.lives.get(name), ended.get(name))
            if not lives or not (block in columns or source in columns or slots):
                continue
            if block in columns:
                holders.append((name, columns.index(block)))
            for life in lives:
                computed = min(self._reach.get(name, life.settled), life.total_length + life.behind)
                # A loaded state is published when its load has ended, and at once moved to a copy.
                on_grid = key.depth % unit == 0 and column < len(columns) and columns[column] in (block, source)
                if group.inner_states and block in columns:
                    on_grid |= columns.index(block) == cdiv(computed, group.block_size) - 2
                named = key.depth + context.layout.lookahead
                is_known = key.depth <= computed and (named == key.depth or named <= life.known + life.behind)
                if (on_grid or slots) and is_known and has_key(context.layout, key, life.truth):
                    return None
        return self.violation(
            context,
            "key",
            depth=key.depth,
            observed=Holders(tuple(holders)) if holders else None,
            group=key.group,
            block=block,
        )


def _lives_of(life: Life | None, before: Life | None) -> list[Life]:
    """Return whose content the blocks of a request may have: `life`, or `before` if it has ended. A session that goes
    on behind an aborted turn may publish what that turn computed."""
    if life is None or (before is not None and before is not life and before.aborted):
        return [one for one in (life, before) if one is not None]
    return [life]


class HitValidity(Oracle):
    """Checks each hit when it is planned."""

    rules = (
        Rule(
            "M6",
            "For a hit of L tokens every group has published content of exactly that prefix, in the right "
            "columns; a session resumes from no more tokens than it has computed; a request with prompt "
            "log-probabilities skips none of the tokens from `logprobs_from` on.",
            subject="cache",
            consequence=Consequence(
                "A prefix-cache hit is longer than the cached content",
                "The request skips tokens whose content was never computed.",
                "wrong tokens",
            ),
            otherwise={
                "prompt": Consequence(
                    "A prefix-cache hit skips tokens whose log-probabilities are asked for",
                    "The client does not get the log-probabilities of the skipped tokens.",
                    "wrong tokens",
                )
            },
        ),
        Rule(
            "M8",
            "A hit is no shorter than the longest one that the documented rule allows.",
            consequence=Consequence(
                "Cached prefixes are not found",
                "They are computed again: throughput is lost, no wrong token by itself.",
                "slower",
            ),
            fields=frozenset({"hit"}),
        ),
    )
    title = "hit"
    needs = frozenset({"pool", "tables"})

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        for row in planned.rows:
            if not row.admitted:
                continue
            life = context.reference.lives[row.name]
            if life.needs_its_prompt and not row.kept:
                self.count("M6")
                if row.hit + row.external > life.logprobs_from:
                    return self._skipped(context, row, life.logprobs_from)
            looks_up = context.layout.prefix_caching and row.anew and not row.restored
            violation = self._long_enough(context, planned, row) if looks_up else None
            if violation:
                return violation
            start, most = row.kept or row.hit + row.external, life.known - 1
            if row.kept:
                most = min(most, life.settled)
            if start > most:
                return self.violation(
                    context,
                    "kept" if row.kept else "whole-request",
                    settled=life.settled,
                    hit=start,
                    known=life.known,
                    most=most,
                    observed=start,
                    request=row.name,
                )
            for index in range(len(context.layout.groups) if row.hit else 0):
                violation = self._valid(context, planned.view, row, index, life.truth.tags)
                if violation:
                    return violation
            violation = self._block_given_up(context, planned, row) if row.hit else None
            if violation:
                return violation
        return None

    def _skipped(self, context: Context, row: PlannedRow, most: int) -> Violation:
        tokens = row.hit + row.external
        return self.violation(
            context, "prompt-skipped", field="prompt", hit=tokens, expected=most, observed=tokens, request=row.name
        )

    def _block_given_up(self, context: Context, planned: Planned, row: PlannedRow) -> Violation | None:
        """EAGLE: the last matched block of the drafter's attention is computed again. The match is at most as long as
        what was published before or after this planning."""
        life = context.reference.lives[row.name]
        for index in context.layout.eagle_groups:
            group = context.layout.groups[index]
            if _is_completed(context, row, index):
                continue
            available = {
                *context.before.published.values(),
                *planned.view.published.values(),
                *chain.from_iterable([*context.before.aliases.values(), *planned.view.aliases.values()]),
            }
            if group.is_local:
                if available.issuperset(keys_given_up(context.layout, index, life.truth.tags, row.hit)):
                    continue
                return self.violation(
                    context,
                    "eagle-local",
                    field="eagle-block",
                    hit=row.hit,
                    observed=row.hit,
                    request=row.name,
                    group=index,
                )
            matched = attention_match(context.layout, index, available, life.truth.tags, life.known)
            dropped = group.block_size
            if context.layout.eagle_unit:
                dropped = min(context.layout.eagle_unit, group.block_size)
                matched = partial_match(context.layout, index, available, life.truth.tags, matched, dropped)
            if row.hit > max(matched - dropped, 0):
                return self.violation(
                    context,
                    "eagle-tokens" if context.layout.eagle_unit else "eagle-block",
                    field="eagle-block",
                    hit=row.hit,
                    matched=matched,
                    dropped=dropped,
                    most=max(matched - dropped, 0),
                    observed=row.hit,
                    request=row.name,
                    group=index,
                )
        return None

    def _valid(self, context: Context, view: View, row: PlannedRow, index: int, tags: list[int]) -> Violation | None:
        self.count("M6")
        group = context.layout.groups[index]
        columns = view.tables[row.name][index]
        if context.layout.mode == "slots" and group.kind == "mamba":
            return self._state_cached(context, view, row, index, tags)
        inside = row.hit % group.block_size  # the part inside a block is a copy: checked when it is read (S2)
        for key in keys_needed(context.layout, index, tags, row.hit - inside, inside + row.external):
            column = key.depth // group.block_size - 1
            block = columns[column] if column < len(columns) else None
            if _is_completed(context, row, index) and block is not None and block not in view.published:
                continue  # it is loaded: checked when it is read (S2, S4)
            if block is None or view.published.get(block) != key:
                holds = view.published.get(block) if block is not None else None
                return self.violation(
                    context,
                    "hit-missing" if block is None else "hit-other" if holds else "hit-unpublished",
                    field="length",
                    hit=row.hit,
                    column=column,
                    depth=key.depth,
                    holds=holds.depth if holds else None,
                    observed=None if block is None else Block(block),
                    request=row.name,
                    group=index,
                    block=-1 if block is None else block,
                )
        return None

    def _state_cached(
        self, context: Context, view: View, row: PlannedRow, index: int, tags: list[int]
    ) -> Violation | None:
        """Mode slots: the state is copied out of a slot of the cache. The read shows which slot it was (S2)."""
        if key_at(context.layout, index, tags, row.hit) in view.published.values():
            return None
        return self.violation(
            context,
            "hit-no-slot",
            field="length",
            hit=row.hit,
            expected=StateOf(Prefix(row.name), row.hit),
            request=row.name,
            group=index,
        )

    def _long_enough(self, context: Context, planned: Planned, row: PlannedRow) -> Violation | None:
        """Check that the hit is the longest one. Only blocks that certainly kept their content through this planning
        count: eviction shortens hits legally, and a block that was free before and is not now may have been allocated
        and published again."""
        life = context.reference.lives[row.name]
        if planned.preempted or life.prompt_logprobs:
            return None
        before, view = context.before, planned.view
        revived = {
            block
            for columns, group in zip(view.tables[row.name], context.layout.groups, strict=True)
            for block in columns[: cached_columns(group, context.layout.mode, row.hit)]
        }
        lasting = {
            key
            for block, key in before.published.items()
            if view.published.get(block) == key
            and (block in revived or before.references[block] > 0 or view.references[block] == 0)
        }
        promised = longest_hit(context.layout, lasting, life.truth.tags, life.known)
        self.count("M8", 1 if promised else 0)
        if row.hit >= promised:
            return None
        return self.violation(
            context,
            "hit-too-short",
            field="hit",
            expected=promised,
            observed=row.hit,
            request=row.name,
            oracle="M8",
        )


def _is_completed(context: Context, row: PlannedRow, index: int) -> bool:
    """Return True if a load brings what a group lacks of a row's hit."""
    group = context.layout.groups[index]
    return context.layout.loads_complete_hits and row.external > 0 and (group.is_local or group.shift > 0)


class Commit(Oracle):
    """Checks when the state of a hit is written."""

    rules = (
        Rule(
            "S5",
            "A state may be hit only if an earlier step than the hit's own writes it: a state published in a step "
            "exists only after that step's forward. (Attention stores all slots of a step before it reads any.)",
            subject="device",
            consequence=Consequence(
                "A prefix-cache entry is published before it is written",
                "A later request with that prefix continues from memory that holds something else.",
                "wrong tokens",
            ),
        ),
    )
    title = "commit"
    needs = frozenset({"pool", "tables"})

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        for row in planned.rows:
            if not row.admitted or not row.hit or row.external or row.loads_apart:
                continue
            for index, group in enumerate(context.layout.groups):
                block = self._source(context, planned, row, index) if group.kind == "mamba" else None
                if block is None:
                    continue
                self.count()
                key = planned.view.published.get(block)
                if key != context.before.published.get(block) and not self._exists(context, planned, block, row.hit):
                    return self.violation(
                        context,
                        "early-hit",
                        depth=row.hit,
                        request=row.name,
                        group=index,
                        block=block,
                    )
        return None

    def _source(self, context: Context, planned: Planned, row: PlannedRow, index: int) -> int | None:
        """Return the block that holds the state of the hit, None if none is published; of several slots one that was
        published before."""
        if context.layout.mode == "slots":
            wanted = key_at(context.layout, index, context.reference.lives[row.name].truth.tags, row.hit)
            slots = [block for block, key in planned.view.published.items() if key == wanted]
            return max(slots, key=lambda slot: context.before.published.get(slot) == wanted, default=None)
        size = context.layout.groups[index].block_size
        return None if row.hit % size else planned.view.tables[row.name][index][row.hit // size - 1]

    def _exists(self, context: Context, planned: Planned, block: int, depth: int) -> bool:
        """Return True if an executed step has written the state already: then it is published late, not early. In mode
        slots a published slot no longer belongs to its writer, so it was written, or will be by an earlier step."""
        if context.layout.mode == "slots":
            tables = [planned.view.tables[row.name] for row in planned.rows]
            return not any(block in columns for table in tables for columns in table)
        for name, table in context.before.tables.items():
            life = context.reference.lives.get(name)
            if life is not None and life.settled >= depth and any(block in columns for columns in table):
                return True
        return False
