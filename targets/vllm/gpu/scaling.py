"""A trace for other block sizes: a CPU trace has blocks of 4 to 16 tokens, a real model's are larger.

A length is a number of blocks and a rest. Both are kept. In a second form a rest of more than half a block is counted
from the next boundary instead, so that a prompt that ends one token before a boundary still does. Lengths below one
block are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from ...base.trace import AnyEvent, Arrive, Config, Step, Trace

LONGEST = 1024
Length = Callable[[int], int]


def scaled(trace: Trace, size: int, from_end: bool) -> Trace:
    """The trace with blocks of `size` tokens; `from_end` keeps the distance of a length to the next boundary."""
    old = max(group.block_size for group in trace.config.groups)

    def length(tokens: int) -> int:
        blocks, rest = divmod(tokens, old)
        if from_end and blocks and rest > old // 2:
            return (blocks + 1) * size - (old - rest)
        return blocks * size + rest

    return structs.replace(
        trace,
        config=_config(trace.config, size, old),
        events=tuple(_event(event, length) for event in trace.events),
        origin=f"{trace.origin}, blocks of {old} scaled to {size}",
    )


def _config(config: Config, size: int, old: int) -> Config:
    def limit(tokens: int) -> int:
        return tokens if tokens <= old else min(LONGEST, -(-tokens // old) * size)

    groups = tuple(structs.replace(group, block_size=size) for group in config.groups)
    longest = limit(config.max_model_len)
    made = structs.replace(
        config,
        groups=groups,
        max_model_len=longest,
        max_num_batched_tokens=limit(config.max_num_batched_tokens),
        long_prefill_token_threshold=config.long_prefill_token_threshold and limit(config.long_prefill_token_threshold),
    )
    spare = max(config.num_blocks - config.smallest_pool(), 0)
    return structs.replace(made, num_blocks=made.smallest_pool() + spare)


def _event(event: AnyEvent, length: Length) -> AnyEvent:
    if isinstance(event, Arrive):
        # The prompt's end is what counts: its parts end where the scaled prefixes end.
        ends, total, parts = [], 0, []
        for _, tokens in event.prompt:
            total += tokens
            ends.append(length(total))
        for (document, _), start, end in zip(event.prompt, [0, *ends], ends, strict=False):
            parts.append((document, max(end - start, 1)))
        return structs.replace(event, prompt=tuple(parts))
    if isinstance(event, Step) and event.budget is not None:
        return structs.replace(event, budget=max(length(event.budget), 1))
    return event


def candidates(trace: Trace, size: int) -> Iterator[Trace]:
    """Scaled traces, the most faithful first; the trace itself if its blocks are of this size."""
    if all(group.block_size == size for group in trace.config.groups):
        yield trace
        return
    yield scaled(trace, size, from_end=False)
    yield scaled(trace, size, from_end=True)
