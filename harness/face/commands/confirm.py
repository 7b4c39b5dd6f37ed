"""hybridfuzz confirm: run a finding on a real model, with and without a fix."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.confirmation import Shown
    from ....targets.base.launch import Launch
    from ....targets.base.trace import Trace

EXAMPLES = """\
TRACE is a failing trace of the same target without a device. Its lengths are
scaled to the block sizes of real models; of the forms that then still fail
the first are run with every kind of model and runner that the trace leaves
open. With -o a section of DIR/REPORT.md is written.
Exit status: 0 a real model fails, and with --patch none fails any more;
1 it fails with --patch, too; 2 usage, environment, or no real model fails.
example: hybridfuzz confirm failing.json --target vllm@0.33.0 --device cuda
"""
SECTION = "## On a real model\n"
REPORT = "REPORT.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_target

    parser.add_argument("trace", type=Path, metavar="TRACE", help="a trace that fails; reduce it first")
    add_target(parser)
    parser.add_argument(
        "--patch", type=Path, action="append", default=[], metavar="FILE", help="a fix, as a unified diff; repeatable"
    )
    parser.add_argument("--forms", type=int, default=2, metavar="N", help="scaled forms to run (default: 2)")
    parser.add_argument(
        "--until-met",
        action="store_true",
        help="end with the first configuration that fails; --patch runs only this one",
    )
    parser.add_argument("--hours", type=float, default=1.0, metavar="H", help="time limit on the device (default: 1)")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="folder of the report")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Scale the trace, run it, report."""
    import msgspec

    from ....targets.base.patched_copy import patched
    from ....targets.base.protocol import TargetError
    from ....targets.base.registry import confirmation, parse
    from ...draw.trace_files import load_trace
    from ...exit_status import CLEAN, USAGE, VIOLATION
    from ...group.known.known_toml import patch_from
    from .common import launch_target, print_json, printer

    line = printer(options.json)
    trace, spec, device = load_trace(options.trace), options.target, parse(options.target).device
    engine = confirmation(spec)
    if not device:
        raise TargetError(f"target {spec!r}: name a device with --device")
    patches = [patch_from(path, path.name) for path in options.patch]
    launch = launch_target(spec)
    fixed = patched(launch, patches)
    on_cpu = argparse.Namespace(**{**vars(options), "target": spec.removesuffix(f"@{device}")})
    forms = failing_forms(on_cpu, list(engine.forms(trace)), trace, line)
    choices = engine.choices(trace)
    stock = run_on_device(spec, launch, forms, choices, options.hours, until_met=options.until_met)
    if options.until_met and stock and stock[-1].signature:
        forms, choices = [forms[stock[-1].trace]], [choices[(len(stock) - 1) % len(choices)]]
    repaired = run_on_device(spec, fixed, forms, choices, options.hours) if options.patch else []
    for one in stock:
        line(f"{one.setup}: {one.refused or one.message or 'passes'}")
        if one.signature and one.request:
            line(f"    {one.request} alone {' '.join(map(str, one.alone))}")
            for fill, tokens in one.batch.items():
                line(f"    batch, unused memory {fill:7} {' '.join(map(str, tokens))}")
    for one in repaired:
        line(f"{one.setup}, patched: {one.refused or one.message or 'passes'}")
    met, left = [one for one in stock if one.signature], [one for one in repaired if one.signature]
    if options.out:
        write_section(options.out, launch.version, stock, repaired, [path.name for path in options.patch])
        line(f"wrote {options.out / REPORT}")
    reason = "not-met" if not met else "still-fails" if left else "confirmed"
    line(
        {"not-met": "no real model fails", "still-fails": "it fails with the patch, too", "confirmed": "confirmed"}[
            reason
        ]
    )
    if options.json:
        shown = {"stock": msgspec.to_builtins(stock), "patched": msgspec.to_builtins(repaired)}
        print_json({"exit_reason": reason, **shown})
    return {"not-met": USAGE, "still-fails": VIOLATION, "confirmed": CLEAN}[reason]


def failing_forms(
    options: argparse.Namespace, forms: Sequence[Trace], trace: Trace, line: Callable[[str], None]
) -> Sequence[Trace]:
    """Return the first forms that fail like the trace, on the same target without a device. All are kept if the trace
    has the right sizes already, or if that target cannot run here."""
    from ....targets.base.protocol import TargetError
    from ...judge.engines import RefusedError
    from .common import open_worker, runs_clean

    if forms == [trace]:
        return forms
    try:
        with open_worker(options) as worker:
            worker.start()
            wanted = worker.run(trace).violation
            if wanted is None:
                raise runs_clean(options, "confirm")
            failing: list[Trace] = []
            for form in forms:
                violation = worker.run(form).violation
                if violation and violation.signature == wanted.signature:
                    failing.append(form)
                if len(failing) == options.forms:
                    break
    except (TargetError, RefusedError) as error:
        line(f"the scaled forms are not checked on a CPU: {error}")
        return forms[: options.forms]
    line(f"{wanted.signature}: {len(failing) or 'none'} of the scaled forms tried fail like the trace")
    return failing or forms[: options.forms]


def run_on_device(
    spec: str, launch: Launch, traces: Sequence[Trace], choices: Sequence[Mapping[str, str]], hours: float, *,
    until_met: bool = False,
) -> Sequence[Shown]:  # fmt: skip
    """Run traces in a process of their own, up to the first that fails with `until_met`. TargetError if it fails."""
    import msgspec

    from ....targets.base.confirmation import Shown, Wanted
    from ....targets.base.protocol import TargetError
    from ...quoting import clean
    from ...workers.worker_environment import Home
    from ...workers.worker_process import variables_for

    try:
        with Home() as home:
            results = home / "shown.ndjson"
            ended = subprocess.run(
                [launch.python, "-m", "hybridfuzz.harness.tell.on_device", str(results)],
                input=msgspec.json.encode(Wanted(spec, traces, choices, until_met)),
                env=variables_for(launch, home), capture_output=True, timeout=hours * 3600, check=False,
            )  # fmt: skip
            if ended.returncode or not results.exists():
                tail = clean(ended.stderr.decode(errors="replace")[-2000:], 2000)
                raise TargetError(f"{spec}: the process that runs the model ended with {ended.returncode}: {tail}")
            return [msgspec.json.decode(text, type=Shown) for text in results.read_bytes().splitlines()]
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"{spec}: the process that runs the model did not end within {hours:g} h") from error


def write_section(
    folder: Path, versions: str, stock: Sequence[Shown], fixed: Sequence[Shown], patches: Sequence[str]
) -> None:
    """Write the section to the folder's REPORT.md, in place of an earlier one. Raises OutputError."""
    from ...draw.trace_files import write_atomically
    from ...group.findings.finding_store import OutputError
    from ...tell.on_device import paragraphs

    path = folder / REPORT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        head, found, rest = before.partition(SECTION)
        after = f"## {rest.partition(chr(10) + '## ')[2]}" if found and "\n## " in rest else ""
        section = "\n".join(paragraphs(versions, stock, fixed, patches))
        text = f"{head.rstrip()}\n\n{section}\n\n{after}".strip() + "\n"
        write_atomically(path, text.encode())
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}; choose another with -o") from error
