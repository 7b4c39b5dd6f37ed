"""The steps by which each request's tokens were computed, so that the same steps can be repeated alone.

Bits of a state depend on how its prefix was divided into steps, not only on its tokens. So a request's plan is kept:
one segment for each step. A request that resumes from a prefix hit inherits the plan by which that prefix was computed,
if there is only one. A prefix that ends inside a prompt chunk counts as computed by a chunk that ends there: causal
kernels compute its tokens without those behind it. Pure bookkeeping: no vLLM, no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Place = tuple[int, int]
"""Group and layer of a state layer."""


class Segment(NamedTuple):
    """The part of a request that one step computed.

    start    position of its first token
    kept     tokens that are the request's own: all but wrong drafts
    drafts   draft tokens that the step verified
    kernel   what computed its state: one of `layer_rows.KERNELS`
    """

    start: int
    kept: int
    drafts: tuple[int, ...]
    kernel: str

    @property
    def end(self) -> int:
        """Tokens of the request that are computed after the step."""
        return self.start + self.kept

    @property
    def prefill(self) -> bool:
        """True if a prefill kernel computed it."""
        return self.kernel == "prefill"


Plan = tuple[Segment, ...]


class Solo(NamedTuple):
    """A plan's results.

    logprobs  [vocabulary] after the token at a position, for those from which vLLM samples
    states    bits of a state layer's temporal state after so many tokens: at the end of each segment
    """

    logprobs: dict[int, Floats]
    states: dict[tuple[int, Place], bytes]

    def same(self, other: Solo) -> bool:
        """Return True if all bits are the same."""
        mine = {position: values.tobytes() for position, values in self.logprobs.items()}
        return self.states == other.states and mine == {
            position: values.tobytes() for position, values in other.logprobs.items()
        }


def runnable(plan: Plan) -> Plan:
    """Return the steps that a request alone can follow: from position 0, prompt chunks first, then decode steps."""
    end, decodes = 0, False
    for count, segment in enumerate(plan):
        if segment.start != end or (segment.prefill if decodes else not (segment.prefill or count)):
            return plan[:count]
        end, decodes = segment.end, not segment.prefill
    return plan


def _cut(plan: Plan | None, count: int) -> Plan | None:
    """Return the plan of the first `count` tokens; None if they end inside a decode step."""
    if plan is None or plan[-1].end == count:
        return plan
    last = plan[-1]
    return (*plan[:-1], last._replace(kept=count - last.start)) if last.prefill else None


class Plans:
    """The plans of running requests, and of every prefix that ends at a block boundary. One per trace."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._running: dict[str, Plan | None] = {}
        self._prefixes: dict[tuple[int, ...], set[Plan | None]] = {}
        """By the tokens of a prefix; None stands for a plan that is not known."""

    def begin(self, name: str, hit: Sequence[int], loaded: Sequence[int] = ()) -> None:
        """Admit a request that resumes after the tokens `hit`, from blocks that any earlier request computed, and after
        those `loaded` behind them, whose plan is not known."""
        prefix = (*hit, *loaded)
        self._running[name] = None if loaded else self._inherited(prefix)
        for count in range(self._block_size, len(prefix) + 1, self._block_size) if loaded else ():
            self._prefixes.setdefault(prefix[:count], set()).add(None)

    def extend(self, name: str, tokens: Sequence[int], segment: Segment) -> None:
        """Add a step; `tokens` are the request's own, at least up to the end of the segment."""
        plan = self._running[name]
        if plan is not None:
            plan = (*plan, segment)
        self._running[name] = plan
        first = segment.start // self._block_size + 1
        for count in range(first * self._block_size, segment.end + 1, self._block_size):
            self._prefixes.setdefault(tuple(tokens[:count]), set()).add(_cut(plan, count))

    def end(self, name: str) -> Plan | None:
        """Forget a request; return its plan, None if it is not known."""
        return self._running.pop(name, None)

    def _inherited(self, hit: tuple[int, ...]) -> Plan | None:
        """Return the plan of a prefix if all its blocks can only have been computed by this one."""
        if not hit:
            return ()
        plan = self._only(hit)
        if plan is None or plan[-1].end != len(hit):
            return None
        for count in range(self._block_size, len(hit), self._block_size):
            steps = next(index for index, segment in enumerate(plan) if segment.end >= count)
            part = self._only(hit[:count])
            if part is None or part != _cut(plan[: steps + 1], count):
                return None
        return plan

    def _only(self, prefix: tuple[int, ...]) -> Plan | None:
        known = self._prefixes.get(prefix, set())
        return next(iter(known)) if len(known) == 1 else None
