"""hybridfuzz fuzz: run random traces against a target."""

from __future__ import annotations

import argparse
import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...defaults import CAMPAIGN_SECONDS, REDUCE_SECONDS, TRACE_SECONDS, TRIAGE_SHARE, drawn_seed

if TYPE_CHECKING:  # --help has to come at once
    from collections.abc import Callable, Collection

    from ....targets.base.launch import Launch
    from ...campaign.shared_state import Settings
    from ...campaign_summary import Summary
    from ...draw.workload import Workload
    from ...group.known.fixes import Fixes
    from ...group.known.known_toml import Known
    from ...record.changed_lines import ChangedSource
    from ...workers.protocol import OpenWorker
    from ..outputs.handler import EventHandler

EXAMPLES = """\
The same command continues an interrupted campaign. Exit status: see hybridfuzz --help.
example: hybridfuzz fuzz --target vllm@0.33.0 --fixes builtin --time 5m
"""
SOURCES = ("seeded", "hypothesis")
WITHOUT_HYPOTHESIS = ("against", "cluster", "shard")
"""Options that --source hypothesis does not have."""
WITHOUT_CHANGES = ("against", "cluster")
"""Options that --changed-since does not go with."""
ENTRY_POINTS = "hybridfuzz.handlers"
"""Other packages register handler modules under this entry point group."""


class Output(NamedTuple):
    """A module that makes a handler of a campaign's events (`face.outputs.handler`), and the option that asks for it.

    An option takes a file, or nothing (`is_switch`). A module without one handles every campaign.
    """

    module: str
    option: str = ""
    help: str = ""
    is_switch: bool = False


OUTPUTS = (
    Output("harness.face.outputs.console"),
    Output("harness.face.outputs.totals_over_time"),
    Output("harness.face.outputs.bug_history_file"),
    Output("harness.face.outputs.ndjson", "--events", "write events as they happen, one JSON object per line"),
    Output("harness.face.outputs.junit", "--junit", "write a JUnit file at the end"),
    Output("harness.face.outputs.sarif", "--sarif", "write a SARIF file for code-scanning pages at the end"),
    Output("harness.face.outputs.job_summary"),
    Output("reports.handler"),
    Output(
        "harness.face.outputs.summary", "--json", "print one JSON object on standard output at the end", is_switch=True
    ),
)
"""In the order in which they get an event."""


def make_handlers(options: argparse.Namespace) -> list[EventHandler]:
    """Return the handlers of this project, then those that other packages registered."""
    from ..outputs.handler import registered
    from .common import ours

    makers = [ours(output.module).make_handler for output in OUTPUTS]
    makers += [module.make_handler for module in registered(ENTRY_POINTS)]
    return [handler for make in makers if (handler := make(options))]


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what runs, and for how long."""
    from ...units import chance, count, duration, seed
    from .common import add_ranks, add_target, jobs

    add_target(parser, of_finding=False)
    add_ranks(parser)
    parser.add_argument(
        "--time",
        type=duration,
        metavar="TIME",
        help="stop after TIME: 90s, 5m, 2h (default: 60s if no limit is given)",
    )
    parser.add_argument("--steps", type=count, metavar="N", help="stop after N engine steps: 500, 10k, 1M")
    parser.add_argument("--traces", type=count, metavar="N", help="stop after N traces")
    parser.add_argument(
        "--until-risk",
        type=chance,
        metavar="P",
        help="stop once the next trace shows something new with a chance below P: 1e-4",
    )
    parser.add_argument("--seed", type=seed, metavar="S", help="random seed (default: drawn and printed)")
    source_help = "what draws the traces: seeded or hypothesis (default: seeded)"
    parser.add_argument("--source", choices=SOURCES, default=SOURCES[0], metavar="S", help=source_help)
    parser.add_argument(
        "--jobs", "-j", type=jobs, metavar="N", help="worker processes (default: auto, one for each core)"
    )


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the options for what is drawn, what is known, and the output folder."""
    from .common import add_config, add_fixes, add_workload
    from .where import folder

    add_config(parser)
    add_workload(parser)
    known = "list of known bugs; each is patched or ignored (default: DIR/known.toml)"
    parser.add_argument("--known", type=Path, metavar="FILE", help=known)
    add_fixes(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=folder,
        metavar="DIR",
        help="folder or URL for findings (default: hybridfuzz-out/TARGET-SEED)",
    )
    parser.add_argument("--fresh", action="store_true", help="start over instead of continuing an unfinished campaign")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options."""
    from ...units import duration, shard, share
    from .common import AGAINST_HELP
    from .where import place

    parser.usage = "%(prog)s [option ...]"  # thirty options listed twice would not fit a screen
    add_limits(parser)
    parser.add_argument(
        "--cluster", type=place, metavar="C", help="run on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT, local:N"
    )
    parser.add_argument("--shard", type=shard, metavar="I/N", help="run share I of N of the seed's traces (see merge)")
    parser.add_argument(
        "--reduce",
        type=duration,
        default=REDUCE_SECONDS,
        metavar="TIME",
        help=f"time limit for reducing each finding (default: {REDUCE_SECONDS:g}s)",
    )
    parser.add_argument(
        "--triage-share",
        type=share,
        default=TRIAGE_SHARE,
        metavar="P",
        help=f"share of the workers' time for looking into failures (default: {TRIAGE_SHARE * 100:g}%%)",
    )
    parser.add_argument("--against", metavar="T", help=AGAINST_HELP)
    parser.add_argument("--no-canary", action="store_true", help="skip the self-test with planted bugs")
    parser.add_argument("--coverage", action="store_true", help="record which lines of the target's cache code run")
    since = "count which changed lines of a checkout run, and aim at them"
    parser.add_argument("--changed-since", metavar="REF", help=since)
    parser.set_defaults(fail_under=None)
    add_folder(parser)
    for output in OUTPUTS:
        if output.is_switch:
            parser.add_argument(output.option, action="store_true", help=output.help)
        elif output.option:
            parser.add_argument(output.option, type=Path, metavar="FILE", help=output.help)
    if entry_points(group=ENTRY_POINTS):
        from ..outputs.handler import registered

        for module in registered(ENTRY_POINTS):
            module.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run a campaign and feed its events to the handlers."""
    from ....targets.base.trace import TraceError
    from ...campaign.resume import exclusive
    from .where import output_at, workers_of

    check_source(options)
    with output_at(options.out) as (options.out, publish):
        if options.against:
            from .against import fuzz_against

            if options.coverage:
                raise TraceError("--coverage: lines are not recorded with --against")

            return fuzz_against(options, options.time or CAMPAIGN_SECONDS, overrides_of(options), workload_of(options))
        check_files(options)
        engine = engine_of(options)
        with exclusive(engine.out):
            settings = settings_of(options, engine)
            with workers_of(options, settings) as (settings, open_worker):
                return run_campaign(options, settings, open_worker, publish)


def run_campaign(
    options: argparse.Namespace, settings: Settings, open_worker: OpenWorker | None, publish: Callable[[], None]
) -> int:
    """Run a campaign to its end, in a folder that this process has for itself (`exclusive`).

    Without `open_worker` its workers are processes of this machine.
    """
    from contextlib import closing, suppress

    from ...campaign.campaign import Campaign
    from ...campaign_events import CampaignEnded
    from ..outputs.handler import CampaignInfo, Dispatcher
    from .common import printer
    from .signals import ending_on_signals

    dispatcher, campaign = Dispatcher(make_handlers(options)), Campaign(settings, open_worker, publish)
    info = CampaignInfo(
        target=settings.target,
        version=settings.launch.version,
        seed=settings.seed,
        out=settings.out,
        resumed=settings.earlier is not None,
        known=settings.known,
    )
    with ending_on_signals(campaign):
        dispatcher.start(info)
        ended = None
        try:
            with closing(campaign.run()) as events:
                ended = dispatcher.deliver(events)
        except KeyboardInterrupt:  # a later signal: what is known so far still goes to every output
            ended = dispatcher.deliver([CampaignEnded(campaign.summary())])
        finally:
            dispatcher.shutdown()
    assert ended is not None
    if (page := settings.out / "report.html").exists():
        with suppress(BrokenPipeError):  # a lost output does not change the result
            printer(options.json)(f"report: {page}")
    result = status(ended.summary)
    if not settings.modules:
        return result
    from .coverage_report import end_with_report

    return end_with_report(options, settings.out, settings.launch, result)


def check_source(options: argparse.Namespace) -> None:
    """Raise TraceError for options that the source of traces does not have."""
    from ....targets.base.trace import TraceError

    if options.changed_since is not None:
        others = [f"--{name}" for name in WITHOUT_CHANGES if getattr(options, name)]
        if others:
            raise TraceError(f"--changed-since records lines on this machine: it does not go with {', '.join(others)}")
        if options.until_risk is not None:
            raise TraceError("--until-risk needs traces that are independent of each other: leave out --changed-since")
    given = [f"--{name}" for name in WITHOUT_HYPOTHESIS if getattr(options, name)]
    if options.source == "hypothesis" and options.until_risk is not None:
        raise TraceError("--until-risk needs traces that are independent of each other: leave out --source hypothesis")
    if options.source == "hypothesis" and given:
        raise TraceError(f"--source hypothesis draws on this machine, for one target: it has no {', '.join(given)}")


def suffix_of(options: argparse.Namespace) -> str:
    """Return the end of the name of a shard's output folder."""
    return f"-{options.shard.number}-of-{options.shard.of}" if options.shard and options.shard.of > 1 else ""


def folder_of(options: argparse.Namespace) -> Path | None:
    """Return the output folder, None if its name is not settled before a seed is drawn."""
    from .common import output_folder

    if options.out:
        return Path(options.out)
    seed = options.seed
    return output_folder(f"{options.target}-{seed}{suffix_of(options)}") if seed is not None else None


def known_bugs(wanted: Path | None, folder: Path | None) -> tuple[Known, ...]:
    """Return known bugs: of the file that was asked for, else of the output folder's own, if it has one.

    Raises TraceError for a file that cannot be used.
    """
    from ...group.known.fixes import KNOWN_FILE
    from ...group.known.known_toml import load_known

    if wanted is None and folder and (folder / KNOWN_FILE).exists():
        wanted = folder / KNOWN_FILE
    return load_known(wanted) if wanted else ()


def known_and_fixes(options: argparse.Namespace) -> tuple[Known, ...]:
    """Return known bugs of --known or the output folder, and those of all --fixes. Raises TraceError likewise."""
    from ...group.known.fixes import read_fixes

    known = known_bugs(options.known, folder_of(options))
    return (*known, *(entry for where in options.fixes for entry in read_fixes(where, options.target)))


def overrides_of(options: argparse.Namespace) -> dict[str, object]:
    """Fixed fields and options of every configuration. TraceError for a value that is not possible."""
    from ...draw.overrides import RANKS, converted
    from ...judge.ranks import checked

    overrides = {key: value for pairs in options.config for key, value in pairs.items()}
    converted(overrides)
    return overrides if options.dp == 1 else {**overrides, RANKS: checked(str(options.dp))}


def workload_of(options: argparse.Namespace) -> Workload:
    """Return the table of the workload. TraceError for a name that is not in it, or a value that does not fit."""
    from ...draw.workload import with_ratios

    return with_ratios({key: value for pairs in options.workload for key, value in pairs.items()})


class Tested(NamedTuple):
    """What a campaign tests and where: all of its settings that may take minutes to make.

    `seed` is None until it is known whether a campaign in `out` is continued.
    """

    fixes: Fixes
    packaged: Fixes | None
    launch: Launch
    modules: tuple[str, ...]
    changed: ChangedSource | None
    seed: int | None
    out: Path


def check_files(options: argparse.Namespace) -> None:
    """Raise TraceError for a file that cannot be used: before an environment is made, and before the first trace."""
    from ....targets.base.trace import TraceError
    from ...group.bug_history import load_bug_history
    from ...group.findings.finding_store import read_state
    from ...risk.species_counts import load_species

    if options.shard and options.shard.of > 1 and options.seed is None:
        raise TraceError("--shard needs --seed: all shards draw from one seed")
    overrides_of(options)
    workload_of(options)
    known_and_fixes(options)
    if folder := folder_of(options):
        read_state(folder)
        load_bug_history(folder)
        load_species(folder)


def engine_of(options: argparse.Namespace) -> Tested:
    """Return what the options ask for. Makes the target's environment if need be."""
    from ...group.known.fixes import apply_fixes, asked_fixes
    from .common import launch_target, output_folder

    engine, today = launch_target(options.target), datetime.date.today()
    asked = asked_fixes(options.fixes, options.target, engine.version, today)
    known = (*known_bugs(options.known, folder_of(options)), *asked)
    fixes = apply_fixes(engine, known, options.target, today)
    launch, modules = fixes.launch, tuple[str, ...]()
    if options.coverage:
        from .coverage_report import scope_and_launch

        scope, launch = scope_and_launch(options, launch)
        modules = scope.modules
    changed = None
    if options.changed_since is not None:
        from ...record.changed_lines import changed_for

        changed = changed_for(options.target, options.changed_since, engine, launch)
    seed, out = options.seed, folder_of(options)
    if out is None:
        seed = drawn_seed()
        out = output_folder(f"{options.target}-{seed}{suffix_of(options)}")
    return Tested(fixes, packaged_bugs(options, engine, known), launch, modules, changed, seed, out)


def packaged_bugs(options: argparse.Namespace, engine: Launch, known: tuple[Known, ...]) -> Fixes | None:
    """Return the known bugs by which failures are recognized; None where no time is spent on that."""
    from .common import packaged_fixes

    return packaged_fixes(options.target, engine, known) if options.triage_share and not options.cluster else None


def settings_of(options: argparse.Namespace, engine: Tested) -> Settings:
    """Return the settings that the options ask for; a campaign that did not end in this folder is continued.

    The caller keeps other campaigns out of the folder (`exclusive`): what is read here is what they left. Raises
    TraceError for a state file that cannot be used.
    """
    from ...campaign.canary import canaries
    from ...campaign.resume import unfinished
    from ...campaign.shared_state import Settings
    from ...draw.workload import differences
    from ...group.bug_history import load_bug_history
    from ...group.findings.finding_store import read_state
    from ...group.known.fixes import fixes_in
    from ...risk.species_counts import load_species
    from ...units import WHOLE
    from ...workers.machine import cores
    from .common import memory_limit

    fixes, packaged, launch, modules, changed, seed, out = engine
    overrides, workload, shard = overrides_of(options), workload_of(options), options.shard or WHOLE
    share = "" if shard.of == 1 else str(shard)
    state, history = read_state(out), load_bug_history(out)
    continued = not options.fresh and unfinished(
        state, options.target, launch.version, overrides, seed, share, options.source, differences(workload)
    )
    if state and continued:
        seed = state.seed
    elif seed is None:
        seed = drawn_seed()
    unlimited = all(limit is None for limit in (options.time, options.steps, options.traces, options.until_risk))
    workers = options.jobs or min(cores(), options.traces or cores())
    return Settings(
        target=options.target,
        launch=launch,
        seed=seed,
        out=out,
        jobs=workers,
        seconds=CAMPAIGN_SECONDS if unlimited else options.time,
        steps=options.steps,
        traces=options.traces,
        overrides=overrides,
        trace_seconds=options.timeout,
        reduce_seconds=options.reduce,
        triage_share=options.triage_share,
        memory_limit=memory_limit(options, workers),
        canaries=() if options.no_canary else canaries(seed),
        earlier=state if continued else None,
        known=fixes.acknowledged,
        fixes=fixes,
        packaged=packaged,
        last=state if state and not continued else None,
        history={key: bug for key, bug in history.items() if fixes_in(bug.version) == fixes_in(launch.version)},
        shard=shard,
        modules=modules,
        source=options.source,
        workload=workload,
        until_risk=options.until_risk,
        species=None if options.fresh else load_species(out),
        changed=changed,
        asked=asked(options, [patch.name for patch in fixes.patches]),
    )


def asked(options: argparse.Namespace, patched: Collection[str] = ()) -> list[str]:
    """Return the options that choose what runs and that a campaign's summary has nowhere else.

    A list of known bugs some of which are `patched` counts as fixes: other commands have `--fixes` for it.
    """
    from ...group.findings.finding_store import fixes_options

    given = fixes_options(options.fixes)
    if options.known:
        patches = any(entry.title in patched for entry in known_bugs(options.known, None)) if patched else False
        given += ["--fixes" if patches else "--known", str(options.known)]
    given += ["--timeout", f"{options.timeout:g}s"] if options.timeout != TRACE_SECONDS else []
    return given + (["--no-canary"] if options.no_canary else [])


def status(summary: Summary) -> int:
    """Return the exit status. A new finding counts more than an interruption, and that more than what was missed."""
    from ...exit_status import ADAPTER, CLEAN, INTERRUPTED, VACUOUS, VIOLATION
    from ...judge.target_exception import ADAPTER_ORACLES

    if found := summary.new_findings:
        return ADAPTER if all(one.oracle in ADAPTER_ORACLES for one in found) else VIOLATION
    if summary.exit_reason == "interrupted":
        return INTERRUPTED
    return VACUOUS if summary.blind or summary.vacuous or summary.outdated else CLEAN
