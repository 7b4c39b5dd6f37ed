"""Every reproducer, on the bad code and on good code: docs/reference/reproducers.md.

    python benchmarks/repros.py                    the mutants of the built-in target
    python benchmarks/repros.py --count vllm@0.33.0
                                                   only which packaged traces of a release get a script, and why the
                                                   others do not; no script is run, and no page is written
    python benchmarks/repros.py --count sglang:sessions@0.5.23 --run --jobs 4
                                                   the same, and each script runs on the release as it is and with the
                                                   packaged fix of its cause
    python benchmarks/repros.py --count vllm@0.33.0 --run --findings out/findings
                                                   the same of a campaign's findings, and with all packaged fixes
    python benchmarks/repros.py --count vllm@0.33.0 --run --tests --only 'one-token*'
                                                   of some packaged traces, and each as a test of vLLM's own tree, too
    python benchmarks/repros.py --count vllm@0.33.0 --run --forked --write
                                                   in processes that share the imports of packages (`forked_scripts`),
                                                   and the result becomes a row of the page

Good code is the correct built-in target, and for an engine a copy of the release in which the cause is fixed.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from forked_scripts import ForkedScripts

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.findings.finding_store import read_state
from hybridfuzz.harness.group.known.fixes import BUILTIN, KNOWN_FILE, read_fixes
from hybridfuzz.harness.group.known.known_toml import load_known
from hybridfuzz.harness.tell.script import Run, ScriptVerdict, failure_of, run_script, run_test
from hybridfuzz.harness.tell.unit_test import run_in, unit_test
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patched_copy import misfits, patched
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import parse, prepare, write_attempts, write_test
from hybridfuzz.targets.base.repro import Script
from hybridfuzz.targets.base.trace import Trace

ROOT = Path(__file__).parents[1]
COUNTS = """\
| counted | date | traces | get a script | fail as promised | good | only with all fixes | causes |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
"""The head of the table of counts; a row begins with what was counted."""
PAGE = ROOT / "docs/reference/reproducers.md"
BEGIN, END = "<!-- repros.py: begin -->", "<!-- repros.py: end -->"
"""The marks around what is said of the built-in target."""


class Row(NamedTuple):
    """One reproducer."""

    target: str
    finding: str
    script: Script
    bad: ScriptVerdict
    good_name: str
    good: ScriptVerdict

    @property
    def is_good(self) -> bool:
        """True for a script that fails as promised on the bad code and passes on the good one."""
        return self.bad.promised and self.good.status == 0

    def text(self) -> str:
        """A line to print."""
        bad = "fails as promised" if self.bad.promised else f"**does not fail as promised** ({self.bad.status})"
        good = "passes" if self.good.status == 0 else f"**does not pass** ({self.good.status})"
        lines = self.script.text.count("\n")
        return (
            f"| `{self.target}` | {self.finding} | {lines} | {bad} | {self.bad.seconds:.1f} "
            f"| {good} on {self.good_name} | {self.good.seconds:.1f} |"
        )


def script_of(spec: str, trace: Trace, launch: Launch) -> list[Script]:
    """Scripts for a trace that fails."""
    with WorkerClient(spec, launch, trace_seconds=300) as worker:
        worker.start()
        history = worker.explain(trace)[1]
    if history.violation is None:
        raise SystemExit(f"a trace runs clean on {spec}: {trace.origin}")
    return list(write_attempts(spec, trace, failure_of(trace, history, history.violation)))


def tried(folder: Path, scripts: list[Script], launch: Launch, run: Run | None = None) -> tuple[Script, ScriptVerdict]:
    """The first script that does what it promises, or the last."""
    script, verdict = scripts[0], None
    for script in scripts:
        (folder / "repro.py").write_text(script.text, encoding="utf-8")
        verdict = run_script(folder / "repro.py", script, launch, run)
        if verdict.promised:
            break
    assert verdict is not None
    return script, verdict


def mutants(folder: Path) -> Iterator[Row]:
    """The built-in target."""
    for path in sorted((ROOT / "corpus").glob("*.json")):
        slug, _, signature = path.stem.partition("--")
        spec = f"hybrid:{slug}"
        launch = prepare(spec, print)
        script, bad = tried(folder, script_of(spec, load_trace(path), launch), launch)
        (folder / "repro.py").write_text(script.text.replace(f"make_factory('{slug}')", "make_factory('')"))
        yield Row(spec, signature, script, bad, "`hybrid`", run_script(folder / "repro.py", script, launch))


def summary(rows: Sequence[Row]) -> str:
    """Say in a sentence what the scripts of all mutants did."""
    lines = [row.script.text.count("\n") for row in rows]
    seconds = [took for row in rows for took in (row.bad.seconds, row.good.seconds)]
    fail, good = sum(row.bad.promised for row in rows), sum(row.is_good for row in rows)
    return (
        f"Of the {len(rows)} traces of mutants of the built-in target {fail} have a script that fails as promised,\n"
        f"and {good} of these scripts pass on `hybrid`. They have {min(lines)} to {max(lines)} lines and take\n"
        f"{min(seconds):.1f} to {max(seconds):.1f} s."
    )


def write_summary(rows: Sequence[Row]) -> None:
    """Write to the page what the scripts of all mutants did."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{summary(rows)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def write_count(counted: str, numbers: Sequence[object]) -> None:
    """Write a row of the page's table of counts, in place of an earlier one."""
    before, head, rest = PAGE.read_text(encoding="utf-8").partition(COUNTS)
    old, gap, after = rest.partition("\n\n")
    row = " | ".join(["", counted, f"{datetime.date.today()}", *map(str, numbers), ""]).strip()
    rows = [line for line in old.splitlines() if not line.startswith(f"| {counted} |")]
    PAGE.write_text("".join([before, head, "\n".join([*rows, row]), gap, after]), encoding="utf-8")


def counted_of(spec: str, findings: Path | None) -> str:
    """Return what a row of the table of counts is about."""
    summary = read_state(findings.parent) if findings else None
    if summary is None:
        return f"`{spec}`, packaged traces"
    return f"`{spec}`, findings of {summary.seconds / 60:.0f} minutes, seed {summary.seed}"


def packaged_traces(spec: str, only: str = "*", corpus: Path = ROOT / "corpus") -> dict[str, Path]:
    """Return the packaged traces of a release by the names that entries of known.toml have for them: those made with
    it, and those of earlier releases whose entries list it.

    Those of a variant with a folder of its own (`llamacpp:server`) are in that folder alone.
    """
    target = parse(spec)
    folder = corpus / target.name
    own = folder / target.variant if target.variant else folder
    place = own if own.is_dir() else folder
    entries = load_known(folder / KNOWN_FILE) if (folder / KNOWN_FILE).exists() else ()
    listed = {folder / name for entry in entries if target.version in entry.releases for name in entry.traces}
    paths = {*place.glob(f"{target.version}--*.json"), *(path for path in listed if path.parent == place)}
    chosen = sorted(path for path in paths if fnmatchcase(path.stem.partition("--")[2], only))
    return {path.relative_to(folder).as_posix(): path for path in chosen}


def count(
    spec: str, paths: Mapping[str, Path], folder: Path | None, jobs: int, as_tests: bool, forked: bool
) -> list[object]:
    """Print which traces that fail on a release get a script, and how many; with a folder, run the scripts there.
    Return the numbers of a row."""
    launch, scripts, traces = prepare(spec, print), dict[str, Written](), 0
    with WorkerClient(spec, launch, trace_seconds=300) as worker:
        worker.start()
        for name, path in paths.items():
            trace = load_trace(path)
            history = worker.explain(trace)[1]
            if history.violation is None:
                print(f"{path.stem}: runs clean on {spec}", flush=True)
                continue
            traces += 1
            try:
                failure = failure_of(trace, history, history.violation)
                scripts[name] = Written(trace, list(write_attempts(spec, trace, failure)))
            except TargetError as error:
                print(f"{path.stem}: {error}", flush=True)
            else:
                print(f"{path.stem}: {scripts[name].scripts[0].text.count(chr(10))} lines", flush=True)
    print(f"{len(scripts)} of {traces} traces that fail get a script")
    if folder:
        with ForkedScripts(launch) as server, ThreadPoolExecutor(jobs) as pool:
            bench = Bench(spec, launch, folder, as_tests, server if forked else None)
            ran = dict(zip(scripts, pool.map(lambda name: bench.run(name, scripts[name]), scripts), strict=True))
        good = sum(one.is_good for one in ran.values())
        failing = sum(one.fails for one in ran.values())
        print(f"{failing} fail as promised, {good} of these pass on a fixed tree, or have none")
        late = sum(one.is_good and one.needs_all for one in ran.values())
        print(f"{late} of the good ones pass only with all fixes")
        print(f"{good} of {traces} ({good / max(traces, 1):.0%}) of the traces that fail have such a script")
        causes = {entry.title: any(ran[one].is_good for one in entry.traces if one in ran)
                  for entry in bench.entries if set(entry.traces) & paths.keys()}  # fmt: skip
        if causes:
            lacking = [name for name, is_shown in causes.items() if not is_shown]
            print(f"{sum(causes.values())} of {len(causes)} causes; without: {', '.join(lacking) or 'none'}")
        shown = f"{sum(causes.values())} of {len(causes)}" if causes else ""
        return [traces, len(scripts), failing, good, late, shown]
    return [traces, len(scripts), "", "", "", ""]


class Written(NamedTuple):
    """The scripts of a trace."""

    trace: Trace
    scripts: list[Script]


class Ran(NamedTuple):
    """What the scripts of a trace did. `passes`: on the fixed tree, None without one. `needs_all`: it passes with all
    fixes, and not with that of its cause, or has none."""

    fails: bool
    passes: bool | None
    needs_all: bool = False

    @property
    def is_good(self) -> bool:
        """True for a script that fails as promised, and passes on the fixed tree if there is one."""
        return self.fails and self.passes is not False


class Bench:
    """Runs scripts on a release, and on copies with the fixes that are packaged for it."""

    def __init__(self, spec: str, launch: Launch, folder: Path, as_tests: bool, run: Run | None) -> None:
        """`run` starts scripts in another way than as new processes."""
        self.spec, self.launch, self.folder, self.as_tests, self.start = spec, launch, folder, as_tests, run
        packaged = read_fixes(BUILTIN, spec)
        self.entries = [entry for entry in packaged if launch.version in entry.releases]
        patches = {entry.title: entry.read_patch() for entry in self.entries or packaged if entry.patch}
        unfit = misfits(launch, list(patches.values()))  # those of another release
        self.patches = {title: patch for title, patch in patches.items() if patch.name not in unfit}

    def run(self, name: str, written: Written) -> Ran:
        """Run and print one: with the fix that is packaged for the trace. If there is none, or its trace meets another
        cause behind it, with all of them."""
        place = self.folder / Path(name).stem
        place.mkdir()
        script, bad = tried(place, written.scripts, self.launch, self.start)
        took = f"in {bad.seconds:.0f} s, {len(written.scripts)} to try"
        fails = f"fails as promised ({script.promise}; {took})"
        other = f"fails elsewhere, {bad.elsewhere}" if bad.elsewhere else "does not fail"
        found = [fails if bad.promised else f"{other} ({took}):\n{bad.tail}\n"]
        assert "hybridfuzz" not in script.text, "a script of an engine needs nothing of ours"
        own = [self.patches[entry.title] for entry in self.entries if entry.patch and name in entry.traces][:1]
        good, fixed, needs_all = None, None, False
        every = list(self.patches.values())
        for fixes, which in (own, "the fix"), (every, "all fixes"):
            if fixes and (good is None or good.status):
                fixed = patched(self.launch, fixes)
                good = run_script(place / "repro.py", script, fixed, self.start)
                needs_all = fixes is every and good.status == 0
                found.append(f"passes with {which}" if good.status == 0 else f"fails with {which}:\n{good.tail}\n")
        if self.as_tests:
            found += self._as_tests(written.trace, script, place, fixed)
        print(f"{Path(name).stem}: {', '.join(found)}", flush=True)
        return Ran(bad.promised, good.status == 0 if good else None, needs_all)

    def _as_tests(self, trace: Trace, script: Script, place: Path, fixed: Launch | None) -> Iterator[str]:
        """Run a script as a test of the engine's own tree, and the test of a part of the engine, if there is one."""
        test = write_test(self.spec, trace, script, "scenario")
        red = run_in(place, test, script, self.launch)
        yield "its test fails on the release" if red.promised else f"its test does not fail:\n{red.tail}\n"
        green = run_test(place, test, script, fixed) if fixed else None
        if green:
            yield "and passes with the fix" if green.status == 0 else f"and does not pass with the fix:\n{green.tail}\n"
        part = unit_test(self.spec, trace, script, script.promise, "part", place, self.launch, fixed)
        if part:
            lines = part[0].files[part[0].path].count("\n")
            yield f"so does a test of the {part[0].part} alone ({lines} lines)"
        else:
            yield "no test of a part of the engine"


def main() -> int:
    """Run, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", metavar="TARGET", help="only count the packaged traces of a release with a script")
    parser.add_argument("--run", action="store_true", help="with --count: run the scripts, too")
    parser.add_argument("--tests", action="store_true", help="with --run: tests of the engine's own style, too")
    parser.add_argument("--only", default="*", metavar="GLOB", help="with --count: traces with such names")
    parser.add_argument("--findings", type=Path, metavar="DIR", help="with --count: traces of a campaign's findings")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="with --run: scripts that run at once")
    parser.add_argument("--forked", action="store_true", help="with --run: processes that share imports of packages")
    parser.add_argument("--write", action="store_true", help="with --count: write the result to the page")
    options = parser.parse_args()
    if options.forked and options.jobs > 1:
        parser.error("--forked runs one script at a time: leave --jobs out")
    if options.count:
        if options.findings:
            paths = {path.name: path for path in sorted(options.findings.glob(f"{options.only}.json"))}
        else:
            paths = packaged_traces(options.count, options.only)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) if options.run else None
            numbers = count(options.count, paths, folder, options.jobs, options.tests, options.forked)
        if options.write:
            write_count(counted_of(options.count, options.findings), numbers)
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in mutants(Path(folder)):
            rows.append(row)
            print(row.text(), flush=True)
            if not row.is_good:
                print(row.bad.tail, row.good.tail, sep="\n", flush=True)
    write_summary(rows)
    return int(not all(row.is_good for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
