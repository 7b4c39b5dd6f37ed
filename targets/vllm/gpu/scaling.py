"""A trace for other block sizes: a CPU trace has blocks of 4 to 16 tokens, a real model's are larger.

A length is a number of blocks and a rest, or a number of blocks and a distance to the next boundary. Which of the two
matters depends on the trace: a prompt of five tokens in blocks of four may have to be one token behind a boundary, or
to reach the next one in three steps. So a trace has several scaled forms, in which each prompt keeps the one or the
other. `harness/face/commands/confirm.py` runs them on the CPU to find those that still fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import NamedTuple

from msgspec import structs

from ....reference.layout import cdiv
from ...base.trace import AnyEvent, Arrive, Config, ExternalLoad, Step, Trace, Turn
from ..options import options_of

LONGEST = 1024
FORMS_MAX = 256
"""Scaled forms of one trace for each scale; as many again in smaller pools."""
Length = Callable[[int], int]


def from_start(size: int, old: int) -> Length:
    """Keep whole blocks and the rest."""
    return lambda tokens: tokens // old * size + tokens % old


def to_boundary(size: int, old: int) -> Length:
    """Keep the distance to the next boundary; a length that ends at one is a block away from the next."""
    return lambda tokens: (tokens // old + 1) * size - (old - tokens % old)


def nearest(size: int, old: int) -> Length:
    """Keep the distance to the boundary that is nearer; lengths below one block are kept."""
    start, end = from_start(size, old), to_boundary(size, old)
    return lambda tokens: end(tokens) if tokens > old and tokens % old > old // 2 else start(tokens)


class Scale(NamedTuple):
    """Block sizes of a trace and those of its scaled forms.

    old, new  tokens of what is counted in lengths: `old` of a trace become `new`
    sizes     block size -> scaled block size
    unit      scaled prefix_match_unit, 0 without one
    """

    old: int
    new: int
    sizes: Mapping[int, int]
    unit: int


def scales(trace: Trace, size: int) -> Iterator[Scale]:
    """The ways in which blocks of at least `size` tokens come about, the most faithful first.

    Everything grows alike; everything but the unit of hits inside blocks; or all groups get blocks of one size.
    """
    blocks = sorted({group.block_size for group in trace.config.groups})
    unit = options_of(trace.config).prefix_match_unit
    factor = cdiv(size, blocks[0])
    grown = {block: block * factor for block in blocks}
    if unit:
        yield Scale(unit, unit * factor, grown, unit * factor)
    yield Scale(blocks[0], grown[blocks[0]], grown, unit)
    if len(blocks) > 1:
        yield Scale(blocks[-1], size, dict.fromkeys(blocks, size), unit)


def scaled(
    trace: Trace, size: int, forms: Sequence[Callable[[int, int], Length]] = (from_start,), scale: Scale | None = None
) -> Trace:
    """The trace with blocks of `size` tokens, or of a scale's.

    `forms` are those of the prompts in turn; the last one serves the rest.
    """
    scale = scale or next(scales(trace, size))
    old, new = scale.old, scale.new
    part = from_start(new, old)
    events: list[AnyEvent] = []
    turns = 0
    for event in trace.events:
        if isinstance(event, Turn):
            form = forms[min(turns, len(forms) - 1)]
            turns += 1
            events.append(_turn(event, form(new, old), part))
        elif isinstance(event, ExternalLoad):
            events.append(structs.replace(event, length=part(event.length)))
        elif isinstance(event, Step):
            budget = event.budget and max(part(event.budget), 1)
            chunks = {name: max(part(most), 1) for name, most in event.chunks.items()}
            events.append(structs.replace(event, budget=budget, chunks=chunks))
        else:
            events.append(event)
    before, after = ("/".join(map(str, sizes)) for sizes in (scale.sizes, dict.fromkeys(scale.sizes.values())))
    return structs.replace(
        trace,
        config=_config(trace.config, scale, [event for event in events if isinstance(event, Turn)]),
        events=tuple(events),
        origin=f"{trace.origin}, blocks of {before} scaled to {after}",
    )


def _config(config: Config, scale: Scale, turns: Sequence[Turn]) -> Config:
    def limit(tokens: int) -> int:
        return tokens if tokens <= scale.old else min(LONGEST, cdiv(tokens, scale.old) * scale.new)

    part = from_start(scale.new, scale.old)
    groups = tuple(
        structs.replace(group, block_size=scale.sizes[group.block_size], window=part(group.window))
        for group in config.groups
    )
    lengths = Counter[str]()
    for one in turns:
        lengths[one.name] += sum(length for _, length in one.prompt) + one.max_new_tokens
    longest = max(lengths.values(), default=0)
    unit = {"prefix_match_unit": str(scale.unit)} if scale.unit else {}
    made = structs.replace(
        config,
        groups=groups,
        max_model_len=min(max(limit(config.max_model_len), longest), LONGEST),
        max_num_batched_tokens=limit(config.max_num_batched_tokens),
        long_prefill_token_threshold=config.long_prefill_token_threshold and limit(config.long_prefill_token_threshold),
        options=config.options | unit,
    )
    spare = max(config.num_blocks - _smallest_pool(config), 0)
    return structs.replace(made, num_blocks=_smallest_pool(made) + spare)


def _smallest_pool(config: Config) -> int:
    """Return the fewest blocks with which the target takes a configuration: a window may begin inside a block."""
    return config.smallest_pool() + sum(group.window > 0 for group in config.groups)


def _turn(event: Turn, whole: Length, part: Length) -> Turn:
    """The prompt's end is what counts; its parts end where the scaled prefixes end."""
    total = sum(tokens for _, tokens in event.prompt)
    ends, seen = [0], 0
    for _, tokens in event.prompt:
        seen += tokens
        ends.append(whole(seen) if seen == total else part(seen))
    prompt = tuple(
        (document, max(end - start, 1))
        for (document, _), start, end in zip(event.prompt, ends[:-1], ends[1:], strict=True)
    )
    return structs.replace(event, prompt=prompt)


def delayed(trace: Trace, at: int, steps: int, step: Step) -> Trace:
    """The trace with more steps before event `at`, and so many more tokens for the requests that are there by then.

    They decode up to a boundary that is farther away than it was.
    """
    more = steps * (1 + step.right)
    events = [
        structs.replace(event, max_new_tokens=event.max_new_tokens + more) if isinstance(event, Arrive) else event
        for event in trace.events[:at]
    ]
    config = structs.replace(trace.config, max_model_len=min(trace.config.max_model_len + more, LONGEST))
    blocks = trace.config.num_blocks - trace.config.smallest_pool() + config.smallest_pool()
    return structs.replace(
        trace,
        config=structs.replace(config, num_blocks=blocks),
        events=(*events, *[step] * steps, *trace.events[at:]),
    )


def candidates(trace: Trace, size: int) -> Iterator[Trace]:
    """Scaled forms without duplicates, the plainest first; the trace itself if its blocks are multiples of `size`."""
    if all(group.block_size % size == 0 for group in trace.config.groups):
        yield trace
        return
    seen = set()
    for scale in scales(trace, size):
        forms = list(islice(_forms(trace, size, scale), FORMS_MAX))
        for made in (*forms, *islice(_in_smaller_pools(forms), FORMS_MAX)):
            key = repr((made.config, made.events))
            if key not in seen:
                seen.add(key)
                yield made


def _in_smaller_pools(forms: Sequence[Trace]) -> Iterator[Trace]:
    """Requests of a form may need fewer blocks than those of the trace: the pool gets full where it has fewer, too."""
    for form in forms:
        least = _smallest_pool(form.config)
        for count in range(form.config.num_blocks - 1, least - 1, -1):
            yield structs.replace(form, config=structs.replace(form.config, num_blocks=count))


def _forms(trace: Trace, size: int, scale: Scale) -> Iterator[Trace]:
    turns = [index for index, event in enumerate(trace.events) if isinstance(event, Turn)]
    for forms in ((from_start,), (nearest,)):
        yield scaled(trace, size, forms, scale)
    more, k = scale.new - scale.old, trace.config.num_speculative_tokens
    plain = scaled(trace, size, scale=scale)
    for at in range(turns[0] + 1, len(trace.events) + 1) if turns else ():
        yield delayed(plain, at, more, Step())
        if more % (k + 1) == 0:
            yield delayed(plain, at, more // (k + 1), Step(drafts=k, right=k))
    for mixed in product((from_start, to_boundary), repeat=min(len(turns), 8) or 1):
        yield scaled(trace, size, mixed, scale)
