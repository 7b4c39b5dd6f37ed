"""Messages between scheduler and worker: requests as the scheduler knows them, planned steps and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ...reference.prefix_cache import Key
from ...reference.tokens import Truth, chain, first_choice
from ..base.observe import PlannedRow, Table


class Request(Struct, eq=False, gc=False):
    """A request as the scheduler knows it. `epoch` changes when results of its steps in flight become invalid.

    `settled`, `low` and `high` count tokens: see `host.block_tables.Span`.
    """

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
    """Tokens that the steps in flight will sample if every draft is accepted."""
    drafts: int = 0
    epoch: int = 0
    session: bool = False
    before_turn: int = 0
    """Tokens that a session had before its turn."""
    stops: tuple[int, ...] = ()
    """Tokens that end the answer."""
    free_from: int = 0
    """Position before which they are not sampled."""
    reads_cache: bool = True
    """False if each token of the prompt must be computed, whatever is cached."""
    compiling: int = 0
    """Plannings until its grammar is compiled, or turns out not to compile, itself included; 0 if it waits for none."""
    compiles: bool = True
    """False if its grammar does not compile."""
    grammar: Grammar | None = None

    def append_tokens(self, tokens: Sequence[int]) -> None:
        """Append token ids and their tags."""
        self.tokens.extend(tokens)
        self.tags.extend(chain(self.tags[-1], tuple(tokens)))

    def copy(self, name: str, arrival: int) -> Request:
        """Return a copy under another name and arrival index, with the same progress."""
        return replace(self, name=name, arrival=arrival, tokens=self.tokens.copy(), tags=self.tags.copy())

    def truncate(self, length: int, settled: int) -> None:
        """Forget the tokens from `length` on; the caches hold the content of the first `settled` ones."""
        del self.tokens[length:], self.tags[length + 1 :]
        self.prompt_length = length
        self.settled = self.low = self.high = settled

    def rewind(self) -> None:
        """Reset all progress; known outputs are kept."""
        self.settled = self.low = self.high = self.in_flight = self.optimistic = self.drafts = 0
        self.epoch += 1


class Grammar(NamedTuple):
    """The grammar of an answer that begins at position `start`. At `closes_at`, if that is not 0, it allows the model's
    first choice alone, which ends it."""

    start: int
    closes_at: int


def grammar_of(truth: Truth) -> Grammar | None:
    """Return the grammar of the answer to a prompt, None if it has none."""
    return Grammar(truth.prompt_length, truth.closes_at) if truth.has_grammar else None


class Load(NamedTuple):
    """Load of the content of `key` from outside the pool into `block`, at `column` of its group's table."""

    group: int
    column: int
    block: int
    key: Key


class PageCopy(NamedTuple):
    """Copy of a block's page before the forward; column -1 (OF_THE_CACHE) for a block that is in no table."""

    group: int
    from_column: int
    source: int
    to_column: int
    destination: int


class ScheduledRow(Struct, gc=False):
    """One request of a planned step, as sent to the worker.

    end       tokens at which a session's turn ends: sampling stops there, because states cannot be rolled back
    stops     tokens at which it stops as well
    withheld  tokens that are not sampled before position `free_from`
    grammar   what restricts the answer
    fresh     tokens, the whole table and the prompt length; set on admission
    appended  new columns by group; set otherwise
    loads     content to load from outside the pool before the forward
    copies    pages to copy inside the pool before the forward; the blocks `pins` are kept until the step has run
    table     the whole table, for the connector's mirror
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
    stops: tuple[int, ...] = ()
    withheld: tuple[int, ...] = ()
    free_from: int = 0
    grammar: Grammar | None = None

    def choice(self, position: int, tag: int, token: int) -> int:
        """Return what is sampled at a position, behind a prefix with `tag`, where the model says `token` first."""
        grammar = self.grammar
        if grammar and position == grammar.closes_at:
            return token
        is_over = grammar and 0 < grammar.closes_at < position
        place = position - grammar.start if grammar and not is_over else None
        return first_choice(token, self.withheld if position < self.free_from else (), place, tag)

    @property
    def anew(self) -> bool:
        """True if the worker does not know yet where the request's states are."""
        return self.fresh is not None and not self.observed.kept


class Plan(Struct, gc=False):
    """One scheduling decision. Since the last one, requests `finished` ended, `parked` reached the end of a turn and
    `rolled_back` returned to a checkpoint; `removed` left the batch, for any reason. The grammars of `refused` requests
    do not compile."""

    step: int
    budget: int
    rows: dict[str, ScheduledRow] = {}
    preempted: list[str] = []
    zero: list[int] = []
    removed: list[str] = []
    finished: list[str] = []
    parked: list[str] = []
    rolled_back: list[str] = []
    refused: list[str] = []
