"""transformers behind the `Target` protocol: a client, a cache of tags, and a real model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from ...reference.layout import Group, Layout
from ...reference.tokens import mix
from ..base.observe import Access, Content, Delivered, Effect, Forward, ForwardRow, Planned, RealForward, Record, View
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    Crop,
    Event,
    Fork,
    Reorder,
    Repeat,
    Reset,
    Resume,
    Select,
    Step,
    fits,
)
from . import operations as do
from .caches import Batch, Declined
from .client import BatchRow, Client, Fed
from .devices import simulated
from .families import CONV_WIDTH, FAMILIES, Family
from .features import Features
from .least_tokens import greedy
from .model import ModelBatch, Models, new_cache
from .tag_layers import PADDING, TagLayers

PARKED = 1000
"""Ids of the caches that are kept for sessions start here; those of a batch are its row indices."""


def make_layout(family: Family, config: Config) -> Layout:
    """Return the groups of a family: state layers, then attention layers. States have the size of the configuration,
    around whose multiples lengths are drawn."""
    groups = []
    if states := family.count("state"):
        size = next((group.block_size for group in config.groups if group.kind == "mamba"), 1)
        groups.append(Group("mamba", size, states, recurrent=family.recurrent, conv=family.conv))
    if slots := family.count("attention"):
        groups.append(Group("attention", 1, slots))
    return Layout(
        tuple(groups), 0, CONV_WIDTH, "none", False, config.num_speculative_tokens,
        null_block=None, zeroing=False, zeroed_start=True,
    )  # fmt: skip


class TransformersTarget:
    """One client for one trace."""

    def __init__(self, config: Config, models: Models, features: Features) -> None:
        options = config.options
        self.config = config
        self.family = FAMILIES[options["family"]]
        self.layout = make_layout(self.family, config)
        self.client = Client(config)
        model = models.get(options["family"])
        recording = config.num_speculative_tokens > 0 or options.get("record") == "yes"
        self.recording = recording
        length = 2 * config.max_model_len + config.num_speculative_tokens
        kind = options.get("cache", "own")
        self.offloading = options.get("offload") == "yes"
        made = partial(new_cache, model, kind, length, recording=recording, offloading=self.offloading)
        self.caches = Batch(made(own=False))
        self.tags = TagLayers(self.family, model.config, self.caches, recording=recording) if features.tags else None
        self.batches = [self.caches] if self.tags else []
        self.model: ModelBatch | None = None
        if options.get("forward") == "model":
            second = Batch(made(own=True))
            self.batches.append(second)
            self.model = ModelBatch(model, second, positions=options.get("client") == "generate", recording=recording)
        self.step = 0
        self.masks: dict[str, Sequence[int]] = {}
        """Session -> the attention mask of its kept cache."""
        self._handlers: dict[type[Event], Callable[[Any], Effect]] = {
            Arrive: self.arrive,
            Resume: self.resume,
            Abort: self.abort,
            Fork: self.fork,
            Step: self.run_step,
            Crop: self.crop,
            Select: self.select,
            Reorder: self.reorder,
            Repeat: self.repeat,
            Reset: self.reset,
        }

    def apply(self, event: Event) -> Effect:
        """Apply an event."""
        with simulated() if self.offloading else nullcontext():
            return self._handlers[type(event)](event)

    def _do(self, operations: Sequence[do.Operation]) -> str:
        """Execute operations on all caches; return the reason if the library declines one."""
        for operation in operations:
            before = [(batch, batch.cache) for batch in self.batches]
            try:
                for batch in self.batches:
                    batch.apply(operation)
            except Declined as error:
                for batch, cache in before:
                    batch.cache = cache
                return str(error)
        return ""

    # requests

    def arrive(self, event: Arrive) -> Effect:
        """Queue a request; no-op for a name that was used before."""
        if event.name not in self.client.names and fits(self.config, event):
            self.client.arrive(event)
        return Effect()

    def resume(self, event: Resume) -> Effect:
        """Queue the next turn of a parked session."""
        row = self.client.parked.get(event.name)
        if row is not None and fits(self.config, event, row.known):
            self.client.resume(event)
        return Effect()

    def abort(self, event: Abort) -> Effect:
        """End a request or a session."""
        self._do(self.client.abort(event.name))
        return Effect()

    def fork(self, event: Fork) -> Effect:
        """Copy a parked session and its cache."""
        if event.parent in self.client.parked and event.name not in self.client.names:
            self._do(self.client.fork(event.name, event.parent))
            self.masks[event.name] = self.masks.get(event.parent, ())
        return Effect()

    # steps

    def run_step(self, event: Step) -> Effect:
        """Form a batch if there is none, and run one forward."""
        step, self.step = self.step, self.step + 1
        client = self.client
        formed = client.form()
        self._do(formed)
        if not client.batch:
            budget = event.budget or self.config.max_num_batched_tokens
            return Effect([Planned(step, (), (), budget, self.view())])
        feed, fed, rows, budget = client.plan(event, bool(formed))
        records: list[Record] = [Planned(step, rows, (), budget, self.view())]
        names = [row.name for row in client.batch]
        if self.model is not None:
            records.append(self._real_forward(step, feed, fed))
        accesses, tokens = self._shadow_forward(feed)
        samples = [self._sampled(row, feed, fed, token) for row, token in zip(client.batch, tokens, strict=True)]
        records.append(Forward(step, _rows(names, feed, fed, samples), accesses))
        outputs, finished = client.advance(feed, fed)
        if self.config.num_speculative_tokens:
            self._do([do.Crop(fed.drafts - fed.kept)])  # also of no tokens, as assisted decoding does
        records.append(Delivered(step, outputs, finished))
        self._settle(finished)
        return Effect(records)

    def _shadow_forward(self, feed: do.Feed) -> tuple[Sequence[Access], Sequence[int]]:
        """Run the shadow layers, if the release has any; return the accesses, and the token that each row samples."""
        rows = self.client.batch
        if self.tags is not None:
            return self.tags.feed(feed, [_tags(row, feed, index) for index, row in enumerate(rows)])
        for row in rows:
            row.truth.reach(row.known + 1)
        return (), [row.truth.tokens[row.known] for row in rows]

    def _real_forward(self, step: int, feed: do.Feed, fed: Fed) -> RealForward:
        assert self.model is not None
        rows = []
        for row, tokens, before, count in zip(self.client.batch, feed.tokens, fed.before, fed.count, strict=True):
            row.truth.reach(row.total)
            known = row.truth.tokens[: max(row.total, before + count)]
            if feed.drafts:
                known = [*row.truth.tokens[:before], *tokens]
            rows.append((row.name, before, known, count))
        return RealForward(step, *self.model.feed(feed, rows))

    @staticmethod
    def _sampled(row: BatchRow, feed: do.Feed, fed: Fed, token: int) -> Sequence[int]:
        """Return what the verification accepts: the right drafts are the model's own tokens."""
        if row.name is None or not fed.samples:
            return ()
        if not feed.drafts:
            return (greedy(token, row.truth, row.known),)
        accepted = fed.kept if row.session else fed.right  # the turn of a session has no use for more
        row.truth.reach(row.known + accepted + 1)
        return tuple(row.truth.tokens[row.known : row.known + accepted + 1])

    def _settle(self, finished: Sequence[str]) -> None:
        masks = {row.name or "": self._mask(row) for row in self.client.live()}
        for operation in self.client.settle(finished):
            if isinstance(operation, do.Store):
                self.masks[operation.name] = masks[operation.name]
            self._do([operation])

    def _mask(self, row: BatchRow) -> Sequence[int]:
        return [int(column >= row.pad) for column in range(self.client.columns)]

    # events of the batch

    def crop(self, event: Crop) -> Effect:
        """Forget the last columns of the batch."""
        operations = self.client.crop(event.tokens)
        if operations and self.recording and event.tokens > self.client.recorded:
            return Effect(refused="a cache records past states up to its last crop only")
        if refused := self._do(operations):
            return Effect(refused=refused)
        if operations:
            self.client.cropped(event.tokens)
        return Effect()

    def select(self, event: Select) -> Effect:
        """Keep some rows."""
        operations = self.client.select(event.names)
        if refused := self._do(operations):
            return Effect(refused=refused)
        for operation in operations:
            assert isinstance(operation, do.Select)
            self.client.batch = [self.client.batch[row] for row in operation.rows]
        return Effect()

    def reorder(self, event: Reorder) -> Effect:
        """Give rows the caches and tokens of other rows."""
        return self._rearranged(*self.client.reorder(event.sources))

    def repeat(self, event: Repeat) -> Effect:
        """Repeat each row."""
        effect = self._rearranged(*self.client.repeat(event.times))
        self.client.names |= {row.name for row in self.client.live() if row.name}
        return effect

    def _rearranged(self, operations: Sequence[do.Operation], after: list[BatchRow]) -> Effect:
        if not operations:
            return Effect()
        if refused := self._do(operations):
            return Effect(refused=refused)
        self.client.batch = after
        return Effect()

    def reset(self, event: Reset) -> Effect:
        """Empty the batch's cache in place."""
        refused = self._do(self.client.empty())
        assert not refused, refused
        return Effect()

    # views

    def view(self) -> View:
        """Return the rows of the batch, the queues, and which cache is whose."""
        client = self.client
        waiting = [row.name or "" for row in client.waiting]
        running = {row.name: index for index, row in enumerate(client.batch) if row.name}
        # A row has a cache once a column of the batch is more than padding.
        caches = {name: index for name, index in running.items() if client.computed(client.batch[index])}
        kept = {name: PARKED + index for index, name in enumerate(sorted(client.kept))}
        return View(
            free=(),
            references=(),
            published={},
            labels=None,
            tables={},
            waiting=waiting,
            running=list(running),
            parked=list(client.parked),
            leftovers={"requests": len(running) + len(waiting), "sessions": len(client.parked) + len(kept)},
            caches=caches | kept if self.tags else {},
        )

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of a row of the batch's cache, or of a session's."""
        assert self.tags is not None
        if block < PARKED:
            return self.tags.read(self.caches.cache, group, layer, block, self._mask(self.client.batch[block]))
        name = sorted(self.client.kept)[block - PARKED]
        return self.tags.read(self.caches.kept[name], group, layer, 0, self.masks[name])

    def close(self) -> None:
        """Do nothing: caches are plain objects."""


def _tags(row: BatchRow, feed: do.Feed, index: int) -> list[int]:
    """Return the tags of the columns that a row is fed."""
    tags, tag = [], row.truth.tag(max(feed.start - row.pad, 0))
    for column, token in enumerate(feed.tokens[index]):
        if feed.start + column < row.pad:
            tags.append(PADDING)
            continue
        tag = mix(tag, token)
        tags.append(tag)
    return tags


def _rows(names: Sequence[str | None], feed: do.Feed, fed: Fed, samples: Sequence[Sequence[int]]) -> list[ForwardRow]:
    """Return the rows of a forward; a row whose columns are all padding has no request in it yet."""
    rows = []
    for name, tokens, before, count, sampled in zip(names, feed.tokens, fed.before, fed.count, samples, strict=True):
        live = name if count else None
        rows.append(ForwardRow(live, before, tokens[len(tokens) - count :], feed.drafts if live else 0, sampled))
    return rows
