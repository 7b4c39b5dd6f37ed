"""hybridfuzz fuzz: run random traces against a target."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..campaign.state import Settings
    from ..events import Summary
    from ..findings.triage import Bug

EXAMPLES = """\
The same seed gives the same traces. Findings are on disk as soon as they are made; a campaign that was
killed or interrupted goes on where it was when the same command (with -o or --seed) is given again.
Every campaign first plants a known bug, the canary: if that is not found, it ends as "blind".
Exit status: 0 clean, 1 violation found, 2 usage or environment, 3 vacuous or blind, 4 internal error.
example: hybridfuzz fuzz --target vllm@0.33.0 --time 5m --config mamba_cache_mode=align
"""
DEFAULT_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from ..units import count, duration, settings
    from .common import add_ranks, add_target, jobs

    add_target(parser)
    add_ranks(parser)
    parser.add_argument(
        "--time",
        type=duration,
        metavar="TIME",
        help="budget: 90s, 5m, 2h (60s if no limit is given)",
    )
    parser.add_argument("--steps", type=count, metavar="N", help="stop after N engine steps: 500, 10k, 1M")
    parser.add_argument("--traces", type=count, metavar="N", help="stop after N traces")
    parser.add_argument("--seed", type=int, metavar="S", help="of the traces (random, and printed)")
    parser.add_argument("--jobs", "-j", type=jobs, metavar="N", help="worker processes (auto: one for each core)")
    parser.add_argument(
        "--config",
        type=settings,
        action="append",
        default=[],
        metavar="K=V,...",
        help="fix what is drawn otherwise",
    )
    parser.add_argument(
        "--reduce",
        type=duration,
        default=20.0,
        metavar="TIME",
        help="budget for reducing each finding (20s)",
    )
    parser.add_argument("--against", metavar="T", help="a second target that must show the same")
    parser.add_argument("--no-canary", action="store_true", help="do not test the alarm with a planted bug")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="where findings go (a folder for target and seed)",
    )
    parser.add_argument(
        "--known", type=Path, metavar="FILE", help="acknowledged bugs, no reason to fail (DIR/known.toml)"
    )
    parser.add_argument("--fresh", action="store_true", help="do not continue a campaign that was cut off")
    parser.add_argument("--events", type=Path, metavar="FILE", help="what happens, as it happens: a line of JSON each")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="end with a JUnit file")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Run a campaign, show it, and bring the book of bugs up to date."""
    import msgspec

    from ..campaign.campaign import Campaign
    from ..campaign.finish import check_old_bugs, known_bugs, leave_report, record_bugs
    from ..campaign.resume import load_state
    from ..events import CampaignEnded
    from ..outputs.console import open_console
    from ..outputs.junit import write_junit
    from ..outputs.ndjson import EventLog
    from ..outputs.rates import Rates
    from .common import ending_on_signals, print_json, printer

    if options.against:
        from .against import fuzz_against

        return fuzz_against(options, options.time or DEFAULT_SECONDS, overrides_of(options))
    known_bugs(options.known, options.out or Path())  # a broken file is said before the campaign
    settings = settings_of(options)
    if settings.earlier is None and (cut_off := load_state(settings.out)):
        record_bugs(settings.out, cut_off, ())  # it had no time to do so
    campaign = Campaign(settings)
    summary, rates = None, Rates()
    with (
        ending_on_signals(campaign),
        EventLog(options.events, append=settings.earlier is not None) if options.events else nullcontext() as log,
        open_console(on_stderr=options.json) as console,
        closing(campaign.run()) as records,
    ):
        for record in records:
            console.show(record)
            rates.take(record)
            if log:
                log.show(record)
            if isinstance(record, CampaignEnded):
                summary = record.summary
    assert summary is not None
    known, line = known_bugs(options.known, settings.out), printer(options.json)
    bugs = record_bugs(settings.out, summary, known)
    say_states([*bugs, *check_old_bugs(settings.out, summary, settings.launch, known, settings.trace_seconds)], line)
    if options.junit:
        write_junit(options.junit, summary, {bug.signature: bug.reason for bug in bugs if bug.state == "known"})
    line(f"report: {leave_report(settings.out, rates)}")
    if options.json:
        print_json({**as_json(summary), "bugs": msgspec.to_builtins(bugs)})
    return status(summary, bugs)


def overrides_of(options: argparse.Namespace) -> dict[str, object]:
    """Fixed fields and options of every configuration. TraceError for a value that is not possible."""
    from ..generate.overrides import RANKS, converted
    from ..lockstep.ranks import checked

    overrides = {key: value for pairs in options.config for key, value in pairs.items()}
    converted(overrides)
    return overrides if options.dp == 1 else {**overrides, RANKS: checked(str(options.dp))}


def settings_of(options: argparse.Namespace) -> Settings:
    """What the options ask for; a campaign that did not end in this folder is continued.

    Makes the target's environment if need be.
    """
    from ..campaign.resume import unfinished
    from ..campaign.state import Settings
    from ..detection.canary import canaries
    from .common import cores, launch_target, memory_limit, output_folder

    launch = launch_target(options.target)
    overrides = overrides_of(options)
    seed, earlier = options.seed, None
    if not options.fresh and (options.out or seed is not None):
        folder = options.out or output_folder(f"{options.target}-{seed}")
        earlier = unfinished(folder, options.target, launch.version, overrides, seed)
    if earlier:
        seed = earlier.seed
    elif seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    unlimited = options.time is None and options.steps is None and options.traces is None
    workers = options.jobs or min(cores(), options.traces or cores())
    return Settings(
        target=options.target,
        launch=launch,
        seed=seed,
        out=options.out or output_folder(f"{options.target}-{seed}"),
        jobs=workers,
        seconds=DEFAULT_SECONDS if unlimited else options.time,
        steps=options.steps,
        traces=options.traces,
        overrides=overrides,
        trace_seconds=options.timeout,
        reduce_seconds=options.reduce,
        memory_limit=memory_limit(options, workers),
        canaries=() if options.no_canary else canaries(seed),
        earlier=earlier,
    )


def say_states(bugs: Sequence[Bug], line: Callable[[str], None]) -> None:
    """What is no news, and whether anything is."""
    from ..findings.triage import is_new

    for bug in bugs:
        if bug.state == "known":
            line(f"known: {bug.signature} ({bug.reason})")
        elif bug.state == "flaky":
            line(f"flaky: {bug.signature} showed again in {bug.rate} runs")
        elif bug.state == "fixed":
            line(f"fixed: {bug.signature}: its trace runs clean now")
    met = [bug for bug in bugs if bug.state != "fixed"]
    if met and not any(map(is_new, met)):
        line("no news: all findings are known")


def status(summary: Summary, bugs: Sequence[Bug]) -> int:
    """A violation that is news counts more than a blind alarm, and that more than what was not exercised."""
    from ..exit_status import CLEAN, VACUOUS, VIOLATION
    from ..findings.triage import is_new

    if any(map(is_new, bugs)):
        return VIOLATION
    return VACUOUS if summary.blind or summary.never_exercised or summary.never_reached else CLEAN


def as_json(summary: Summary) -> dict[str, object]:
    """What scripts may rely on; everything of the summary, and the rate."""
    import msgspec

    return {**msgspec.to_builtins(summary), "steps_per_second": round(summary.steps_per_second, 1)}
