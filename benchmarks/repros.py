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

Good code is the correct built-in target, and for an engine a copy of the release in which the cause is fixed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from hybridfuzz.harness.draw.files import load_trace
from hybridfuzz.harness.group.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.tell.script import ScriptVerdict, failure_of, run_script
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import parse, prepare, write_scripts
from hybridfuzz.targets.base.repro import Script
from hybridfuzz.targets.base.trace import Trace

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/reproducers.md"
HEAD = """\
# Reproducers

Each was made by `hybridfuzz repro` from a trace of the corpus and run: on the code with the bug, where it has to fail
as promised, and on good code, where it has to pass. Lines are those of the script. Seconds are wall time on 2 shared
cores, imports included. These are the scripts of the built-in target; `python benchmarks/repros.py --count vllm@0.33.0
--run` makes and runs those of an engine's packaged traces, and with `--findings` those of a campaign.

Written by `python benchmarks/repros.py`.

| target | finding | lines | bad code | seconds | good code | seconds |
| --- | --- | ---: | --- | ---: | --- | ---: |
"""


class Row(NamedTuple):
    """One reproducer."""

    target: str
    finding: str
    script: Script
    bad: ScriptVerdict
    good_name: str
    good: ScriptVerdict

    def text(self) -> str:
        """A line of the table."""
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
    return list(write_scripts(spec, trace, failure_of(trace, history, history.violation)))


def tried(folder: Path, scripts: list[Script], launch: Launch) -> tuple[Script, ScriptVerdict]:
    """The first script that does what it promises, or the last."""
    script, verdict = scripts[0], None
    for script in scripts:
        (folder / "repro.py").write_text(script.text, encoding="utf-8")
        verdict = run_script(folder / "repro.py", script, launch)
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


def count(spec: str, paths: list[Path], folder: Path | None, jobs: int) -> int:
    """Print which traces that fail on a release get a script, and how many; with a folder, run the scripts there."""
    launch, scripts, traces = prepare(spec, print), dict[str, list[Script]](), 0
    with WorkerClient(spec, launch, trace_seconds=300) as worker:
        worker.start()
        for path in paths:
            trace = load_trace(path)
            history = worker.explain(trace)[1]
            traces += 1
            if history.violation is None:
                print(f"{path.stem}: runs clean on {spec}", flush=True)
                continue
            try:
                failure = failure_of(trace, history, history.violation)
                scripts[path.name] = list(write_scripts(spec, trace, failure))
            except TargetError as error:
                print(f"{path.stem}: {error}", flush=True)
            else:
                print(f"{path.stem}: {scripts[path.name][0].text.count(chr(10))} lines", flush=True)
    print(f"{len(scripts)} of {traces} traces get a script")
    if folder:
        with ThreadPoolExecutor(jobs) as pool:
            ran = list(pool.map(lambda name: run_both(spec, launch, folder, name, scripts[name]), scripts))
        fails, fixed, passes = (sum(each) for each in zip(*ran, strict=True))
        print(f"{fails} fail as promised; {passes} of {fixed} whose cause has a packaged fix pass with it")
    return 0


def run_both(spec: str, launch: Launch, folder: Path, name: str, scripts: list[Script]) -> tuple[bool, bool, bool]:
    """Run the scripts of a trace on the release, and with its packaged fix or, if no fix is for it, with all of them;
    print and return (it fails as promised, there is a fix, it passes with the fix)."""
    place = folder / Path(name).stem
    place.mkdir()
    script, bad = tried(place, scripts, launch)
    found = [f"fails as promised ({script.promise})" if bad.promised else f"does not fail as promised:\n{bad.tail}\n"]
    entries = [entry for entry in read_fixes(BUILTIN, spec) if entry.patch and launch.version in entry.releases]
    fixes = [entry.read_patch() for entry in entries if name in entry.traces][:1]
    fixes = fixes or [entry.read_patch() for entry in entries]
    good = run_script(place / "repro.py", script, patched(launch, fixes)) if fixes else None
    if good:
        found.append("passes with the fix" if good.status == 0 else f"fails with the fix:\n{good.tail}\n")
    print(f"{Path(name).stem}: {', '.join(found)}", flush=True)
    return bad.promised, good is not None, good is not None and good.status == 0


def main() -> int:
    """Run, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", metavar="TARGET", help="only count the packaged traces of a release with a script")
    parser.add_argument("--run", action="store_true", help="with --count: run the scripts, too")
    parser.add_argument("--findings", type=Path, metavar="DIR", help="with --count: traces of a campaign's findings")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="with --run: scripts that run at once")
    options = parser.parse_args()
    if options.count:
        target = parse(options.count)
        packaged = (ROOT / "corpus" / target.name).glob(f"{target.version}--*.json")
        paths = sorted(options.findings.glob("*.json") if options.findings else packaged)
        with tempfile.TemporaryDirectory() as place:
            return count(options.count, paths, Path(place) if options.run else None, options.jobs)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in mutants(Path(folder)):
            rows.append(row)
            print(row.text(), flush=True)
            if not (row.bad.promised and row.good.status == 0):
                print(row.bad.tail, row.good.tail, sep="\n", flush=True)
    PAGE.write_text(HEAD + "\n".join(row.text() for row in rows) + "\n", encoding="utf-8")
    return int(not all(row.bad.promised and row.good.status == 0 for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
