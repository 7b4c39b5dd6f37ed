"""hybridfuzz explore: all traces up to a length, with a certificate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...explore.certificate import Certificate
    from ...explore.exploration import Settings
    from ...explore.scope import Scope
    from ...explore.search import Level
    from ...group.known.fixes import Fixes

EXAMPLES = """\
A scope has configurations, and the events that a trace may have. minute, hour
and night are for the built-in engine, others for the engine in their name.
Traces that lead to one state share their continuations. DIR gets
certificate.json, certificate.md, failures/ and bugs/; an exploration that was
killed goes on there.
Exit status: 0 clean, 1 a trace fails or the certificate does not hold, 2 usage
or environment, 3 a limit ended it and none failed, or a merge was wrong,
5 interrupted.
example: hybridfuzz explore --scope minute -o out
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from ...units import WHOLE, count, count_or_none, duration, shard
    from .common import add_fixes, add_target, jobs

    add_target(parser, of_finding=False)
    parser.add_argument("--scope", default="minute", metavar="S", help="packaged scope, or a file (default: minute)")
    parser.add_argument("--events", type=count, metavar="N", help="longest trace (default: the scope's)")
    parser.add_argument(
        "--disturbances",
        type=count_or_none,
        metavar="K",
        help="at most K events other than arrivals, turns and plain steps (default: any number)",
    )
    parser.add_argument("--time", type=duration, metavar="TIME", help="end after this time")
    parser.add_argument("--states", type=count, metavar="N", help="end after so many states; bounds memory")
    parser.add_argument("--jobs", "-j", type=jobs, metavar="N", help="workers (default: auto, one for each core)")
    parser.add_argument(
        "--shard", type=shard, default=WHOLE, metavar="I/N", help="run share I of N; the shards share the output folder"
    )
    add_fixes(parser)
    parser.add_argument("--first", action="store_true", help="end with the length at which the first trace fails")
    parser.add_argument(
        "--check-merges",
        type=count_or_none,
        default=200,
        metavar="N",
        help="continue every N-th merged pair both ways, 0 for none (default: 200)",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="verify a certificate: run a sample of its states and all failures again",
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="output folder (default: hybridfuzz-out/explore-TARGET-SCOPE)"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Explore, or check a certificate."""
    if options.check:
        return check(options)
    import msgspec

    from ...explore.certificate import CERTIFICATE_FILE, bugs_line, left_inside, statement
    from ...explore.exploration import Exploration
    from ...explore.scope import read_scope
    from ...group.known.recognize_many import Naming
    from ...units import plural
    from ...workers.worker_client import WorkerClient
    from .common import fixes_of, memory_limit, print_json, printer, recognizer
    from .signals import ending_on_signals

    line = printer(options.json)
    scope = read_scope(options.scope)
    fixes = fixes_of(options)
    settings = settings_of(options, fixes, scope)
    memory = memory_limit(options, settings.jobs)

    def open_worker() -> WorkerClient:
        return WorkerClient(options.target, fixes.launch, options.timeout, memory)

    line(f"exploring {options.target}, scope {options.scope}: {settings.scope.about}")
    naming = Naming(lambda: recognizer(options, fixes))
    exploration = Exploration(settings, open_worker, lambda level: line(told(level)), naming)
    with ending_on_signals(exploration):
        certificate = exploration.run()
    for failing in certificate.failures:
        size = f"{plural(failing.events, 'event')}, {plural(failing.times, 'time')}"
        line(f"FAILS {failing.signature} ({size}): {failing.message}")
        line(f"  {settings.out / failing.file}")
    for one in certificate.shown:
        size = f"{plural(one.events, 'event')}, {plural(one.times, 'time')}"
        line(f"SHOWS {one.name or one.signature} ({size}): {one.phrase}")
        line(f"  {settings.out / one.file}")
    if certificate.shown:
        line(bugs_line(certificate))
    line(
        f"{certificate.states} states, {certificate.transitions} transitions, {certificate.merges} merges, "
        f"{certificate.merges_checked} of them checked; a collision has a chance of {certificate.collision_chance:.1e}"
    )
    line(statement(certificate))
    if left := left_inside(certificate):
        line(left)
    written = f"certificate: {settings.out / CERTIFICATE_FILE}" if settings.shard.number == 1 else "this shard's"
    line(f"{written}, digest {certificate.digest[:16]}")
    if options.json:
        print_json({"exit_reason": certificate.verdict, **msgspec.to_builtins(certificate)})
    return status(certificate, interrupted=exploration.reason == "interrupted")


def told(level: Level) -> str:
    """Return a line about one level."""
    from ...units import plural

    ran, new = plural(level.transitions, "trace"), plural(level.states, "new state")
    return f"length {level.events}: {ran}, {new}, {level.merged} merged, {level.failing} failing"


def settings_of(options: argparse.Namespace, fixes: Fixes, scope: Scope) -> Settings:
    """Return the settings."""
    from importlib.metadata import version

    from ....targets.base.trace import TraceError
    from ...explore.exploration import Settings
    from ...workers.machine import cores
    from .common import output_folder

    if options.shard.of > 1 and options.time is not None:
        raise TraceError("--shard has no --time: the others would wait for the shard that ends first")
    name = Path(options.scope).stem
    return Settings(
        target=options.target,
        engine=fixes.launch.version,
        patches=tuple(patch.name for patch in fixes.patches),
        hybridfuzz=version("hybridfuzz"),
        scope=scope,
        scope_name=name,
        events=options.events or scope.events,
        disturbances=options.disturbances,
        out=options.out or output_folder(f"explore-{options.target}-{name}"),
        jobs=options.jobs or cores(),
        check_every=options.check_merges,
        first=options.first,
        seconds=options.time,
        states=options.states,
        shard=options.shard,
    )


def status(certificate: Certificate, *, interrupted: bool) -> int:
    """Return the exit status."""
    from ...exit_status import CLEAN, INTERRUPTED, VACUOUS, VIOLATION

    if certificate.verdict == "unsound":
        return VACUOUS
    if certificate.failures:
        return VIOLATION
    if interrupted:
        return INTERRUPTED
    return CLEAN if certificate.verdict == "clean" else VACUOUS


def check(options: argparse.Namespace) -> int:
    """Run a sample of a certificate again."""
    from ....targets.base.trace import TraceError
    from ...exit_status import CLEAN, VIOLATION
    from ...explore import check_certificate
    from ...explore.certificate import load_certificate
    from ...units import plural
    from ...workers.worker_client import WorkerClient
    from .common import fixes_of, memory_limit, print_json, printer

    line = printer(options.json)
    certificate = load_certificate(options.check)
    fixes = fixes_of(options)
    launch, patches = fixes.launch, tuple(patch.name for patch in fixes.patches)
    if (options.target, launch.version, patches) != (certificate.target, certificate.engine, certificate.patches):
        about = (
            f"{certificate.target} ({certificate.engine or 'no version'}, {plural(len(certificate.patches), 'fix')})"
        )
        raise TraceError(
            f"{options.check} is about {about}, not {options.target} ({launch.version or 'no version'}, "
            f"{plural(len(patches), 'fix')}): give the same --target and --fixes"
        )
    folder = options.check if options.check.is_dir() else options.check.parent
    with WorkerClient(options.target, launch, options.timeout, memory_limit(options)) as worker:
        capabilities = worker.start().capabilities
        wrong = list(check_certificate.check(certificate, folder, capabilities, worker))
    for text in wrong:
        line(text)
    checked = len(certificate.sample) + len(certificate.failures)
    line(f"{plural(checked, 'sample')} of {options.check} run again, {len(wrong)} differ")
    if options.json:
        print_json({"exit_reason": "differs" if wrong else "holds", "samples": checked, "differ": wrong})
    return VIOLATION if wrong else CLEAN
