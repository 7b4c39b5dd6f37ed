"""Each packaged fix alone: does it make a trace fail that the unpatched release passes?

    python benchmarks/fixes_alone.py --target vllm@0.33.0 --seed 77 --steps 100000 --config runner=v1 -o out

A trace is *worse* with a fix if it fails with it and not without, or at an earlier event. That has one of two reasons:
the fix unmasks another known cause, or it is wrong. So a worse trace also runs with all fixes together, and then
with the fix and each other one in turn until one silences it up to the event at which it failed: that one names the
unmasked cause. Exit status 1 if nothing silences a worse trace, not even all fixes together, or if a trace of `--check`
runs differently.

Most traces never come to the place that a fix changes, and those need no second run: the unpatched release is
*probed*, that is, a probe stands before each statement that a fix removes and around each place where it adds one. A
trace that sets off no probe of a fix runs alike with it. `--check N` runs N such traces for each fix all the same and
compares everything that was observed. A fix that changes a class or a module, other than by a name that is new in the
whole package, is taken to be met by every trace.

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
from hybridfuzz.harness.traces.reduce import with_events
from hybridfuzz.harness.traces.violation import Violation
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.harness.workers.messages import Overrides
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.overlay import in_tree, patched
from hybridfuzz.targets.base.patches import Change, FilePatch, Hunk, Patch, PatchError, located
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace
from identity import cpu_seconds
from msgspec import Struct, structs
from vllm_campaign import fixes_of

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


class Ran(Struct, frozen=True):
    """What one trace did on one copy. `met` names the fixes whose probes it set off, on the probed release."""

    violation: Violation | None
    steps: int
    digest: int
    met: tuple[str, ...] = ()


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


def run_fix(target: str, launch: Launch, name: str, traces: Mapping[int, Trace], kept: Results) -> Results:
    """Run traces with one fix, except those in `kept`."""
    left = {index: trace for index, trace in traces.items() if index not in kept}
    found = {index: kept[index] for index in traces if index in kept}
    if not left:
        return found
    with WorkerClient(target, launch, trace_seconds=300) as worker:
        worker.start()
        for index, trace in left.items():
            outcome = worker.run(trace)
            found[index] = Ran(outcome.violation, outcome.steps, outcome.digest)
        failing = sum(one.violation is not None for one in found.values())
        print(f"{name}: {failing} of {len(found)} traces fail, {cpu_seconds(worker.pid):.0f} s CPU", flush=True)
    return found


def explain(target: str, launch: Launch, name: str, traces: Mapping[int, Trace], runs: Runs) -> list[Worse]:
    """Find further fixes that silence traces that are worse with one fix.

    Those that change such traces alone come first, as far as they were run alone.
    """
    fixes = fixes_of(launch.version)
    cut: dict[int, Trace] = {}
    found: list[Worse] = []
    for index, trace in traces.items():
        if violation := runs.alone[name][index].violation:
            cut[index] = with_events(trace, trace.events[: violation.event + 1 or len(trace.events)])
            found.append(Worse(name, index, violation, runs.probed[index].violation, []))

    def changes(other: str) -> int:
        alone = runs.alone.get(other, {})
        return sum(alone[index].violation != runs.probed[index].violation for index in traces if index in alone)

    others = sorted((other for other in fixes if other != name), key=changes, reverse=True)
    for other in ("all", *others):
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
    unlike = 0
    names = [name for name in fixes if name in options.only or not options.only]
    met = {name: {index: trace for index, trace in traces.items() if name in runs.probed[index].met} for name in names}
    for name in sorted(names, key=lambda name: len(met[name])):  # cheap ones first
        copy, kept = patched(launch, [fixes[name]]), runs.alone.setdefault(name, {})
        others = [index for index in traces if index not in met[name]][: options.check]
        found = run_fix(options.target, copy, name, {**met[name], **{index: traces[index] for index in others}}, kept)
        for index in others:
            if found[index].digest != runs.probed[index].digest:
                unlike += 1
                print(f"{name}: trace {index} sets off no probe, and runs differently", flush=True)
        kept.update(found)
        saved.write_bytes(msgspec.json.encode(runs))
    worse: list[Worse] = []
    for name in names:
        alone = runs.alone[name]
        lost = {i: trace for i, trace in met[name].items() if is_worse(alone[i].violation, runs.probed[i].violation)}
        worse += explain(options.target, launch, name, lost, runs) if lost else []
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
        "--check", type=int, default=0, metavar="N", help="traces to run for each fix that do not meet it"
    )
    parser.add_argument("-o", dest="out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    worse, unlike = measure(options)
    for each in worse:
        before = each.before.signature if each.before else "passes"
        print(f"{each.fix}: trace {each.index}: {each.violation.signature} (unpatched: {before}),"
              f" with a second fix silent: {', '.join(each.silenced_by) or 'UNEXPLAINED'}")  # fmt: skip
    print(f"{len(worse)} traces are worse with one fix, {unlike} run differently without meeting it")
    return int(bool(unlike) or any(not each.silenced_by for each in worse))


if __name__ == "__main__":
    sys.exit(main())
