"""S1 checkpoint, S2 resume, S3 rollback: content is what the key, or the request's progress, says."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.layout import first_attended
from ....reference.prefix_cache import Key
from ....reference.request import Life
from ....targets.base.observe import (
    Content,
    Forward,
    Planned,
    SlotContent,
    SlotRead,
    StateContent,
    StateRead,
    View,
)
from ..violation import Violation
from .base import Context, Oracle, after_tokens, first_difference, name_tag


class Continuation(Oracle):
    """S2: the first step after an admission starts from the request's own content after `num_computed_tokens` tokens.
    S3: every later step starts from the content after exactly the tokens accepted so far. Temporal state and
    convolution window are compared separately, attention slots one by one. A state that exists must be read."""

    ids = ("S2", "S3")
    title = "resume and rollback"
    needs = frozenset({"accesses"})

    def __init__(self) -> None:
        super().__init__()
        self._reads: set[tuple[int, int, int, str]] = set()
        """Row, group, layer and part (state, window, slots) of what the present forward read."""
        self._hits: dict[str, int] = {}
        """Request -> tokens of the hit at its last admission."""

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        self._hits.update((row.name, row.hit) for row in planned.rows if row.anew)
        return None

    def on_state_read(self, context: Context, read: StateRead) -> Violation | None:
        life = context.lives[read.row]
        if life is None:
            return None
        oracle = "S2" if life.resumed else "S3"
        self.exercised[oracle] += 1
        depth = life.settled
        field = seen = ""
        if context.layout.zeroed_start and not depth and not read.temporal and not any(read.window or ()):
            return None
        where = (read.row, read.group, read.layer)
        if read.window is not None:
            self._reads.add((*where, "conv"))
        if read.temporal is not None:
            self._reads.add((*where, "temporal"))
            if not depth or read.temporal != life.truth.tag(depth):
                field, seen = "temporal", name_tag(context, read.temporal)
        if read.window is not None and not field:
            wanted = life.truth.window(depth, context.layout.conv_width)
            if not depth or read.window != wanted:
                index = first_difference(wanted, read.window)
                field, seen = "conv", f"a window whose input {index} is "
                seen += name_tag(context, read.window[index], "input") if index < len(read.window) else "missing"
        if not field:
            return None
        if not depth:
            field = "phantom-state"
        return self.violation(
            context,
            field,
            f"{life.name} resumes from {seen} in block {read.block} (column {read.column}), expected "
            + (after_tokens(life.name, depth) if depth else "no state, since nothing is computed yet")
            + f"; the block was {context.reference.ledger.describe(read.block, read.layer)}",
            expected=f"state@{depth}",
            observed=seen,
            request=life.name,
            group=read.group,
            block=read.block,
            oracle=oracle,
        )

    def on_slot_read(self, context: Context, read: SlotRead) -> Violation | None:
        life = context.lives[read.row]
        if life is None:
            return None
        oracle = "S2" if life.resumed else "S3"
        self.exercised[oracle] += 1
        self._reads.add((read.row, read.group, read.layer, "slots"))
        group = context.layout.groups[read.group]
        first = read.first_column * group.block_size
        wanted = life.truth.slots(first + group.shift, life.settled + group.shift)
        observed = list(read.tags[: len(wanted)] if context.has_pool else read.tags)
        if group.shift and observed != wanted:
            self._accept_others(context, life, read, observed, wanted)
        if observed == wanted and (not first or first <= first_attended(group, life.settled)):
            return None
        index = first_difference(wanted, observed)
        column = index // group.block_size if context.has_pool else 0
        block = read.blocks[column] if column < len(read.blocks) else -1
        seen = name_tag(context, observed[index], "KV") if index < len(observed) else "nothing"
        position = first + index
        return self.violation(
            context,
            "slot",
            f"{life.name} attends to position {position} in block {block} and reads {seen}, expected its own KV; the "
            f"block was {context.reference.ledger.describe(block, read.layer)}",
            expected=f"slot {position}",
            observed=seen,
            request=life.name,
            group=read.group,
            block=block,
            oracle=oracle,
        )

    def _accept_others(
        self, context: Context, life: Life, read: SlotRead, observed: list[int], wanted: Sequence[int]
    ) -> None:
        """Accept the last slots of blocks that another request wrote, or an earlier turn of this one if its block was
        hit: they depend on a token that no key covers.

        Of two blocks with one key a hit may use either. The drafter's proposals are worse then, the output is not.
        """
        group, facts = context.layout.groups[read.group], context.reference.ledger.facts
        for column, block in enumerate(read.blocks):
            end = (column + 1) * group.block_size
            is_hit = end <= self._hits.get(life.name, 0)
            if end <= len(wanted) and block in facts and (is_hit or facts[block].owner != life.name):
                observed[end - group.shift : end] = wanted[end - group.shift : end]

    def on_forward(self, context: Context, forward: Forward) -> Violation | None:
        reads, self._reads = self._reads, set()
        for row, life in enumerate(context.lives):
            if life is None or not life.settled:
                continue
            for index, group in enumerate(context.layout.groups):
                if group.kind == "mamba":
                    parts: tuple[str, ...] = ("temporal",) * group.recurrent + ("conv",) * group.conv
                elif group.draft or first_attended(group, life.settled) >= life.settled:
                    continue  # a drafter reads when it proposes; a chunk's first token attends to nothing before it
                else:
                    parts = ("slots",)
                for layer in range(group.layers):
                    for part in parts:
                        if (row, index, layer, part) not in reads:
                            return self._ignored(context, life, index, part)
        return None

    def _ignored(self, context: Context, life: Life, index: int, part: str) -> Violation:
        field, what = {
            "temporal": ("state-ignored", "recurrent state"),
            "conv": ("window-ignored", "convolution window"),
            "slots": ("slots-ignored", "keys and values"),
        }[part]
        kind = context.layout.groups[index].kind
        return self.violation(
            context,
            field,
            f"{life.name} has {life.settled} tokens computed, but {kind} group {index} starts without reading its "
            + what,
            expected=f"state@{life.settled}" if kind == "mamba" else f"{life.settled} slots",
            observed="no read",
            request=life.name,
            group=index,
            oracle="S2" if life.resumed else "S3",
        )


class Checkpoint(Oracle):
    """S1: every published block holds the content that its key names, once the steps planned before its publication
    have run; so does everything that is stored outside the pool. S5: that content was written before it is
    reachable."""

    ids = ("S1", "S5")
    title = "checkpoint"
    needs = frozenset({"pool", "content"})

    def __init__(self) -> None:
        super().__init__()
        self._contents: dict[Key, Content] = {}
        self._stored: dict[Key, Sequence[Content]] = {}
        """Content outside the pool that was checked."""

    def on_view(self, context: Context, view: View) -> Violation | None:
        # Every reachable block, after every event: the hottest loop of a run.
        read, contents, not_due = context.target.read, self._contents, context.reference.not_due()
        layers = [range(group.layers) for group in context.layout.groups]
        compared = 0
        for block, key in view.published.items():
            if block in not_due:
                continue
            wanted = contents.get(key) or self._expected(context, key)
            if wanted is None:
                continue
            compared += 1
            group = key.group
            for layer in layers[group]:
                content = read(group, layer, block)
                if content != wanted and not _begins_with(content, wanted):
                    return self._wrong(context, block, key, layer, wanted, content)
        self.exercised["S1"] += compared
        for key, pages in view.stored.items() if view.stored != self._stored else ():
            violation = None if self._stored.get(key) is pages else self._outside(context, key, pages)
            if violation:
                return violation
        return None

    def _outside(self, context: Context, key: Key, pages: Sequence[Content]) -> Violation | None:
        self._stored[key] = pages
        context.reference.know(key)
        wanted = self._contents.get(key) or self._expected(context, key)
        group = context.layout.groups[key.group]
        layers = group.layers
        self.count("S1", 0 if wanted is None else 1)
        if wanted is None or list(pages) == [wanted] * layers:
            return None
        right = sum(page == wanted or (group.shift > 0 and _begins_with(page, wanted)) for page in pages)
        if right == layers == len(pages):
            return None
        what = f"{right} of {layers} layers hold that content"
        return self.violation(
            context,
            "stored",
            f"content is stored outside the pool as {key}, but only {what}",
            expected=f"state@{key.depth} in {layers} layers",
            observed=what,
            group=key.group,
        )

    def _expected(self, context: Context, key: Key) -> Content | None:
        """Return what a block with this key must hold; None if no request had that prefix."""
        truth = context.reference.truths.get(key)
        if truth is None:
            return None
        group = context.layout.groups[key.group]
        if group.kind == "attention":
            start = (key.depth - 1) // group.block_size * group.block_size
            # What a slot has of the tokens after the key is that of its writer; EAGLE's drop is about it.
            wanted: Content = SlotContent(truth.slots(start + group.shift, key.depth))
        else:
            window = truth.window(key.depth, context.layout.conv_width) if group.conv else ()
            wanted = StateContent(key.tag if group.recurrent else None, window)
        self._contents[key] = wanted
        return wanted

    def _wrong(
        self, context: Context, block: int, key: Key, layer: int, wanted: Content, content: Content
    ) -> Violation:
        if isinstance(wanted, SlotContent) and isinstance(content, SlotContent):
            index = first_difference(wanted.tags, content.tags)
            field, seen, where = "slot", name_tag(context, content.tags[index], "KV"), f" in slot {index}"
        elif isinstance(wanted, StateContent) and isinstance(content, StateContent):
            field, seen, where = "temporal", name_tag(context, content.temporal), ""
            if content.temporal == wanted.temporal:
                index = first_difference(wanted.window, content.window)
                field, seen, where = (
                    "conv",
                    name_tag(context, content.window[index], "input"),
                    f" as input {index} of its convolution window",
                )
        else:
            field, seen, where = "kind", "a page of another kind", ""
        cell = context.reference.ledger.cell(block, layer)
        unwritten = cell is not None and cell.step < 0
        history = context.reference.ledger.describe(block, layer)
        return self.violation(
            context,
            "never-written" if unwritten else field,
            f"block {block} is published as depth {key.depth} of a prefix, but holds {seen}{where}: {history}",
            expected=f"state@{key.depth}",
            observed=seen,
            group=key.group,
            block=block,
            oracle="S5" if unwritten else "S1",
        )


def _begins_with(content: Content, wanted: Content) -> bool:
    """Return True if the first slots of an attention page hold what a partial key names."""
    if not isinstance(content, SlotContent) or not isinstance(wanted, SlotContent):
        return False
    return len(wanted.tags) < len(content.tags) and list(content.tags[: len(wanted.tags)]) == list(wanted.tags)
