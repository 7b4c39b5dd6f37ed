"""The detection matrix: every mutant is fuzzed with several seeds, on several processes.

A mutant is a variant of a target in the registry. Trials are independent: an error in one is recorded, the others
go on. Nothing is printed here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from difflib import get_close_matches
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from msgspec import Struct

from ....targets.base.launch import Launch
from ....targets.base.protocol import TargetError
from ....targets.base.registry import known_targets
from ....targets.base.trace import Trace, TraceError
from ...campaign_summary import Reason
from ...draw.trace_files import file_name, save_trace
from ...group.findings.finding_store import OutputError
from ...workers.machine import memory_share
from ...workers.messages import Overrides
from ...workers.worker_client import InternalError, Stopped, WorkerClient
from .statistics import Detection
from .trial import Trial, run_trial

POLL_SECONDS = 0.25


class MatrixSettings(Struct, frozen=True, kw_only=True):
    """Mutants, seeds and budgets. `seconds` are CPU seconds of each run."""

    target: str
    launch: Launch
    mutants: Sequence[str]
    seeds: Sequence[int]
    out: Path
    seconds: float = 60.0
    jobs: int = 1
    overrides: Overrides = {}
    trace_seconds: float = 60.0
    reduce_seconds: float = 10.0


def mutants_of(target: str) -> dict[str, str]:
    """Return slug -> title of the variants of a target."""
    return {
        spec.removeprefix(f"{target}:"): title
        for spec, title in known_targets().items()
        if spec.startswith(f"{target}:")
    }


def chosen_mutants(target: str, only: Sequence[str]) -> dict[str, str]:
    """Return the named mutants, all if none is named. Raises TargetError for an unknown one."""
    known = mutants_of(target)
    if not known:
        raise TargetError(f"target {target!r} has no mutants; `hybridfuzz targets` lists those that have")
    for slug in only:
        if slug not in known:
            close = get_close_matches(slug, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise TargetError(f"{target} has no mutant {slug!r}: {hint}")
    return {slug: title for slug, title in known.items() if not only or slug in only}


class Matrix:
    """Runs once. `run` is a generator to be read to its end; `stop` may be called from a signal handler."""

    def __init__(self, settings: MatrixSettings) -> None:
        self.settings = settings
        self.reason: Reason = "traces"
        self._tasks = deque((mutant, seed) for mutant in settings.mutants for seed in settings.seeds)
        self._results: SimpleQueue[Detection | Exception] = SimpleQueue()
        self._stop = Event()
        self._lock = Lock()
        self._workers: set[WorkerClient] = set()
        self._shortest: dict[Path, int] = {}

    def run(self) -> Generator[Detection]:
        """Yield runs as they end, in no order. Raises OutputError; runs that were interrupted are left out."""
        threads = [Thread(target=self._drive, daemon=True) for _ in range(self.settings.jobs)]
        for thread in threads:
            thread.start()
        try:
            while True:
                alive = any(thread.is_alive() for thread in threads)
                try:
                    result = self._results.get(timeout=POLL_SECONDS if alive else 0)
                except Empty:
                    if not alive:
                        return
                    continue
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            self._halt()
            for thread in threads:
                thread.join()

    def stop(self, reason: Reason) -> None:
        """End it now; results so far stay."""
        self.reason = reason
        self._halt()

    def _halt(self) -> None:
        self._stop.set()
        for worker in tuple(self._workers):
            worker.stop()

    def _drive(self) -> None:
        """Run trials in one thread, each in a worker process of its own."""
        while not self._stop.is_set():
            try:
                mutant, seed = self._tasks.popleft()
            except IndexError:
                return
            try:
                self._results.put(self._run_trial(mutant, seed))
            except Stopped:
                return
            except (TargetError, TraceError, InternalError) as error:
                self._results.put(Detection(mutant, seed, error=f"{type(error).__name__}: {error}"))
            except Exception as error:
                self._results.put(error)
                return

    def _run_trial(self, mutant: str, seed: int) -> Detection:
        settings = self.settings
        asked = Trial(mutant, seed, settings.seconds, settings.overrides, settings.reduce_seconds)
        spec, share = f"{settings.target}:{mutant}", memory_share(settings.jobs)
        with WorkerClient(spec, settings.launch, settings.trace_seconds, share) as worker:
            self._workers.add(worker)
            try:
                if self._stop.is_set():
                    raise Stopped
                worker.start()
                detection, trace = run_trial(worker, asked)
            finally:
                self._workers.discard(worker)
        if trace:
            self._keep(detection, trace)
        return detection

    def _keep(self, detection: Detection, trace: Trace) -> None:
        """Keep the shortest trace of each mutant and signature, named as in the corpus."""
        folder = self.settings.out / "traces"
        path = folder / f"{detection.mutant}--{file_name(detection.signature)}.json"
        with self._lock:
            if len(trace.events) >= self._shortest.get(path, len(trace.events) + 1):
                return
            self._shortest[path] = len(trace.events)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                save_trace(trace, path)
            except OSError as error:
                raise OutputError(f"cannot write {path}: {error.strerror}") from error
