"""Proof that a target can see: a release with one line broken at a time, until an oracle says so.

Each break runs on random traces of a fixed seed. A release has bugs of its own, so a violation counts only if the
unbroken release does not fail on the very same trace just there and then. A run over all breaks writes the page.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.registry import prepare


@dataclass(frozen=True)
class Break:
    """One broken line. `config` makes it reachable; `why` explains one that nothing sees."""

    slug: str
    file: str
    config: Mapping[str, object]
    what: str
    old: str
    new: str
    why: str = ""


@dataclass(frozen=True)
class Drill:
    """All breaks of one release. `package` is the folder in the unpacked wheel."""

    target: str
    title: str
    package: str
    page: Path
    breaks: Sequence[Break]
    seed: int = 11
    steps_max: int = 6000


TRACE_SECONDS = 300.0
"""A trace takes a second; a busy machine must not make it look like a hang."""


class Result(msgspec.Struct, frozen=True):
    """What happened to one break: `signature` is empty if nothing was seen; `known` violations are of the release."""

    slug: str
    steps: int
    traces: int
    known: int
    seconds: float
    signature: str = ""
    message: str = ""


def edited(drill: Drill, tree: Path, one: Break) -> str:
    """The broken file's text."""
    text = (tree / drill.package / one.file).read_text(encoding="utf-8")
    found = text.count(one.old)
    if found != 1:
        raise SystemExit(f"{one.slug}: the old text occurs {found} times in {one.file}, not once: {one.old!r}")
    return text.replace(one.old, one.new)


def overlay(tree: Path, copy: Path, inside: Path) -> None:
    """`copy` looks like `tree`: links, except on the way to the file `inside`, which is left out."""
    copy.mkdir()
    first, *rest = inside.parts
    for entry in tree.iterdir():
        if entry.name != first:
            (copy / entry.name).symlink_to(entry)
    if rest:
        overlay(tree / first, copy / first, Path(*rest))


def broken_launch(drill: Drill, launch: Launch, one: Break, folder: Path) -> Launch:
    """How to start a worker on a tree with this break, made in `folder`."""
    ours, _, tree = launch.env["PYTHONPATH"].rpartition(":")
    text = edited(drill, Path(tree), one)
    inside = Path(drill.package) / one.file
    overlay(Path(tree), folder, inside)
    (folder / inside).write_text(text, encoding="utf-8")
    # Byte code is linked as well: nothing new may be written there.
    env = {**launch.env, "PYTHONPATH": f"{ours}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Launch(launch.python, env, f"{launch.version}, {one.slug}")


def hunt(drill: Drill, one: Break, worker: WorkerClient, reference: WorkerClient) -> Result:
    """Random traces until something is seen that the unbroken release does not show there, or for `steps_max` steps:
    what is found does not depend on how fast a machine is."""
    start, steps, traces, known = time.monotonic(), 0, 0, 0
    for ran in worker.fuzz(Fuzz(drill.seed, 0, 100_000, dict(one.config))):
        steps, traces = steps + ran.outcome.steps, traces + 1
        violation, seconds = ran.outcome.violation, time.monotonic() - start
        if violation and ran.trace:
            seen = reference.run(ran.trace).violation
            if seen is None or (seen.signature != violation.signature and seen.event > violation.event):
                return Result(one.slug, steps, traces, known, seconds, violation.signature, violation.message)
            known += 1
        if steps >= drill.steps_max:
            break
    return Result(one.slug, steps, traces, known, time.monotonic() - start)


def hunt_all(drill: Drill, wanted: Sequence[Break], launch: Launch, reference: WorkerClient) -> Iterator[Result]:
    """One after another; the next worker imports its engine meanwhile."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:

        def start(one: Break) -> WorkerClient:
            broken = broken_launch(drill, launch, one, Path(folder) / one.slug)
            worker = WorkerClient(drill.target, broken, TRACE_SECONDS)
            worker.start()
            return worker

        coming = [pool.submit(start, one) for one in wanted[:1]]
        for index, one in enumerate(wanted):
            with coming.pop().result() as worker:
                coming += [pool.submit(start, later) for later in wanted[index + 1 : index + 2]]
                yield hunt(drill, one, worker, reference)


def cell(text: str) -> str:
    """Text for a cell of a Markdown table; files are named from the package on."""
    return re.sub(r"\S+/(?=(vllm|sglang)/)", "", " ".join(text.split())).replace("|", "\\|")


def page(drill: Drill, results: dict[str, Result]) -> str:
    """Return a page with a row for each break; docs/reference has what it comes to."""
    done = [(one, results[one.slug]) for one in drill.breaks if one.slug in results]
    caught = [(one, result) for one, result in done if result.signature]
    lines = [
        f"# {drill.title}, broken on purpose",
        "",
        f"{len(caught)} of {len(done)} one-line breaks are caught. `python benchmarks/{drill.package}_breaks.py` makes",
        f"each and fuzzes (seed {drill.seed}) until an oracle reports it, for {drill.steps_max:,} steps at most.",
        "A violation counts only if the unbroken release does not fail on the very same trace at or before that event;",
        "steps and traces include those that showed only a bug of the release itself.",
        "",
        "| break | file | what | caught by | steps | traces | message |",
        "| --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for one, result in caught:
        lines.append(
            f"| `{one.slug}` | `{one.file}` | {cell(one.what)} | {result.signature} | {result.steps:,} "
            f"| {result.traces} | {cell(result.message)} |"
        )
    lines += ["", "## Not caught, and why", ""]
    for one, result in done:
        if not result.signature:
            lines.append(f"- `{one.slug}` (`{one.file}`; {result.steps:,} steps, {result.traces} traces): {one.what}.")
            lines.append(f"  {one.why or 'Not explained yet.'}")
    return "\n".join(lines) + "\n"


def chosen(drill: Drill, slugs: str, results: dict[str, Result]) -> Sequence[Break]:
    """The breaks to run: those named, else all that have no result yet, the doubtful ones last."""
    if not slugs:
        return sorted((one for one in drill.breaks if one.slug not in results), key=lambda one: bool(one.why))
    known = {one.slug: one for one in drill.breaks}
    if unknown := [slug for slug in slugs.split(",") if slug not in known]:
        raise SystemExit(f"unknown breaks: {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[slug] for slug in slugs.split(",")]


def main(drill: Drill, *switches: str) -> None:
    """Run the breaks, one after another, and write the page. `switches` have chosen the drill."""
    parser = argparse.ArgumentParser(description=f"{drill.title}, broken one line at a time")
    parser.add_argument("--only", default="", metavar="SLUG,...", help="only these breaks; the page stays as it is")
    parser.add_argument("--results", type=Path, help="keep results in this file; without --only, skip what is in it")
    for switch in switches:
        parser.add_argument(switch, action="store_true", help="the breaks of this group")
    arguments = parser.parse_args()
    kept: Path | None = arguments.results
    saved = msgspec.json.decode(kept.read_bytes(), type=list[Result]) if kept and kept.exists() else []
    results = {result.slug: result for result in saved}
    launch = prepare(drill.target, print)
    wanted = chosen(drill, arguments.only, results)
    for one in wanted:
        edited(drill, Path(launch.env["PYTHONPATH"].rpartition(":")[2]), one)
    with WorkerClient(drill.target, launch, TRACE_SECONDS) as reference:
        if wanted:
            reference.start()
        for result in hunt_all(drill, wanted, launch, reference):
            results[result.slug] = result
            seen = f"{result.signature or 'NOT CAUGHT':40} {result.message}"
            figures = f"{result.steps:6} {result.traces:5} {result.known:5} {result.seconds:6.0f} s"
            print(f"{result.slug:26} {figures}  {seen}", flush=True)
            if kept:
                kept.write_bytes(msgspec.json.encode(list(results.values())))
    if not arguments.only:
        drill.page.parent.mkdir(exist_ok=True)
        drill.page.write_text(page(drill, results), encoding="utf-8")
