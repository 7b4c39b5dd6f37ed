"""What an engine computed for each request since it was admitted, to be compared with the same steps alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from ...base.observe import RealForward, RealRow
from .plans import Floats, Place, Plans, Segment, Solo, runnable

if TYPE_CHECKING:
    from .same_steps import SameSteps

FILLS: tuple[Literal["zero"], Literal["nan"]] = ("zero", "nan")
"""What unused memory holds where steps are repeated alone; the second one where the first one gives other bits."""


class Lives:
    """The requests of one trace.

    rows, states  log-probabilities and states of finished requests that were compared with those alone
    left          rows of finished requests that were not compared, by reason
    """

    def __init__(self, block_size: int, alone: SameSteps) -> None:
        self._alone = alone
        self._plans = Plans(block_size)
        self._logprobs: dict[str, dict[int, Floats]] = {}
        self._states: dict[str, dict[tuple[int, Place], torch.Tensor]] = {}
        self._ends: dict[str, int] = {}
        self.rows = self.states = 0
        self.left: Counter[str] = Counter()

    def begin(self, name: str, hit: Sequence[int], loaded: Sequence[int] = ()) -> None:
        """Admit a request that resumes after the tokens `hit` and those that a connector loads behind them; again
        after a preemption."""
        self._plans.begin(name, hit, loaded)
        self._logprobs[name], self._states[name] = {}, {}

    def extend(self, segments: Sequence[tuple[str, Segment]], tokens: Callable[[str], Sequence[int]]) -> None:
        """Add a step; `tokens` returns a request's own tokens."""
        for name, segment in segments:
            self._plans.extend(name, tokens(name), segment)
            self._ends[name] = segment.end

    def keep_logprobs(self, rows: Sequence[tuple[str, int]], logprobs: Floats) -> None:
        """Keep the step's log-probabilities: a row for each (request, position)."""
        for (name, position), values in zip(rows, logprobs, strict=True):
            self._logprobs[name][position] = values

    def keep_states(
        self, ends: Sequence[tuple[str, int, int, int]], states: Callable[[int, int, Sequence[int]], torch.Tensor]
    ) -> None:
        """Keep the states at the ends of the step's segments, on the device: (request, group, layer, block) each."""
        for name, group, layer, block in ends:
            self._states[name][self._ends[name], (group, layer)] = states(group, layer, [block])

    def compare(self, step: int, name: str, tokens: Sequence[int]) -> RealForward | None:
        """Repeat a finished request alone; None if that is not possible."""
        plan, logprobs = self._plans.end(name), self._logprobs.pop(name)
        states = on_host(self._states.pop(name))
        steps = runnable(plan) if plan else ()
        if not steps:
            reason = "its prefix was computed by several plans, or by decoding"
            self.left[reason if plan is None else "no request alone begins like it"] += len(logprobs)
            return None
        solo = self._alone.run(steps, tokens, FILLS[0])
        if differs(solo, logprobs, states) and not solo.same(self._alone.run(steps, tokens, FILLS[1])):
            self.left["alone, it depends on unused memory"] += len(logprobs)
            return None
        rows = [
            RealRow(name, position, values, solo.logprobs.get(position), True)
            for position, values in sorted(logprobs.items())
        ]
        moved = [(name, count, *place) for count, place in other_states(solo, states)]
        known = sum(row.expected is not None for row in rows)
        self.rows += known
        self.left["behind a step that another kernel computes alone"] += len(rows) - known
        self.states += sum(key in solo.states for key in states)
        return RealForward(step, rows, 0.0, exact=True, moved=moved)


def on_host(states: Mapping[tuple[int, Place], torch.Tensor]) -> dict[tuple[int, Place], bytes]:
    """The bits of states, read from the device with one copy."""
    bits = torch.cat(list(states.values())).cpu().numpy() if states else ()
    return {key: one.tobytes() for key, one in zip(states, bits, strict=True)}


def other_states(solo: Solo, states: Mapping[tuple[int, Place], bytes]) -> list[tuple[int, Place]]:
    """Return the states that have other bits than alone, by tokens and layer."""
    return [key for key, bits in sorted(states.items()) if solo.states.get(key, bits) != bits]


def differs(solo: Solo, logprobs: Mapping[int, Floats], states: Mapping[tuple[int, Place], bytes]) -> bool:
    """Return True if a log-probability or a state has other bits than alone."""
    return bool(other_states(solo, states)) or any(
        position in solo.logprobs and solo.logprobs[position].tobytes() != values.tobytes()
        for position, values in logprobs.items()
    )
