"""The client's side: which rows are in the batch, and which tokens it feeds next.

transformers has no scheduler. Its client (`generate`, or a loop written by hand) pads prompts on the left to equal
length, feeds them in one or several chunks, and then one token per row and forward. A row that has ended stays in the
batch, as in `generate`, until the batch ends or rows are selected. A session has a batch of its own, whose cache is
kept between turns.

Everything here follows from the trace alone, so that a script can be written without transformers: the tokens that rows
sample are those of `Truth`. Events of the batch return operations, and the batch changes once the library has executed
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from ...reference.batch import reordered, repeated, selected, stops_of_copy, truth_of_copy
from ...reference.tokens import Truth, draft_tokens, first_difference
from ..base.observe import PlannedRow
from ..base.trace import Arrive, Config, Resume, Step, stop_tokens_of
from . import operations as do

PAD = 0
"""The padding token."""


class BatchRow:
    """A row of the batch, or a request that waits for one; `name` is None once its request has ended."""

    def __init__(
        self, name: str | None, truth: Truth, max_new_tokens: int, session: bool, stops: tuple[int, ...] = ()
    ) -> None:
        self.name = name
        self.truth = truth
        self.max_new_tokens = max_new_tokens
        self.stops = stops
        """The token that ends the answer (`eos_token_id`), 0 for none."""
        self.session = session
        self.known = truth.prompt_length
        """Tokens whose ids the client knows."""
        self.pad = 0
        """Columns of padding in front of it."""

    @property
    def total(self) -> int:
        """Tokens with which the request, or the turn, ends."""
        return self.truth.prompt_length + self.truth.answer_length(self.max_new_tokens, self.stops)

    @property
    def foreseen(self) -> int:
        """Tokens with which it ends at the latest: a stop token is not foreseen."""
        return self.truth.prompt_length + self.max_new_tokens

    @property
    def delivered(self) -> int:
        """Tokens sampled in this turn."""
        return self.known - self.truth.prompt_length

    def copy_of(self, source: BatchRow, rank: int) -> BatchRow:
        """Return a row of this name with the tokens of `source`, as its copy of this rank (`reference.batch`)."""
        truth = truth_of_copy(source.truth, source.known, rank)
        stops = stops_of_copy(truth, source.known, source.stops)
        row = BatchRow(self.name, truth, source.max_new_tokens, self.session, stops)
        row.known, row.pad = source.known, source.pad
        return row

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the tokens in columns start..stop-1."""
        self.truth.reach(stop - self.pad)
        return tuple(
            self.truth.tokens[column - self.pad] if column >= self.pad else PAD for column in range(start, stop)
        )


class Fed(Struct, frozen=True):
    """What a forward means for its rows, by row: tokens fed before it, tokens fed by it, tokens that it samples.

    drafts  how many of the fed tokens are drafts
    right   how many of them are right
    kept    how many of them stay in the cache: a request may end in the middle of the right ones
    """

    before: tuple[int, ...]
    count: tuple[int, ...]
    samples: bool
    drafts: int
    right: int
    kept: int


class Client:
    """Rows, columns and queues along one trace."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.reuses = config.options.get("reuse") == "yes"
        self.waiting: deque[BatchRow] = deque()
        self.batch: list[BatchRow] = []
        self.columns = 0
        """Columns that the batch's cache holds."""
        self.parked: dict[str, BatchRow] = {}
        self.kept: dict[str, int] = {}
        """Session -> columns of its kept cache, also while its next turn waits."""
        self.emptied = 0
        """Rows of a cache that was emptied in place and not used since, 0 if there is none."""
        self.patience = int(config.options.get("wait", "0"))
        self.waited = 0
        """Steps in which a batch could have begun."""
        self.chunks = config.options.get("chunks", "any")
        self.recorded = 0
        """Columns fed since the last crop: a cache that records past states can forget so many."""
        self.names: set[str] = set()

    # requests

    def arrive(self, event: Arrive) -> None:
        """Queue a request."""
        self.names.add(event.name)
        truth = Truth(event.prompt)
        stops = stop_tokens_of(event, truth)
        self.waiting.append(BatchRow(event.name, truth, event.max_new_tokens, event.session, stops))

    def resume(self, event: Resume) -> None:
        """Queue the next turn of a parked session."""
        row = self.parked.pop(event.name)
        truth = row.truth.continued(row.known, event.prompt)
        stops = stop_tokens_of(event, truth)
        self.waiting.append(BatchRow(event.name, truth, event.max_new_tokens, session=True, stops=stops))

    def abort(self, name: str) -> list[do.Operation]:
        """End a request or a session."""
        self.parked.pop(name, None)
        self.waiting = deque(row for row in self.waiting if row.name != name)
        for row in self.batch:
            if row.name == name:
                row.name = None
        forget: list[do.Operation] = [do.Forget(name)] if self.kept.pop(name, None) else []
        return forget + self._end_batch()

    def fork(self, name: str, parent: str) -> list[do.Operation]:
        """Copy a parked session."""
        self.names.add(name)
        row = self.parked[parent]
        self.parked[name] = BatchRow(name, row.truth, row.max_new_tokens, session=True)
        self.parked[name].known = row.known
        if parent not in self.kept:
            return []
        self.kept[name] = self.kept[parent]
        return [do.Copy(name, parent)]

    def live(self) -> list[BatchRow]:
        """Return the rows that have a request, in the order of the batch."""
        return [row for row in self.batch if row.name is not None]

    def computed(self, row: BatchRow) -> int:
        """Return the tokens of a row of the batch that are in its cache."""
        return max(self.columns - row.pad, 0)

    # one step

    def form(self) -> list[do.Operation]:
        """Begin a batch if there is none and requests wait, and if the client does not wait for more of them."""
        if self.batch or not self.waiting:
            return []
        first = self.waiting[0]
        if not first.session and len(self.waiting) < self.config.max_num_seqs and self.waited < self.patience:
            self.waited += 1
            return []
        self.waited = 0
        if first.session:
            self.batch, self.columns = [self.waiting.popleft()], 0
            assert first.name
            if columns := self.kept.pop(first.name, 0):
                self.columns, self.emptied, self.recorded = columns, 0, 0
                return [do.Load(first.name)]
        else:
            most = self.emptied or self.config.max_num_seqs
            while self.waiting and not self.waiting[0].session and len(self.batch) < most:
                self.batch.append(self.waiting.popleft())
        reused = self.emptied == len(self.batch)
        longest = max(row.known for row in self.batch)
        for row in self.batch:
            row.pad = longest - row.known
        self.columns = self.emptied = self.recorded = 0
        return [do.Begin(len(self.batch), reused)]

    def plan(self, event: Step, fresh: bool) -> tuple[do.Feed, Fed, list[PlannedRow], int]:
        """Return the next forward, its meaning, the rows that compute something, and the step's budget of tokens.

        `fresh`: the batch has been formed, perhaps from a kept cache, in this step. Columns that hold no token of a row
        with a request, because a longer row has ended, cost no budget: they are fed together with the next one.
        """
        config, batch, start = self.config, self.batch, self.columns
        budget = min(event.budget or config.max_num_batched_tokens, config.max_num_batched_tokens)
        row = batch[0]
        left = row.pad + row.known - start
        limits = [left, max(budget // len(batch), 1)]
        limits += [event.chunks[row.name] for row in batch if row.name in event.chunks]
        limits += [config.long_prefill_token_threshold or left]
        count = max(min(limits), min(row.pad for row in self.live()) - start + 1)
        if self.chunks == "whole":
            count = 1 if start else left
        elif self.chunks == "wide" and start < max(row.pad for row in batch):
            count = min(max(count, 2), left)
        drafts = right = kept = 0
        drafted: tuple[int, ...] = ()
        if count == left == 1 and len(batch) == 1 and row.delivered:
            drafts, right = event.per_request.get(row.name or "", (event.drafts, event.right))
            drafts = min(drafts, config.num_speculative_tokens)
            if self.config.options.get("client") != "loop":
                # `generate` drafts no further than the end that it foresees, and past a stop token.
                drafts = min(drafts, row.foreseen - row.known - 1)
            drafted = tuple(draft_tokens(row.truth.tag(row.known), drafts, min(right, drafts)))
            # A right draft is the model's first choice, where the answer may need another token (`min_new_tokens`).
            first = row.known + row.pad
            right = first_difference(row.tokens(first, first + drafts), drafted)
            kept = min(right, row.total - row.known - 1)
        stop = start + count
        tokens = [row.tokens(start, stop) for row in batch]
        tokens[0] += drafted
        stop += drafts
        feed = do.Feed(
            start,
            tuple(tokens),
            tuple(tuple(int(column >= row.pad) for column in range(stop)) for row in batch),
            tuple(tuple(max(column - row.pad, 0) for column in range(start, stop)) for row in batch),
            drafts,
        )
        before = tuple(max(start - row.pad, 0) for row in batch)
        counts = tuple(max(stop - row.pad, 0) - done for row, done in zip(batch, before, strict=True))
        planned = [
            PlannedRow(row.name, done, count, drafts, not done or fresh, 0, kept=done if fresh else 0)
            for row, done, count in zip(batch, before, counts, strict=True)
            if row.name is not None and count
        ]
        fed = Fed(before, counts, count == left, drafts, right, kept)
        return feed, fed, planned, max(budget, sum(row.num_tokens for row in planned))

    def advance(self, feed: do.Feed, fed: Fed) -> tuple[list[tuple[str, tuple[int, ...]]], list[str]]:
        """Count an executed forward; return the delivered tokens and the requests, or turns, that end."""
        stop = feed.start + len(feed.tokens[0])
        self.columns = stop - (fed.drafts - fed.kept)
        self.recorded = 0 if self.config.num_speculative_tokens else self.recorded + len(feed.tokens[0])
        outputs: list[tuple[str, tuple[int, ...]]] = []
        finished: list[str] = []
        if not fed.samples:
            return outputs, finished
        for row in self.batch:
            known, row.known = row.known, row.known + 1 + fed.kept
            row.truth.reach(row.known)
            if row.name is not None:
                outputs.append((row.name, tuple(row.truth.tokens[known : row.known])))
                if row.known == row.total:
                    finished.append(row.name)
        return outputs, finished

    def settle(self, finished: Sequence[str]) -> list[do.Operation]:
        """End requests and turns; return what to do with the cache."""
        done: list[do.Operation] = []
        for row in self.batch:
            if row.name not in finished:
                continue
            assert row.name is not None
            if row.session:
                self.parked[row.name] = _parked(row)
                if len(self.batch) == 1:
                    self.kept[row.name] = self.columns
                    done.append(do.Store(row.name))
                    self.batch = []
                    return done
            row.name = None
        return done + self._end_batch()

    def _end_batch(self) -> list[do.Operation]:
        """End the batch if no row has a request."""
        if not self.batch or self.live():
            return []
        rows, self.batch, self.columns = len(self.batch), [], 0
        self.emptied = rows if self.reuses else 0
        return [do.Reset()] if self.reuses else [do.Forget()]

    # events of the batch

    def crop(self, tokens: int) -> list[do.Operation]:
        """Return the operation, none if a row has computed too little."""
        return [do.Crop(tokens)] if self.batch and all(self.computed(row) > tokens for row in self.live()) else []

    def cropped(self, tokens: int) -> None:
        """Count a crop that was executed."""
        self.columns -= tokens
        self.recorded = 0

    def select(self, names: Sequence[str]) -> list[do.Operation]:
        """Return the operation that keeps these rows and none of those that have ended."""
        at = {row.name: index for index, row in enumerate(self.batch)}
        live = [row.name or "" for row in self.live()]
        return [do.Select(tuple(at[name] for name in selected(live, names)))] if live else []

    def reorder(self, sources: dict[str, str]) -> tuple[list[do.Operation], list[BatchRow]]:
        """Return the operation, and the batch after it."""
        order = reordered([row.name or "" for row in self.live()], sources)
        at = {row.name: index for index, row in enumerate(self.batch)}
        index, after = [], []
        for place, row in enumerate(self.batch):
            source, rank = order.get(row.name or "", ("", 0))
            index.append(at[source] if source else place)
            after.append(row.copy_of(self.batch[index[-1]], rank) if source else row)
        return ([do.Reorder(tuple(index))] if order else []), after

    def repeat(self, times: int) -> tuple[list[do.Operation], list[BatchRow]]:
        """Return the operation, and the batch after it."""
        live = [row.name or "" for row in self.live()]
        order = repeated(live, times, self.config.max_num_seqs, self.names)
        after: list[BatchRow] = []
        copies: dict[str, list[tuple[str, int]]] = {}
        for name, (source, rank) in order.items():
            copies.setdefault(source, []).append((name, rank))
        for row in self.batch:
            names: list[tuple[str | None, int]] = [*copies.get(row.name or "", [(None, 0)] * times)]
            for copied, rank in names:
                copy = row.copy_of(row, rank)
                copy.name, copy.session = copied, row.session and not rank
                after.append(copy)
        return ([do.Repeat(times)] if order else []), after

    def empty(self) -> list[do.Operation]:
        """Empty the batch's cache in place: its requests wait again, ahead of the others."""
        if not self.batch:
            return []
        self.waiting.extendleft(reversed(self.live()))
        self.emptied = len(self.batch)
        self.batch, self.columns = [], 0
        return [do.Reset()]


def _parked(row: BatchRow) -> BatchRow:
    parked = BatchRow(row.name, row.truth, row.max_new_tokens, session=True)
    parked.known = row.known
    return parked
