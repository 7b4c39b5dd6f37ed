"""The result of a matrix: matrix.json, the documented form for scripts and for `mutants --compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ....targets.base.trace import TraceError
from ...draw.trace_files import encode_json, read_json, write_atomically
from ...group.findings.finding_store import OutputError
from .matrix import Matrix
from .statistics import Detection, MutantChange, MutantRow, Saved, overall, summarise


def load_runs(path: Path) -> list[Detection]:
    """Return the runs of an earlier matrix. Raises TraceError if the file holds none."""
    saved = read_json(path, Saved, "a detection matrix", ": not a detection matrix")
    if saved is None:
        raise TraceError(f"{path}: cannot be read: No such file or directory")
    return list(saved.runs)


def summarise_all(runs: Sequence[Detection], titles: Mapping[str, str]) -> list[MutantRow]:
    """Return a row for each mutant that was run at all, in the order of the registry."""
    by_mutant = {slug: [run for run in runs if run.mutant == slug] for slug in titles}
    return [summarise(slug, titles[slug], some) for slug, some in by_mutant.items() if some]


def result_of(
    matrix: Matrix,
    rows: Sequence[MutantRow],
    runs: Sequence[Detection],
    changes: Sequence[MutantChange] | None,
) -> dict[str, object]:
    """Return the content of matrix.json; `changes` is None if there is no earlier matrix to compare with."""
    settings = matrix.settings
    by_mutant = {row.mutant: row for row in rows}
    traces, seconds = overall(changes or ())
    result = {
        "exit_reason": "interrupted" if matrix.reason == "interrupted" else "done",
        "target": settings.target,
        "seeds": list(settings.seeds),
        "seconds": settings.seconds,
        "overrides": settings.overrides,
        "mutants": rows,
        "not_found": [
            slug for slug in settings.mutants if slug not in by_mutant or by_mutant[slug].found < len(settings.seeds)
        ],
        "errors": [f"{run.mutant}, seed {run.seed}: {run.error}" for run in runs if run.error],
        "comparison": {"traces": traces, "seconds": seconds, "changes": changes} if changes is not None else None,
        "runs": runs,
    }
    built: dict[str, object] = msgspec.to_builtins(result)
    return built


def save(path: Path, result: Mapping[str, object]) -> None:
    """Write the matrix to disk in one go."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode_json(result))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
