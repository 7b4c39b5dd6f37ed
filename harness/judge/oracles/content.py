"""S1 checkpoint, S2 resume, S3 rollback: content is what the key, or the request's progress, says.

Recurrent states and attention slots alike: `Continuation` judges what a request reads, `Checkpoint` what a published
block holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....reference.layout import first_attended
from ....reference.prefix_cache import Key
from ....reference.request import Life
from ....reference.tokens import first_difference
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
from ..verdict import PartOf, Prefix, StateOf, Value, WindowOf, key_of
from ..violation import Violation
from .base import Context, Oracle, found
from .rules import Consequence, Rule


class Continuation(Oracle):
    """Checks what a request's kernels read."""

    rules = (
        Rule(
            "S2",
            "The first step after an admission starts from the request's own content after `num_computed_tokens` "
            "tokens.",
            title="resume",
            subject="device",
            consequence=Consequence(
                "A request resumes from {content}",
                "All of its following tokens are computed from it.",
                "wrong tokens",
            ),
        ),
        Rule(
            "S3",
            "Every later step starts from the content after exactly the tokens accepted so far. Temporal state "
            "and convolution window are compared separately, attention slots one by one. A state that exists must "
            "be read.",
            title="rollback",
            subject="device",
            consequence=Consequence(
                "A request continues from {content}",
                "All of its following tokens are computed from it.",
                "wrong tokens",
            ),
        ),
    )
    title = "resume and rollback"
    needs = frozenset({"accesses"})

    def __init__(self) -> None:
        super().__init__()
        self._reads: set[tuple[int, int, int, str]] = set()
        """Row, group, layer and part (state, window, slots) of what the present forward read."""
        self._hits: dict[str, int] = {}
        """Request -> tokens of the hit at its last admission, with what was loaded behind it."""

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        self._hits.update((row.name, row.hit + row.external) for row in planned.rows if row.anew)
        return None

    def on_state_read(self, context: Context, read: StateRead) -> Violation | None:
        life = context.lives[read.row]
        if life is None:
            return None
        oracle = "S2" if life.resumed else "S3"
        self.exercised[oracle] += 1
        depth = life.settled
        field = ""
        seen: Value = None
        if context.layout.zeroed_start and not depth and not read.temporal and not any(read.window or ()):
            return None
        where = (read.row, read.group, read.layer)
        if read.window is not None:
            self._reads.add((*where, "conv"))
        if read.temporal is not None:
            self._reads.add((*where, "temporal"))
            if not depth or read.temporal != life.truth.tag(depth):
                field, seen = "temporal", found(context, read.temporal)
        if read.window is not None and not field:
            wanted = life.truth.window(depth, context.layout.conv_width)
            if not depth or read.window != wanted:
                index = first_difference(wanted, read.window)
                tag = read.window[index] if index < len(read.window) else None
                field, seen = "conv", WindowOf(index, found(context, tag, "input"))
        if not field or context.may_read_anything(life):
            return None
        return self.violation(
            context,
            "resumes" if depth else "resumes-at-start",
            field=field if depth else "phantom-state",
            column=read.column,
            past=context.past(read.block, read.layer),
            expected=StateOf(Prefix(life.name), depth),
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
        if group.shift > context.layout.lookahead and observed != wanted:
            self._accept_others(context, life, read, observed, wanted)
        if observed == wanted and (not first or first <= first_attended(group, life.settled)):
            return None
        if context.may_read_anything(life):
            return None
        index = first_difference(wanted, observed)
        column = index // group.block_size if context.has_pool else 0
        block = read.blocks[column] if column < len(read.blocks) else -1
        position = first + index
        return self.violation(
            context,
            "attends",
            field="slot",
            position=position,
            past=context.past(block, read.layer),
            expected=PartOf(Prefix(life.name), position, "KV"),
            observed=found(context, observed[index], "KV") if index < len(observed) else None,
            request=life.name,
            group=read.group,
            block=block,
            oracle=oracle,
        )

    def _accept_others(
        self, context: Context, life: Life, read: SlotRead, observed: list[int], wanted: Sequence[int]
    ) -> None:
        """Accept the last slots of blocks that another request wrote, or an earlier turn of this one if its block was
        hit, or that were loaded: they depend on a token that their key does not name.

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
        return self.violation(
            context,
            {"temporal": "state-ignored", "conv": "window-ignored", "slots": "slots-ignored"}[part],
            settled=life.settled,
            expected=StateOf(Prefix(life.name), life.settled) if part != "slots" else "",
            request=life.name,
            group=index,
            oracle="S2" if life.resumed else "S3",
        )


class Checkpoint(Oracle):
    """Checks the content of every reachable block, and of what is stored outside the pool or was sent."""

    rules = (
        Rule(
            "S1",
            "Every published block holds the content that its key names, once the steps planned before its "
            "publication have run; so does everything that is stored outside the pool, or was sent to another engine.",
            subject="device",
            consequence=Consequence(
                "A prefix-cache entry holds {content}",
                "A later request with that prefix continues from {content}.",
                "wrong tokens",
            ),
            otherwise={
                "stored": Consequence(
                    "What is kept outside the pool holds {content}",
                    "A later request that loads it continues from {content}.",
                    "wrong tokens",
                ),
                "sent": Consequence(
                    "Another server receives {content}",
                    "It continues the request from {content}.",
                    "wrong tokens",
                ),
            },
        ),
        Rule(
            "S5",
            "That content was written before it is reachable.",
        ),
    )
    title = "checkpoint"
    needs = frozenset({"pool", "content"})

    def __init__(self) -> None:
        super().__init__()
        self._contents: dict[Key, Content] = {}
        self._stored: Mapping[Key, Sequence[Content]] = {}
        """What was outside the pool in the last view: checked."""
        self._sent: Mapping[Key, Sequence[Content]] = {}
        """What another engine had received in the last view: checked."""

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
        if view.stored != self._stored:
            if violation := self._all_outside(context, "stored", self._stored, view.stored):
                return violation
            self._stored = dict(view.stored)
        if view.sent != self._sent:
            if violation := self._all_outside(context, "sent", self._sent, view.sent):
                return violation
            self._sent = dict(view.sent)
        return None

    def _all_outside(
        self,
        context: Context,
        relation: str,
        before: Mapping[Key, Sequence[Content]],
        now: Mapping[Key, Sequence[Content]],
    ) -> Violation | None:
        """Check what is new outside the pool."""
        for key, pages in now.items():
            if before.get(key) != pages and (violation := self._outside(context, relation, key, pages)):
                return violation
        return None

    def _outside(self, context: Context, relation: str, key: Key, pages: Sequence[Content]) -> Violation | None:
        context.reference.know(key, is_late=relation == "sent")  # an engine may let go of what is still being sent
        wanted = self._contents.get(key) or self._expected(context, key)
        group = context.layout.groups[key.group]
        layers = group.layers
        self.count("S1", 0 if wanted is None else 1)
        if wanted is None or list(pages) == [wanted] * layers:
            return None
        right = sum(page == wanted or (group.shift > 0 and _begins_with(page, wanted)) for page in pages)
        if right == layers == len(pages):
            return None
        return self.violation(
            context,
            relation,
            key=key_of(key),
            right=right,
            layers=layers,
            expected=StateOf(Prefix(cached=key.depth), key.depth),
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
            # What a slot has of tokens that the key does not name is that of its writer; EAGLE's drop is about it.
            end = key.depth + min(group.shift, context.layout.lookahead)
            wanted: Content = SlotContent(truth.slots(start + group.shift, end))
        else:
            window = truth.window(key.depth, context.layout.conv_width) if group.conv else ()
            wanted = StateContent(truth.tag(key.depth) if group.recurrent else None, window)
        self._contents[key] = wanted
        return wanted

    def _wrong(
        self, context: Context, block: int, key: Key, layer: int, wanted: Content, content: Content
    ) -> Violation:
        field, relation, index = "kind", "holds-other-kind", 0
        seen: Value = None
        if isinstance(wanted, SlotContent) and isinstance(content, SlotContent):
            index = first_difference(wanted.tags, content.tags)
            field, relation, seen = "slot", "holds-slot", found(context, content.tags[index], "KV")
        elif isinstance(wanted, StateContent) and isinstance(content, StateContent):
            field, relation, seen = "temporal", "holds-state", found(context, content.temporal)
            if content.temporal == wanted.temporal:
                index = first_difference(wanted.window, content.window)
                field, relation, seen = "conv", "holds-input", found(context, content.window[index], "input")
        cell = context.reference.ledger.cell(block, layer)
        unwritten = cell is not None and cell.step < 0
        return self.violation(
            context,
            relation,
            field="never-written" if unwritten else field,
            depth=key.depth,
            index=index,
            past=context.past(block, layer),
            expected=StateOf(Prefix(cached=key.depth), key.depth),
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
