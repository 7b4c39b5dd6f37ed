"""The whole reference: the life of each request, the facts of each block, each planned step, in device time.

A step is *planned* when the target schedules it and *entered* when the device begins it; with asynchronous
scheduling the next step may be planned in between. Lives and ledger change at entry, never at planning, so that a step
in flight is checked against the tables of its own plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from .batch import reordered, repeated, selected
from .layout import Layout, cached_columns
from .ledger import Ledger
from .prefix_cache import Key, has_key
from .request import Life
from .tokens import Truth

Table = Sequence[Sequence[int]]


@dataclass(slots=True)
class PlanFacts:
    """One planned step, and the metadata right after its planning.

    Of requests that have a row in it
    lives      the requests
    admitted   request -> tokens that it starts from, if this step admits it
    reused     request -> tokens of a prefix hit; not of sessions that resume with their own caches
    loaded     request -> the table that it got to be loaded into while it waited

    Of all requests and blocks
    tables, references, published  as in `View`
    """

    step: int
    lives: dict[str, Life]
    admitted: dict[str, int]
    reused: dict[str, int]
    tables: Mapping[str, Table]
    references: Sequence[int]
    published: Mapping[int, Key]
    loaded: dict[str, Table] = field(default_factory=dict)


class Reference:
    """The state of the reference along one trace of one target."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.ledger = Ledger([group.layers for group in layout.groups])
        self.lives: dict[str, Life] = {}
        self.pending: dict[int, PlanFacts] = {}
        """Planned steps whose forward has not run, oldest first; a step without rows has none."""
        self.current: PlanFacts | None = None
        """The step that the device entered last."""
        self.truths: dict[Key, Truth] = {}
        """For every key that was published: the tokens of a request whose prefix it names."""
        self.published_since: dict[int, tuple[Key, int]] = {}
        """Block -> its key and the step in whose planning (or after which) it was published."""
        self.preempted: dict[str, int] = {}
        """Request -> the step in whose planning it last lost its row."""
        self.withdrawn: set[str] = set()
        """Requests that their client ended: results of steps that were in flight may still be delivered for them."""
        self.replaced: dict[str, Truth] = {}
        """The tokens that a row had before it took over those of another row, for messages."""
        self.loading: dict[str, PlanFacts] = {}
        """Waiting requests for which content is loaded -> the planning that allocated their blocks. An aborted request
        stays: its load may still write."""
        self._ended: dict[str, Life] = {}
        """Requests that are over."""
        self.handed_out: list[int] = []
        """Blocks that changed hands when the current step was entered."""
        self.batch: Sequence[str] | None = None
        """The rows that the last event must have left in the batch; None if the engine chooses them."""
        self._entered_tables: dict[str, Table] = {}
        self._tables_before: Mapping[str, Table] = {}
        """All tables when the step that the device entered last was planned."""
        self._last_published: Mapping[int, Key] = {}

    def arrive(
        self,
        name: str,
        path: Sequence[tuple[str, int]],
        max_new_tokens: int,
        session: bool = False,
        stop_at: int = 0,
        prompt_logprobs: bool = False,
        structured: int = 0,
        grammar_fails: bool = False,
        min_tokens: int = 0,
        string_before: int = 0,
        reasoning: int = 0,
        logprobs_from: int = 0,
    ) -> Life:
        """Add a request, perhaps as the first turn of a session."""
        assert name not in self.lives
        asked = stop_at, prompt_logprobs, structured, grammar_fails, min_tokens
        places = string_before, reasoning, logprobs_from
        life = self.lives[name] = Life(name, path, max_new_tokens, session, *asked, *places)
        return life

    def plan(
        self,
        step: int,
        rows: Iterable[tuple[str, int | None, int | None]],
        tables: Mapping[str, Table],
        references: Sequence[int],
        published: Mapping[int, Key],
    ) -> PlanFacts:
        """Add a planned step. Each row is (request, tokens that it starts from, tokens of a prefix hit): the second is
        None if it was not admitted in this step, the third is None if it keeps the blocks that it has."""
        assert step not in self.pending, "a step is planned once"
        facts = PlanFacts(step, {}, {}, {}, tables, references, published)
        for name, start, hit in rows:
            load = self.loading.pop(name, None)
            facts.lives[name] = self.lives[name]
            if load is not None and start is None:
                facts.admitted[name], facts.loaded[name] = load.admitted[name], load.tables[name]
            elif start is not None:
                facts.admitted[name] = start
            if hit is not None:
                facts.reused[name] = hit
        if facts.lives:
            self.pending[step] = facts
        return facts

    def plan_load(
        self,
        step: int,
        row: tuple[str, int, int],
        tables: Mapping[str, Table],
        references: Sequence[int],
        published: Mapping[int, Key],
    ) -> None:
        """Add a load for a waiting request, which starts at any time and ends before the request's first step.

        `row` is (request, tokens that it starts from once the load ended, tokens of a prefix hit).
        """
        name, start, hit = row
        lives = {name: self.lives[name]}
        self.loading[name] = PlanFacts(step, lives, {name: start}, {name: hit}, tables, references, published)

    def load(self, step: int, name: str) -> PlanFacts | None:
        """Return the facts for a load: those of its own planning if the request waits for it, else those of `step`.

        A request that waits for a load gets its blocks with the first write of the load, in whatever order that comes
        with forwards, even with one of its own life before a preemption. It is admitted by the step that computes it.
        """
        facts = self.loading.get(name)
        if facts is None:
            return self.enter(step)
        if name not in facts.loaded:
            facts.loaded[name] = table = facts.tables[name]
            for index, columns in enumerate(table):
                reused = cached_columns(self.layout.groups[index], self.layout.mode, facts.reused[name])
                for block in columns[reused:]:
                    if block != self.layout.null_block:
                        self.ledger.hand_out(block, name, index, facts.step)
        return facts

    def note_published(self, published: Mapping[int, Key], step: int) -> None:
        """Remember the step in which each key was published; a key that was dropped and came back is new."""
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

    def know(self, key: Key, is_late: bool = False) -> None:
        """Remember the prefix that a key names, searching also requests that ended in the current step, or if it
        `is_late` in any."""
        if key in self.truths:
            return
        ended = self.current.lives.values() if self.current else ()
        for life in (*self.lives.values(), *ended, *(self._ended.values() if is_late else ())):
            if key.depth <= life.foreseen_length and has_key(self.layout, key, life.truth):
                self.truths[key] = life.truth
                return

    def is_content_of(self, key: Key, truth: Truth) -> bool:
        """Return True if a key names content of this prefix, whatever tokens it names behind it."""
        known = self.truths.get(key)
        return known is not None and known.tag(key.depth) == truth.tag(key.depth)

    def not_due(self) -> Collection[int]:
        """Return the published blocks whose content need not exist yet: a step planned before their publication has
        not run."""
        if not self.pending:
            return ()
        first = next(iter(self.pending))
        return {block for block, (_, step) in self.published_since.items() if step >= first}

    def certain(self, name: str) -> int:
        """Return the settled tokens of a live request: those that it starts from if a step in flight admitted it."""
        for facts in reversed(self.pending.values()):
            if name in facts.admitted:
                return facts.admitted[name]
        return self.lives[name].settled

    def enter(self, step: int) -> PlanFacts | None:
        """Enter `step` on the device: apply admissions, give new blocks to their owners. Return its facts, None for a
        step that was not planned."""
        facts = self.pending.get(step)
        if facts is None or facts is self.current:
            return self.current if self.current and self.current.step == step else facts
        self.current = facts
        self.handed_out = []
        for name, start in facts.admitted.items():
            facts.lives[name].admit(start)
        self._entered_tables.update(facts.loaded)
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
        kept = self._kept(name) if hit is None and name in facts.admitted and name not in facts.loaded else ()
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
        """Remove a parked session's tokens from `length` on; it now holds `table`: its own blocks, and checkpoints of
        the cache. It may write to unpublished blocks that it holds alone."""
        self.lives[name].truncate(length)
        self._entered_tables[name] = table
        self._tables_before = {**self._tables_before, name: table}
        held = {block for columns in table for block in columns}
        self.ledger.adopt([block for block in held if references[block] == 1 and block not in published], name)

    def fork(self, name: str, parent: str, tables: Mapping[str, Table]) -> None:
        """Add `name` as a copy of a parked session. Blocks that it does not share inherit what was written to their
        source: the same column for attention, a complete state for mamba."""
        self.lives[name] = self.lives[parent].fork(name)
        self._entered_tables[name] = table = tables.get(name, ())
        step = self.current.step if self.current else -1
        for index, (columns, origin) in enumerate(zip(table, tables.get(parent, ()), strict=True)):
            for column, block in enumerate(columns):
                if block == self.layout.null_block or block in origin:
                    continue
                self.ledger.hand_out(block, name, index, step)
                self.ledger.inherit(block, origin[column] if self.layout.groups[index].kind == "attention" else None)

    def select(self, rows: Sequence[str], names: Sequence[str]) -> None:
        """Keep the rows in `names`, in this order; forget the requests of the others."""
        self.batch = selected(rows, names)
        for name in rows:
            if name not in self.batch:
                self.withdrawn.add(name)
                self.forget(name)

    def resume(
        self,
        name: str,
        path: Sequence[tuple[str, int]],
        max_new_tokens: int,
        stop_at: int = 0,
        structured: int = 0,
        min_tokens: int = 0,
        string_before: int = 0,
        reasoning: int = 0,
    ) -> None:
        """Start the next turn of a parked session. Steps in flight keep the life of the last turn."""
        life = self.lives[name] = copy(self.lives[name])
        self.withdrawn.discard(name)
        asked = stop_at, structured, min_tokens, string_before, reasoning
        life.resume(path, max_new_tokens, self.layout.resume_drops, *asked)

    def reorder(self, rows: Sequence[str], sources: Mapping[str, str]) -> None:
        """Give each row the tokens of its source."""
        self._copy_rows(reordered(rows, sources))

    def repeat(self, rows: Sequence[str], times: int, most: int, names: set[str]) -> None:
        """Repeat each row, unless the batch gets more than `most` rows or a copy's name is in `names`, to which the
        copies are added."""
        self._copy_rows(repeated(rows, times, most, names) or {name: (name, 0) for name in rows})
        names.update(self.batch or ())

    def _copy_rows(self, batch: Mapping[str, tuple[str, int]]) -> None:
        before = {source: copy(self.lives[source]) for source, _ in batch.values()}
        self.batch = list(batch)
        for name, (source, rank) in batch.items():
            life = self.lives.setdefault(name, Life(name, (), 0))
            if source != name or rank:
                self.replaced[name] = life.truth
            life.copy_of(before[source], rank)

    def crop(self, rows: Sequence[str], tokens: int) -> None:
        """Forget the last `tokens` computed tokens of each row, if each has computed more."""
        self.batch = rows
        lives = [self.lives[name] for name in rows]
        if all(life.settled > tokens for life in lives):
            for life in lives:
                life.crop(tokens)

    def reset(self, rows: Sequence[str]) -> None:
        """Forget what the rows have computed."""
        for name in rows:
            self.lives[name].reset()

    def _owns(self, name: str, block: int) -> bool:
        """Return True if the ledger has the request as the block's owner."""
        facts = self.ledger.facts.get(block)
        return facts is not None and facts.owner == name

    def _kept(self, name: str) -> set[int]:
        """Return the blocks that a session's turn may resume with, if it owns them: those in its table or in a table
        of no request. An engine may put a session's caches aside while a turn runs on other blocks."""
        holders = {name} | self._tables_before.keys() - self.lives.keys()
        return {block for one in holders for columns in self._tables_before.get(one, ()) for block in columns}

    def may_read_anything(self, life: Life, step: int) -> bool:
        """Return True if a request, or its turn, has ended or lost its row since `step` was planned, and its memory may
        be another's before that step has run: what it reads and samples for the request counts for nothing."""
        if self.layout.keeps_ended:
            return False
        return self.lives.get(life.name) is not life or self.preempted.get(life.name, -1) > step

    def executed(self, step: int) -> None:
        """Note that the forward of `step` has run."""
        self.pending.pop(step, None)

    def abort(self, name: str, lingers: bool, keeps_session: bool = False) -> None:
        """Abort a request, or the turn of a session that goes on. If it `lingers`, the target needs another step and
        reports its end then."""
        life = self.lives.get(name)
        if life is None:
            return
        is_closed = life.aborted and not life.keeps_session
        keeps_session = keeps_session and life.session and not is_closed
        if keeps_session and life.parked:
            return
        self.withdrawn.add(name)
        if lingers:
            life.aborted, life.keeps_session = True, keeps_session
        elif keeps_session:
            self._park_without_turn(life)
        else:
            self.forget(name)

    def keep_behind(self, name: str, count: int) -> None:
        """Note that an engine has `count` tokens past the end of an answer, which it may publish."""
        if (life := self.lives.get(name)) is not None:
            life.behind = count

    def end(self, name: str) -> None:
        """End a request, or the turn of a session."""
        life = self.lives.get(name)
        if life is None or not life.session or (life.aborted and not life.keeps_session):
            self.forget(name)
        elif life.aborted:
            self._park_without_turn(life)
        else:
            life.park()

    def fail(self, name: str) -> None:
        """End a request with an error: its client closes a session, unless it had aborted the turn."""
        life = self.lives.get(name)
        if life is not None and life.keeps_session:
            self._park_without_turn(life)
        else:
            self.forget(name)

    def _park_without_turn(self, life: Life) -> None:
        """Park a session without its aborted turn, which steps in flight keep."""
        life.aborted = True
        self.lives[life.name] = copy(life)
        self.lives[life.name].park_without_turn()

    def forget(self, name: str) -> None:
        """Remove a request; steps in flight keep their own reference to its life."""
        life = self.lives.pop(name, None)
        if life is not None:
            self._ended[name] = life
