"""Groups of layers and how many blocks a request needs.

Layers with the same kind and block size form a **group**; every layer of a group shares one block table.
All groups draw block ids from one pool, or each from its own (`Layout.cache_owns`). Plain caches have no pool
(`Layout.num_blocks` is 0): a "block" is then the cache of one request, usually a row of the batch, and the columns of
an attention group are single positions, so its `block_size` is 1. `required_columns` is the rule of the cache modes:

    attention         one column per `block_size` tokens; the group of a drafter also for the tokens that it proposes,
                      which it writes ahead of the model
    mamba, mode none  one running column for the whole request, plus one scratch column per draft
    mamba, mode align position-indexed columns up to the running one, plus scratch; only the running column,
                      the one before it and the scratch columns hold blocks, the others are null
    mamba, mode all   the same columns, every one of them a real block
    mamba, mode slots columns are roles, not positions: the working slot, then those that snapshots are written to;
                      a slot holds one state, at any depth. Speculation takes no slots: states after each draft are
                      scratch of a row of the batch, and only the accepted one reaches a slot

A sliding-window group keeps its columns but may give back those that no later token attends to: the token at
position p attends to positions p - window + 1 .. p, so after c tokens only positions from c - window + 1 on matter
(`first_attended`). A chunked-local group does the same with chunks of the context: the token at position p attends to
positions p // chunk * chunk .. p.

Source: vLLM `MambaSpec.max_memory_usage_bytes`, `MambaManager`, `SlidingWindowManager` (0.28 to 0.33),
`ChunkedLocalAttentionManager` (0.33); SGLang
`HybridReqToTokenPool` (0.5.23).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Literal

Kind = Literal["attention", "mamba"]
Mode = Literal["none", "align", "all", "slots"]


def cdiv(tokens: int, size: int) -> int:
    """Return the number of blocks of `size` that hold `tokens` (ceiling division)."""
    return -(-tokens // size)


@dataclass(frozen=True, slots=True)
class Group:
    """`layers` layers of one kind that share a block table; `block_size` in tokens.

    draft   attention of the drafter: it also writes the tokens that it proposes, before they are verified
    shift   of a drafter's attention: the slot of a position depends on so many tokens after it, too (EAGLE: 1)
    window  attention reaches this many tokens back, the token itself included; 0 for all of them
    lag     tokens left of its window whose columns may be given back later: for a checkpoint's sake, or in batches
    chunk   chunked-local attention: it reaches back to the last multiple of this many tokens; 0 for all of them
    slots  mode slots: state slots that one request holds at most
    inner_states  mode align: a chunk may also leave the state at one boundary inside it, in the column before its last
    recurrent, conv  False for state layers without a recurrent (temporal) state or without a convolution window
    """

    kind: Kind
    block_size: int
    layers: int = 1
    draft: bool = False
    window: int = 0
    slots: int = 1
    inner_states: bool = False
    recurrent: bool = True
    conv: bool = True
    chunk: int = 0
    shift: int = 0
    lag: int = 0

    @property
    def is_local(self) -> bool:
        """True for attention that does not reach all earlier tokens, so that columns may be given back."""
        return self.window > 0 or self.chunk > 0

    def __post_init__(self) -> None:
        assert self.recurrent or self.conv, "a state layer has a recurrent state, a convolution window, or both"


@dataclass(frozen=True)
class Layout:
    """The layout of pool and groups that a target built from a trace's configuration.

    The pool
    groups       what the layers of the model are grouped into
    num_blocks   physical blocks including reserved ones; ids are 0..num_blocks-1. 0: plain caches without a pool
    null_block   placeholder id that never holds content, or None where the target has none
    reserved     ids that are never allocated, besides the null block
    sinks        reserved ids that padding rows may write to, since they are never read
    state_ids    ids below this one are of the states' own pool; 0 where all groups have one pool
    window_ids   ids from this one on are of the pool of attention with a window; 0 where it has none of its own
    cache_owns   a published block belongs to the cache (a radix tree): it leaves the free queue for good, requests
                 borrow it, and an unpublished block has one owner. Otherwise a published block without owners waits
                 in the free queue.
    keeps_ended  the memory of a request that ended, or lost its row, is its own until the steps in flight have run.
                 Where it is not, these steps may read anything: what they compute for the request counts for nothing
    overallocation  tokens beyond a step's own for which blocks may be held

    States and pages
    conv_width   tokens that a convolution sees, its own included
    zeroing      True where attention blocks must be zeroed before their first read, because their bytes may
                 come from a state block (vLLM PR #35219)
    zeroed_start a request's first step reads a zeroed state, which stands for "no tokens yet"

    The prefix cache
    mode         which states are kept (`mamba_cache_mode`)
    prefix_caching  False: nothing is published
    hit_unit     hit lengths are multiples of this many tokens; 0: of the blocks of all groups
    hash_unit    keys may stand for content up to a multiple of this many tokens inside a block; 0 for whole blocks
    publish_unit blocks are published when a multiple of this many tokens is computed, of local attention those that a
                 hit can use; 0 for each block as soon as it is computed
    keeps_every_state  the state at each boundary is published; False where an engine keeps a selection of its own
    loads_complete_hits  a load from outside the pool also brings what local attention, or a drafter's, lacks of the hit
                 before it

    Speculation
    num_speculative_tokens  most drafts of a step
    eagle_drop   a hit leaves out the last matched block of the drafter's attention (EAGLE/MTP drafts)
    eagle_unit   tokens that `eagle_drop` leaves out, 0 for a block
    eagle        the groups that `eagle_drop` is about, None for `eagle_groups`' rule
    lookahead    a key names so many tokens after its block, too: what an EAGLE head's slots depend on (`Group.shift`)

    Sessions
    resume_drops number of tokens at the end of a session's turn that the next turn leaves out
    """

    groups: tuple[Group, ...]
    num_blocks: int
    conv_width: int
    mode: Mode
    prefix_caching: bool
    num_speculative_tokens: int = 0
    null_block: int | None = 0
    reserved: frozenset[int] = frozenset()
    zeroing: bool = True
    hit_unit: int = 0
    hash_unit: int = 0
    eagle_drop: bool = False
    cache_owns: bool = False
    zeroed_start: bool = False
    sinks: frozenset[int] = frozenset()
    keeps_ended: bool = True
    state_ids: int = 0
    window_ids: int = 0
    overallocation: int = 0
    keeps_every_state: bool = True
    eagle: frozenset[int] | None = None
    eagle_unit: int = 0
    lookahead: int = 0
    publish_unit: int = 0
    resume_drops: int = 0
    loads_complete_hits: bool = False

    def __post_init__(self) -> None:
        assert self.groups, "a layout needs at least one group"
        assert all(group.block_size > 0 for group in self.groups)
        assert self.num_blocks or self.null_block is None, "without a pool there is no null block"
        if not self.hit_unit:
            object.__setattr__(self, "hit_unit", lcm(*(group.block_size for group in self.groups)))

    @cached_property
    def ids(self) -> frozenset[int]:
        """All physical blocks."""
        return frozenset(range(self.num_blocks))

    @cached_property
    def pools(self) -> dict[str, range]:
        """The ids of each pool, by what its blocks are called."""
        if not self.state_ids:
            return {"block": range(self.num_blocks)}
        end = self.window_ids or self.num_blocks
        found = {"state slot": range(self.state_ids), "attention block": range(self.state_ids, end)}
        return found | ({"window block": range(end, self.num_blocks)} if self.window_ids else {})

    @cached_property
    def unowned(self) -> frozenset[int]:
        """Ids that are never allocated: the null block and the reserved ones."""
        return self.reserved if self.null_block is None else self.reserved | {self.null_block}

    @property
    def left_to_compute(self) -> int:
        """The fewest tokens of a request that come behind a hit: one has to be computed, and the last key of the hit
        names `lookahead` more."""
        return max(self.lookahead, 1)

    @cached_property
    def eagle_groups(self) -> frozenset[int]:
        """Groups whose last matched block a hit leaves out: the drafter's, or all full attention if it has none."""
        if not self.eagle_drop:
            return frozenset()
        if self.eagle is not None:
            return self.eagle
        attention = [
            index for index, group in enumerate(self.groups) if group.kind == "attention" and not group.is_local
        ]
        return frozenset([index for index in attention if self.groups[index].draft] or attention)


def first_attended(group: Group, computed: int) -> int:
    """Return the first position that the token after `computed` tokens attends to."""
    return first_in_reach(group.window, group.chunk, computed)


def first_in_reach(window: int, chunk: int, computed: int) -> int:
    """Return the same for attention with a window or chunks of so many tokens, 0 for neither."""
    if chunk:
        return computed // chunk * chunk
    return max(computed - window + 1, 0) if window else 0


def required_columns(group: Group, mode: Mode, tokens: int, speculative: int) -> int:
    """Return the number of block table columns for `tokens` tokens (drafts included), scratch columns included."""
    if group.kind == "attention":
        return cdiv(tokens + (speculative if group.draft else 0), group.block_size)
    if mode == "slots":
        return group.slots
    if mode == "none":
        return 1 + speculative
    return cdiv(tokens, group.block_size) + speculative


def peak_blocks(group: Group, mode: Mode, tokens: int, speculative: int, ahead: int, settled: int = 0) -> int:
    """Return the most blocks that a request of `tokens` tokens holds in this group, planned `ahead` steps ahead.

    A column can be freed only when no step in flight can start from it, so each step ahead costs one more.
    `settled` tokens are executed and verified: columns left of their window are freed.
    """
    if group.is_local:
        passed = max(first_attended(group, settled) - group.lag, 0) // group.block_size
        return required_columns(group, mode, tokens, speculative) - passed
    if group.kind == "mamba" and mode == "align":
        most = 2 + group.inner_states + speculative + ahead
        return min(required_columns(group, mode, tokens, speculative), most)
    return required_columns(group, mode, tokens, speculative)


def smallest_pool(groups: tuple[Group, ...], mode: Mode, tokens: int, speculative: int, ahead: int) -> int:
    """Return the number of blocks with which one request of `tokens` tokens can always finish, and the null block.

    In mode slots states have a pool of their own, which is not counted here.
    """
    counted = [group for group in groups if mode != "slots" or group.kind == "attention"]
    return 1 + sum(peak_blocks(group, mode, tokens, speculative, ahead) for group in counted)


def cached_columns(group: Group, mode: Mode, hit: int) -> int:
    """Return the number of leading columns that a hit of `hit` tokens fills with cached blocks; 0 for state slots,
    which are copied from."""
    return 0 if mode == "slots" and group.kind == "mamba" else hit // group.block_size
