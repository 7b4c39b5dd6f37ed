"""`fuzz --against` and `replay --against`: run the same traces on two targets and compare."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...defaults import drawn_seed

if TYPE_CHECKING:
    from ...campaign.two_targets import Pair
    from ...draw.workload import Workload

ALONE = ("jobs", "known", "fixes", "fresh", "shard", "cluster", "events", "junit", "sarif", "until-risk")
"""Options of `fuzz` that a comparison does not have."""


def pair_of(options: argparse.Namespace) -> Pair:
    """Return the workers of --target and --against, not started yet."""
    from ...campaign.two_targets import Pair
    from .common import launch_target, memory_limit

    names = (options.target, options.against)
    return Pair(names, [launch_target(name) for name in names], options.timeout, memory_limit(options, len(names)))


def replay_against(options: argparse.Namespace, files: list[Path]) -> int:
    """Replay files on both targets; exit status 1 if any trace differs or fails, else 2 if a file or trace is refused.

    Raises TraceError or TargetError if the only trace is refused.
    """
    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...exit_status import CLEAN, USAGE, VIOLATION
    from ...judge.ranks import on_ranks
    from ...units import plural
    from .common import print_json, printer
    from .reading import read_all, unread

    check(options, ("fixes",))
    line = printer(options.json)
    read = read_all(files, line)
    results: list[dict[str, object]] = [unread(file, why) for file, why in read.items() if isinstance(why, str)]
    if len(results) < len(read):
        with pair_of(options) as pair:
            for file, trace in read.items():
                if isinstance(trace, str):
                    continue
                try:
                    violation = pair.run(on_ranks(trace, options.dp)).violation
                except (TraceError, TargetError) as error:  # of the latter, one that does not start after a crash
                    if len(read) == 1:
                        raise TraceError(f"{file}: {error}") from None
                    line(f"refused {file}: {error}")
                    results.append(unread(file, str(error)))
                    continue
                line(f"{'DIFFERS' if violation else 'alike  '} {file}")
                if violation:
                    line(f"        {violation.message}")
                results.append({"trace": str(file), "signature": violation.signature if violation else None})
    failed = sum(result["signature"] is not None for result in results)
    refused = sum("refused" in result for result in results)
    end = f", {refused} refused" if refused else ""
    line(f"{plural(len(results), 'trace')} on {options.target} and {options.against}: {failed} differ or fail{end}")
    if options.json:
        reason = "violation" if failed else "refused" if refused else "clean"
        print_json({"exit_reason": reason, "results": results})
    return VIOLATION if failed else USAGE if refused else CLEAN


def fuzz_against(options: argparse.Namespace, seconds: float, overrides: dict[str, object], workload: Workload) -> int:
    """Draw traces for the first target until a limit is met; each difference is reduced and saved once.

    A trace that one of the two refuses is counted; raises TargetError if all of them are.
    """
    from ...campaign.two_targets import Comparison, Limits, Warned
    from ...exit_status import CLEAN, INTERRUPTED, VIOLATION
    from ...group.findings.finding_store import make_folder
    from ...units import plural
    from .common import output_folder, print_json, printer
    from .signals import ending_on_signals

    check(options, ALONE)
    seed = drawn_seed() if options.seed is None else options.seed
    out = options.out or output_folder(f"{options.target}-against-{options.against}-{seed}")
    make_folder(out)
    line, pair = printer(options.json), pair_of(options)
    comparison = Comparison(pair, seed, overrides, out, options.reduce, workload)
    with ending_on_signals(pair), pair:
        line(f"comparing {' and '.join(pair.names)}, seed {seed}; findings to {out}")
        for event in comparison.run(Limits(seconds, options.time is not None, options.traces, options.steps)):
            if isinstance(event, Warned):
                line(f"warning: {event.message}")
            else:
                violation = event.violation
                line(f"{violation.signature}: {event.events} events, {event.path}")
                line(f"  {violation.message}")
    found, interrupted = comparison.found, comparison.reason == "interrupted"
    ran = f"{plural(comparison.traces, 'trace')}, {plural(comparison.steps, 'step')} on {' and '.join(pair.names)}"
    line(f"{ran}: {plural(len(found), 'kind')} of difference{', interrupted' if interrupted else ''}")
    if options.json:
        findings = [{"signature": signature, "trace": str(path)} for signature, path in found.items()]
        totals = {"traces": comparison.traces, "refused": comparison.refusals.count, "steps": comparison.steps}
        print_json({"exit_reason": comparison.reason, "seed": seed, **totals, "findings": findings})
    return VIOLATION if found else INTERRUPTED if interrupted else CLEAN


def check(options: argparse.Namespace, alone: Sequence[str]) -> None:
    """Raise TraceError for options that a comparison does not have."""
    from ....targets.base.trace import TraceError

    if given := [f"--{name}" for name in alone if getattr(options, name.replace("-", "_"))]:
        raise TraceError(f"--against compares two targets, one trace at a time: it has no {', '.join(given)}")
