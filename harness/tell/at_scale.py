"""A trace in the lengths of a server of ordinary size, and the limits that its server must have.

Traces are in miniature: blocks of a few tokens. A server has larger ones, and takes the same requests and flags in
lengths that lie at the same places of its blocks (`at_scale`), or in those of the trace. That the trace fails there,
too, is tried (`Served`), as is which limits it needs: of a step, of running requests, of the pool and of a length.

A place in a small block may be near both of its ends, and only one of them may matter: a prompt of 1 + k tokens is one
whatever the block, if k drafts are proposed, and as many tokens before the end of a block drafts reach over it. A
`Reading` says which end a place is told from; the first one with which the trace fails is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise, takewhile
from typing import NamedTuple

from msgspec import Struct, structs

from ...reference.tokens import CONTINUATION
from ...targets.base.deployment import Deployment, Scale
from ...targets.base.repro import Sizes
from ...targets.base.trace import (
    BLOCKS_MIN,
    LENGTH_MIN,
    AnyEvent,
    Arrive,
    Config,
    Crop,
    ExternalLoad,
    Resume,
    Step,
    Trace,
    Truncate,
    Turn,
)
from ..record.history import History
from .scenario import steps_of

AMPLE = {"max_num_batched_tokens": 4096, "max_num_seqs": 64, "num_blocks": 4096, "max_model_len": 4096}
"""Limits that limit no trace."""
LEAST = {"num_blocks": BLOCKS_MIN, "max_model_len": LENGTH_MIN}
"""What a trace has at least of some of them; of the others 1."""
TRIED = 4
"""Values next to that of a limit that are tried on either side."""
NO_HISTORY = History()
EVENTS_MAX = 600
"""Of a trace that is tried."""
LENGTH_MAX = 4096
"""Tokens of a request that a trace may have, and so the longest that is tried."""


class Reading(NamedTuple):
    """What a trace's lengths are read as where not everything can be kept.

    short_answers  an answer across a boundary has as many tokens as before, and its prompt ends elsewhere
    from_start     places that one step with drafts reaches from the start of a block are told from there
    same           all lengths stay as they are, and only blocks are larger
    """

    short_answers: bool = True
    from_start: bool = False
    same: bool = False


READINGS = (
    Reading(),
    Reading(from_start=True),
    Reading(short_answers=False),
    Reading(False, True),
    Reading(same=True),
)


class Served(Struct, frozen=True):
    """The server that a trace stands for.

    deployment  its command, with the limits that the trace needs
    trace       in the server's lengths; as it is where they cannot be scaled
    needs       fields of the configuration whose limits the trace needs
    tried       tokens of the largest blocks with which the trace was run and failed in the same way, 0 for none
    sizes       field of the configuration -> values with which the trace, in its own lengths, fails
    """

    deployment: Deployment
    trace: Trace
    needs: Sequence[str] = ()
    tried: int = 0
    sizes: Mapping[str, Sizes] = {}


def serve(
    trace: Trace, describe: Callable[[Trace], Deployment], fails: Callable[[Trace], bool], history: History = NO_HISTORY
) -> Served:
    """Return the server of a failing trace. `fails` runs a trace and returns True if it fails in the same way;
    `history` is that of the failure."""
    described = describe(trace)
    scaled = at_scale(trace, described.scale) if described.scale else None
    needs, spared = _needed(trace, described.limits, fails)
    own = needs
    if scaled is None:
        return Served(structs.replace(described, scale=None), trace, needs, 0, _sizes(trace, needs, spared, fails))
    assert described.scale is not None
    tried = 0
    # What was run has the limits of the command. In such lengths more of them may be needed than in the trace's own.
    for ample in [spared, {}] if spared else [spared]:
        seen = list[Trace]()
        for reading in READINGS:
            one = at_scale(trace, described.scale, reading, history)
            if one is None or one in seen:
                continue
            seen.append(one)
            if tried := _tried(trace, described.scale, fails, reading, history, ample):
                scaled, needs = one, needs if ample == spared else [*described.limits]
                break
        if tried:
            break
    server = describe(scaled)
    flags = (*described.scale.flags, *(part for name in needs for part in server.limits[name]))
    sizes = _sizes(trace, own, spared, fails)
    return Served(structs.replace(server, flags=(*server.flags, *flags)), scaled, needs, tried, sizes)


def _sizes(
    trace: Trace, needs: Sequence[str], spared: Mapping[str, int], fails: Callable[[Trace], bool]
) -> dict[str, Sizes]:
    """Return the values of limits with which a trace fails: of those that it needs the ones around its own, as far as
    they were tried."""
    found = {name: Sizes(value := getattr(trace.config, name), value) for name in spared}
    for name in needs:
        low, high = (_last(trace, name, by, fails) for by in (-1, 1))
        if fails(trace):  # there was time for all of them
            found[name] = Sizes(getattr(trace.config, name), low, high)
    return found


def _last(trace: Trace, name: str, by: int, fails: Callable[[Trace], bool]) -> int:
    """Return the last value of a limit, from the trace's own on, with which it fails."""
    value: int = getattr(trace.config, name)
    tried = (one for one in range(value + by, value + by * (TRIED + 1), by) if LEAST.get(name, 1) <= one <= AMPLE[name])
    return [value, *takewhile(lambda one: fails(_with(trace, {name: one})), tried)][-1]


def _needed(
    trace: Trace, limits: Mapping[str, object], fails: Callable[[Trace], bool]
) -> tuple[list[str], dict[str, int]]:
    """Return limits that a trace does not fail without, and the values of the others: each is tried without all that
    could be spared before."""
    spared: dict[str, int] = {}
    for name in [name for name in AMPLE if name in limits]:
        if fails(_with(trace, more := {**spared, name: AMPLE[name]})):
            spared = more
    return [name for name in limits if name not in spared], spared


def _with(trace: Trace, fields: Mapping[str, int]) -> Trace:
    return structs.replace(trace, config=structs.replace(trace.config, **fields))


def _tried(
    trace: Trace,
    scale: Scale,
    fails: Callable[[Trace], bool],
    reading: Reading,
    history: History,
    ample: Mapping[str, int],
) -> int:
    """Return the largest block, up to a server's, with which a trace can be run, 0 if it does not fail there. Options
    keep their values: a target may take no others. `ample`: limits of which the server has the usual ones."""
    block, largest = scale.block, max(group.block_size for group in trace.config.groups)
    options = {name: int(trace.config.options.get(name, "0")) for name in scale.options}
    while block > largest:
        one = at_scale(trace, Scale(block, options), reading, history)
        longest = max(one.config.max_model_len, one.config.max_num_batched_tokens) if one else 0
        if one and longest <= LENGTH_MAX and len(one.events) <= EVENTS_MAX:
            wide = {name: max(value, getattr(one.config, name)) for name, value in ample.items()}
            return block if fails(_with(one, wide)) else 0
        block //= 2
    return 0


def at_scale(trace: Trace, scale: Scale, reading: Reading = READINGS[0], history: History = NO_HISTORY) -> Trace | None:
    """Return a trace in the lengths of a server, None where its blocks do not divide each other.

    Each turn ends at the same place of its blocks. So does its prompt, or its answer has as many tokens as before:
    where it crosses a boundary not both can be. A longer answer gets further steps, where the `history` says
    when it crosses. Prompts that quote an answer keep their places.
    """
    documents = {document for event in trace.events if isinstance(event, Turn) for document, _ in event.prompt}
    short_answers = reading.short_answers and CONTINUATION not in documents
    lengths = _Lengths.of(trace.config, scale, reading.from_start)
    if lengths is None:
        return None
    if reading.same:
        return _with_blocks(trace, lengths, scale)
    config, tokens = trace.config, lengths.tokens
    groups = tuple(
        structs.replace(
            group, block_size=lengths.block(group.block_size), window=tokens(group.window), chunk=tokens(group.chunk)
        )
        for group in config.groups
    )
    pages = [group.block_size for group in config.groups if group.kind == "attention"]
    is_of_tokens = config.mamba_cache_mode == "slots" and 1 in pages
    config = structs.replace(
        config,
        groups=groups,
        num_blocks=tokens(config.num_blocks - 1) + 1 if is_of_tokens else config.num_blocks,
        max_model_len=tokens(config.max_model_len),
        max_num_batched_tokens=tokens(config.max_num_batched_tokens),
        long_prefill_token_threshold=tokens(config.long_prefill_token_threshold),
        options=_options(config, scale),
    )
    known: dict[str, tuple[int, int]] = {}
    more = {} if short_answers else _further_steps(history, tokens)
    events = tuple(
        each
        for index, one in enumerate(trace.events)
        for each in (*(Step() for _ in range(more.get(index, 0))), _event(one, lengths, known, short_answers))
    )
    return structs.replace(trace, config=config, events=events)


def _further_steps(history: History, tokens: Callable[[int], int]) -> dict[int, int]:
    """Return event -> further steps before it, in which answers get as far as they are then in other lengths."""
    found: dict[int, int] = {}
    for own in steps_of(history).values():
        if not (admitted := [one for one in own if one.admitted]):
            continue
        prompt = max(one.start + one.num_tokens for one in admitted)
        for one, after in zip(own, [*(each.start for each in own[1:]), own[-1].start + 1], strict=True):
            gained = max(after - one.start, 1)
            if one.start >= prompt and not one.admitted:
                more = tokens(one.start + gained) - gained - tokens(one.start)
                found[one.moment] = max(found.get(one.moment, 0), more)
    return found


def _options(config: Config, scale: Scale) -> dict[str, str]:
    """Return the options of a trace, those that are a number of tokens as a server has them."""
    chosen = {name: str(value) for name, value in scale.options.items() if int(config.options.get(name, "0"))}
    return {**config.options, **chosen}


def _with_blocks(trace: Trace, lengths: _Lengths, scale: Scale) -> Trace:
    """Return a trace with a server's blocks, of which one step may compute at least one, and nothing else changed."""
    config = trace.config
    groups = tuple(structs.replace(one, block_size=lengths.block(one.block_size)) for one in config.groups)
    step = max(config.max_num_batched_tokens, lengths.large[0])
    config = structs.replace(config, groups=groups, max_num_batched_tokens=step, options=_options(config, scale))
    return structs.replace(trace, config=config)


def _event(event: AnyEvent, lengths: _Lengths, known: dict[str, tuple[int, int]], short_answers: bool) -> AnyEvent:
    """Return an event in other lengths. `known`: the tokens of each client when its last turn has ended, before and
    after."""
    tokens = lengths.tokens
    match event:
        case Arrive() | Resume():
            return _turn(event, lengths, known, short_answers)
        case Step():
            budget, chunks = event.budget and tokens(event.budget), event.chunks
            return structs.replace(event, budget=budget, chunks={name: tokens(most) for name, most in chunks.items()})
        case ExternalLoad() | Truncate():
            return structs.replace(event, length=tokens(event.length))
        case Crop():
            return structs.replace(event, tokens=tokens(event.tokens))
        case _:
            return event


def _turn(event: Turn, lengths: _Lengths, known: dict[str, tuple[int, int]], short_answers: bool) -> Turn:
    """Return a request whose prompt's parts, and whose answer, end at the same places of blocks."""
    tokens = lengths.tokens
    start, begins = known.get(event.name, (0, 0)) if isinstance(event, Resume) else (0, 0)
    ends = [start + end for end in accumulate(length for _, length in event.prompt)]
    new, stop_at = event.max_new_tokens, event.stop_at
    answer = min(stop_at, new) if stop_at else new
    last, served = ends[-1] + answer, [tokens(end) for end in ends]
    if short_answers:
        # The prompt ends as far before the boundary that the answer crosses, if it is not told from the start.
        before = served[-2] if len(served) > 1 else begins
        if tokens(last) - served[-1] != answer and not lengths.is_reached(ends[-1]):
            served[-1] = max(tokens(last) - answer, before + 1)
    else:
        new, stop_at = (tokens(ends[-1] + length) - served[-1] if length else 0 for length in (new, stop_at))
        answer = tokens(last) - served[-1]
    known[event.name] = last, served[-1] + answer
    parts = [end - begin for begin, end in pairwise([begins, *served])]
    prompt = tuple((document, length) for (document, _), length in zip(event.prompt, parts, strict=True))
    return structs.replace(event, prompt=prompt, max_new_tokens=new, stop_at=stop_at)


class _Lengths(Struct, frozen=True):
    """Lengths of a miniature and of a server: of the largest blocks, and of the next smaller unit (1 for none).

    `reach`: places up to so many tokens behind the start of a block are told from there.
    """

    small: tuple[int, int]
    large: tuple[int, int]
    reach: int = 0

    @classmethod
    def of(cls, config: Config, scale: Scale, from_start: bool) -> _Lengths | None:
        """Return those of a configuration, None where one does not divide the other."""
        sizes = sorted({group.block_size for group in config.groups})
        units = {name: int(config.options.get(name, "0")) for name in scale.options}
        named = [(unit, scale.options[name]) for name, unit in units.items() if unit]
        smaller = [(size, scale.block * size // sizes[-1]) for size in sizes[:-1] if size > 1]
        unit, served = min([*named, *smaller], default=(1, 1))
        if len({*smaller, *named}) > 1 or sizes[-1] % unit or scale.block % served or served < unit:
            return None
        reach = config.num_speculative_tokens + 1 if from_start else 0
        return cls((sizes[-1], unit), (scale.block, served), reach)

    def block(self, size: int) -> int:
        """Return the size of a block: one of a single token is no block."""
        return self.large[self.small.index(size)] if size in self.small else size

    def tokens(self, length: int) -> int:
        """Return a length that is as many tokens before or behind the same boundary, the nearer one."""
        (block, unit), (large, served) = self.small, self.large
        blocks, rest = divmod(length, block)
        return blocks * large + (rest if rest <= self.reach else _near(rest, block, unit, large, served))

    def is_reached(self, length: int) -> bool:
        """Return True for a place that is told from the start of its block."""
        return 0 < length % self.small[0] <= self.reach


def _near(rest: int, block: int, unit: int, large: int, served: int) -> int:
    """Return a place in a block of a server: as far from the nearer unit, which is as far from the nearer end."""
    units, left = divmod(rest, unit)
    if unit > 1 and 2 * left > unit:
        return _near(rest + unit - left, block, unit, large, served) - (unit - left)
    if rest == block:
        return large
    if unit == 1:
        return rest if 2 * rest <= block else large - (block - rest)
    place = units * served if 2 * units * unit <= block else large - (block // unit - units) * served
    return place + left
