"""The device: shadow layers that keep tags in SGLang's own tensors, executed when SGLang waits for their result.

A batch is *launched* when the scheduler runs it: at that time everything that SGLang's forward reads from tables shared
with the scheduler is read (SGLang fences those reads before the scheduler goes on). It is *executed*, deferred clears
and copies first, when the result processor waits for it: with overlap scheduling that is after the next batch was
planned and launched.

Snapshots of a prefill are planned and stored by SGLang's own backend code (snapshots.py); those of a decode are
copied from the working slot under SGLang's mask, which is what its Triton kernel does (`track_mamba_states_if_needed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...reference.layout import Group, first_attended
from ...reference.tokens import EMPTY, VOCABULARY, other_token, window_of
from ..base.observe import (
    Access,
    Copied,
    Forward,
    ForwardRow,
    Record,
    SlotRead,
    SlotWrite,
    StateRead,
    StateWrite,
    Zeroed,
)
from ..base.protocol import EngineError
from ..base.shadow import POISON, POISON_TOKEN, combine, join, run_chain, sample
from . import snapshots
from .batch_rows import PADDING_TOKEN, Row
from .bounds import Bounds
from .compat import old_releases, scheduler_api, tree_api
from .compat.engine import STATES, WINDOW, SglangEngine
from .compat.immediate import Immediate
from .inputs import applied
from .ring import replays
from .sampling import CHOICES, Coins

POISONED = 1e6
"""Logit of what a poisoned state says where requests shape logits."""


class KernelLaunch:
    """A launched batch, and the event that SGLang waits for."""

    def __init__(
        self, step: int, rows: list[Row], pending: deque[KernelLaunch], execute: Callable[[KernelLaunch], None]
    ) -> None:
        self.step = step
        self.rows = rows
        self.sampled = torch.zeros(sum(row.name is not None for row in rows), dtype=torch.int64)
        self.clears: list[int] = []
        self.copies: list[tuple[int, int]] = []
        self.moves: Callable[[], None] = lambda: None
        self.tracks: Any = None
        self.scan: Any = None
        """Of a prefill of Mamba 2 layers, None for others."""
        self.metadata: Any = None
        """Of the linear-attention backend for a captured graph, None without one."""
        self.loads: Any = None
        """The loads from the host that the batch waits for, None without a host tier."""
        self.penalties: Any = None
        """What changes the logits of the batch, None for nothing."""
        self.coins: Sequence[Coins] = ()
        """With which a verification samples, by row; none with `sampled=no`."""
        self.accesses: list[Access] = []
        self.inputs: list[tuple[int, ...]] = []
        self.hidden: list[tuple[int, ...]] = []
        """Tags of each row after the last layer."""
        self.is_captured = False
        """True if it replays a captured graph."""
        self.is_sampled_later = False
        """True if its tokens are sampled once the results before it are processed, which grammars have to see."""
        self.said: list[tuple[int, ...]] | None = None
        """What the model says, if the forward has run before its tokens may be sampled."""
        self.execute = execute
        self._pending = pending
        pending.append(self)

    def synchronize(self) -> None:
        """Execute all launches up to this one, in order."""
        while self in self._pending:
            first = self._pending.popleft()
            first.execute(first)

    def record(self, stream: Any = None) -> None:
        """Do nothing: the event is the launch itself."""

    def query(self) -> bool:
        """Return True if the launch was executed."""
        return self not in self._pending


class Device:
    """Executes launches in order and appends observations to `records`."""

    def __init__(self, engine: SglangEngine, graphs: Any = None) -> None:
        """`graphs` is the runner of captured decode graphs, None without graphs."""
        self.engine = engine
        self.sizes = engine.sizes
        self.states, self.memory = engine.states, engine.memory
        self.memory.fence_writes(self)
        self.tracker = snapshots.Tracker(engine)
        self.bounds = Bounds(engine)
        self.checkpoints = engine.checkpoints
        if self.checkpoints is not None:
            self.checkpoints.watch(self.fence, self._report_stores)
        self.graphs = graphs
        self.records: list[Record] = []
        self.pending: deque[KernelLaunch] = deque()
        self.last: KernelLaunch | None = None
        self.tier: Any = None
        """The `HostTier`, None without HiCache."""
        self.shapes: Any = None
        """The `LogitShapes`, None where requests change no logits."""
        self.step = -1
        self.executed = -1
        """The step of the last forward."""
        self.pad_to = 0
        self.relay: dict[int, int] = {}
        """Request row -> token that its last forward sampled."""
        self.has_sink_row = old_releases.has_sink_row()
        self.immediate = Immediate(engine.rows, engine.states.clears_what_is_freed)

    def drain(self) -> None:
        """Execute everything that was launched."""
        if self.pending:
            self.pending[-1].synchronize()

    def fence(self) -> None:
        """Execute what the scheduler's stream waits for before it goes on behind a launch (`_apply_war_barrier`).

        A captured graph marks where it has read what it shares with the scheduler; of other forwards all is waited for.
        """
        for launch in reversed(self.pending):
            if not launch.is_captured:
                launch.synchronize()
                break

    def launch(self, batch: Any) -> Any:
        """Launch a batch: read the shared tables and defer the rest."""
        launch = self.prepare(batch, self.execute)
        launch.penalties = scheduler_api.penalties(batch, self.sizes.overlap, self.shapes is not None)
        launch.is_sampled_later = scheduler_api.has_grammar(batch)
        old_releases.note_sampled(batch, launch.sampled)
        return scheduler_api.make_result(launch.sampled, launch, batch)

    def mask(self, result: Any) -> None:
        """Mask what the grammars of a launched batch forbid now, as the sampling of its tokens does first.

        Its forward may have run already: the scheduler may have waited for a copy to the host behind it.
        """
        launch = result.copy_done
        if launch.penalties is not None:
            launch.penalties.update_regex_vocab_mask()
        launch.is_sampled_later = False
        if launch.said is not None:
            self._sample(launch, launch.said)

    def prepare(self, batch: Any, execute: Callable[[KernelLaunch], None]) -> KernelLaunch:
        """Return the launch of a batch, with the contents of the tables that it shares with the scheduler."""
        verify, extend = batch.forward_mode.is_target_verify(), batch.forward_mode.is_extend()
        tokens = old_releases.prefill_tokens(batch) if extend else None
        has_images = not verify and any(media is not None for media in batch.multimodal_inputs or ())
        embedded = self.engine.inputs.embedded(batch, tokens) if has_images and tokens is not None else []
        rows, first = [], 0
        written = batch.out_cache_loc.tolist()
        # Kernels read the lengths on the device. The host makes the table of pages as wide as its copy of the longest.
        lengths, longest = batch.seq_lens.tolist(), max(batch.seq_lens_cpu.tolist(), default=0)
        for index, request in enumerate(batch.reqs):
            length = lengths[index]
            count = self.sizes.drafts if verify else batch.extend_lens[index] if extend else 1
            # The rows that decode in a mixed step follow those of its prompts.
            given = tokens if tokens is not None and first < len(tokens) else None
            row = self._row(batch, index, length + count * verify, count, given, first, written, request)
            row = row._replace(columns=longest + count * verify)
            if verify:
                row = row._replace(samples=True, drafts=count - 1)
            elif extend:  # kernels take positions and the lengths of prefixes from here
                row = row._replace(prefix=int(batch.prefix_lens[index]))
                if row.tokens and embedded:
                    contents = tuple([content + row.key for content in embedded[first : first + count]])
                    row = row._replace(tokens=self.engine.inputs.tokens(row.tokens), contents=contents)
            rows.append(row)
            first += count
        loaded = self.graphs.load(batch, rows, self.pad_to) if self.graphs and (verify or not extend) else None
        if loaded:
            rows = loaded.rows
        elif self.sizes.ring and batch.forward_mode.is_decode():
            rings = replays(self.tracker.decode(batch), self.sizes.ring)
            rows = [row._replace(replay=replay) for row, replay in zip(rows, rings, strict=True)]
        elif not extend and not batch.forward_mode.is_idle() and self.has_sink_row:
            rows += [self._padding()] * (self.pad_to - len(rows))
        if self.sizes.sliding:
            rows = [self._windowed(row) for row in rows]
        rows = [row._replace(outside=self.bounds.row(index, row)) for index, row in enumerate(rows)]
        rows = [self.memory.with_places(index, row) for index, row in enumerate(rows)]
        launch = self.last = KernelLaunch(self.step, rows, self.pending, execute)
        launch.metadata = loaded and loaded.metadata
        launch.is_captured = loaded is not None
        launch.loads = self.tier and self.tier.waited_for(getattr(batch, "hicache_consumer_index", -1))
        self._track(batch, launch, loaded)
        self._defer(batch, launch)
        return launch

    def _track(self, batch: Any, launch: KernelLaunch, loaded: Any) -> None:
        """Plan snapshots. If the index of one is out of range, it is reported and no snapshot is stored."""
        launch.scan = self.tracker.scan(batch)
        plan = (
            self.tracker.replayed(loaded.snapshots, launch.rows)
            if loaded
            else self.tracker.plan(batch, launch.rows, launch.scan)
        )
        outside = list(self.bounds.snapshots(plan, sum(row.num_tokens for row in launch.rows))) if plan else []
        launch.accesses += outside
        launch.tracks = None if outside else plan

    def _row(
        self, batch: Any, index: int, length: int, count: int, tokens: Any, first: int, written: Any, request: Any
    ) -> Row:
        pools = self.engine.rows
        pool_row = int(batch.req_pool_indices[index])
        exists = 0 <= pool_row < len(pools.req_to_token)
        return Row(
            name=request.client_name,
            pool_row=pool_row,
            prefix=length - count,
            num_tokens=count,
            tokens=None if tokens is None else tuple(tokens[first : first + count]),
            samples=tokens is None or length >= old_releases.length_to_compute(request),
            slot=int(pools.req_index_to_mamba_index_mapping[pool_row]) if exists else -1,
            slots=tree_api.slots_of(request),
            locations=pools.req_to_token[pool_row, : max(length, 0)].tolist() if exists else [],
            written=written[first : first + count],
            key=applied(request),
        )

    def _windowed(self, row: Row) -> Row:
        """Return a row with its places in the pool of the layers with a sliding window, as its launch finds them."""
        both = row.locations, row.written
        if not all(0 <= location < self.bounds.num_locations for locations in both for location in locations):
            return row  # reported
        reads, writes = (self.memory.windows_of(locations) for locations in both)
        return row._replace(window_locations=reads, window_written=writes)

    def _padding(self) -> Row:
        """Return a padding row: SGLang pads with request row 0, KV location 0, and one token."""
        slot = int(self.engine.rows.req_index_to_mamba_index_mapping[0])
        return Row(None, 0, 0, 1, (PADDING_TOKEN,), False, slot, (), [0], [0])

    def _defer(self, batch: Any, launch: KernelLaunch) -> None:
        """Defer the clears and copies that SGLang's model runner executes before the forward of an extend batch."""
        pools = self.engine.rows
        launch.clears, launch.copies = self.immediate.take([row.slot for row in launch.rows if row.name])
        clears, sources, destinations = scheduler_api.deferred(batch)
        mode = batch.forward_mode
        if not mode.is_extend() or mode.is_target_verify() or (clears is None and sources is None):
            return
        launch.clears = clears.tolist() if clears is not None else []
        if sources is not None:
            cached = map(self.engine.cached_state, sources.tolist())
            launch.copies = list(zip(cached, destinations.tolist(), strict=True))
        cleared, copied, into = (self.memory.translated(slots) for slots in (clears, sources, destinations))

        def moves() -> None:
            if cleared is not None:
                pools.mamba_pool.clear_slots(cleared)
            if copied is not None:
                scheduler_api.copy_states(pools, copied, into)

        launch.moves = moves

    def execute(self, launch: KernelLaunch) -> None:
        """Execute a launch: clears, copies, forward; and sample its tokens, unless they are sampled later."""
        said = self.compute(launch)
        if launch.is_sampled_later:
            launch.said = said
        else:
            self._sample(launch, said)

    def _sample(self, launch: KernelLaunch, said: list[tuple[int, ...]]) -> None:
        if launch.penalties is not None:
            said = penalized(said, launch.penalties, self.decoys(launch))
        for index, row in enumerate(launch.rows):
            if row.name is not None:
                launch.sampled[index] = self.relay[row.pool_row] = said[index][-1]
        self.conclude(launch, [said[index][-1:] if row.samples else () for index, row in enumerate(launch.rows)])

    def compute(self, launch: KernelLaunch) -> list[tuple[int, ...]]:
        """Run clears, copies and layers; return, by row, the token that the model samples after each token."""
        if self.tier is not None:
            self.tier.begin(launch.loads)
        launch.moves()
        if launch.clears:
            self.records.append(Zeroed(launch.step, launch.clears))
        self._report_copies(launch)
        launch.inputs = inputs = [
            row.tokens if row.tokens is not None else (self.relay.get(row.pool_row, POISON_TOKEN),)
            for row in launch.rows
        ]
        if empty := [row.name for row, tokens in zip(launch.rows, inputs, strict=True) if row.name and not tokens]:
            raise EngineError(f"a forward has rows without tokens, of {', '.join(empty)}")
        inputs = [
            row.contents or (tuple([token + row.key for token in tokens]) if row.key else tokens)
            for row, tokens in zip(launch.rows, inputs, strict=True)
        ]
        launch.accesses += [row.outside for row in launch.rows if row.outside]
        hidden: list[tuple[int, ...] | None] = [
            None if row.has_state else (POISON,) * len(tokens) for row, tokens in zip(launch.rows, inputs, strict=True)
        ]
        for number, (group, layer) in enumerate(self.engine.layers):
            if self.tier is not None:
                self.tier.wait_for(number, group)
            if group == STATES:
                self._state_layer(layer, launch, inputs, hidden)
            else:
                self._attention_layer(layer, launch, inputs, hidden, group)
        self._snapshot(launch)
        launch.hidden = [tags or () for tags in hidden]
        return [tuple([sample(tag) for tag in tags]) for tags in launch.hidden]

    def decoys(self, launch: KernelLaunch) -> list[tuple[int | None, ...]]:
        """Return, by row, the tokens that the model prefers to its own behind those of an executed launch
        (`LogitShapes.decoy`); [] if no request shapes logits."""
        if self.shapes is None:
            return []
        rows = zip(launch.rows, launch.hidden, strict=True)
        return [tuple([self.shapes.decoy(row.name, tag) for tag in tags]) for row, tags in rows]

    def conclude(self, launch: KernelLaunch, sampled: Sequence[tuple[int, ...]]) -> None:
        """Record the forward, with the tokens that each row sampled."""
        rows = [
            ForwardRow(
                row.name,
                row.prefix,
                tokens,
                row.drafts,
                said,
                row.guessed,
                row.tree.parents if row.tree else (),
                row.tree.fillers if row.tree else 0,
            )
            for row, tokens, said in zip(launch.rows, launch.inputs, sampled, strict=True)
        ]
        if self.tier is not None:
            self.records.extend(self.tier.loaded(launch.step))
        is_dummy = not launch.sampled.numel()  # the batch of an idle data-parallel rank
        self.records.append(Forward(launch.step, tuple(rows), launch.accesses, dummy=is_dummy))
        self.executed = launch.step
        if self.tier is not None:
            self.tier.settle()

    def _report_copies(self, launch: KernelLaunch) -> None:
        owners = {row.slot: row.name or "" for row in launch.rows}
        for source, destination in launch.copies:
            for layer in range(self.sizes.state_layers):
                name = owners.get(destination, "")
                self.records.append(
                    Copied(launch.step, name, STATES, -1, source, 0, destination, 0, True, True, layer=layer)
                )

    def _report_stores(self, stores: list[tuple[int, int]]) -> None:
        """Record states that go to checkpoints, with the step that was executed last.

        A checkpoint belongs to no request: its content is checked by the key under which the tree has it.
        """
        for slot, block in stores:
            for layer in range(self.sizes.state_layers):
                copied = Copied(self.executed, "", STATES, -1, slot, -1, block, 0, True, True, layer=layer)
                self.records.append(copied)

    def _state_layer(self, layer: int, launch: KernelLaunch, inputs: Any, hidden: list[Any]) -> None:
        """Compute one state layer, as SGLang's GDN backend does, or its Mamba 2 mixer.

        Prefills load the recurrent state always (it was cleared when the slot was allocated), the convolution window
        only if tokens are computed already; those of Mamba 2 load both only then. A row with drafts stores the state
        after each token beside the working state, of which only the window advances (`causal_conv1d_update`). With a
        ring, a decode starts from the state that it replays; its window advances as without one.
        """
        states, width, accesses = self.states, self.sizes.window + 1, launch.accesses
        chains = []
        scan = launch.scan
        for index, row in enumerate(launch.rows):
            if not row.has_state:
                chains.append((POISON, (POISON,) * len(inputs[index])))
                continue
            slot, place = row.slot, row.place
            temporal = int(states.temporal[layer, place])
            if row.replay and row.replay.entries:
                temporal = run_chain(temporal, tuple(states.ring[layer, place, : row.replay.entries].tolist()))[-1]
            reads_window = bool(row.prefix) and (scan is None or scan.reads_window(index))
            window = tuple(states.window[layer, place].tolist()) if reads_window else None
            start = EMPTY if not temporal and not row.prefix else temporal
            reads_state = scan is None or scan.reads_state(index)
            if reads_state or reads_window:
                read = temporal if reads_state else None
                accesses.append(StateRead(index, STATES, layer, 0, slot, read, window))
            if not reads_state:
                start = EMPTY
            if row.tree or row.links:
                hidden[index] = join(hidden[index], self._state_tree(layer, index, row, start, window, inputs[index]))
                chains.append((start, ()))
                continue
            tags = run_chain(start, inputs[index])
            chains.append((start, tags))
            if scan is None:
                # The window identifies the prefix, too: its last input is the tag of the last state.
                outputs = tags
                if window and window[-1] != start:
                    outputs = run_chain(combine(window[-1], start), inputs[index])
                hidden[index] = join(hidden[index], outputs)
            inputs_so_far = (*(window or ()), *tags)
            window = window_of(inputs_so_far, width)
            states.window[layer, place] = window
            if row.drafts:
                for step in range(len(tags)):
                    seen = inputs_so_far[: len(inputs_so_far) - len(tags) + step + 1]
                    states.scratch_temporal[layer, index, step] = tags[step]
                    states.scratch_window[layer, index, step] = window_of(seen, width)
                continue
            if row.replay and not row.replay.flushes:
                states.ring[layer, place, row.replay.entries] = inputs[index][0]
            else:
                states.temporal[layer, place] = tags[-1]
            accesses.append(StateWrite(index, STATES, layer, 0, slot, row.prefix + row.num_tokens, tags[-1], window))
        if scan is not None:
            for index, tags in enumerate(scan.outputs(chains, inputs)):
                hidden[index] = join(hidden[index], tags)
        self.tracker.store(layer, launch.tracks, chains, scan)

    def _state_tree(
        self, layer: int, index: int, row: Row, start: int, window: Any, inputs: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Compute a row with a tree of drafts: each token behind the one that the links name. Return the outputs.

        The working window advances by all tokens in the order of the row, as in a chain.
        """
        states, width = self.states, self.sizes.window + 1
        before = tuple(range(-1, len(inputs) - 1))
        window_parents, state_parents = row.links or (before, before)
        tags, outputs, seen = list[int](), list[int](), list[tuple[int, ...]]()
        for token, content in enumerate(inputs):
            state = tags[state_parents[token]] if token else start
            history = seen[window_parents[token]] if token else (*(window or ()),)
            [tag] = run_chain(state, (content,))
            output = tag
            if history and history[-1] != state:
                [output] = run_chain(combine(history[-1], state), (content,))
            tags.append(tag)
            outputs.append(output)
            seen.append((*history, tag))
            states.scratch_temporal[layer, index, token] = tag
            states.scratch_window[layer, index, token] = window_of(seen[-1], width)
        states.window[layer, row.place] = window_of((*(window or ()), *tags), width)
        return tuple(outputs)

    def _snapshot(self, launch: KernelLaunch) -> None:
        """Record the snapshots that SGLang's code has stored beside the working states."""
        for index, slot, place, depth in self.tracker.stored(launch.tracks):
            column = launch.rows[index].slots.index(slot) if slot in launch.rows[index].slots else -1
            for layer in range(self.sizes.state_layers):
                temporal = int(self.states.temporal[layer, place])
                window = tuple(self.states.window[layer, place].tolist())
                launch.accesses.append(StateWrite(index, STATES, layer, column, slot, depth, temporal, window))

    def _attention_layer(self, layer: int, launch: KernelLaunch, inputs: Any, hidden: list[Any], group: int) -> None:
        states, sizes = self.states, self.sizes
        keys, values, first = states.keys, states.values, sizes.first_page
        places = [(row.locations, row.written, row.reads, row.writes) for row in launch.rows]
        local = Group("attention", sizes.page)
        if group == WINDOW:
            keys, values, first = states.window_keys, states.window_values, sizes.first_window_page
            places = [
                (row.window_locations, row.window_written, row.window_reads, row.window_writes) for row in launch.rows
            ]
            local = Group("attention", sizes.page, window=sizes.sliding)
        self._attend(layer, launch, inputs, hidden, (group, local, first), (keys[layer], values[layer]), places)

    def _attend(
        self,
        layer: int,
        launch: KernelLaunch,
        inputs: Any,
        hidden: list[Any],
        pool: tuple[int, Group, int],
        cells: tuple[Any, Any],
        ids: list[tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]],
    ) -> None:
        """Write keys and values of a layer, then read all that each row attends to.

        `ids`: by row, the locations that it reads and writes, and the places of both.
        """
        (group, local, first), (keys, values), page = pool, cells, self.sizes.page
        inside = [(index, row, *ids[index]) for index, row in enumerate(launch.rows) if not row.outside]
        for index, row, _, written, reads, writes in inside:
            start = int(keys[reads[row.prefix - 1]]) if row.prefix else EMPTY
            tags = _attended(start, row, inputs[index]) if row.tree else run_chain(start, inputs[index])
            hidden[index] = join(hidden[index], tags)
            for place, tag in zip(writes, tags, strict=True):
                keys[place] = values[place] = tag
            pages = [first + location // page for location in written]
            slots = [location % page for location in written]
            launch.accesses.append(SlotWrite(index, group, layer, row.prefix, pages, slots, tags))
        for index, row, locations, _, reads, _ in inside:
            column = first_attended(local, row.prefix) // page
            pages = [first + location // page for location in locations[column * page :: page]]
            content = keys[reads[column * page :]].tolist()
            launch.accesses.append(SlotRead(index, group, layer, pages, content, column))


def _attended(start: int, row: Row, inputs: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tag of each token of a row with a tree of drafts, behind all that it attends to."""
    assert row.tree is not None
    tags = []
    for visible, position in zip(row.tree.visible, row.tree.positions, strict=True):
        if visible is None:
            tags.append(POISON)
            continue
        tag = run_chain(start, tuple([inputs[token] for token in visible]))[-1] if visible else start
        tags.append(tag if position == row.prefix + len(visible) - 1 else combine(tag, position))
    return tuple(tags)


def ranked(tokens: Sequence[int], decoys: Sequence[int | None] = ()) -> torch.Tensor:
    """Return logits of a model whose first choices are `tokens`; the next ones count where those may not be sampled.
    A decoy, where there is one, comes before them; with `decoys` a poisoned state's token cannot be ruled out."""
    logits = torch.zeros((len(tokens), VOCABULARY))
    choices = list(tokens)
    for logit in range(CHOICES, 0, -1):
        logits.scatter_(1, torch.tensor(choices, dtype=torch.int64)[:, None], logit)
        choices = [other_token(token) for token in choices]
    for row, decoy in enumerate(decoys):
        if tokens[row] == POISON_TOKEN:
            logits[row, POISON_TOKEN] = POISONED
        elif decoy is not None:
            logits[row, decoy] = CHOICES + 1
    return logits


def penalized(
    said: list[tuple[int, ...]], penalties: Any, decoys: Sequence[tuple[int | None, ...]] = ()
) -> list[tuple[int, ...]]:
    """Return the tokens that rows sample, the last of each from logits that SGLang's own code changes."""
    rows = len(penalties)
    logits = ranked([tokens[-1] for tokens in said[:rows]], [places[-1] for places in decoys[:rows]])
    scheduler_api.change_logits(logits, penalties)
    chosen = logits.argmax(dim=-1).tolist()
    changed = [(*tokens[:-1], token) for tokens, token in zip(said, chosen, strict=False)]
    return changed + said[rows:]
