"""Counts the reached states of one trace (the catalogue is in `state_catalogue.py`).

States are derived from the same records and views that the oracles check, so each means the same for every target.
"""

from __future__ import annotations

import sys
from collections import Counter

from ...reference.batch import original_name
from ...reference.draft_trees import longest_path
from ...reference.layout import Layout
from ...reference.prefix_cache import Key, has_key, longest_hit
from ...reference.request import Life
from ...targets.base.observe import (
    Content,
    Copied,
    Delivered,
    Forward,
    ForwardRow,
    Loaded,
    Numeric,
    OutOfRange,
    Planned,
    PlannedRow,
    RealForward,
    Record,
    SideBySide,
    SlotWrite,
    StateWrite,
    Table,
    View,
    Zeroed,
)
from ...targets.base.trace import (
    BATCH_EVENTS,
    Abort,
    Event,
    Evict,
    Fork,
    MoveTier,
    Park,
    Pause,
    Reorder,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    Step,
    SwitchStorage,
    Truncate,
    Turn,
    has_stop_string,
)
from .oracles.base import Context

_LOCAL = (
    ("blocks to the left of a sliding window freed", "hit behind a sliding window"),
    ("blocks of an earlier attention chunk freed", "hit behind an attention chunk"),
)
"""States of groups with a sliding window, and of those with chunks."""


class ReachedStates:
    """Counts states of one trace."""

    def __init__(self, layout: Layout, observes: frozenset[str] = frozenset(), near_stock: bool = False) -> None:
        """`observes` is what the target declares that it observes; `near_stock`: it is configured nearly as the stock
        server is."""
        self._near_stock = near_stock
        self._missing = set(observes)
        """Declared observations that were not delivered yet."""
        self.counts: Counter[str] = Counter()
        self._local = {index: _LOCAL[bool(group.chunk)] for index, group in enumerate(layout.groups) if group.is_local}
        self._drafting = [index for index, group in enumerate(layout.groups) if group.draft]
        self._computed: Counter[str] = Counter()
        """Steps executed for each request."""
        self._preempted: Counter[str] = Counter()
        self._evicted: set[Key] = set()
        self._parked_with: dict[str, int] = {}
        """Tokens that a session had in memory when its last turn ended."""
        self._without_turn: set[str] = set()
        """Sessions whose last turn was aborted."""
        self._content: Content | None = None
        """The first content that was read."""
        self._seats: list[str] = []
        """Requests of the last batch, by row."""
        self._scored: set[str] = set()
        """Requests with prompt log-probabilities that were admitted."""
        self._loading: set[str] = set()
        """Requests that wait for a load."""
        self._receivers: set[str] = set()
        """Requests that got tokens in the last step."""
        self._loaded_back: set[int] = set()
        """Blocks of the cache that this event loaded."""
        self._unheld: dict[int, Key] = {}
        """Blocks of the cache with content that neither the pool nor what is outside had when they got it."""
        self._once_stored: set[Key] = set()
        """Content that was outside the pool once."""
        self._stored_to: set[int] = set()
        """Blocks of the cache that a state was copied into."""
        self._by_string: dict[str, int] = {}
        """Requests whose answer ends by a stop string, if it does not end before -> its tokens, at most."""

    def after_record(self, record: Record, context: Context) -> None:
        """Count the states of a record. Called after the oracles accepted it and before the reference applies it."""
        if self._missing:
            self._observed(record)
        if isinstance(record, Planned):
            self._planned(record, context)
        elif isinstance(record, Forward):
            self.counts["generation paused with a step in flight"] += context.event_kind == "pause"
            self._forward(record, context)
        elif isinstance(record, RealForward):
            self.counts["request sent before the answer to another one"] += record.arrived
            self.counts["request cancelled before the answers to others"] += record.cancelled
        elif isinstance(record, Copied):
            self._copied(record)
        elif isinstance(record, Zeroed):
            self.counts["blocks zeroed"] += 1
        elif isinstance(record, Loaded):
            self.counts["loaded from outside the pool"] += 1
            self.counts["content loaded back into the cache"] += record.column < 0
            if record.column < 0:
                self._loaded_back.add(record.block)
            earlier = any(step < record.step for step in context.reference.pending)
            self.counts["load overtook a step in flight"] += earlier and record.request in context.reference.loading
        elif isinstance(record, Delivered):
            self._failed(record, context)
            self._receivers = {name for name, tokens in record.outputs if tokens}
            for name in record.finished:
                if life := context.reference.lives.get(name):
                    self._ended(life, context)
                    self.counts["sample of a prompt ended before another"] += any(
                        original_name(other) == original_name(name) and other not in record.finished
                        for other in context.reference.lives
                    )

    def _failed(self, delivered: Delivered, context: Context) -> None:
        """Count the requests that ended with an error."""
        for name in delivered.failed:
            life = context.reference.lives.get(name)
            by_grammar = life is not None and life.grammar_fails
            self.counts["request ended with an error by its load"] += not by_grammar
            self.counts["request ended with an error by its grammar"] += by_grammar
            self.counts["error by a grammar while others run"] += by_grammar and bool(delivered.outputs)

    def _ended(self, life: Life, context: Context) -> None:
        counts, length = self.counts, life.total_length
        if life.answer_length == life.max_new_tokens:
            counts["ended at its most tokens"] += life.delivered == life.answer_length
            return
        counts["ended by a stop token"] += 1
        size = self._by_string.get(life.name, 0)
        counts["ended by a stop string"] += size > 0
        counts["ended by a stop string of several tokens"] += size > 1
        end = life.truth.prompt_length + life.answer_length  # a complete grammar may end it before the least tokens
        counts["ended by a stop token behind its least tokens"] += 0 < life.truth.free_from <= end
        counts["turn ended by a stop token"] += life.session
        counts["stop token with a step in flight"] += any(
            life.name in facts.lives for facts in context.reference.pending.values()
        )
        sizes = {group.block_size for group in context.layout.groups}
        counts["stop token on the last place of a block"] += any(length % size == 0 for size in sizes)
        counts["stop token on the first place of a block"] += any(length % size == 1 for size in sizes)

    def _observed(self, record: Record) -> None:
        """Note which of the declared observations were delivered, each once in a trace."""
        if isinstance(record, Planned):
            view = record.view
            self._deliver("pool", len(view.references) > 0)
            self._deliver("labels", view.labels is not None)
            self._deliver("tables", len(view.tables) > 0)
            self._deliver("caches", len(view.caches) > 0)
            self._deliver("leftovers", len(view.leftovers) > 0)
            self._deliver("estimates", any(row.estimated >= 0 for row in record.rows))
        elif isinstance(record, Forward):
            self._deliver("accesses", any(not isinstance(access, OutOfRange) for access in record.accesses))
        elif isinstance(record, Zeroed | Copied | Loaded):
            self._deliver("device_order", True)
        elif isinstance(record, Numeric):
            self._deliver("numeric", True)
        elif isinstance(record, RealForward):
            self._deliver("real_model", True)
        elif isinstance(record, SideBySide):
            self._deliver("side_by_side", record.answers > 0)

    def _deliver(self, word: str, delivered: bool) -> None:
        if delivered and word in self._missing:
            self._missing.remove(word)
            self.counts[f"observed: {word}"] = 1

    def _read_content(self, context: Context, view: View) -> None:
        """Read pages until two differ: a target that always returns the same has shown nothing."""
        groups = range(len(context.layout.groups))
        pages = [(key.group, block) for block, key in view.published.items()]
        if not context.layout.prefix_caching:
            columns = [(index, table[index]) for table in view.tables.values() for index in groups]
            pages = [(index, block) for index, blocks in columns for block in blocks if block != context.null]
        for group, block in pages[:8]:
            content = context.target.read(group, 0, block)
            if self._content is None:
                self._content = content
            self._deliver("content", content != self._content)

    def _planned(self, planned: Planned, context: Context) -> None:
        counts, rows, lives = self.counts, planned.rows, context.reference.lives
        counts["step within two settings of the stock server"] += self._near_stock
        if len(context.reference.pending) > 1:
            counts["planned ahead of execution"] += 1
        if len(rows) >= 3:
            counts["batch of three or more"] += 1
        if not rows and planned.view.waiting:
            counts["nothing could be scheduled"] += 1
        if max(planned.view.references, default=0) > 1:
            counts["block shared by two requests"] += 1
        if planned.view.published != context.before.published:
            self._published(planned.view, context)
        self._asked(planned, context)
        admitted = prompts = 0
        for row in rows:
            life = lives[row.name]
            for index, (freed, hit) in self._local.items():
                passed = context.has_pool and planned.view.tables[row.name][index][:1] == (context.null,)
                counts[hit if row.admitted else freed] += passed
            if row.anew:
                admitted += 1
                self._admitted(row, life, context)
                if context.before.stored and not life.prompt_logprobs:
                    self._passed_over(row, life, planned.view, context)
                if row.hit and (self._scored or original_name(row.name) != row.name):
                    self._hit_of_others(row.name, planned.view.tables.get(row.name, ()), context)
                if life.prompt_logprobs:
                    self._scored.add(row.name)
            if row.kept:
                counts["turn resumed with kept caches"] += 1
                counts["turn resumed from a checkpoint"] += row.kept < self._parked_with.get(row.name, 0)
            if row.loads_apart:
                counts["load tried again after it broke off"] += row.name in self._loading
                self._loading.add(row.name)
            else:
                self._loaded(row)
            if not row.loads_apart and row.start < life.truth.prompt_length:
                prompts += 1
                self._prompt(row, life, context)
        if admitted > 1:
            counts["two admitted in one step"] += 1
        holders = planned.view.tables or planned.view.caches
        if not holders.keys().isdisjoint(set(planned.view.waiting) - self._loading):
            counts["resumed turn waits while holding its caches"] += 1
        if 0 < prompts < len(rows):
            counts["prompts and decodes in one step"] += 1
            counts["prompts and drafts in one step"] += any(row.drafts for row in rows)

    def _passed_over(self, row: PlannedRow, life: Life, view: View, context: Context) -> None:
        """Count a hit that is shorter than what pool and outside hold: the rest was not loaded."""
        held = set(view.published.values())
        kept = longest_hit(context.layout, held | context.before.stored.keys(), life.truth.tags, life.known)
        self.counts["content kept outside the pool not loaded for a request"] += (
            row.hit < kept and longest_hit(context.layout, held, life.truth.tags, life.known) < kept
        )

    def _hit_of_others(self, name: str, table: Table, context: Context) -> None:
        """Count a hit on blocks of a request that read nothing from the cache itself, or of another sample."""
        facts, published = context.reference.ledger.facts, context.before.published
        held = {block for columns in table for block in columns if block in facts and block in published}
        owners = {facts[block].owner for block in held} - {name}
        self.counts["hit on what a request with prompt log-probabilities published"] += any(
            owner in self._scored for owner in owners
        )
        self.counts["hit on blocks of another sample of the prompt"] += any(
            original_name(owner) == original_name(name) for owner in owners
        )

    def _asked(self, planned: Planned, context: Context) -> None:
        """Count what the rows of a step have asked for: structured output, several samples."""
        counts, lives, pending = self.counts, context.reference.lives, context.reference.pending.values()
        structured = [row for row in planned.rows if lives[row.name].structured]
        for row in structured:
            counts["later turn with structured output"] += row.admitted and row.name in self._parked_with
            waited = row.anew and lives[row.name].structured > 1 and not self._computed[row.name]
            counts["request computed after it waited for its grammar"] += waited
            counts["drafts cut by a grammar"] += row.cut > 0
            counts["structured output with a step in flight"] += any(row.name in facts.lives for facts in pending)
        counts["structured and free answers in one step"] += 0 < len(structured) < len(planned.rows)
        prompts = [original_name(row.name) for row in planned.rows if row.anew]
        counts["samples of one prompt admitted in one step"] += len(set(prompts)) < len(prompts)

    def _loaded(self, row: PlannedRow) -> None:
        """Count the end of a load for a waiting request."""
        if row.name in self._loading:
            self._loading.remove(row.name)
            self.counts["request computed after it waited for a load"] += not row.admitted
            self.counts["request computed after its load broke off"] += row.admitted

    def _published(self, view: View, context: Context) -> None:
        counts, before, now = self.counts, context.before.published, view.published
        keys = set(now.values())
        counts["duplicate key"] += len(keys) < len(now)
        if before.keys() - now.keys():
            counts["cached block evicted"] += 1
            self._evicted |= set(before.values()) - keys
        if self._evicted & keys:
            counts["evicted content computed again"] += 1
            self._evicted -= keys

    def _admitted(self, row: PlannedRow, life: Life, context: Context) -> None:
        counts, resumed = self.counts, bool(self._computed[row.name])
        counts["first chunk of one token"] += row.num_tokens == 1 and not row.hit and life.truth.prompt_length > 1
        counts["prompt with as many tokens as a speculative decode"] += (
            not row.hit and 1 < row.num_tokens == context.layout.num_speculative_tokens + 1
        )
        counts["resumed without a hit"] += resumed and not row.hit
        deeper = {
            context.layout.groups[key.group].kind
            for key in context.before.published.values()
            if row.hit < key.depth < life.known and has_key(context.layout, key, life.truth)
        }
        counts["attention blocks cached past the end of the hit"] += "attention" in deeper
        counts["state cached past the end of the hit"] += "mamba" in deeper
        if context.layout.lookahead:
            counts["hit by keys that name the token behind their block"] += row.hit > 0
            counts["cached block passed over for the token behind it"] += self._differs_behind(row, life, context)
        counts["hit inside a block"] += any(row.hit % group.block_size for group in context.layout.groups)
        counts["hit extended by a load"] += row.hit > 0 and row.external > 0
        counts["load joined the step of its request"] += row.external > 0 and row.num_tokens > 0
        if life.prompt_logprobs and deeper:
            counts["cached prefix not read for the log-probabilities of a prompt"] += "mamba" in deeper and not row.hit
        if not row.hit:
            return
        counts["prefix hit"] += 1
        counts["prefix hit before the log-probabilities that a client wants"] += life.needs_its_prompt
        counts["hit behind an image"] += any(image.stop <= row.hit for image in life.truth.images)
        counts["resumed from a hit"] += resumed
        tag = life.truth.tag(row.hit + context.layout.lookahead)
        for key, truth in context.reference.truths.items():
            if key.depth == row.hit and key.tag == tag and truth.prompt_length < row.hit:
                counts["hit on content written by decoding"] += 1
                break
        since, published = context.reference.published_since, context.before.published
        first = min(context.reference.pending, default=sys.maxsize)
        counts["hit on content still in flight"] += any(
            key.tag == tag and since[block][1] >= first for block, key in published.items() if block in since
        )

    @staticmethod
    def _differs_behind(row: PlannedRow, life: Life, context: Context) -> bool:
        """Return True if a block right behind a hit is cached for the row's tokens and another one behind them."""
        return any(
            row.hit < key.depth < life.known
            and not has_key(context.layout, key, life.truth)
            and context.reference.is_content_of(key, life.truth)
            for key in context.before.published.values()
        )

    def _prompt(self, row: PlannedRow, life: Life, context: Context) -> None:
        counts, end = self.counts, row.start + row.num_tokens
        unfinished = end < life.truth.prompt_length
        counts["chunked prefill"] += unfinished
        counts["chunk shorter than the convolution window"] += (
            unfinished and row.num_tokens < context.layout.conv_width - 1
        )
        counts["prompt continued with a one-token chunk"] += row.num_tokens == 1 and not row.admitted
        for group in context.layout.groups:
            past = end % group.block_size
            if group.kind == "mamba":
                counts["chunk that crosses two state boundaries"] += (
                    end // group.block_size > row.start // group.block_size + 1
                )
                counts["chunk ends on a state boundary"] += not past
                counts["chunk ends one token before a state boundary"] += past == group.block_size - 1
                counts["chunk ends one token after a state boundary"] += past == 1

    def _copied(self, copied: Copied) -> None:
        if copied.shift:
            self.counts["convolution window shifted by accepted drafts"] += 1
        if copied.destination_column < 0 and copied.source_column < 0:
            self.counts["state copied into the cache"] += 1
            self.counts["state copied into the cache in place of another one"] += (
                copied.destination in self._stored_to and not copied.layer
            )
            self._stored_to.add(copied.destination)
            return
        if copied.destination_column < 0:
            self.counts["state kept in the cache after its request advanced"] += 1
        if copied.source_column < 0:
            self.counts["state copied out of the cache"] += 1
            return
        if copied.destination_column < copied.source_column:
            self.counts["state copied back to its boundary block"] += 1
        else:
            self.counts["state copied to the request's current column"] += 1

    def _forward(self, forward: Forward, context: Context) -> None:
        counts, rows = self.counts, forward.rows
        seats = [row.request for row in rows if row.request is not None]
        if forward.dummy:
            counts["dummy run after requests"] += bool(self._computed)
        else:
            if len(seats) < len(rows):
                counts["padding rows"] += 1
                counts["padding over a vacated row"] += len(seats) < min(len(rows), len(self._seats))
            if seats != self._seats:
                counts["request moved to another row"] += any(
                    name in seats and seats.index(name) != row for row, name in enumerate(self._seats)
                )
            if context.layout.num_speculative_tokens:
                counts["different numbers of drafts in one step"] += len({row.drafts for row in rows if row.drafts}) > 1
            self._seats = seats
        for row, life in zip(rows, context.lives, strict=True):
            if life is not None:
                self._computed[life.name] += 1
                if row.drafts:
                    self._verified(row, life, context)
                if life.truth.free_from:
                    self._held_back(row, life, forward.step, context)
                if life.structured:
                    self._masked(row, life)
        if context.layout.mode == "slots":
            beside = any(isinstance(access, StateWrite) and access.column for access in forward.accesses)
            counts["snapshot written beside the working state"] += beside
        if context.reference.handed_out:
            self._handed_out(context)
        if self._drafting:
            self._drafter(forward, context)

    def _drafter(self, forward: Forward, context: Context) -> None:
        if forward.dummy:
            self.counts["dummy run with a drafter present"] += (
                bool(self._computed) and context.layout.num_speculative_tokens > 1
            )
        rows = forward.rows
        self.counts["proposals written by the drafter"] += any(
            isinstance(one, SlotWrite)
            and one.group in self._drafting
            and one.position >= rows[one.row].position + len(rows[one.row].tokens) - rows[one.row].drafts
            and one.position > rows[one.row].position
            for one in reversed(forward.accesses)  # a drafter works last
        )

    def _held_back(self, row: ForwardRow, life: Life, step: int, context: Context) -> None:
        """Count rows that must not sample a stop token, which is the model's first choice."""
        first = row.position + len(row.tokens) - row.drafts
        if not any(life.truth.holds_back(first + index) for index in range(len(row.sampled))):
            return
        later = [facts for planned, facts in context.reference.pending.items() if planned > step]
        self.counts["stop token held back"] += 1
        self.counts["stop token held back with a step in flight"] += any(life.name in facts.lives for facts in later)
        self.counts["stop token held back in a step with drafts"] += row.drafts > 0

    def _masked(self, row: ForwardRow, life: Life) -> None:
        """Count ends of reasoning; tokens that are not the model's first choice, which a grammar forbids, and what
        drafts stood there."""
        counts, truth, known = self.counts, life.truth, len(row.tokens) - row.drafts
        end = truth.grammar_from - 1 - row.position - known if truth.reasons_until else -1
        ends = 0 <= end < len(row.sampled) and not life.ends_before(truth.grammar_from - 1)
        counts["reasoning ended before structured output"] += ends
        counts["reasoning ended by a draft with drafts behind it"] += ends and end + 1 < row.drafts
        for index in range(len(row.sampled)):
            position = row.position + known + index
            if not truth.is_masked(position) or life.ends_before(position):
                continue
            counts["model's first choice forbidden by a grammar"] += 1
            if index < row.drafts:
                drafts = row.tokens[known:]
                path = [-1, *_accepted(row)] if row.parents else []
                there = [one for one, parent in enumerate(row.parents) if index < len(path) and parent == path[index]]
                forbidden = [drafts[one] for one in there] if row.parents else [drafts[index]]
                is_forbidden = truth.first(position) in forbidden
                counts["draft forbidden by a grammar is the model's first choice"] += is_forbidden
                counts["draft accepted is what a grammar leaves"] += index + 1 < len(row.sampled)

    def _verified(self, row: ForwardRow, life: Life, context: Context) -> None:
        counts, accepted = self.counts, len(row.sampled) - 1
        complete = accepted == row.drafts
        path = _accepted(row) if row.parents else []
        if row.parents:
            # Nothing follows the last one that was accepted: other paths end elsewhere.
            complete = accepted > 0 and len(path) == accepted and path[-1] not in row.parents
            proposed = list(row.parents[: row.drafts - row.fillers])
            counts["tree of drafts verified"] += proposed != list(range(-1, len(proposed) - 1))
            later = [index for index, draft in enumerate(path) if row.parents.index(row.parents[draft]) < draft]
            counts["draft accepted that is not the first behind its token"] += bool(later)
            counts["draft accepted behind one that is not the first"] += bool(later) and later[0] + 1 < len(path)
        counts["all drafts accepted"] += complete
        counts["draft rejected"] += not complete
        counts["ended in the middle of accepted drafts"] += life.known + len(row.sampled) > life.total_length
        room = max(life.foreseen_length - (row.position + len(row.tokens) - row.drafts), 0)
        counts["stop token accepted behind the longest answer"] += room > 0 and not set(life.stops).isdisjoint(
            row.sampled[room:]
        )
        is_stopped = bool(accepted) and not set(life.stops).isdisjoint(row.sampled)
        counts["stop token among accepted drafts"] += is_stopped
        counts["stop string of several tokens among accepted drafts"] += (
            is_stopped and self._by_string.get(life.name, 0) > 1
        )
        after = row.position + 1 + accepted
        if any(
            after // group.block_size > row.position // group.block_size
            for group in context.layout.groups
            if group.kind == "mamba"
        ):
            counts["boundary crossed in a step with a rejection"] += not complete
            counts["boundary crossed in a step without a rejection"] += complete
            moved = path != list(range(len(path)))
            counts["boundary crossed by a draft that is not in the place of a chain's"] += moved

    def _wait_for_transfers(self, event: Event, context: Context, view: View) -> None:
        """Count answers that are complete and that their clients do not have while content is sent."""
        lives, pending = context.reference.lives, context.reference.pending.values()
        ready = [name for name in view.running if name in lives and lives[name].settled + 1 >= lives[name].total_length]
        held = [name for name in ready if not any(name in facts.lives for facts in pending)]
        self.counts["answer held back until its request was sent"] += bool(held)
        is_abort = isinstance(event, Abort) and event.name in held
        self.counts["aborted while its answer was held back"] += is_abort

    def _read_back(self, context: Context, view: View) -> None:
        """Count content that was loaded, not computed, although neither the pool nor what is outside had it: into the
        pool, or into what is outside, which had it once."""
        before, now = context.before, view.published
        self._once_stored.update(before.stored)
        back = self._once_stored & (view.stored.keys() - before.stored.keys())
        back -= {*before.published.values(), *now.values()}
        self.counts["content read back from a storage"] += bool(back)
        held = {*before.stored, *before.published.values()}
        kept = {block: key for block, key in self._unheld.items() if now.get(block) == key}
        self._unheld = kept | {block: key for block, key in now.items() if key not in held}
        self.counts["content read back from a storage"] += len(self._unheld.keys() & self._loaded_back)

    def _handed_out(self, context: Context) -> None:
        groups, facts = context.layout.groups, context.reference.ledger.facts
        pairs = {
            (facts[block].previous_group, facts[block].group)
            for block in context.reference.handed_out
            if facts[block].previous_group >= 0
        }
        kinds = [(old == new, groups[old].kind == groups[new].kind) for old, new in pairs]
        self.counts["block reused by another kind of group"] += (False, False) in kinds
        self.counts["block reused by another group of its kind"] += (False, True) in kinds

    def after_event(self, event: Event, context: Context, view: View) -> None:
        """Count the states at the end of an event. Called after the oracles checked `view`; `context.before` is the
        view before it."""
        counts, running = self.counts, context.before.running
        if isinstance(event, Turn):
            self._by_string[event.name] = has_stop_string(event) * (1 + event.string_before)
        if "content" in self._missing and not isinstance(event, Sleep):
            self._read_content(context, view)
        if isinstance(event, Sleep):
            counts["memory given back and taken again"] += view != context.before
        elif isinstance(event, Evict):
            lost = context.before.published.keys() - view.published.keys()
            counts["cached block evicted by an event"] += bool(lost)
        if context.before.published and not view.published:
            self._evicted.update(context.before.published.values())
        gone = [name for name in running if name in view.waiting]
        if gone:
            counts["preempted"] += 1
            counts["preempted with a step in flight"] += bool(context.reference.pending)
            for name in gone:
                self._lost_its_blocks(name, context)
        if len(view.stored) > len(context.before.stored):
            counts["stored outside the pool"] += isinstance(event, Step)
            counts["cached content moved to another tier"] += isinstance(event, MoveTier)
        if isinstance(event, Step):
            counts["content outside the pool evicted"] += bool(context.before.stored.keys() - view.stored.keys())
        if view.stored and not counts["cached content kept outside the pool alone"]:
            alone = view.stored.keys() - set(view.published.values())
            counts["cached content kept outside the pool alone"] += bool(alone)
        if view.stored and not counts["content read back from a storage"]:
            self._read_back(context, view)
        self._loaded_back.clear()
        if view.parked or context.before.parked:
            self._parked(event, context, view)
        if isinstance(event, Abort | Resume):
            self._turn_aborted(event, context)
        for name in (event.name, *event.together) if isinstance(event, Abort) else ():
            if name in self._loading:
                self._loading.remove(name)
                counts["aborted while a load was under way"] += 1
        ended = view.tables.keys() - context.reference.lives.keys() - {*view.running, *view.waiting, *view.parked}
        counts["blocks held for a transfer after the end of their request"] += bool(ended)
        counts["content sent to another engine"] += len(view.sent) > len(context.before.sent)
        if view.copying and view.sent:
            self._wait_for_transfers(event, context, view)
        if isinstance(event, Abort) and event.name in running:
            counts["aborted while running"] += 1
            counts["aborted with a step in flight"] += bool(context.reference.pending)
            in_flight = any(event.name in facts.lives for facts in context.reference.pending.values())
            got_token = event.name in self._receivers
            counts["aborted right after it got a token, with a step in flight"] += got_token and in_flight
            counts["samples of one prompt aborted together"] += any(
                original_name(name) == original_name(event.name) for name in event.together if name in running
            )
        if context.event_kind in BATCH_EVENTS:
            self._batch(event, context, view)
        if isinstance(event, ResetPrefixCache) and context.before.published and not view.published:
            counts["prefix cache reset"] += 1
            counts["prefix cache reset while requests run"] += bool(running)
            counts["prefix cache reset during a pause"] += bool(running) and event.preempt_running
        elif isinstance(event, SwitchStorage):
            is_cached = not (running or context.before.waiting) and any(context.before.published)
            counts["storage switched behind cached prefixes"] += bool(is_cached)
        elif isinstance(event, ResetEncoderCache):
            lives = context.reference.lives
            counts["encoder cache reset beside images"] += any(lives[name].truth.images for name in running)
        elif isinstance(event, Pause):
            counts["generation paused while requests run"] += bool(gone)

    def _batch(self, event: Event, context: Context, view: View) -> None:
        counts, rows = self.counts, context.before.running
        kind = context.event_kind
        if kind == "crop":
            counts["batch cropped or crop refused"] += bool(rows)
        elif kind == "reset":
            counts["batch reset"] += bool(rows)
        elif kind == "select":
            counts["rows of the batch selected"] += rows != view.running
        elif kind == "repeat":
            counts["rows of the batch repeated"] += len(view.running) > len(rows)
        elif isinstance(event, Reorder):
            sources = [event.sources.get(name, name) for name in rows]
            counts["rows of the batch exchanged"] += sources != list(rows) and sorted(sources) == sorted(rows)
            counts["row copied over another row"] += any(one in rows and sources.count(one) > 1 for one in sources)

    def _parked(self, event: Event, context: Context, view: View) -> None:
        counts, before = self.counts, context.before
        parked = [name for name in view.parked if name not in before.parked]
        self._parked_with.update((name, context.reference.lives[name].settled) for name in parked)
        if isinstance(event, Truncate) and event.name in view.parked:
            counts["truncation refused" if context.refused else "session truncated"] += 1
        counts["session forked"] += isinstance(event, Fork) and event.name in parked
        counts["session parked"] += bool(parked)
        counts["turn ended by its client"] += isinstance(event, Park) and event.name in parked
        counts["session parked between drafts"] += any(context.reference.lives[name].speculated for name in parked)
        counts["caches of a parked session evicted"] += any(
            name in before.parked and name in before.tables and name not in view.tables for name in view.parked
        )
        counts["session closed while parked"] += isinstance(event, Abort) and event.name in before.parked

    def _turn_aborted(self, event: Abort | Resume, context: Context) -> None:
        counts, name, before = self.counts, event.name, context.before
        if isinstance(event, Resume):
            counts["turn behind an aborted one"] += name in self._without_turn and name in before.parked
            self._without_turn.discard(name)
        elif event.keeps_session and name in {*before.running, *before.waiting}:
            life = context.reference.lives.get(name)
            if life is not None and life.session:
                counts["turn aborted in a session that goes on"] += 1
                self._without_turn.add(name)

    def _lost_its_blocks(self, name: str, context: Context) -> None:
        counts, life = self.counts, context.reference.lives.get(name)
        self._preempted[name] += 1
        counts["preempted twice"] += self._preempted[name] > 1
        if life is not None:
            counts["preempted with structured output"] += life.structured > 0
            reasons = life.truth.reasons_until > 0 and life.delivered > 0
            has_ended = 0 <= life.truth.grammar_from <= life.known
            counts["preempted during its reasoning"] += reasons and not has_ended
            counts["preempted between reasoning and its answer"] += reasons and life.truth.grammar_from == life.known
            counts["preempted before its prompt's log-probabilities were known"] += life.needs_its_prompt
            counts["preempted with a partial block"] += any(
                life.settled % group.block_size for group in context.layout.groups
            )
            counts["preempted during prefill"] += life.settled < life.truth.prompt_length
            counts["preempted between drafts"] += life.speculated


def _accepted(row: ForwardRow) -> list[int]:
    """Return the drafts of a tree that were accepted, by what was sampled."""
    return longest_path(row.tokens[len(row.tokens) - row.drafts :], row.parents, row.sampled[:-1])
