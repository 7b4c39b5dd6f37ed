"""What an engine computed for each request since it was admitted, to be compared with the same steps alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from ...base.observe import RealForward, RealRow
from .alone import Alone
from .plans import Plans, Segment, runnable
from .real_model import Floats

Place = tuple[int, int]
"""Group and layer of a state layer."""


class Lives:
    """The requests of one trace.

    rows, states  log-probabilities and states of finished requests that were compared with those alone
    left          rows of finished requests that were not compared, by reason
    """

    def __init__(self, block_size: int, alone: Alone) -> None:
        self._alone = alone
        self._plans = Plans(block_size)
        self._logprobs: dict[str, dict[int, Floats]] = {}
        self._states: dict[str, dict[tuple[int, Place], bytes]] = {}
        self._ends: dict[str, int] = {}
        self.rows = self.states = 0
        self.left: Counter[str] = Counter()

    def begin(self, name: str, hit: Sequence[int]) -> None:
        """Admit a request that resumes after the tokens `hit`; again after a preemption."""
        self._plans.begin(name, hit)
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
        """Keep the states at the ends of the step's segments: (request, group, layer, block) each."""
        if not ends:
            return
        bits = torch.cat([states(group, layer, [block]) for _, group, layer, block in ends]).cpu().numpy()
        for (name, group, layer, _), one in zip(ends, bits, strict=True):
            self._states[name][self._ends[name], (group, layer)] = one.tobytes()

    def compare(self, step: int, name: str, tokens: Sequence[int]) -> RealForward | None:
        """Repeat a finished request alone; None if that is not possible."""
        plan, logprobs, states = self._plans.end(name), self._logprobs.pop(name), self._states.pop(name)
        if plan is None:
            self.left["its prefix was computed by several plans, or by decoding"] += len(logprobs)
            return None
        solo = self._alone.run(steps, tokens) if (steps := runnable(plan)) else None
        if solo is None:
            self.left["alone, it depends on unused memory" if steps else "no request alone begins like it"] += len(
                logprobs
            )
            return None
        rows = [
            RealRow(name, position, values, solo.logprobs.get(position), True)
            for position, values in sorted(logprobs.items())
        ]
        moved = [
            (name, count, *place)
            for (count, place), bits in sorted(states.items())
            if solo.states.get((count, place), bits) != bits
        ]
        known = sum(row.expected is not None for row in rows)
        self.rows += known
        self.left["behind a step that another kernel computes alone"] += len(rows) - known
        self.states += sum(key in solo.states for key in states)
        return RealForward(step, rows, 0.0, exact=True, moved=moved)
