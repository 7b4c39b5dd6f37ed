"""Runs an exploration on workers, level by level.

Answers are taken in the order of the states, whichever worker gives them. Each is written to a journal first, so an
exploration that was killed goes on where it was: the journal is read instead of asking again.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct, structs

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Config, Trace, TraceError
from ..campaign_summary import Cause, Reason
from ..draw.trace_files import save_trace
from ..judge.outcome import Outcome
from ..judge.violation import Violation
from ..units import WHOLE, Shard
from .certificate import (
    Certificate,
    Shown,
    Verdict,
    names_of,
    save_certificate,
    to_failing,
    to_samples,
    to_shown,
    unseen,
)
from .expand import Branch, Compare, Expand, Expanded, Grown, Parent
from .journal import Entry, Journals
from .scope import Scope
from .search import Level, Search

PARENTS = 8
"""States that a worker is given at once."""
AHEAD = 4
"""Requests for each worker that are under way or wait."""
DIFFERENCES_MAX = 20
T = TypeVar("T")


class Ready(Protocol):
    """What a worker says once it has started."""

    @property
    def capabilities(self) -> Capabilities:
        """Return those of its target."""


class Worker(Protocol):
    """A worker as an exploration uses it."""

    def __enter__(self) -> Worker: ...

    def __exit__(self, *_: object) -> None: ...

    def start(self) -> Ready:
        """Start it."""

    def stop(self) -> None:
        """End the current call soon."""

    def supports(self, config: Config) -> str:
        """Return "", or the reason why the target does not support a configuration."""

    def expand(self, request: Expand) -> Expanded | Outcome:
        """Continue traces; the outcome of the loss if the process is lost."""

    def compare(self, request: Compare) -> str:
        """Return what differs between two traces that have one form."""


class Naming(Protocol):
    """What names the known bugs that failing traces show."""

    def names(self, failing: Sequence[tuple[Trace, Violation]]) -> Sequence[Cause | None]:
        """Return the known bug that each shows, without a name for no single one, None for no known bug; [] where there
        are no known bugs."""

    def stop(self) -> None:
        """End the current call soon."""


class Settings(Struct, frozen=True, kw_only=True):
    """What is explored.

    disturbances  most disturbances of a trace, None for any number
    check_every   every so many merges are checked, 0 for none
    first         end with the level in which the first failure is
    seconds, states  limits, None for none
    without       fields left out of the form, to test that they matter
    shard         the requests that this process asks for; the others share the folder
    """

    target: str
    engine: str
    patches: tuple[str, ...]
    hybridfuzz: str
    scope: Scope
    scope_name: str
    events: int
    out: Path
    disturbances: int | None = None
    jobs: int = 1
    check_every: int = 200
    first: bool = False
    seconds: float | None = None
    states: int | None = None
    without: frozenset[str] = frozenset()
    shard: Shard = WHOLE

    def identity(self) -> str:
        """Return what a journal must have been written for."""
        same = (
            self.target, self.engine, self.patches, self.hybridfuzz, self.scope, self.disturbances, self.check_every,
            sorted(self.without),
        )  # fmt: skip
        return hashlib.sha256(msgspec.json.encode(same)).hexdigest()


class Exploration:
    """Runs once. `stop` may be called from a signal handler."""

    def __init__(
        self,
        settings: Settings,
        open_worker: Callable[[], Worker],
        on_level: Callable[[Level], None] = lambda level: None,
        naming: Naming | None = None,
    ) -> None:
        self.settings = settings
        self._naming = naming
        self.search: Search
        """Made of what the first worker says."""
        self.reason: Reason | None = None
        self._open_worker = open_worker
        self._on_level = on_level
        self._oracles: Counter[str] = Counter()
        self._whole = True
        self._checked = 0
        self._differences: list[str] = []
        self._halt = Event()
        self._workers: list[Worker] = []
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._journals: Journals
        self._asked = 0
        """Requests of all shards."""

    def stop(self, reason: Reason) -> None:
        """End it now; a later run of the same exploration in this folder goes on."""
        self.reason = reason
        self._halt.set()
        for worker in tuple(self._workers):
            worker.stop()
        if self._naming:
            self._naming.stop()

    def run(self) -> Certificate:
        """Explore, and return the certificate, which was written. Raises what a worker raises."""
        settings, began = self.settings, time.monotonic()
        settings.out.mkdir(parents=True, exist_ok=True)
        self._journals = Journals(settings.out, settings.identity(), settings.shard, self._halt)
        exhausted = False
        with ExitStack() as stack:
            stack.enter_context(self._journals)
            pool = stack.enter_context(ThreadPoolExecutor(settings.jobs))
            for _ in range(settings.jobs):
                worker = stack.enter_context(self._open_worker())
                ready = worker.start()
                self._workers.append(worker)
                self._idle.put(worker)
            self._check_configurations(worker)
            self.search = Search(settings.scope, ready.capabilities, settings.disturbances, settings.check_every)
            try:
                while len(self.search.levels) < settings.events and not exhausted and self._goes_on():
                    exhausted = not self._level(pool, began)
            except Exception:
                if not self._halt.is_set():  # else it is the call that was ended
                    raise
            finally:
                self._halt.set()
                pool.shutdown(cancel_futures=True)
        seconds = time.monotonic() - began
        shown = self._shown()
        certificate = self._certificate(seconds, exhausted=exhausted, shown=tuple(shown))
        if settings.shard.number > 1:
            return certificate
        for name, trace in (*names_of(self.search), *((one.file, trace) for one, trace in shown.items())):
            (settings.out / name).parent.mkdir(exist_ok=True)
            save_trace(trace, settings.out / name)
        save_certificate(certificate, settings.out)
        if certificate.verdict != "incomplete":
            self._journals.remove()
        return certificate

    def _shown(self) -> dict[Shown, Trace]:
        """Return the known bugs that failing traces show, nothing if the exploration or the comparison was ended."""
        is_asked = self.settings.shard.number == 1 and self.search.failing
        if not self._naming or not is_asked or self._is_ended():
            return {}
        try:
            causes = self._naming.names(self.search.failing)
        except Exception:
            if not self._is_ended():  # else it is the call that was ended
                raise
            causes = ()
        return to_shown(self.search, causes) if causes else {}

    def _is_ended(self) -> bool:
        return self.reason == "interrupted"

    def _check_configurations(self, worker: Worker) -> None:
        """Raise TraceError for a configuration that the target does not support: its traces would prove nothing."""
        for number, config in enumerate(self.settings.scope.configuration, 1):
            if reason := worker.supports(config):
                where = f"scope {self.settings.scope_name}, configuration {number}"
                raise TraceError(f"{where}: {self.settings.target} does not support it: {reason}")

    def _goes_on(self) -> bool:
        found = self._differences or (self.settings.first and self.search.failures)
        return not found and self.reason is None

    def _check_limits(self, began: float) -> None:
        settings = self.settings
        if settings.seconds is not None and time.monotonic() - began >= settings.seconds:
            self.reason = "time"
        if settings.states is not None and self.search.states >= settings.states:
            self.reason = "traces"

    def _level(self, pool: ThreadPoolExecutor, began: float) -> bool:
        """Continue all states of the frontier. Return False if none of them led to a new state."""
        search, frontier = self.search, self.search.frontier
        chunks = (frontier[first : first + PARENTS] for first in range(0, len(frontier), PARENTS))
        asked = ((chunk, [search.parent(state) for state in chunk]) for chunk in chunks)
        for (chunk, parents), entry in self._answers(pool, asked, lambda worker, one: self._expand(worker, one[1])):
            self._oracles.update(entry.oracles)
            self._whole &= entry.whole
            for state, parent, grown in zip(chunk, parents, entry.grown, strict=True):
                if wrong := search.take(state, parent, grown):
                    self._differences.append(wrong)
            self._check_limits(began)
            if self.reason:
                return True
        merged = iter(list(search.to_check))
        for _, entry in self._answers(pool, merged, self._compare):
            self._checked += 1
            self._differences += entry.differences[: DIFFERENCES_MAX - len(self._differences)]
        self._on_level(search.end_level())
        return len(search.frontier) > 0

    def _answers(
        self, pool: ThreadPoolExecutor, asked: Iterable[T], ask: Callable[[Worker, T], Entry]
    ) -> Iterator[tuple[T, Entry]]:
        """Yield the answer to each request, in order: from one's journal, from another shard, or from the workers."""
        under_way: deque[tuple[T, Callable[[], Entry]]] = deque()
        for request in asked:
            under_way.append((request, self._answer(pool, ask, request)))
            if len(under_way) >= self.settings.jobs * AHEAD * self.settings.shard.of:
                first, answer = under_way.popleft()
                yield first, answer()
        for left, answer in under_way:
            yield left, answer()

    def _answer(self, pool: ThreadPoolExecutor, ask: Callable[[Worker, T], Entry], request: T) -> Callable[[], Entry]:
        """Ask for the answer to a request that is this shard's; return what waits for it."""
        owner = self._asked % self.settings.shard.of + 1
        self._asked += 1
        if owner != self.settings.shard.number:
            return partial(self._journals.of_another, owner)
        if earlier := next(self._journals.earlier, None):
            return lambda: earlier
        return partial(self._answered, pool.submit(self._ask, ask, request))

    def _answered(self, future: Future[Entry]) -> Entry:
        entry = future.result()
        self._journals.add(entry)
        return entry

    def _ask(self, ask: Callable[[Worker, T], Entry], request: T) -> Entry:
        worker = self._idle.get()
        try:
            return ask(worker, request)
        finally:
            self._idle.put(worker)

    def _compare(self, worker: Worker, request: Compare) -> Entry:
        difference = worker.compare(structs.replace(request, without=self.settings.without))
        return Entry(differences=(f"{difference}; {_pair(request)}",) if difference else ())

    def _expand(self, worker: Worker, parents: Sequence[Parent]) -> Entry:
        """Ask for parents; of those that lose the process, for each branch alone, so that the loss has a trace."""
        answer = worker.expand(Expand(tuple(parents), self.settings.without))
        if isinstance(answer, Expanded):
            return Entry(answer.grown, answer.oracles, answer.whole)
        if len(parents) > 1:
            return _joined([self._expand(worker, [parent]) for parent in parents])
        [parent] = parents
        if len(parent.branches) == 1:
            return Entry((Grown(0, (Branch(violation=answer.violation),)),))
        alone = [
            structs.replace(parent, branches=(event,), contexts=(context,))
            for event, context in zip(parent.branches, parent.contexts, strict=True)
        ]
        joined = _joined([self._expand(worker, [one]) for one in alone])
        branches = tuple(grown.branches[0] for grown in joined.grown)
        own = max(grown.fingerprint for grown in joined.grown)
        return structs.replace(joined, grown=(Grown(own, branches),))

    def _certificate(self, seconds: float, *, exhausted: bool, shown: tuple[Shown, ...]) -> Certificate:
        settings, search = self.settings, self.search
        verdict: Verdict = "fails" if search.failures else "clean"
        if self._differences:
            verdict = "unsound"
        elif self.reason:
            verdict = "incomplete"
        left_out = tuple(
            f"configuration {index + 1}: {', '.join(alphabet.left_out)}"
            for index, alphabet in enumerate(search.alphabets)
            if alphabet.left_out
        )
        oracles = dict(+self._oracles)
        more = (settings.identity(), sorted(oracles), verdict, exhausted)
        return Certificate(
            hybridfuzz=settings.hybridfuzz,
            target=settings.target,
            engine=settings.engine,
            patches=settings.patches,
            scope=settings.scope,
            scope_name=settings.scope_name,
            disturbances=settings.disturbances,
            verdict=verdict,
            events=len(search.levels),
            exhausted=exhausted,
            levels=tuple(search.levels),
            states=search.states,
            transitions=search.transitions,
            merges=search.merges,
            merges_checked=self._checked,
            differences=tuple(self._differences),
            failures=tuple(to_failing(search)),
            named=sum(one.times for one in shown),
            shown=shown,
            oracles=oracles,
            whole=self._whole,
            unseen=unseen(whole=self._whole),
            left_out=left_out,
            collision_chance=search.collision_chance(),
            digest=search.digest(more),
            sample=to_samples(search),
            seconds=seconds,
            jobs=settings.jobs,
        )


def _joined(entries: Sequence[Entry]) -> Entry:
    oracles: Counter[str] = Counter()
    for entry in entries:
        oracles.update(entry.oracles)
    grown = tuple(one for entry in entries for one in entry.grown)
    return Entry(grown, dict(oracles), all(entry.whole for entry in entries))


def _pair(request: Compare) -> str:
    return f"{msgspec.json.encode(request.left).decode()} and {msgspec.json.encode(request.right).decode()}"
