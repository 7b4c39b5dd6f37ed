"""A trace in the lengths of a server of ordinary size, and the limits that its server must have.

Traces are in miniature: blocks of a few tokens. A server has larger ones, and takes the same requests and flags in
lengths that lie at the same places of its blocks (`at_scale`). That the trace fails there, too, is tried (`Served`), as
is which limits it needs: of a step, of running requests and of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct, structs

from ...reference.tokens import CONTINUATION
from ...targets.base.deployment import Deployment, Scale
from ...targets.base.trace import AnyEvent, Arrive, Config, Crop, ExternalLoad, Resume, Step, Trace, Truncate, Turn

AMPLE = {"max_num_batched_tokens": 4096, "max_num_seqs": 64, "num_blocks": 4096}
"""Limits that limit no trace."""
LENGTH_MAX = 4096
"""Tokens of a request that a trace may have, and so the longest that is tried."""


class Served(Struct, frozen=True):
    """The server that a trace stands for.

    deployment  its command, with the limits that the trace needs
    trace       in the server's lengths; as it is where they cannot be scaled
    needs       fields of the configuration whose limits the trace needs
    tried       tokens of the largest blocks with which the trace was run and failed in the same way, 0 for none
    """

    deployment: Deployment
    trace: Trace
    needs: Sequence[str] = ()
    tried: int = 0


def serve(trace: Trace, describe: Callable[[Trace], Deployment], fails: Callable[[Trace], bool]) -> Served:
    """Return the server of a failing trace. `fails` runs a trace and returns True if it fails in the same way."""
    described = describe(trace)
    scaled = at_scale(trace, described.scale) if described.scale else None
    needs = _needed(trace, described.limits, fails)
    if scaled is None:
        return Served(structs.replace(described, scale=None), trace, needs)
    assert described.scale is not None
    tried, short_answers = 0, True
    for short_answers in (True, False):
        if tried := _tried(trace, described.scale, fails, short_answers=short_answers):
            scaled = at_scale(trace, described.scale, short_answers=short_answers) or scaled
            break
    server = describe(scaled)
    flags = (*described.scale.flags, *(part for name in needs for part in server.limits[name]))
    return Served(structs.replace(server, flags=(*server.flags, *flags)), scaled, needs, tried)


def _needed(trace: Trace, limits: Mapping[str, object], fails: Callable[[Trace], bool]) -> list[str]:
    """Return the limits that a trace does not fail without; all of them if it needs one of several."""
    plain = {name: AMPLE[name] for name in limits if name in AMPLE}
    spared = [name for name, value in plain.items() if fails(_with(trace, {name: value}))]
    if len(spared) > 1 and not fails(_with(trace, {name: plain[name] for name in spared})):
        spared = []
    return [name for name in limits if name not in spared]


def _with(trace: Trace, fields: Mapping[str, int]) -> Trace:
    return structs.replace(trace, config=structs.replace(trace.config, **fields))


def _tried(trace: Trace, scale: Scale, fails: Callable[[Trace], bool], *, short_answers: bool) -> int:
    """Return the largest block, up to a server's, with which a trace can be run, 0 if it does not fail there. Options
    keep their values: a target may take no others."""
    block, largest = scale.block, max(group.block_size for group in trace.config.groups)
    options = {name: int(trace.config.options.get(name, "0")) for name in scale.options}
    while block > largest:
        one = at_scale(trace, Scale(block, options), short_answers=short_answers)
        if one and one.config.max_model_len <= LENGTH_MAX and one.config.max_num_batched_tokens <= LENGTH_MAX:
            return block if fails(one) else 0
        block //= 2
    return 0


def at_scale(trace: Trace, scale: Scale, *, short_answers: bool = True) -> Trace | None:
    """Return a trace in the lengths of a server, None where its blocks do not divide each other.

    Each turn ends at the same place of its blocks. So does its prompt, or its answer has as many tokens as before
    (`short_answers`): where it crosses a boundary not both can be. Prompts that quote an answer keep their places.
    """
    documents = {document for event in trace.events if isinstance(event, Turn) for document, _ in event.prompt}
    short_answers = short_answers and CONTINUATION not in documents
    lengths = _Lengths.of(trace.config, scale)
    if lengths is None:
        return None
    config, tokens = trace.config, lengths.tokens
    groups = tuple(
        structs.replace(
            group, block_size=lengths.block(group.block_size), window=tokens(group.window), chunk=tokens(group.chunk)
        )
        for group in config.groups
    )
    pages = [group.block_size for group in config.groups if group.kind == "attention"]
    is_of_tokens = config.mamba_cache_mode == "slots" and 1 in pages
    chosen = {name: str(value) for name, value in scale.options.items() if int(config.options.get(name, "0"))}
    config = structs.replace(
        config,
        groups=groups,
        num_blocks=tokens(config.num_blocks - 1) + 1 if is_of_tokens else config.num_blocks,
        max_model_len=tokens(config.max_model_len),
        max_num_batched_tokens=tokens(config.max_num_batched_tokens),
        long_prefill_token_threshold=tokens(config.long_prefill_token_threshold),
        options={**config.options, **chosen},
    )
    known: dict[str, int] = {}
    events = tuple(_event(one, tokens, known, short_answers) for one in trace.events)
    return structs.replace(trace, config=config, events=events)


def _event(event: AnyEvent, tokens: Callable[[int], int], known: dict[str, int], short_answers: bool) -> AnyEvent:
    """Return an event in other lengths. `known`: the tokens of each client when its last turn has ended."""
    match event:
        case Arrive() | Resume():
            return _turn(event, tokens, known, short_answers)
        case Step():
            budget, chunks = event.budget and tokens(event.budget), event.chunks
            return structs.replace(event, budget=budget, chunks={name: tokens(most) for name, most in chunks.items()})
        case ExternalLoad() | Truncate():
            return structs.replace(event, length=tokens(event.length))
        case Crop():
            return structs.replace(event, tokens=tokens(event.tokens))
        case _:
            return event


def _turn(event: Turn, tokens: Callable[[int], int], known: dict[str, int], short_answers: bool) -> Turn:
    """Return a request whose prompt's parts, and whose answer, end at the same places of blocks."""
    start = known.get(event.name, 0) if isinstance(event, Resume) else 0
    ends = [start + end for end in accumulate(length for _, length in event.prompt)]
    new, stop_at = event.max_new_tokens, event.stop_at
    known[event.name] = ends[-1] + (min(stop_at, new) if stop_at else new)
    served = [tokens(end) for end in ends]
    before = served[-2] if len(served) > 1 else tokens(start)
    if short_answers:
        # The prompt ends as far before the boundary that the answer crosses.
        answer = known[event.name] - ends[-1]
        crosses = tokens(known[event.name]) - served[-1] != answer
        served[-1] = max(tokens(known[event.name]) - answer, before + 1) if crosses else served[-1]
    else:
        new, stop_at = (tokens(ends[-1] + length) - served[-1] if length else 0 for length in (new, stop_at))
    lengths = [end - begin for begin, end in pairwise([tokens(start), *served])]
    prompt = tuple((document, length) for (document, _), length in zip(event.prompt, lengths, strict=True))
    return structs.replace(event, prompt=prompt, max_new_tokens=new, stop_at=stop_at)


class _Lengths(Struct, frozen=True):
    """Lengths of a miniature and of a server: of the largest blocks, and of the next smaller unit (1 for none)."""

    small: tuple[int, int]
    large: tuple[int, int]

    @classmethod
    def of(cls, config: Config, scale: Scale) -> _Lengths | None:
        """Return those of a configuration, None where one does not divide the other."""
        sizes = sorted({group.block_size for group in config.groups})
        units = {name: int(config.options.get(name, "0")) for name in scale.options}
        named = [(unit, scale.options[name]) for name, unit in units.items() if unit]
        smaller = [(size, scale.block * size // sizes[-1]) for size in sizes[:-1] if size > 1]
        unit, served = min([*named, *smaller], default=(1, 1))
        if len({*smaller, *named}) > 1 or sizes[-1] % unit or scale.block % served or served < unit:
            return None
        return cls((sizes[-1], unit), (scale.block, served))

    def block(self, size: int) -> int:
        """Return the size of a block: one of a single token is no block."""
        return self.large[self.small.index(size)] if size in self.small else size

    def tokens(self, length: int) -> int:
        """Return a length that is as many tokens before or behind the same boundary, the nearer one."""
        (block, unit), (large, served) = self.small, self.large
        blocks, rest = divmod(length, block)
        return blocks * large + _near(rest, block, unit, large, served)


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
