"""llama.cpp behind the `Target` protocol: a client, a context, and the same operations on a second one.

The two contexts differ only in what was decoded in them before the trace began: in what cells, snapshots and attention
that nobody owns hold. Every bit of the logits has to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from ...reference.layout import Group, Layout
from ..base.observe import Content, Effect, Forward, ForwardRow, RealForward, RealRow, Record, StateContent
from ..base.trace import Config, Event
from ..sequences import operations as do
from ..sequences.client import Fed, Request
from ..sequences.client_target import ClientTarget
from .context import Context, Row, log_softmax, poisoned
from .context_sizes import planes_of, sizes_of
from .families import CONV
from .model import MARGIN_MIN, Alone, Model

NO_PREFIX = 1
"""Stands for the tag of a state that is that of none of the prefixes that it is compared with."""


def make_layout(config: Config) -> Layout:
    """Return one group of states, whose content is told by that of all layers. That of attention is not read."""
    size = next((group.block_size for group in config.groups if group.kind == "mamba"), 1)
    return Layout(
        (Group("mamba", size, conv=False),), 0, CONV, "none", False, config.num_speculative_tokens,
        null_block=None, zeroing=False,
    )  # fmt: skip


class LlamaCppTarget(ClientTarget):
    """One client and its contexts for one trace."""

    def __init__(self, config: Config, model: Model) -> None:
        self.model = model
        sizes = sizes_of(config, planes_of(config, has_planes=model.library.has_planes))
        self.contexts = [poisoned(Context(model.library, model.handle, sizes), poison) for poison in (1, 2)]
        super().__init__(config, make_layout(config), self.contexts, self.contexts[0].planes)

    def execute(self, event: Event, operations: Sequence[do.Operation]) -> Effect:
        """Execute operations in both contexts. Where sessions move, each context restores what the other one saved."""
        if self.config.options["idle"] != "moved":
            return super().execute(event, operations)
        for operation in operations:
            if isinstance(operation, do.Restore):
                one, other = (executor.saved for executor in self.executors)
                one[operation.name], other[operation.name] = other[operation.name], one[operation.name]
            super().execute(event, [operation])
        return Effect()

    def decode(self, step: int, fed: Sequence[Fed], batch: do.Decode) -> Sequence[Record]:
        """Decode a batch in both contexts; compare what it gives with the same tokens alone."""
        position = self.executors[0].position
        batch_rows = [
            Row(row.sequence, position(row.sequence, row.start), row.tokens, row.wanted) for row in batch.rows
        ]
        found, other = (context.decode(batch_rows) for context in self.contexts)
        rows, tolerance = [], MARGIN_MIN
        for one, logits, others in zip(fed, found, other, strict=True):
            if not one.row.wanted:
                continue
            alone = self._alone(one.request)
            tolerance = max(tolerance, alone.tolerance)
            stop = one.row.start + len(one.row.tokens)
            drafted = (*one.request.tokens(0, one.row.start), *one.row.tokens)
            logprobs = self.model.logprobs(drafted) if one.drafts else alone.logprobs
            expected = logprobs[stop - one.row.wanted : stop]
            rows.append(_worst(one, expected, log_softmax(logits), logits.tobytes() == others.tobytes()))
        forward = [ForwardRow(one.request.name, one.row.start, one.row.tokens, one.drafts, one.sampled) for one in fed]
        return [RealForward(step, rows, tolerance), Forward(step, forward, ())]

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return which prefix of its request the state of a sequence stands for: the state is saved, and compared with
        those that the request's tokens have alone. Without one it is no prefix's."""
        [request] = [one for one in self.client.holders() if one.sequence == block]
        alone, found = self._alone(request), self.model.state_of(self.contexts[0], block)
        lengths = range(1, len(alone.states) + 1)
        near = chain([request.computed], sorted(lengths, key=lambda length: abs(length - request.computed)))
        length = next((one for one in near if alone.is_state(one, found)), None)
        return StateContent(NO_PREFIX if length is None else request.truth.tag(length), ())

    def _alone(self, request: Request) -> Alone:
        """Return what all tokens that a request will have give alone: the same in all its steps."""
        return self.model.alone(request.tokens(0, request.total))

    def close(self) -> None:
        """Free the contexts."""
        for context in self.contexts:
            context.close()


def _worst(one: Fed, expected: Any, found: Any, agrees: bool) -> RealRow:
    """Return the position of a row whose log-probabilities differ most from the expected ones."""
    distance = np.nan_to_num(np.abs(found - expected).max(axis=1), nan=np.inf)
    worst = int(distance.argmax())
    position = one.row.start + len(one.row.tokens) - one.row.wanted + worst
    return RealRow(one.request.name, position, found[worst], expected[worst], agrees)
