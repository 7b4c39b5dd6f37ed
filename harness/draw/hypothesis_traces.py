"""Traces drawn by Hypothesis, by number: `fuzz --source hypothesis`.

Hypothesis draws some examples of the state machine in one go, from a seed; `ROUND` of them that differ are a round.
Trace n is number n % ROUND of round n // ROUND, so that a number means the same trace in every process, whatever ran
before: generation does not depend on how traces end. (Hypothesis varies its own earlier examples within a run.)

A failing trace is reported to Hypothesis afterwards, so that its database keeps the choices that led to it (`keep`);
`kept` draws the traces of the database again. Hypothesis never shrinks here.

Not for workers: engines' environments do not have Hypothesis.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from unittest import SkipTest
from unittest.mock import patch

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, ReadOnlyDatabase
from hypothesis.errors import HypothesisException
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.stateful import run_state_machine_as_test

from ...targets.base.protocol import Capabilities
from ...targets.base.regular_file import start_of_regular
from ...targets.base.trace import Config, Trace
from .avoid import REDRAWS_MAX, Circumstances
from .choices import RandomChoices
from .hypothesis_rules import ServingRules
from .workload import DEFAULT, Workload

ROUND = 50
EXAMPLES = 64
"""Examples of one run of Hypothesis: some are alike."""
RULES_MAX = 60
"""Rules of one example; one of them may take several steps."""
ROUNDS_CACHED = 4
EXAMPLES_MAX = 10_000
"""Files of one key of the database that are looked at."""
EXAMPLE_BYTES_MAX = 1 << 20
KEPT_MAX = 200
"""Most traces of the database that are drawn again."""

Supports = Callable[[Config], str]


class Drawn(NamedTuple):
    """A trace and the run of Hypothesis that drew it."""

    trace: Trace
    run: str


class Fails(Exception):
    """Reports to Hypothesis that an example fails. Each signature has a subclass: Hypothesis sorts failures by type."""


class Interrupted(KeyboardInterrupt):
    """Ends a run of Hypothesis at an error of `supports`: Hypothesis takes every Exception for a failing example."""


@contextmanager
def no_local_constants() -> Iterator[None]:
    """Keep Hypothesis from mixing constants into its draws that it finds in the source of imported modules: the same
    seed would give other traces after other imports. (There is no setting for it.)"""
    none = patch.object(providers.HypothesisProvider, "_local_constants", Constants())
    with patch.object(providers, "CONSTANTS_CACHE", {}), none:
        yield


class ExampleFiles(DirectoryBasedExampleDatabase):
    """Hypothesis's database in a folder that others may have written to: only small regular files of it are read."""

    def fetch(self, key: bytes) -> Iterator[bytes]:
        """Yield the values of a key."""
        with suppress(OSError):
            for path in islice(self._key_path(key).iterdir(), EXAMPLES_MAX):
                with suppress(OSError):
                    data = start_of_regular(path, EXAMPLE_BYTES_MAX + 1, follow=False)
                    if len(data) <= EXAMPLE_BYTES_MAX:
                        yield data


class HypothesisTraces:
    """Draws the traces of a campaign. Methods may be called from any thread.

    Hypothesis keeps its files in `folder`. `supports` is an argument of each method, since it asks a worker of the
    calling thread; what it raises is raised.
    """

    def __init__(
        self,
        seed: int,
        overrides: Mapping[str, object],
        folder: Path,
        avoid: Sequence[Circumstances] = (),
        workload: Workload = DEFAULT,
    ) -> None:
        self._seed = seed
        self._overrides = dict(overrides)
        self.capabilities: Capabilities | None = None
        """The target's; to be set before the first call."""
        set_hypothesis_home_dir(folder)
        self._database = ExampleFiles(folder / "examples")
        self._avoid = avoid
        self._workload = workload
        self._rounds: dict[int, list[Drawn]] = {}
        self._lock = Lock()

    def trace(self, index: int, supports: Supports) -> Trace:
        """Return trace `index`. Raises TraceError if no configuration fits the target and the overrides."""
        with self._lock:
            trace = self._drawn(index, supports).trace
        return Trace(trace.config, trace.events, origin=f"hypothesis, seed {self._seed}, trace {index}")

    def keep(self, index: int, signature: str, supports: Supports) -> None:
        """Put trace `index`, which fails with a signature, into the database."""
        with self._lock:
            drawn = self._drawn(index, supports)
            self._run(drawn.run, supports, self._database, failing=(drawn.trace, type(signature, (Fails,), {})))

    def kept(self, supports: Supports) -> list[Trace]:
        """Return the traces of the database. The database does not change, whether or not they still fail."""
        with self._lock:
            traces = self._run("kept", supports, ReadOnlyDatabase(self._database), phase=Phase.reuse)
        return [Trace(one.config, one.events, origin="hypothesis, from the database") for one in traces]

    def _drawn(self, index: int, supports: Supports) -> Drawn:
        number = index // ROUND
        if number not in self._rounds:
            self._rounds[number] = self._round(number, supports)
            if len(self._rounds) > ROUNDS_CACHED:
                del self._rounds[next(iter(self._rounds))]
        drawn = self._rounds[number]
        return drawn[index % ROUND % len(drawn)]

    def _round(self, number: int, supports: Supports) -> list[Drawn]:
        """Draw a round of different traces, with one run of Hypothesis or, if circumstances are avoided, a few.

        Fewer than `ROUND` traces if the target and the overrides leave no more.
        """
        kept: list[Drawn] = []
        avoided: list[Drawn] = []
        for part in range(REDRAWS_MAX):
            run, before = f"{self._seed}/{number}/{part}", len(kept)
            for place, trace in enumerate(self._run(run, supports, None)):
                avoids = any(each.apply_to(trace) for each in self._avoid)
                drops = avoids and RandomChoices(self._seed, f"{run}/{place}").chance(self._workload.avoided)
                chosen = avoided if drops else kept
                if all(trace != drawn.trace for drawn in chosen):
                    chosen.append(Drawn(trace, run))
            if len(kept) >= ROUND or len(kept) == before:
                break
        return (kept + avoided)[:ROUND]

    def _run(
        self,
        name: str,
        supports: Supports,
        database: ExampleDatabase | None,
        phase: Phase = Phase.generate,
        failing: tuple[Trace, type[Fails]] | None = None,
    ) -> list[Trace]:
        """Run Hypothesis once, silently; `name` is its seed. Return the traces of all examples, in order."""
        traces: list[Trace] = []
        errors: list[Exception] = []

        class Records(ServingRules):
            def __init__(self) -> None:
                super().__init__()
                assert capabilities
                self.capabilities = capabilities

            def supports(self, config: Config) -> str:
                try:
                    return supports(config)
                except Exception as error:
                    errors.append(error)
                    raise Interrupted from error

            def teardown(self) -> None:
                if self.config is None or sys.exception():  # Hypothesis gave this example up
                    return
                trace = Trace(self.config, tuple(self.events))  # type: ignore[arg-type]
                traces.append(trace)
                if failing and trace == failing[0]:
                    raise failing[1]

        capabilities = self.capabilities
        Records.overrides, Records.workload = self._overrides, self._workload
        settings = hypothesis.settings(
            phases=(phase,),
            database=database,
            max_examples=KEPT_MAX if phase is Phase.reuse else EXAMPLES,
            stateful_step_count=RULES_MAX,
            derandomize=False,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=True,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            backend="hypothesis",
        )
        try:
            with no_local_constants():
                run_state_machine_as_test(hypothesis.seed(name)(Records), settings=settings)
        except (Fails, SkipTest):  # SkipTest: the database is empty
            pass
        except (Interrupted, HypothesisException):
            # Hypothesis replays a failing example before it reports it. An Interrupted there becomes a Flaky.
            if not errors:
                raise
        if errors:
            raise errors[0]
        return traces
