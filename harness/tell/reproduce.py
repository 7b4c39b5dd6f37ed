"""From a failing trace to the content of its report, and to a script that is run before it is handed out.

1. `observe` runs the trace on the implementation that a server runs by default, sets what the failure does not need to
   its usual value, and measures what it needs. Then it drops the events that have nothing to do with it any more: what
   a report tells, what its script does and which settings it names are of one trace. With a packaged patch only a
   failure that the patch repairs counts. It asks the target which server options the configuration stands for, what
   clients would receive, and whether other implementations fail.
2. `write_script` writes the target's scripts in turn, until one fails as it promises.
3. `write_unit_test` writes a test of the part of the engine that is wrong, where that part alone shows the failure.
4. `write_engine_test` writes the script as a test of the engine's own tree, and runs it.
5. `try_fix` runs trace and script again with a patch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, structs

from ...targets.base.deployment import Deployment, Implementation
from ...targets.base.engine_tests import EngineTest
from ...targets.base.launch import Launch
from ...targets.base.patched_copy import as_applied, functions_at, patched
from ...targets.base.patches import Patch, PatchError, parse_patch
from ...targets.base.protocol import TargetError
from ...targets.base.registry import describe, write_attempts, write_test
from ...targets.base.repro import Script, served, with_sizes
from ...targets.base.trace import Arrive, Step, Trace, TraceError
from ..draw.trace_files import write_atomically
from ..group.causes.evidence import Place
from ..group.findings.finding_store import OutputError
from ..group.findings.measured_reach import answers_of, nearest_of
from ..group.known.known_toml import Known
from ..group.reduction.reduce import Run, violation_of, without_idle_events
from ..group.reduction.still_fails import UNEXPLAINED
from ..judge.oracles import client_of
from ..judge.outcome import Outcome
from ..judge.ranks import ranks_of
from ..judge.violation import Violation
from ..workers.worker_client import WorkerClient
from .at_scale import serve
from .bug_report import CANNOT_RUN, FAILS_OTHERWISE, FAILS_TOO, PASSES, OtherRun, ReproCase, SecondPatch, TriedFix
from .controls import controls, may_decline, on_other_models
from .related import RelatedEntry, other_fixes, related, title_of
from .script import ScriptVerdict, failure_of, run_script, run_test
from .unit_test import run_in, unit_test
from .usual_options import plainest
from .versions import collected, system, versions_of

SCRIPT = "repro.py"
STEPS_BEFORE = 3
"""Steps of a request that is put before the others."""
PARAGRAPH = "\n\n"
IDLE_SECONDS = 20.0
"""Time for the events that the failure does not need any more."""
SCALE_SECONDS = 90.0
"""Time for the trace in the lengths of a server, and without its limits."""
MODELS_SECONDS = 30.0
"""Time for the trace on other models."""
SECOND_MAX = 8
"""Packaged patches that are tried beside the first one, where a script meets another defect with that."""
NAME_LENGTH_MAX = 72
LEADS_ON = frozenset([
    "a", "after", "an", "and", "by", "for", "from", "in", "no", "not", "of", "on", "that", "the", "to", "what", "while",
    "with",
])  # fmt: skip
"""Words that end no name."""


class Subject(Struct, frozen=True):
    """The target as it is started: `timeout` in seconds for one run of a trace, `memory` in bytes.

    fixes  known bugs whose patches it has
    known  the known bug that a campaign recognized in the failure, "" for none
    """

    spec: str
    launch: Launch
    timeout: float
    memory: int
    fixes: tuple[Known, ...] = ()
    known: str = ""

    def worker(self, launch: Launch | None = None) -> WorkerClient:
        """Return a worker, not started, for this target or for a patched one."""
        return WorkerClient(self.spec, launch or self.launch, self.timeout, self.memory)


def observe(
    subject: Subject, trace: Trace, places: Sequence[Place] = (), *, as_given: bool = False
) -> ReproCase | None:
    """Return the content of the report without a script, None for a trace that does not fail. `as_given`: nothing of
    the trace is changed."""
    spec, launch = subject.spec, subject.launch
    entry = related(spec, launch.version, trace, subject.known)
    with ExitStack() as stack:
        worker = stack.enter_context(subject.worker())
        capabilities = worker.start().capabilities
        history = worker.explain(trace)[1]
        violation = history.violation
        if violation is None:
            return None
        deployment, severity, wanted = describe(spec, trace, launch.version), None, _likeness(violation)
        judged = Judged(worker, None)
        if violation.oracle not in UNEXPLAINED and not as_given:
            implementations = deployment.implementations
            judged = Judged(worker, _fixed(subject, trace, entry, stack))
            plain, violation = on_default(trace, violation, judged.run, implementations)
            plain, violation = behind_another(plain, violation, judged.run)
            signature, wanted = violation.signature, _likeness(violation)

            def run(one: Trace) -> Outcome:
                outcome = judged.run(one)
                is_same = outcome.violation is not None and _likeness(outcome.violation) == wanted
                return outcome if is_same else structs.replace(outcome, violation=None)

            plain = plainest(plain, signature, run, capabilities, lambda one: unusual(spec, launch, one))
            plain, severity = nearest_of(
                plain, violation, judged, capabilities, implementations, _likeness, declines=deployment.declines
            )
            plain = without_idle_events(plain, signature, run, IDLE_SECONDS)
            plain = without_idle_options(
                plain, lambda one: describe(spec, one, launch.version), lambda one: _fails(judged.run, one, wanted)
            )
            again = worker.explain(plain)[1] if plain != trace else history
            if again.violation and _likeness(again.violation) == wanted:
                trace, history = plain, again
            else:
                severity = None
            assert history.violation is not None
            violation, wanted = history.violation, _likeness(history.violation)
            deployment = describe(spec, trace, launch.version)
        answers = answers_of(worker, trace, violation)
        until = 0.0 if violation.oracle in UNEXPLAINED else time.monotonic() + SCALE_SECONDS
        server = serve(
            trace,
            lambda one: describe(spec, one, launch.version),
            lambda one: time.monotonic() < until and _fails(worker.run, one, wanted),
            history,
        )
        runs = list(_implementations(worker, trace, violation.signature, deployment))
        here = next((one.title for one in runs if one.current), "this one")
        passing = [f"{one.title} instead of {here}" for one in runs if one.result == PASSES and not may_decline(trace)]
        here_as = partial(describe, spec, version=launch.version)
        found = list(controls(trace, history, worker, capabilities, here_as))
        passing += [one.words for one in found if not one.reduces]
        models = dict(_models(judged, on_other_models(trace, capabilities, here_as), violation.signature))
    versions = versions_of(launch, deployment.packages)
    return ReproCase(
        spec, launch, deployment, trace, history, violation, answers, runs, versions, system(),
        served=server,
        severity=severity,
        collected=collected(launch, deployment.environment),
        controls=passing,
        reductions=[one.words for one in found if one.reduces],
        models=models,
        usual=capabilities.usual_options,
        places=places,
        related=entry,
        fixes=subject.fixes,
    )  # fmt: skip


class Judged:
    """A worker, on which a trace passes if it fails with the patch of the known bug, too: what a report is about should
    be repaired by the patch that it shows."""

    def __init__(self, worker: WorkerClient, fixed: WorkerClient | None) -> None:
        self.worker = worker
        self._fixed = fixed
        self.observe, self.explain, self.serve = worker.observe, worker.explain, worker.serve

    @property
    def has_patch(self) -> bool:
        """True if a patch tells this failure from others."""
        return self._fixed is not None

    def repairs(self, trace: Trace) -> bool:
        """Return True if a failing trace passes with the patch, or if there is none."""
        return self._fixed is None or self._fixed.run(trace).violation is None

    def run(self, trace: Trace) -> Outcome:
        """Run a trace; a failure that is not repaired is none."""
        outcome = self.worker.run(trace)
        if outcome.violation is None or self.repairs(trace):
            return outcome
        return structs.replace(outcome, violation=None)


def _fixed(subject: Subject, trace: Trace, entry: RelatedEntry | None, stack: ExitStack) -> WorkerClient | None:
    """Return a worker with the patch of the known bug that a failure is, until `stack` ends; None where there is none,
    and where the trace fails with it, too."""
    patch, _ = packaged_patch(entry)
    if not patch:
        return None
    try:
        fixed = stack.enter_context(subject.worker(patched(subject.launch, [parse_patch(patch, "fix")])))
        fixed.start()
        return fixed if fixed.run(trace).violation is None else None
    except (TargetError, PatchError):  # `try_fix` says why
        return None


def on_default(
    trace: Trace, violation: Violation, run: Run, implementations: Sequence[Implementation]
) -> tuple[Trace, Violation]:
    """Return the trace and its failure on the implementations that a server runs by default, if it breaks the same rule
    at the same event there: the error may have another name."""
    usual = {name: value for one in implementations if one.default for name, value in one.options.items()}
    chosen = structs.replace(trace, config=structs.replace(trace.config, options={**trace.config.options, **usual}))
    if chosen == trace:
        return trace, violation
    found = violation_of(run, chosen)
    is_same = found is not None and _place(found) == _place(violation)
    return (chosen, found) if found and is_same else (trace, violation)


EARLIER = "earlier"
"""Name of a request that is put before the others."""


def behind_another(trace: Trace, violation: Violation, run: Run) -> tuple[Trace, Violation]:
    """Return the trace and its failure behind a request whose memory is used again, if it reads bytes that were
    nobody's and fails like that, too: on a server that has just started they are zeros, and nothing is wrong."""
    if "previous" not in violation.details or violation.details["previous"] or trace.config.num_blocks == 0:
        return trace, violation
    config, block = trace.config, max(group.block_size for group in trace.config.groups)
    pools = dict.fromkeys([config.smallest_pool(), config.num_blocks])
    for pool, length in product(pools, dict.fromkeys([1, block, config.max_model_len - 1])):
        first = (Arrive(EARLIER, ((EARLIER, length),), 1), *(Step() for _ in range(STEPS_BEFORE)))
        one = structs.replace(trace, config=structs.replace(config, num_blocks=pool), events=(*first, *trace.events))
        found = violation_of(run, one)
        if found and found.signature == violation.signature and found.details.get("previous"):
            return one, found
    return trace, violation


def without_idle_options(
    trace: Trace, describe: Callable[[Trace], Deployment], fails: Callable[[Trace], bool]
) -> Trace:
    """Return the trace without options that change neither the server nor the failure, such as what to do with a load
    that fails where nothing is loaded."""
    server = describe(trace)
    chosen = {name for one in server.implementations for name in one.options}
    until = time.monotonic() + IDLE_SECONDS
    for name in trace.config.options if server.command else ():
        options = {other: value for other, value in trace.config.options.items() if other != name}
        one = structs.replace(trace, config=structs.replace(trace.config, options=options))
        if name not in chosen and describe(one) == server and time.monotonic() < until and fails(one):
            trace = one
    return trace


def _place(violation: Violation) -> tuple[str, int, str, str]:
    """Return the rule that is broken, for whom and where, and what a client gets."""
    return violation.oracle, violation.event, violation.request, client_of(violation)


def _likeness(violation: Violation) -> tuple[str, bool]:
    """Return what a report keeps: the failure, and whether the bytes that it reads were somebody's. Memory that nobody
    used is zeroed on a server that has just started."""
    return violation.signature, bool(violation.details.get("previous"))


def _fails(run: Run, trace: Trace, wanted: tuple[str, bool]) -> bool:
    """Return True if a trace, which may not fit the target, fails like the one before."""
    violation = violation_of(run, trace)
    return violation is not None and _likeness(violation) == wanted


def reproduce(
    subject: Subject, trace: Trace, folder: Path, places: Sequence[Place] = ()
) -> tuple[ReproCase | None, str]:
    """Return the content of the report with its script, and why there is no script, "" if there is one.

    Where no script shows the failure with the settings and events that are left, the trace is taken as it is given.
    Raises OutputError if the folder cannot be written.
    """
    why = ""
    for as_given in (False, True):
        case = observe(subject, trace, places, as_given=as_given)
        if case is None:
            break
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SCRIPT).unlink(missing_ok=True)  # of an earlier run
            script, verdict = write_script(folder, case)
        except OSError as error:
            raise unwritable(folder, error) from error
        except TargetError as error:
            why = str(error)
        else:
            runs = list(_by_script(case)) if verdict.promised else case.runs
            why, case = "", structs.replace(case, script=script, verdict=verdict, runs=runs)
        if case.trace == trace or (case.verdict and case.verdict.promised):
            break
    return case, why


def unwritable(folder: Path, error: OSError) -> OutputError:
    """Return the complaint about a folder that cannot be written."""
    return OutputError(f"cannot write to {folder}: {error.strerror}; choose another with -o")


def unusual(spec: str, launch: Launch, trace: Trace) -> int:
    """Count what chooses other code than a server runs by default: flags, and another implementation."""
    server, chosen = describe(spec, trace, launch.version), trace.config.options
    other = [name for each in server.implementations if each.default
             for name, value in each.options.items() if chosen.get(name, value) != value]  # fmt: skip
    return len(server.unusual) + len(other)


def _implementations(worker: WorkerClient, trace: Trace, signature: str, deployment: Deployment) -> Iterator[OtherRun]:
    """Yield the result of the trace on each implementation that the engine has."""
    for one in deployment.implementations:
        options = {**trace.config.options, **one.options}
        chosen = structs.replace(trace, config=structs.replace(trace.config, options=options))
        current = all(trace.config.options.get(name) == value for name, value in one.options.items())
        yield OtherRun(one.title, one.default, current, _result(worker, chosen, signature))


def _by_script(case: ReproCase) -> Iterator[OtherRun]:
    """Yield the results on each implementation, those of its script where the trace cannot run: a script reads what
    clients receive, and needs no view of what a cache holds."""
    options = {one.title: one.options for one in case.deployment.implementations}
    for run in case.runs:
        config = case.trace.config
        chosen = structs.replace(config, options={**config.options, **options.get(run.title, {})})
        is_unable = run.result.startswith(CANNOT_RUN) and chosen != config
        yield _run_script_on(case, structs.replace(case.trace, config=chosen), run) if is_unable else run


def _run_script_on(case: ReproCase, trace: Trace, run: OtherRun) -> OtherRun:
    """Return the result of the first script of a trace that fails as it promises, else of the last; `run` as it is if
    there is none."""
    try:
        scripts = write_attempts(case.spec, trace, failure_of(case.trace, case.history, case.violation))
    except TargetError:
        return run
    result = run.result
    with TemporaryDirectory() as folder:
        for script in scripts:
            path = Path(folder) / SCRIPT
            path.write_text(script.text, encoding="utf-8")
            verdict = run_script(path, script, case.launch)
            if verdict.promised:
                result = FAILS_TOO
                break
            result = f"{FAILS_OTHERWISE}: {verdict.raised}" if verdict.status else PASSES
    return structs.replace(run, result=result, by_script=True)


def _models(judged: Judged, traces: Iterator[tuple[str, Trace]], signature: str) -> Iterator[tuple[str, str]]:
    """Yield the results on other models, as time allows; none of one that fails with the patch, too: it has defects of
    its own. Without a patch nobody knows whether it is the same defect, and nothing is yielded."""
    until = time.monotonic() + MODELS_SECONDS
    for words, trace in traces if judged.has_patch else ():
        if time.monotonic() >= until:
            return
        result = _result(judged.worker, trace, signature)
        if not result.startswith((FAILS_TOO, FAILS_OTHERWISE)) or judged.repairs(trace):
            yield words, result


def _result(worker: WorkerClient, trace: Trace, signature: str) -> str:
    """Return "passes", how the trace fails, with the same signature or another, or why it cannot run."""
    try:
        violation = worker.run(trace).violation
    except (TargetError, TraceError) as error:
        return f"{CANNOT_RUN}: {str(error).removeprefix('configuration: ')}"
    if violation is None:
        return PASSES
    return FAILS_TOO if violation.signature == signature else f"{FAILS_OTHERWISE}: {violation.sentence}"


def write_script(folder: Path, case: ReproCase) -> tuple[Script, ScriptVerdict]:
    """Write the first script that fails as it promises, else the last one, and return it with its verdict.

    Raises TargetError if the target has no script for the trace, OSError if the folder cannot be written.
    """
    if ranks_of(case.trace.config) > 1:
        raise TargetError("the failure needs several ranks, and a script runs one engine")
    scripts = write_attempts(case.spec, case.trace, failure_of(case.trace, case.history, case.violation))
    sizes = case.served.sizes if case.served else {}
    told = (with_sizes(one, sizes) for one in scripts)
    for script in (served(one, case.server) if case.has_server else one for one in told):
        write_atomically(folder / SCRIPT, script.text.encode())
        verdict = run_script(folder / SCRIPT, script, case.launch)
        if verdict.promised:
            break
    return script, verdict


def write_engine_test(folder: Path, case: ReproCase, script: Script) -> tuple[EngineTest, ScriptVerdict]:
    """Write a script as a test of the engine's own tree, run it, and return it with its verdict.

    Raises TargetError if the target has no such tests, OSError if the folder cannot be written.
    """
    test = write_test(case.spec, case.trace, script, name_of_test(case.situation))
    return test, run_in(folder, test, script, case.launch)


def write_unit_test(
    subject: Subject, folder: Path, case: ReproCase, script: Script, patch: str
) -> tuple[EngineTest, ScriptVerdict, ScriptVerdict | None] | None:
    """Write a failure as a test of the part of the engine that is wrong (`unit_test`). `patch`: "" without one.

    Raises OSError if the folder cannot be written.
    """
    cause, name = case.cause, name_of_test(case.situation)
    about = f"{cause.title}.\n\n{cause.body.partition(PARAGRAPH)[0]}" if cause else case.violation.sentence
    fixed = patched(subject.launch, [parse_patch(patch, "fix")]) if patch else None
    return unit_test(case.spec, case.trace, script, about, name, folder, case.launch, fixed)


def name_of_test(title: str) -> str:
    """Return the name of a test for a report's title, without what stands in parentheses."""
    words = re.findall(r"[a-z0-9]+", title.partition(" (")[0].lower())
    is_cut = len("_".join(words)) > NAME_LENGTH_MAX
    while len("_".join(words)) > NAME_LENGTH_MAX or (is_cut and words[-1] in LEADS_ON):
        words.pop()
    return "_".join(words)


def try_fix(
    subject: Subject, folder: Path, case: ReproCase, patch: str, source: str, mended: ScriptVerdict | None = None
) -> TriedFix:
    """Run the trace and the script with a patch, which is told with the lines and names of the engine's tree. `mended`:
    what the test does with it, if it was run. Raises PatchError for a patch that does not fit."""
    parsed = parse_patch(patch, "fix")
    fixed = patched(subject.launch, [parsed])
    with subject.worker(fixed) as worker:
        worker.start()
        result = _result(worker, case.trace, case.violation.signature)
        left = violation_of(worker.run, case.trace)
    verdict = run_script(folder / SCRIPT, case.script, fixed) if case.script else None
    tested = mended or (run_test(folder, case.test, case.script, fixed) if case.test and case.script else None)
    needs_more = left is not None and verdict is not None and verdict.status != 0
    second = _second_patch(subject, folder, case, parsed, left.signature) if left and needs_more else None
    text, places = as_applied(subject.launch, parsed, case.deployment.sources)
    return TriedFix(text, source, result, verdict, tested, places, second, functions_at(subject.launch, places))


def _second_patch(subject: Subject, folder: Path, case: ReproCase, patch: Patch, signature: str) -> SecondPatch | None:
    """Return a packaged patch with which, beside the first, the trace passes, and so does the script; None if none of
    the likeliest does. `signature`: of what fails with the first one. A script takes many times as long as a trace."""
    if case.script is None:
        return None
    named = case.related.name if case.related else ""
    for entry in other_fixes(subject.spec, subject.launch.version, named, signature)[:SECOND_MAX]:
        try:
            both = patched(subject.launch, [patch, other := entry.read_patch()])
        except PatchError:
            continue
        with subject.worker(both) as worker:
            worker.start()
            if violation_of(worker.run, case.trace):
                continue
        verdict = run_script(folder / SCRIPT, case.script, both)
        if verdict.status == 0:
            return SecondPatch(title_of(entry), as_applied(subject.launch, other, case.deployment.sources)[0], verdict)
    return None


def packaged_patch(entry: RelatedEntry | None) -> tuple[str, str]:
    """Return the patch of the known bug that the failure is, and its source in words; "", "" without one."""
    return (entry.patch, f"the patch packaged with hybridfuzz for {entry.name}") if entry and entry.patch else ("", "")
