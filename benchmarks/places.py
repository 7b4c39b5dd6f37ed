"""Rank of the fixed function among the suggested places, for the packaged causes of a vLLM release.

    python benchmarks/places.py --target vllm@0.33.0 -o out [--more FOLDER]

Collects the evidence of each packaged trace of a cause with a fix, unless it is in the output folder already, as a
campaign does after the reduction. `--more` is a folder of `identity.py` with evidence and truth: a finding then has up
to eight further traces of its cause. A function counts as fixed if the patch changes one of its lines.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from identity import Sorted, cpu_seconds, load_evidence, load_truth
from vllm_campaign import fixes_of

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.causes.evidence import FindingEvidence
from hybridfuzz.harness.group.causes.investigate import Investigation
from hybridfuzz.harness.group.known.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patches import FilePatch, Patch
from hybridfuzz.targets.base.registry import prepare

MORE_MAX = 8
SHOWN = 5


def fixed_functions(tree: Path, patch: Patch) -> set[tuple[str, str]]:
    """Return the functions that a patch changes, as (file, qualified name)."""
    return {
        (change.path, name)
        for change in patch.files
        if not change.new
        for name, node in _functions(ast.parse((tree / change.path).read_text(encoding="utf-8")))
        if any(_inside(node, line, indent) for line, indent in _changed_lines(change))
    }


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _functions(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)


def _inside(node: ast.FunctionDef, line: int, indent: int) -> bool:
    assert node.end_lineno is not None
    return node.lineno <= line <= node.end_lineno and indent > node.col_offset


def _changed_lines(change: FilePatch) -> Iterator[tuple[int, int]]:
    """Yield the line of the old file, from 1, that is removed or behind which one is added, and the indentation."""
    for hunk in change.hunks:
        line = hunk.start
        for marker, text in hunk.lines:
            line += marker != "+"
            if marker != " " and text.strip():
                yield line, len(text) - len(text.lstrip())


def collect(target: str, folder: Path) -> dict[str, list[Sorted]]:
    """Return the evidence of the packaged traces of each cause."""
    launch = prepare(target, print)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Sorted]] = {}
    with WorkerClient(target, launch, trace_seconds=300) as worker:
        capabilities = worker.start().capabilities
        for entry in read_fixes(BUILTIN, "vllm"):
            if not entry.patch or launch.version not in entry.releases:
                continue
            for path in (Path(entry.folder) / trace for trace in entry.traces):
                saved = folder / f"{entry.title}--{path.stem}.json"
                if not saved.exists():
                    trace, cpu, began = load_trace(path), cpu_seconds(worker.pid), time.monotonic()
                    investigation = Investigation(worker, capabilities, 600.0)
                    seen = investigation.evidence(trace)
                    cpu = cpu_seconds(worker.pid) - cpu
                    saved.write_bytes(msgspec.json.encode(Sorted(seen, trace, cpu, time.monotonic() - began)))
                    print(f"{saved.stem}: {cpu:.1f} s CPU, {investigation.runs} runs", file=sys.stderr, flush=True)
                found.setdefault(entry.title, []).append(msgspec.json.decode(saved.read_bytes(), type=Sorted))
    return found


def rank(traces: list[Sorted], fixed: set[tuple[str, str]]) -> int:
    """Return the rank of the first fixed function, 0 if it is not among the places."""
    places = FindingEvidence([one.evidence for one in traces if one.evidence]).places
    ranks = (number for number, place in enumerate(places, 1) if (place.file, place.function) in fixed)
    return next(ranks, 0)


def main() -> None:
    """Print one line for each cause."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--more", type=Path)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    arguments = parser.parse_args()
    launch = prepare(arguments.target, print)
    packaged = collect(arguments.target, arguments.out)
    causes = load_truth(arguments.more) if arguments.more else {}
    further: dict[str, list[Sorted]] = {}
    for number, one in load_evidence(arguments.more).items() if arguments.more else ():
        if one.evidence and len(causes.get(number, ())) == 1:
            further.setdefault(causes[number][0], []).append(one)
    hits = [0, 0]
    print("| cause | traces: packaged, with more | rank | with more |\n| --- | --- | ---: | ---: |")
    for cause, patch in fixes_of(launch.version).items():
        traces = packaged.get(cause, [])
        all_traces = traces + further.get(cause, [])[:MORE_MAX]
        fixed = fixed_functions(Path(launch.tree), patch)
        ranks = rank(traces, fixed), rank(all_traces, fixed)
        hits = [hit + (0 < each <= SHOWN) for hit, each in zip(hits, ranks, strict=True)]
        print(f"| {cause} | {len(traces)}, {len(all_traces)} | {ranks[0] or '-'} | {ranks[1] or '-'} |")
    print(f"among the first {SHOWN}: {hits[0]}, with more {hits[1]}")


if __name__ == "__main__":
    main()
