"""What one worker records: lines that run inside functions while a span is open, each of them once."""

import sys
import threading
from pathlib import Path

import pytest

from hybridfuzz.harness.record.line_recorder import LineRecorder

ENGINE = Path(__file__).parents[2] / "toy_cache" / "engine.py"
MODULES = ["toy_cache/*.py"]
LINES = ENGINE.read_text(encoding="utf-8").splitlines()


def texts(found: dict[str, list[int]]) -> list[str]:
    """The recorded lines of the engine, as text."""
    assert set(found) <= {"toy_cache/engine.py"}
    return [LINES[line - 1].strip() for line in found.get("toy_cache/engine.py", [])]


@pytest.fixture
def recorder() -> LineRecorder:
    return LineRecorder()


def test_only_lines_inside_functions_and_spans_are_recorded(
    recorder: LineRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing the engine in a span records nothing, nor does what runs outside of a span."""
    monkeypatch.delitem(sys.modules, "toy_cache.engine", raising=False)
    with recorder.recording(MODULES):
        from toy_cache import engine
    assert recorder.new() == {}
    cache = engine.Cache()
    with recorder.recording(MODULES):
        cache.add(1)
    cache.export()
    assert texts(recorder.new()) == ["if block < 0:", "self.blocks.append(block)", "return True"]


def test_each_line_is_returned_once(recorder: LineRecorder) -> None:
    from toy_cache import engine

    cache = engine.Cache()
    for _ in range(2):
        with recorder.recording(MODULES):
            cache.add(1)
    assert len(texts(recorder.new())) == 3
    with recorder.recording(MODULES):
        cache.add(2)
    assert recorder.new() == {}
    with recorder.recording(MODULES), pytest.raises(ValueError):
        cache.add(-1)
    assert texts(recorder.new()) == ["raise ValueError("], "one statement on three lines"


def test_a_span_ends_with_an_exception(recorder: LineRecorder) -> None:
    from toy_cache import engine

    with pytest.raises(KeyError), recorder.recording(MODULES):
        raise KeyError
    engine.choose(True)
    assert recorder.new() == {}


def test_nothing_is_traced_without_modules(recorder: LineRecorder) -> None:
    before = sys.gettrace()
    with recorder.recording([]):
        assert sys.gettrace() is before
    assert recorder.new() == {}


def test_lines_of_threads_that_start_in_a_span_are_recorded(recorder: LineRecorder) -> None:
    from toy_cache import engine

    with recorder.recording(MODULES):
        thread = threading.Thread(target=engine.choose, args=(True,))
        thread.start()
        thread.join()
    assert 'return "nested"' in texts(recorder.new())
