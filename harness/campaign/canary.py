"""The self-test (canary): a mutant of the built-in target, fuzzed beside every campaign.

A random mutant gets the campaign's seed, workload, oracles and overrides. If no oracle reports it within its share of
the budget, a campaign without findings is *blind*: it proves nothing.

Overrides can put a mutant out of reach (without drafts there are no bugs in drafts). With overrides, a mutant is
run only if its known trace still fails under them. A mutant that needs many traces can be missed by chance: then the
next one is run, up to `TRIES_MAX`. The result names all that were missed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from importlib.resources import files

from msgspec import structs

from ...targets.base.launch import Launch
from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Config, Trace, TraceError, check_config
from ..campaign_summary import Canary
from ..draw.overrides import apply_overrides
from ..draw.trace_files import decode_trace
from ..draw.workload import DEFAULT, Workload
from ..measure.detection.matrix import mutants_of
from ..measure.detection.statistics import Detection
from ..measure.detection.trial import Trial, run_trial
from ..workers.messages import Overrides
from ..workers.worker_client import Stopped, WorkerClient

TARGET = "hybrid"
TRIES_MAX = 3
SHARE = 0.05
"""Share of the campaign's time for one mutant, between the two limits below (CPU seconds)."""
SECONDS_MIN = 5.0
SECONDS_MAX = 60.0


def canaries(seed: int) -> tuple[str, ...]:
    """Return all mutants as target strings, in the order in which a campaign with this seed plants them."""
    slugs = sorted(mutants_of(TARGET))
    random.Random(f"{seed}/canary").shuffle(slugs)
    return tuple(f"{TARGET}:{slug}" for slug in slugs)


def share(seconds: float | None) -> float:
    """Return the CPU seconds for one mutant in a campaign of so many seconds (None: no time limit)."""
    return SECONDS_MAX if seconds is None else min(max(seconds * SHARE, SECONDS_MIN), SECONDS_MAX)


class CanaryRun:
    """Runs the canaries of one campaign, one after the other. `stop` may be called from any thread."""

    def __init__(
        self,
        launch: Launch,
        seed: int,
        overrides: Overrides,
        seconds: float,
        memory_limit: int | None = None,
        workload: Workload = DEFAULT,
    ) -> None:
        self._launch = launch
        self._memory_limit = memory_limit
        self._seed = seed
        self._overrides = overrides
        self._workload = workload
        self._seconds = seconds
        self._worker: WorkerClient | None = None
        self._stopped = False

    def stop(self) -> None:
        """End it now; the canary counts as unfinished."""
        self._stopped = True
        if self._worker:
            self._worker.stop()

    def run(self, specs: Sequence[str]) -> Canary:
        """Plant mutants until one is found. Raises what workers raise, but for Stopped."""
        silent: list[Detection] = []
        try:
            for detection in self._detections(specs):
                if detection.found:
                    return verdict("found", detection, silent)
                silent.append(detection)
                if len(silent) == TRIES_MAX:
                    break
        except Stopped:
            return verdict("unfinished", None, silent)
        return verdict("silent" if silent else "none", None, silent)

    def _detections(self, specs: Sequence[str]) -> Iterator[Detection]:
        for spec in specs:
            slug = spec.rpartition(":")[2]
            with WorkerClient(spec, self._launch, memory_limit=self._memory_limit) as worker:
                self._worker = worker
                if self._stopped:
                    raise Stopped
                overrides = applying(self._overrides, worker.start().capabilities)
                if overrides and not shows(worker, slug, overrides):
                    continue
                try:
                    detection, _ = run_trial(
                        worker, Trial(slug, self._seed, self._seconds, overrides, workload=self._workload)
                    )
                except TraceError:  # no configuration of the built-in target fits the overrides
                    continue
            yield detection


def verdict(state: str, last: Detection | None, silent: Sequence[Detection]) -> Canary:
    """Return the result for the campaign's summary."""
    spent = [*silent, last] if last else list(silent)
    return Canary(
        slug=spent[-1].mutant if spent else "",
        found=state == "found",
        state=state,  # type: ignore[arg-type]
        signature=last.signature if last else "",
        traces=sum(each.traces for each in spent),
        seconds=round(sum(each.seconds for each in spent), 3),
        silent=[each.mutant for each in silent],
    )


def applying(overrides: Overrides, capabilities: Capabilities) -> Overrides:
    """Return the overrides that the built-in target has; options of another engine are left out."""
    return {
        key: value for key, value in overrides.items() if key in Config.__struct_fields__ or key in capabilities.options
    }


def shows(worker: WorkerClient, slug: str, overrides: Overrides) -> bool:
    """Return True if a known trace of the mutant still fails when the overrides are applied to it."""
    for trace in known_traces(slug):
        try:
            config = apply_overrides(trace.config, overrides)
            if "num_blocks" not in overrides:
                config = structs.replace(config, num_blocks=max(config.num_blocks, config.smallest_pool()))
            check_config(config)
            if worker.run(structs.replace(trace, config=config)).violation:
                return True
        except TraceError:
            continue
    return False


def known_traces(slug: str) -> Iterator[Trace]:
    """Yield the reduced traces of a mutant in the packaged corpus."""
    for path in files("hybridfuzz.corpus").iterdir():
        if path.name.startswith(f"{slug}--") and path.name.endswith(".json"):
            yield decode_trace(path.read_bytes(), path.name)
