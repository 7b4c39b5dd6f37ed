"""The lines of a campaign: deltas of several workers become one set, which survives on disk."""

from pathlib import Path

import pytest

from hybridfuzz.harness.record.reached_lines import ReachedLines, lines_file, load_lines
from hybridfuzz.targets.base.trace import TraceError


def reached(folder: Path, seed: int = 1) -> ReachedLines:
    return ReachedLines(folder, "toy", "1.0", seed)


def test_only_lines_that_no_worker_has_reached_are_new(tmp_path: Path) -> None:
    lines = reached(tmp_path)
    assert lines.add({"a.py": [1, 2], "b.py": [5]}) == {"a.py": [1, 2], "b.py": [5]}
    assert lines.add({"a.py": [3, 2], "b.py": [5]}) == {"a.py": [3]}
    assert lines.add({"a.py": [1, 2, 3]}) == {}
    assert lines.total == 4


def test_what_is_saved_is_resumed(tmp_path: Path) -> None:
    lines = reached(tmp_path)
    for module in ("a.py", "b.py"):
        lines.add({module: [2, 1]})
        lines.trace_ended()
    lines.save()
    saved = load_lines(tmp_path)
    assert saved and (saved.traces, saved.lines) == (2, {"a.py": [1, 2], "b.py": [1, 2]})
    again = reached(tmp_path)
    again.resume(counted=1)  # killed after this file, before the state that counts the second trace
    assert again.total == 4
    assert again.add({"a.py": [2]}) == {}
    again.trace_ended()
    again.save()
    assert (saved := load_lines(tmp_path)) and saved.traces == 2


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    lines = reached(tmp_path)
    lines.save()
    lines_file(tmp_path).unlink()
    lines.save()
    assert load_lines(tmp_path) is None


def test_a_campaign_that_began_without_recording_is_continued(tmp_path: Path) -> None:
    lines = reached(tmp_path)
    lines.resume(counted=10)
    assert lines.total == 0


def test_lines_of_another_campaign_are_refused(tmp_path: Path) -> None:
    reached(tmp_path, seed=2).save()
    with pytest.raises(TraceError, match="another campaign"):
        reached(tmp_path).resume(counted=1)


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    reached(tmp_path).save()
    lines_file(tmp_path).write_text("{")
    with pytest.raises(TraceError, match=r"lines\.json: .*move it away"):
        load_lines(tmp_path)
