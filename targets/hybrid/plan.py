"""What scheduler and worker say to each other: requests as the scheduler knows them, planned steps and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ...reference.prefix_cache import Key
from ...reference.tokens import chain
from ..base.observe import PlannedRow, Table


class Request(Struct, eq=False, gc=False):
    """A request as the scheduler knows it. `epoch` changes when its steps in flight no longer count."""

    name: str
    tokens: list[int]
    tags: list[int]
    total: int
    priority: int
    arrival: int
    prompt_length: int
    settled: int = 0
    low: int = 0
    high: int = 0
    in_flight: int = 0
    optimistic: int = 0
    """Tokens that steps in flight sample if every draft is right."""
    drafts: int = 0
    epoch: int = 0
    session: bool = False

    def learn(self, tokens: Sequence[int]) -> None:
        """Token ids that became known."""
        self.tokens.extend(tokens)
        self.tags.extend(chain(self.tags[-1], tuple(tokens)))

    def copy(self, name: str, arrival: int) -> Request:
        """The same progress under another name: a request that came later."""
        return replace(self, name=name, arrival=arrival, tokens=self.tokens.copy(), tags=self.tags.copy())

    def truncate(self, length: int, settled: int) -> None:
        """Forget the tokens from `length` on; the content of `settled` ones is in memory."""
        del self.tokens[length:], self.tags[length + 1 :]
        self.prompt_length = length
        self.settled = self.low = self.high = settled

    def rewind(self) -> None:
        """Forget all progress; outputs already known stay."""
        self.settled = self.low = self.high = self.in_flight = self.optimistic = self.drafts = 0
        self.epoch += 1


class Load(NamedTuple):
    """Content of `key` is to come from outside the pool into `block`, column `column` of its group's table."""

    group: int
    column: int
    block: int
    key: Key


class PageCopy(NamedTuple):
    """A block's page is to be copied before the forward; column -1 for a block of the cache."""

    group: int
    from_column: int
    source: int
    to_column: int
    destination: int


class ScheduledRow(Struct, gc=False):
    """One request of a planned step, as sent to the worker.

    end       tokens at which a session's turn ends: no more may be sampled, because states cannot be taken back
    fresh     tokens, the whole table and the prompt length, set on admission
    appended  new columns by group otherwise
    loads     what must come from outside the pool before the forward
    copies    pages to copy inside the pool before the forward; `pins` are kept until the step has run
    table     the whole table, for whoever keeps a mirror of it
    """

    name: str
    count: int
    drafts: int
    epoch: int
    fresh: tuple[list[int], Table, int] | None
    appended: Table
    observed: PlannedRow
    start: int
    optimistic: int
    loads: Sequence[Load]
    copies: Sequence[PageCopy]
    pins: Sequence[int]
    table: Table
    end: int = 0

    @property
    def anew(self) -> bool:
        """Whether the worker knows nothing of the request's states yet."""
        return self.fresh is not None and not self.observed.kept


class Plan(Struct, gc=False):
    """One scheduling decision. Since the last one `finished` have ended, `parked` come to the end of a turn, and
    `rolled_back` returned to a checkpoint; `removed` leave the batch, for whatever reason."""

    step: int
    budget: int
    rows: dict[str, ScheduledRow] = {}
    preempted: list[str] = []
    zero: list[int] = []
    removed: list[str] = []
    finished: list[str] = []
    parked: list[str] = []
    rolled_back: list[str] = []
