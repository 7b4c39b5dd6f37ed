"""hybridfuzz from Python, for notebooks and other test suites: what `fuzz`, `replay` and `reduce` do, without a command
line.

Errors are `TargetError` (the target cannot be had, or does not start) and `TraceError` (a trace or a setting that does
not fit); their text says what to do.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from ..targets.base.registry import prepare
from ..targets.base.trace import Trace, TraceError
from .campaign.campaign import Campaign, Settings
from .campaign.resume import exclusive
from .campaign_events import CampaignEvent
from .defaults import REDUCE_SECONDS, TRACE_SECONDS, drawn_seed
from .group.findings.finding_store import fixes_options, read_state
from .group.known.fixes import Fixes, apply_fixes, asked_fixes
from .group.reduction.reduce import reduce_trace
from .judge.outcome import Outcome
from .tell.terminal import finding_text
from .workers.worker_client import WorkerClient

Progress = Callable[[str], None]


def unsaid(what: str) -> None:
    """Say nothing."""


class Engine:
    """A target in a worker process of its own, where it may crash, hang or leak. Use as a context manager, from one
    thread.

    `target` is as for the commands (`vllm@0.33.0`, a path, `python:module:factory`); `fixes` as for `--fixes`.
    `progress` hears what is downloaded or built the first time.
    """

    def __init__(
        self,
        target: str = "hybrid",
        *,
        fixes: Sequence[str] = (),
        trace_seconds: float = TRACE_SECONDS,
        progress: Progress = unsaid,
    ) -> None:
        self.target = target
        self._worker = WorkerClient(target, _fixed(target, fixes, progress).launch, trace_seconds)

    def __enter__(self) -> Engine:
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.__exit__()

    def draw(self, seed: int, index: int = 0, config: Mapping[str, object] | None = None) -> Trace:
        """Return trace `index` of the campaign with a seed, without running it. `config` is as for `--config`."""
        return self._worker.draw(seed, index, dict(config or {}))

    def run(self, trace: Trace) -> Outcome:
        """Run a trace; a clean one twice, since both runs have to agree. `violation` is None if it is clean."""
        return self._worker.run(trace, twice=True)

    def explain(self, trace: Trace) -> str:
        """Return what goes wrong in a trace, in words and as a drawing of its blocks; "" if it runs clean."""
        return finding_text(self._worker.explain(trace)[1])

    def reduce(self, trace: Trace, *, seconds: float = REDUCE_SECONDS) -> Trace:
        """Return the smallest trace found in the time that fails with the same signature. Raises TraceError for one
        that runs clean."""
        violation = self.run(trace).violation
        if violation is None:
            raise TraceError(f"the trace runs clean on {self.target}: there is nothing to reduce")
        twice = violation.oracle == "DETERMINISM"

        def attempt(candidate: Trace) -> Outcome:
            return self._worker.run(candidate, twice=twice)

        return reduce_trace(trace, violation.signature, attempt, seconds=seconds)


def fuzz(
    target: str,
    out: str | os.PathLike[str],
    *,
    seconds: float | None = None,
    steps: int | None = None,
    traces: int | None = None,
    seed: int | None = None,
    jobs: int = 1,
    config: Mapping[str, object] | None = None,
    fixes: Sequence[str] = (),
    progress: Progress = unsaid,
) -> Generator[CampaignEvent]:
    """Run a campaign and yield its events; the last one is `CampaignEnded`, with the summary. Closing the generator
    stops it.

    Without a limit it runs until it is closed; without a seed one is drawn. `out` is a folder for its findings. Raises
    TraceError for a folder that another campaign has used.
    """
    folder = Path(out)
    if read_state(folder):
        raise TraceError(f"{folder} holds a campaign: name another folder")
    fixed = _fixed(target, fixes, progress)
    settings = Settings(
        target=target,
        launch=fixed.launch,
        seed=drawn_seed() if seed is None else seed,
        out=folder,
        jobs=jobs,
        seconds=seconds,
        steps=steps,
        traces=traces,
        overrides=dict(config or {}),
        known=fixed.acknowledged,
        fixes=fixed if fixes else None,
        asked=fixes_options(fixes),
    )
    with exclusive(folder), closing(Campaign(settings).run()) as events:
        yield from events


def _fixed(target: str, fixes: Sequence[str], progress: Progress) -> Fixes:
    """Return how to start a target with the known bugs fixed that `fixes` name."""
    launch, today = prepare(target, progress), datetime.date.today()
    return apply_fixes(launch, asked_fixes(fixes, target, launch.version, today), target, today)
