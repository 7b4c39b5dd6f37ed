"""The whole reference: every request's life, every block's facts, every planned step, in device time.

A step is *planned* when the target decides it and *entered* when the device begins it; with asynchronous
scheduling the next step may be planned in between. Lives and ledger move at entry, never at planning, so that what
is still in flight is judged by the tables of its own plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .layout import Layout, cached_columns
from .ledger import Ledger
from .prefix_cache import Key
from .request import Life
from .tokens import Truth

Table = Sequence[Sequence[int]]


@dataclass(slots=True)
class PlanFacts:
    """What is known of one planned step. `lives`, `admitted` (tokens it starts from) and `reused` (those of them that
    a prefix hit gave it; none for a session that goes on with its own caches) are of its rows only."""

    step: int
    lives: dict[str, Life]
    admitted: dict[str, int]
    reused: dict[str, int]
    tables: Mapping[str, Table]
    references: Sequence[int]
    published: Mapping[int, Key]


class Reference:
    """Follows one target through one trace."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.ledger = Ledger([group.layers for group in layout.groups])
        self.lives: dict[str, Life] = {}
        self.pending: dict[int, PlanFacts] = {}
        """Planned steps whose forward has not run, oldest first; a step without rows has none."""
        self.current: PlanFacts | None = None
        """The step that the device entered last."""
        self.truths: dict[Key, Truth] = {}
        """For every key that was ever published: a request whose prefix it names."""
        self.published_since: dict[int, tuple[Key, int]] = {}
        """Block -> its key and the step in whose planning (or after which) it was published."""
        self.handed_out: list[int] = []
        """Blocks that changed hands when the current step was entered."""
        self._entered_tables: dict[str, Table] = {}
        self._tables_before: Mapping[str, Table] = {}
        """All tables when the step that the device entered last was planned."""
        self._last_published: Mapping[int, Key] = {}

    def arrive(self, name: str, path: Sequence[tuple[str, int]], max_new_tokens: int, session: bool = False) -> Life:
        """A request begins to exist, perhaps as the first turn of a session."""
        assert name not in self.lives
        life = self.lives[name] = Life(name, path, max_new_tokens, session)
        return life

    def plan(
        self,
        step: int,
        rows: Iterable[tuple[str, int | None, int | None]],
        tables: Mapping[str, Table],
        references: Sequence[int],
        published: Mapping[int, Key],
    ) -> PlanFacts:
        """A step was planned; each row is (request, tokens that it starts from if admitted else None, those of them
        that a prefix hit gave it, None if it keeps the blocks that it has)."""
        assert step not in self.pending, "a step is planned once"
        facts = PlanFacts(step, {}, {}, {}, tables, references, published)
        for name, start, hit in rows:
            facts.lives[name] = self.lives[name]
            if start is not None:
                facts.admitted[name] = start
            if hit is not None:
                facts.reused[name] = hit
        if facts.lives:
            self.pending[step] = facts
        return facts

    def note_published(self, published: Mapping[int, Key], step: int) -> None:
        """Remember since when each key stands; one that vanished and came back is new."""
        if published == self._last_published:
            return
        self._last_published = published
        since = self.published_since
        for block in since.keys() - published.keys():
            del since[block]
        for block, key in published.items():
            known = since.get(block)
            if known is None or known[0] != key:
                since[block] = (key, step)
                self.know(key)

    def know(self, key: Key) -> None:
        """Find out which prefix a key names; requests that ended in the current step count."""
        if key in self.truths:
            return
        ended = self.current.lives.values() if self.current else ()
        for life in (*self.lives.values(), *ended):
            if key.depth <= life.total_length and life.truth.tag(key.depth) == key.tag:
                self.truths[key] = life.truth
                return

    def not_due(self) -> Collection[int]:
        """Published blocks whose content need not exist yet: a step planned before their publication has not run."""
        if not self.pending:
            return ()
        first = next(iter(self.pending))
        return {block for block, (_, step) in self.published_since.items() if step >= first}

    def certain(self, name: str) -> int:
        """Tokens of a live request that are settled: what it starts from, if a step that has not run admitted it."""
        for facts in reversed(self.pending.values()):
            if name in facts.admitted:
                return facts.admitted[name]
        return self.lives[name].settled

    def enter(self, step: int) -> PlanFacts | None:
        """The device begins `step`: admissions take effect, new blocks change hands. None for unplanned steps."""
        facts = self.pending.get(step)
        if facts is None or facts is self.current:
            return self.current if self.current and self.current.step == step else facts
        self.current = facts
        self.handed_out = []
        for name, start in facts.admitted.items():
            facts.lives[name].admit(start)
        for name in facts.lives:
            self._hand_out_new_blocks(name, facts)
        self._tables_before = facts.tables
        return facts

    def _hand_out_new_blocks(self, name: str, facts: PlanFacts) -> None:
        table = facts.tables.get(name, ())
        hit = facts.reused.get(name)
        before = self._entered_tables.get(name) if hit is None else None
        if table == before:
            return
        self._entered_tables[name] = table
        kept = self._kept(name) if hit is None and name in facts.admitted else ()
        for index, columns in enumerate(table):
            held = before[index] if before else ()
            if columns == held:
                continue
            width = len(held)
            reused = cached_columns(self.layout.groups[index], self.layout.mode, hit) if hit else 0
            for column, block in enumerate(columns):
                if column < width and held[column] == block:
                    continue
                if block == self.layout.null_block or column < reused:
                    continue
                if self.layout.cache_owns and block in facts.published:
                    continue  # borrowed: the request may have been moved onto an equal block of the cache
                if (block not in held and block not in kept) or not self._owns(name, block):
                    self.ledger.hand_out(block, name, index, facts.step)
                    self.handed_out.append(block)

    def truncate(
        self, name: str, length: int, table: Table, references: Sequence[int], published: Mapping[int, Key]
    ) -> None:
        """A parked session forgot its tokens from `length` on, and holds `table` now: its own blocks, and checkpoints
        of the cache, whoever wrote them. What it holds alone, out of reach of lookups, it may write to."""
        self.lives[name].truncate(length)
        self._entered_tables[name] = table
        self._tables_before = {**self._tables_before, name: table}
        held = {block for columns in table for block in columns}
        self.ledger.adopt([block for block in held if references[block] == 1 and block not in published], name)

    def fork(self, name: str, parent: str, tables: Mapping[str, Table]) -> None:
        """`name` is a copy of a parked session. Blocks that it does not share are as written as what they are copies
        of: the same column of attention, and a state that is there."""
        self.lives[name] = self.lives[parent].fork(name)
        self._entered_tables[name] = table = tables.get(name, ())
        step = self.current.step if self.current else -1
        for index, (columns, origin) in enumerate(zip(table, tables.get(parent, ()), strict=True)):
            for column, block in enumerate(columns):
                if block == self.layout.null_block or block in origin:
                    continue
                self.ledger.hand_out(block, name, index, step)
                self.ledger.inherit(block, origin[column] if self.layout.groups[index].kind == "attention" else None)

    def _owns(self, name: str, block: int) -> bool:
        """Whether a block that the request had, in another column or apart, was its own."""
        facts = self.ledger.facts.get(block)
        return facts is not None and facts.owner == name

    def _kept(self, name: str) -> set[int]:
        """Blocks that a session's turn may go on with, if they are its own: those in its table or in one that no
        request runs on. An engine may put a session's caches aside while a turn runs on others."""
        holders = {name} | self._tables_before.keys() - self.lives.keys()
        return {block for one in holders for columns in self._tables_before.get(one, ()) for block in columns}

    def executed(self, step: int) -> None:
        """The forward of `step` has run."""
        self.pending.pop(step, None)

    def abort(self, name: str, lingers: bool) -> None:
        """A client gave a request up. It is gone, or the target needs another step and reports its end then."""
        life = self.lives.get(name)
        if life is not None and lingers:
            life.aborted = True
        else:
            self.forget(name)

    def end(self, name: str) -> None:
        """A request came to its end, or a session to the end of a turn."""
        life = self.lives.get(name)
        if life is not None and life.session and not life.aborted:
            life.park()
        else:
            self.forget(name)

    def forget(self, name: str) -> None:
        """A request ended; steps in flight keep their own hold on its life."""
        self.lives.pop(name, None)
