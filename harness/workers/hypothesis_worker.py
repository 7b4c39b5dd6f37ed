"""A worker of this machine that runs the traces that Hypothesis draws in the coordinator: `fuzz --source hypothesis`.

Engines' environments do not have Hypothesis. The worker process is asked only which configurations its target supports.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from ...targets.base.launch import Launch
from ...targets.base.trace import Trace
from ..defaults import TRACE_SECONDS
from ..draw.hypothesis_traces import HypothesisTraces
from ..record.watched_lines import Watched
from .messages import Fuzz, Ready
from .results import Ran
from .worker_client import WorkerClient


class HypothesisWorker(WorkerClient):
    """A worker client whose traces come from `source`, which all workers of a campaign share."""

    def __init__(
        self,
        source: HypothesisTraces,
        spec: str,
        launch: Launch,
        trace_seconds: float = TRACE_SECONDS,
        memory_limit: int = 0,
        watched: Watched | None = None,
    ) -> None:
        super().__init__(spec, launch, trace_seconds, memory_limit, watched)
        self._source = source
        self._signatures: set[str] = set()

    def start(self) -> Ready:
        """Start a process, as `WorkerClient.start` does."""
        ready = super().start()
        self._source.capabilities = ready.capabilities
        return ready

    def fuzz(self, request: Fuzz) -> Iterator[Ran]:
        """Run the traces with the numbers of a request. Hypothesis keeps the first one with each signature."""
        traces = [self._source.trace(index, self.supports) for index in request.indexes]
        for ran in super().fuzz(structs.replace(request, traces=traces)):
            violation = ran.outcome.violation
            if violation and violation.signature not in self._signatures:
                self._signatures.add(violation.signature)
                self._source.keep(ran.index, violation.signature, self.supports)
            yield ran

    def kept(self) -> list[Trace]:
        """Return the traces of Hypothesis's database."""
        return self._source.kept(self.supports)
