"""Each packaged fix alone: does it make a trace fail that the unpatched release passes?

    python benchmarks/fixes_alone.py --target vllm@0.33.0 --seed 77 --steps 100000 --config runner=v1 -o out

A trace is *worse* with a fix if it fails with it and not without, or at an earlier event. That has one of two reasons:
the fix unmasks another known cause, or it is wrong. So a worse trace also runs with all fixes together, and then
with the fix and each other one in turn until one silences it up to the event at which it failed: that one names the
unmasked cause. Exit status 1 if nothing silences a worse trace, not even all fixes together, or if a trace of `--check`
runs differently.

Most traces never come to the place that a fix changes, and those need no second run: the unpatched release is
*probed*, that is, a probe stands before each statement that a fix removes and around each place where it adds one. A
trace that sets off no probe of a fix runs alike with it. A fix that changes a class or a module, other than by a name
that is new in the whole package, is taken to be met by every trace.

Even where a trace meets a fix, the fix seldom changes anything. So fixes run in groups: a trace in which everything
that is observed is the same with a group of fixes as without any is taken to run alike with each of them alone;
otherwise it runs with each half of the group, down to a single fix. (Two fixes of a group could undo each other. The
first `FIRST` traces run with each fix alone: they tell how often it makes a difference, and groups are made so that
each makes one in a quarter of the traces.) `--check N` runs for each fix N traces that do not meet it, and N traces
that were judged by a group, with the fix alone, and compares everything that was observed.

Drawing ends when `--steps` were run on the probed release. Can be cut off and continued: results are kept in
`OUT/runs.json`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from identity import cpu_seconds
from msgspec import Struct, structs
from vllm_campaign import fixes_of

from hybridfuzz.harness.group.reduce import until
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.harness.workers.messages import Overrides
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.overlay import in_tree, patched
from hybridfuzz.targets.base.patches import Change, FilePatch, Hunk, Patch, PatchError, located
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
COUNTER = "hybridfuzz_probes"
"""Module that the engine's package gets, and environment variable with the file that it writes to."""
COUNTER_SOURCE = f"""
import mmap, os
_met = mmap.mmap(os.open(os.environ["{COUNTER}"], os.O_RDWR), 0)
def met(fix):
    _met[fix] = 1
"""


FIRST = 40
"""Traces that run with each fix alone, before there are groups."""
GROUP_SHARE = 0.25
"""Of all traces: in so many a group of fixes makes a difference."""


class Ran(Struct, frozen=True):
    """What one trace did on one copy. `met` names the fixes whose probes it set off, on the probed release; `fixes` is
    the number of fixes that the copy had, more than one if a group made no difference."""

    violation: Violation | None
    steps: int
    digest: int
    met: tuple[str, ...] = ()
    fixes: int = 1


Results = dict[int, Ran]
"""Index of a trace -> what it did."""


class Runs(Struct):
    """Everything that was run: on the probed release, and with each fix alone."""

    probed: Results = {}
    alone: dict[str, Results] = {}


class Worse(Struct):
    """A trace that fails earlier with one fix, and the further fixes with which it passes up to that event."""

    fix: str
    index: int
    violation: Violation
    before: Violation | None
    silenced_by: list[str]


def is_worse(after: Violation | None, before: Violation | None) -> bool:
    """Return True if a trace fails with a fix that passes without it, or at an earlier event or step."""
    return after is not None and (before is None or (after.event, after.step) < (before.event, before.step))


def is_alike(one: Ran | Outcome, other: Ran) -> bool:
    """Return True if everything that was observed is the same, the violation included; a patch moves line numbers in
    messages."""
    first, second = one.violation, other.violation
    if first is None or second is None:
        return one.digest == other.digest and first is second
    same = (first.signature, first.event, first.step) == (second.signature, second.event, second.step)
    return one.digest == other.digest and same


class Places:
    """Where probes have to stand in one file, so that no run comes to a change without setting one off."""

    def __init__(self, source: str, names: Collection[str]) -> None:
        self.lines = source.splitlines()
        self.names = names
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
        self.statements = [node for node in nodes if not isinstance(node, FUNCTION)]
        self.functions = [node for node in nodes if isinstance(node, FUNCTION)]

    def of(self, change: Change) -> set[int] | None:
        """Return lines, from 1, before which probes stand; None if every run meets the change."""
        added = [line for line in change.text if _is_code(line)]
        removed = [line for line in range(change.start + 1, change.stop + 1) if _is_code(self.lines[line - 1])]
        if not removed and not added:
            return set()
        indent = min(map(_indent, added), default=0)
        function = self._function(removed[0]) if removed else self._function_behind(change.start, indent)
        if function is None:
            return set() if not removed and self._only_new_names(added) else None
        found = {self._statement(line, function, sys.maxsize) for line in removed}
        if added:  # the statement before, up to the block that is added to, and the next one: it may be the first
            for line in (self._code(change.start, -1), self._code(change.stop + 1, 1)):
                if line and self._function(line) is function:
                    found.add(self._statement(line, function, indent))
        return found

    def _code(self, line: int, way: int) -> int:
        """Return the next line with code, from `line` on; 0 if there is none."""
        while 0 < line <= len(self.lines) and not _is_code(self.lines[line - 1]):
            line += way
        return line if line <= len(self.lines) else 0

    def _function(self, line: int) -> Function | None:
        """Return the innermost function that a line is in."""
        inside = [one for one in self.functions if _first(one) <= line <= (one.end_lineno or 0)]
        return max(inside, key=lambda one: one.lineno, default=None)

    def _function_behind(self, line: int, indent: int) -> Function | None:
        """Return the function to which code belongs that is added behind a line."""
        before = self._code(line, -1)
        inside = [
            one
            for one in self.functions
            if one.lineno <= before <= (one.end_lineno or 0)
            and (one.col_offset < indent or before < one.body[0].lineno)
        ]
        return max(inside, key=lambda one: one.lineno, default=None)

    def _statement(self, line: int, function: Function, indent: int) -> int:
        """Return the first line of the innermost statement that a line is in and that begins no deeper than `indent`.

        An `elif`, before which nothing can stand, counts as part of the statement around it; the head of a function
        as its first statement.
        """
        body = function.body
        found = body[1] if ast.get_docstring(function) is not None and len(body) > 1 else body[0]
        for one in self.statements:
            text = self.lines[one.lineno - 1]
            if (
                found.lineno <= one.lineno <= line <= (one.end_lineno or 0)
                and function.lineno < one.lineno
                and one.col_offset <= indent
                and not text[: one.col_offset].strip()
                and not text.lstrip().startswith("elif")
            ):
                found = one
        return _first(found)

    def _only_new_names(self, added: Sequence[str]) -> bool:
        """Return True if lines added to a class or module define no more than names that the package has nowhere."""
        text = textwrap.dedent("".join(added)) + f"def {COUNTER}(): ...\n"  # a decorator may come last
        try:
            body = ast.parse(text).body
        except SyntaxError:
            return False
        for one in body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                name = one.target.id
            elif isinstance(one, FUNCTION):
                name = one.name
            elif isinstance(one, (ast.Import, ast.ImportFrom)):
                continue
            else:
                return False
            if name in self.names:
                return False
        return True


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _first(node: ast.stmt) -> int:
    """Return the first line of a statement, its decorators included."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def names_in(tree: Path, package: str) -> set[str]:
    """Return each name that a class or a module of a package defines."""
    pattern = re.compile(r"^\s*(?:(?:async )?def (\w+)|class (\w+)|(\w+)(?: *:.*)? *=)", re.MULTILINE)
    found = set[str]()
    for path in (tree / package).rglob("*.py"):
        found.update(filter(None, (name for one in pattern.findall(path.read_text()) for name in one)))
    return found


def probes(tree: Path, fixes: Mapping[str, Patch]) -> tuple[Patch, set[str]]:
    """Return a patch that counts which fixes a run comes to, and the fixes that every run meets."""
    at: dict[str, dict[int, list[int]]] = {}
    always = set[str]()
    names, package = set[str](), ""

    def read(path: str) -> str:
        return (tree / path).read_text()

    @cache
    def places(path: str) -> Places:
        return Places(read(path), names)

    for number, (fix, patch) in enumerate(fixes.items()):
        for path, changes in located(in_tree(patch, tree), read):
            package = path.partition("/")[0]
            names = names or names_in(tree, package)
            for change in changes:
                found = places(path).of(change)
                if found is None:
                    always.add(fix)
                for line in found or ():
                    at.setdefault(path, {}).setdefault(line, []).append(number)
    source = tuple(("+", line) for line in COUNTER_SOURCE.splitlines(keepends=True))
    files = [FilePatch(f"{package}/{COUNTER}.py", (Hunk(0, source),), new=True)]
    for path, lines in at.items():
        old, hunks = read(path).splitlines(keepends=True), []
        for line, numbers in sorted(lines.items()):
            text = old[line - 1]
            probe = (
                f"{' ' * _indent(text)}from {package}.{COUNTER} import met as _met; [_met(fix) for fix in {numbers}]\n"
            )
            hunks.append(Hunk(line - 1, (("+", probe), (" ", text))))
        files.append(FilePatch(path, tuple(hunks)))
    return Patch("probes", tuple(files)), always


class Probed:
    """The unpatched release with probes. Use as a context manager."""

    def __init__(self, target: str, launch: Launch, fixes: Mapping[str, Patch], folder: Path) -> None:
        patch, self.always = probes(Path(launch.tree), fixes)
        self.fixes = list(fixes)
        self.file = folder / "met"
        self.file.write_bytes(bytes(len(fixes)))
        copy = patched(launch, [patch])
        env = {**copy.env, COUNTER: str(self.file.resolve())}
        self.worker = WorkerClient(target, structs.replace(copy, env=env), trace_seconds=300)

    def __enter__(self) -> Probed:
        self.worker.__enter__()
        self.worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.__exit__()

    def run(self, trace: Trace) -> Ran:
        """Run one trace."""
        with self.file.open("r+b") as file:  # in place: the worker has it mapped
            file.write(bytes(len(self.fixes)))
        outcome = self.worker.run(trace)
        seen = self.file.read_bytes()
        met = tuple(fix for fix, flag in zip(self.fixes, seen, strict=True) if flag or fix in self.always)
        return Ran(outcome.violation, outcome.steps, outcome.digest, met)


def run_probed(probed: Probed, seed: int, overrides: Overrides, steps: int, runs: Runs) -> dict[int, Trace]:
    """Draw and run until there are enough steps; return the traces, those of an earlier call too."""
    traces: dict[int, Trace] = {}
    done = 0
    while done < steps:
        index = len(traces)
        traces[index] = probed.worker.draw(seed, index, overrides)
        if index not in runs.probed:
            runs.probed[index] = probed.run(traces[index])
        done += runs.probed[index].steps
    return traces


class Measurement:
    """Runs of the traces that meet a fix, with it alone or in a group. Results are saved to a file after each copy."""

    def __init__(self, target: str, launch: Launch, traces: Mapping[int, Trace], runs: Runs, saved: Path) -> None:
        self.target, self.launch = target, launch
        self.fixes = fixes_of(launch.version)
        self.traces, self.runs, self.saved = traces, runs, saved

    def run(self, names: Sequence[str]) -> None:
        """Run everything that is not known yet, the first traces with each fix alone."""
        for name in names:
            self._run_group((name,), [*self.traces][:FIRST])
        for group in self.groups(names):
            self._run_group(group, [*self.traces])

    def groups(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return groups each of which makes a difference in `GROUP_SHARE` of the traces, or single fixes."""
        shares = {name: self._share(name) for name in names}
        groups: list[tuple[str, ...]] = []
        left, group = GROUP_SHARE, tuple[str, ...]()
        for name in sorted(names, key=lambda name: shares[name]):
            if group and shares[name] > left:
                groups.append(group)
                left, group = GROUP_SHARE, ()
            left, group = left - shares[name], (*group, name)
        return [*groups, group] if group else groups

    def _share(self, name: str) -> float:
        """Return in how many of all traces a fix makes a difference, from those that are known."""
        known = self.runs.alone.get(name, {})
        differing = sum(not is_alike(ran, self.runs.probed[index]) for index, ran in known.items())
        met = sum(name in self.runs.probed[index].met for index in self.traces)
        return differing / max(len(known), 1) * met / len(self.traces)

    def _unknown(self, group: Sequence[str], index: int) -> list[str]:
        """Return the fixes of a group that a trace meets and has not run with."""
        met = self.runs.probed[index].met
        return [name for name in group if name in met and index not in self.runs.alone.get(name, {})]

    def _run_group(self, group: tuple[str, ...], indexes: Sequence[int]) -> None:
        """Run traces with the fixes of a group, and those in which that makes a difference with each half of it."""
        left = [index for index in indexes if self._unknown(group, index)]
        if not left:
            return
        differing, began = [], len(left)
        copy = patched(self.launch, [self.fixes[name] for name in group])
        with WorkerClient(self.target, copy, trace_seconds=300) as worker:
            worker.start()
            for index in left:
                before, trace = self.runs.probed[index], self.traces[index]
                if len(group) > 1 and before.violation:  # what comes later cannot be alike
                    trace = until(before.violation, trace)
                outcome = worker.run(trace)
                if len(group) > 1 and not is_alike(outcome, before):
                    differing.append(index)
                    continue
                for name in self._unknown(group, index):
                    ran = Ran(outcome.violation, outcome.steps, outcome.digest, fixes=len(group))
                    self.runs.alone.setdefault(name, {})[index] = ran
            seconds = cpu_seconds(worker.pid)
        self.saved.write_bytes(msgspec.json.encode(self.runs))
        title = group[0] if len(group) == 1 else f"{len(group)} fixes"
        print(f"{title}: {began} traces, {len(differing)} to be split, {seconds:.0f} s CPU", flush=True)
        half = len(group) // 2
        if differing:
            self._run_group(group[:half], differing)
            self._run_group(group[half:], differing)

    def check(self, names: Sequence[str], most: int) -> int:
        """Run traces that do not meet a fix, and traces that a group judged, with the fix alone; return how many run
        differently."""
        unlike = 0
        for name in names:
            alone = self.runs.alone.get(name, {})
            strangers = [index for index in self.traces if name not in self.runs.probed[index].met][:most]
            grouped = [index for index, ran in alone.items() if ran.fixes > 1][-most:] if most else []
            if not strangers and not grouped:
                continue
            with WorkerClient(self.target, patched(self.launch, [self.fixes[name]]), trace_seconds=300) as worker:
                worker.start()
                for index in (*strangers, *grouped):
                    if not is_alike(worker.run(self.traces[index]), self.runs.probed[index]):
                        unlike += 1
                        print(f"{name}: trace {index} runs differently with it alone", flush=True)
        return unlike


def explain(target: str, launch: Launch, name: str, traces: Mapping[int, Trace], runs: Runs, most: int) -> list[Worse]:
    """Find further fixes that silence traces that are worse with one fix: all together, and up to `most` single ones.

    Those that change such traces alone come first, as far as they were run alone.
    """
    fixes = fixes_of(launch.version)
    cut: dict[int, Trace] = {}
    found: list[Worse] = []
    for index, trace in traces.items():
        if violation := runs.alone[name][index].violation:
            cut[index] = until(violation, trace)
            found.append(Worse(name, index, violation, runs.probed[index].violation, []))

    def changes(other: str) -> int:
        alone = runs.alone.get(other, {})
        return sum(alone[index].violation != runs.probed[index].violation for index in traces if index in alone)

    others = sorted((other for other in fixes if other != name), key=changes, reverse=True)
    for other in ("all", *others[:most]):
        left = [each for each in found if not set(each.silenced_by) - {"all"}]
        if not left:
            break
        try:
            copy = patched(launch, [*fixes.values()] if other == "all" else [fixes[name], fixes[other]])
        except PatchError as error:
            print(f"{name} with {other}: {error}")
            continue
        with WorkerClient(target, copy, trace_seconds=300) as worker:
            worker.start()
            for each in left:
                if worker.run(cut[each.index]).violation is None:
                    each.silenced_by.append(other)
        print(f"{name} with {other}: {[each.index for each in left if other in each.silenced_by]} silent", flush=True)
    return found


def counts(name: str, traces: Collection[int], runs: Runs) -> str:
    """Return in how many traces a fix was met, and what became of those that fail."""
    alone = {index: ran for index, ran in runs.alone.get(name, {}).items() if index in traces}
    silent = later = earlier = 0
    for index, ran in alone.items():
        before = runs.probed[index].violation
        silent += ran.violation is None and before is not None
        later += is_worse(before, ran.violation) and ran.violation is not None
        earlier += is_worse(ran.violation, before)
    return f"{name}: met by {len(alone)}, silent {silent}, later {later}, earlier {earlier}"


def measure(options: argparse.Namespace) -> tuple[Sequence[Worse], int]:
    """Run everything that is not in `runs.json` yet; return what is worse with one fix, and the failed checks."""
    launch = prepare(options.target, print)
    saved: Path = options.out / "runs.json"
    runs = msgspec.json.decode(saved.read_bytes(), type=Runs) if saved.exists() else Runs()
    fixes = fixes_of(launch.version)
    with Probed(options.target, launch, fixes, options.out) as probed:
        traces = run_probed(probed, options.seed, dict(options.config), options.steps, runs)
        saved.write_bytes(msgspec.json.encode(runs))
        failing = sum(runs.probed[index].violation is not None for index in traces)
        steps = sum(runs.probed[index].steps for index in traces)
        seconds = cpu_seconds(probed.worker.pid)
        print(f"unpatched: {failing} of {len(traces)} fail, {steps:,} steps, {seconds:.0f} s CPU", flush=True)
    names = [name for name in fixes if name in options.only or not options.only]
    measurement = Measurement(options.target, launch, traces, runs, saved)
    measurement.run(names)
    print(*(counts(name, traces, runs) for name in names), sep="\n", flush=True)
    unlike = measurement.check(names, options.check)
    worse: list[Worse] = []
    for name in names:
        alone = {index: ran for index, ran in runs.alone.get(name, {}).items() if index in traces}
        lost = {i: traces[i] for i, ran in alone.items() if is_worse(ran.violation, runs.probed[i].violation)}
        worse += explain(options.target, launch, name, lost, runs, options.others) if lost else []
    return worse, unlike


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--steps", type=int, default=3000, help="on the unpatched release (default: %(default)s)")
    parser.add_argument(
        "--config", type=lambda text: text.split("=", 1), action="append", default=[], metavar="KEY=VALUE"
    )
    parser.add_argument("--only", nargs="*", default=(), metavar="FIX", help="fixes to run (all)")
    parser.add_argument(
        "--check",
        type=int,
        default=0,
        metavar="N",
        help="for each fix, run N traces that do not meet it and N that a group judged",
    )
    parser.add_argument(
        "--others",
        type=int,
        default=99,
        metavar="N",
        help="single fixes to try for a worse trace, after all together (all)",
    )
    parser.add_argument("-o", dest="out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    worse, unlike = measure(options)
    for each in worse:
        before = each.before.signature if each.before else "passes"
        print(f"{each.fix}: trace {each.index}: {each.violation.signature} (unpatched: {before}),"
              f" with a second fix silent: {', '.join(each.silenced_by) or 'UNEXPLAINED'}")  # fmt: skip
    print(f"{len(worse)} traces are worse with one fix, {unlike} unexpectedly run differently with a fix alone")
    return int(bool(unlike) or any(not each.silenced_by for each in worse))


if __name__ == "__main__":
    sys.exit(main())
