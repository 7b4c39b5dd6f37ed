"""Observations: the records and views that a target reports, as plain values.

`Target.apply` returns an `Effect`: the records of what happened, *in the order in which it happened*. The order
is checked, too: device work of step 5 before the forward of step 4 is a violation (S8).

A scheduling decision is a `Planned`; device work is `Zeroed`, `Copied`, `Loaded` and `Forward`; output to the client is
`Delivered`. Each carries the number of the step that planned it, so a target may plan ahead of execution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from ...reference.prefix_cache import Key
from .numbers import LayerOutput, NumericRow

Table = Sequence[Sequence[int]]
"""Block ids by group, then column."""


class StateContent(Struct, frozen=True, gc=False, array_like=True):
    """The content of one layer's page of a state block: temporal state and convolution window, as tags. `temporal` is
    None and `window` () where the layers of the group have no such part (`Group.recurrent`, `Group.conv`)."""

    temporal: int | None
    window: tuple[int, ...]


class SlotContent(Struct, frozen=True, gc=False, array_like=True):
    """The content of one layer's page of an attention block: a tag for each slot. Of a plain cache: a tag for each
    position that it holds, oldest first, without padding."""

    tags: Sequence[int]


Content = StateContent | SlotContent


class View(Struct, frozen=True, gc=False):
    """The host's metadata at one moment: a snapshot, which later events do not change.

    free       free queue, the block to be allocated next first
    references reference count by block id
    published  block id -> key, for every block that a lookup can reach, read from the lookup structure
    labels     the same from the blocks' own fields; equal to `published` in a correct target, None if not observed
    tables     request -> the scheduler's table; only requests that hold blocks
    aliases    block id -> further keys that reach a published block, of smaller depths
    pins       block id -> references that are not from a table
    copying    copies to or from what is outside the pool are under way: they hold blocks, or requests wait for them
    copies     block id -> the block whose whole pages a step that was just planned copies into it
    waiting, running  names, in queue order; where there are batch events `running` is in the order of the rows
    parked     sessions between two turns; `tables` and `references` include what they hold
    leftovers  name -> size of everything that must be empty once no request is alive
    drained    name -> size of everything that must be empty after each step
    stored     content outside the pool that a later load may find, one entry per layer of the key's group
    sent       likewise, what another engine has received of requests that are not over
    caches     request -> id of its plain cache, as `Target.read` takes it for `block`: of each running and parked
               request that holds one. `free`, `references`, `published` and `tables` are empty where there is no pool
    """

    free: Sequence[int]
    references: Sequence[int]
    published: Mapping[int, Key]
    labels: Mapping[int, Key] | None
    tables: Mapping[str, Table]
    waiting: Sequence[str]
    running: Sequence[str]
    pins: Mapping[int, int] = field(default_factory=dict)
    leftovers: Mapping[str, int] = field(default_factory=dict)
    drained: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[Key, Sequence[Content]] = field(default_factory=dict)
    parked: Sequence[str] = ()
    caches: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[int, int] = field(default_factory=dict)
    copying: bool = False
    aliases: Mapping[int, Sequence[Key]] = field(default_factory=dict)
    sent: Mapping[Key, Sequence[Content]] = field(default_factory=dict)


class PlannedRow(Struct, frozen=True, gc=False, array_like=True):
    """One request in a scheduling decision.

    start      first position that this step computes, as the scheduler sees it (drafts in flight count as accepted)
    num_tokens input tokens, drafts included
    drafts     how many of them are drafts
    admitted   True if it came from the waiting queue in this step
    hit        prefix-hit length in tokens on admission
    estimated, taken  blocks that the admission check estimated and that were really taken, -1 if not observed
    external   tokens after the hit that are loaded from outside the pool: before the step's forward or, where
               `num_tokens` is 0, while the request waits until a later step. It is then planned without `admitted`, or
               admitted again if the load broke off
    kept       tokens in blocks that a session kept from its last turn and resumes from; `hit` is 0 then
    cut        drafts that the grammar of its answer refused since the last decision
    instead    tokens that are computed in place of its prompt, to end a request that gets nothing
    restored   True if the load brings back what a request had before it lost its row: no hit is looked for
    """

    name: str
    start: int
    num_tokens: int
    drafts: int
    admitted: bool
    hit: int
    estimated: int = -1
    taken: int = -1
    external: int = 0
    kept: int = 0
    cut: int = 0
    instead: Sequence[int] = ()
    restored: bool = False

    @property
    def anew(self) -> bool:
        """True if the request got its whole table in this decision."""
        return self.admitted and not self.kept

    @property
    def loads_apart(self) -> bool:
        """True if content is loaded for the request while it waits, at any time before its first step."""
        return self.admitted and not self.num_tokens


class Planned(Struct, frozen=True, gc=False):
    """One scheduling decision and the metadata right after it.

    An engine may process results between the decision and the launch, and launch the rows of requests that end there
    all the same. Then `view` is that of the launch, `rows` has the other ones, and `left` the tables that these had.
    """

    step: int
    rows: Sequence[PlannedRow]
    preempted: Sequence[str]
    budget: int
    view: View
    left: Mapping[str, Table] = field(default_factory=dict)


class Zeroed(Struct, frozen=True, gc=False):
    """Blocks were zeroed on the device, all layers."""

    step: int
    blocks: Sequence[int]


class Copied(Struct, frozen=True, gc=False):
    """A state, or the first `slots` slots of an attention page, was copied between two columns of a request's table.

    source_column, destination_column  -1 where the block belongs to the cache and not to the request
    source, destination  -1 where the engine's column is outside of the table: nothing was copied
    shift  tokens by which the convolution window was shifted while copying
    """

    step: int
    request: str
    group: int
    source_column: int
    source: int
    destination_column: int
    destination: int
    shift: int
    temporal: bool
    conv: bool
    layer: int = 0
    slots: int = 0


class Loaded(Struct, frozen=True, gc=False):
    """Content was loaded from outside the pool into one layer's page of a block: parts of a state, or the first `slots`
    slots. `step` is the step that planned the load. A load for a waiting request (`PlannedRow.loads_apart`) may happen
    later, or before the forwards of earlier steps that are in flight. `column` is -1 and `request` "" where the block
    belongs to the cache, or to whichever request hits it."""

    step: int
    request: str
    group: int
    layer: int
    column: int
    block: int
    temporal: bool = False
    conv: bool = False
    slots: int = 0


class StateRead(Struct, frozen=True, gc=False, array_like=True):
    """A kernel read its initial state; `temporal` or `window` is None if it did not read that part."""

    row: int
    group: int
    layer: int
    column: int
    block: int
    temporal: int | None
    window: tuple[int, ...] | None


class StateWrite(Struct, frozen=True, gc=False, array_like=True):
    """A kernel stored a state; `temporal` or `window` is None if it did not write that part. `depth` is the number of
    tokens in the state by the kernel's own metadata, for messages only."""

    row: int
    group: int
    layer: int
    column: int
    block: int
    depth: int
    temporal: int | None
    window: tuple[int, ...] | None


class SlotRead(Struct, frozen=True, gc=False, array_like=True):
    """Attention read len(tags) positions in whole pages of `blocks`, starting at column `first_column` (not 0 with a
    sliding window). Of a plain cache: exactly the positions that it attended to, those of this step's own tokens left
    out; `blocks` is (its id,) and `first_column` the first position."""

    row: int
    group: int
    layer: int
    blocks: Sequence[int]
    tags: Sequence[int]
    first_column: int = 0


class SlotWrite(Struct, frozen=True, gc=False, array_like=True):
    """Keys and values of consecutive positions, first at `position`, were stored: slot `slots[i]` of `blocks[i]`. Of a
    plain cache `slots` are indices into the tensor, left padding included."""

    row: int
    group: int
    layer: int
    position: int
    blocks: Sequence[int]
    slots: Sequence[int]
    tags: Sequence[int]


class OutOfRange(Struct, frozen=True, gc=False, array_like=True):
    """The engine's own metadata points a kernel at entry `index` of something that has `size` entries, counted from 0.

    Nothing was read or written there, and the row has no other access in this group, since the behaviour of a device
    is undefined. `what` is "column" (of the row's blocks), "block" (of the pool), "token" (of the batch), ...
    """

    row: int
    group: int
    what: str
    index: int
    size: int


Access = StateRead | StateWrite | SlotRead | SlotWrite | OutOfRange


class ForwardRow(Struct, frozen=True, gc=False, array_like=True):
    """One row of an executed batch, in batch order; `request` is None for padding and dummy rows.

    position  of the first input token
    tokens    input token ids, drafts last
    drafts    how many of `tokens` are drafts
    sampled   tokens that the sampler accepted, () for an unfinished prefill
    guessed   how many of the first drafts a stand-in for the drafter guesses right from what the engine gives it
    parents   of a tree of drafts: by draft, the index of the one that it follows, -1 for the last known token; () for a
              chain. As the drafter made the tree, whatever the engine makes of it
    fillers   how many of the last drafts only fill up the row: an engine need not accept them where they are right
    """

    request: str | None
    position: int
    tokens: Sequence[int]
    drafts: int
    sampled: Sequence[int]
    guessed: int = 0
    parents: Sequence[int] = ()
    fillers: int = 0


class Forward(Struct, frozen=True, gc=False):
    """The model was executed once. `graph` is True if a captured graph was replayed."""

    step: int
    rows: Sequence[ForwardRow]
    accesses: Sequence[Access]
    dummy: bool = False
    graph: bool = False


class Numeric(Struct, frozen=True, gc=False):
    """The same forward on bytes; it comes before the `Forward` with its tags.

    model     the model whose float64 reference gives the expected numbers; only its oracle looks inside
    accesses  as in the `Forward`, to explain a wrong number
    guards    guard pages whose bytes were changed
    failed    copies and zeroing since the last record that were not bit-exact, of `moves` in all
    """

    step: int
    model: object
    rows: Sequence[NumericRow]
    outputs: Sequence[LayerOutput]
    accesses: Sequence[Access]
    guards: Sequence[str]
    failed: Sequence[str]
    moves: int
    dummy: bool = False


class RealRow(Struct, frozen=True, gc=False):
    """Log-probabilities of a real model after one token of a request.

    position  of that token
    logprobs  [vocabulary] float32
    expected  [vocabulary] the same tokens alone in an empty engine; None if that depends on unused memory
    agrees    False if other bytes in unused memory change a bit of `logprobs`
    """

    request: str
    position: int
    logprobs: Any
    expected: Any
    agrees: bool


class RealDraft(Struct, frozen=True, gc=False):
    """What a real draft model computed for one draft of a request.

    number  of the draft in its step, from 0
    agrees  False if other bytes in unused memory change a bit of it
    is_nan  True if it is NaN
    """

    request: str
    number: int
    agrees: bool
    is_nan: bool


class RealForward(Struct, frozen=True, gc=False):
    """A real model was executed once; it comes before the `Forward` that tells its tags.

    tolerance  largest sound difference of a log-probability between a batch and the same tokens alone
    states     (group, layer, block) of states that were written and whose bits depend on unused memory
    exact      True if `expected` comes from the same steps alone under batch-invariant kernels: rows of a request
               that finished, in which every bit has to be the same
    drafts     what the draft model behind the forward computed, if there is one
    moved      (request, tokens, group, layer) of states after so many tokens that have other bits than those alone
    arrived    requests that were sent before the answer to another one had come
    cancelled  requests whose clients left before their answer had come, and before that to another one had
    """

    step: int
    rows: Sequence[RealRow]
    tolerance: float
    states: Sequence[tuple[int, int, int]] = ()
    drafts: Sequence[RealDraft] = ()
    exact: bool = False
    moved: Sequence[tuple[str, int, int, int]] = ()
    arrived: int = 0
    cancelled: int = 0


class Delivered(Struct, frozen=True, gc=False):
    """Tokens that clients received, by request; requests that finished (of a session: its turn), and those that the
    engine ended with an error: a load for them broke off, or their grammar does not compile. `scored`: by request, the
    tokens whose log-probabilities its client received as those of its prompt, from the second token on. `behind`: by
    request that finished, how many tokens the engine has sampled and kept past the end of its answer, which was found
    outside the engine's core."""

    step: int
    outputs: Sequence[tuple[str, Sequence[int]]]
    finished: Sequence[str]
    failed: Sequence[str] = ()
    scored: Sequence[tuple[str, Sequence[int]]] = ()
    behind: Sequence[tuple[str, int]] = ()


class SideBySide(Struct, frozen=True, gc=False):
    """Two implementations of one part of the engine do the same operations side by side.

    `answers` were compared since the last such record. `operation` is the first that was answered differently, by one
    as `one` and by the other as `other`; all three are "" if there was none.
    """

    step: int
    answers: int
    operation: str = ""
    one: str = ""
    other: str = ""


Record = Planned | Zeroed | Copied | Loaded | Numeric | RealForward | Forward | Delivered | SideBySide


class Effect(Struct, frozen=True, gc=False):
    """Everything that one event did; no records for a no-op. `refused` is the reason if the engine refused it."""

    records: Sequence[Record] = ()
    refused: str = ""
