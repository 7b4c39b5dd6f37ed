"""A crash has the same message wherever the engine is installed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridfuzz.harness.judge.target_exception import crash_violation, importable, owner


def test_a_file_is_named_from_the_folder_that_it_is_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "tree"))
    assert importable(str(tmp_path / "tree" / "engine" / "scheduler.py")) == "engine/scheduler.py"
    assert importable(str(tmp_path / "other.py")) == "other.py"
    assert importable("/nowhere/else.py") == "/nowhere/else.py"


def test_the_kernel_of_an_illegal_access_is_named() -> None:
    """It was only in the details: the first line of CUDA's message does not have it."""
    text = (
        "CUDA error: an illegal memory access was encountered\n"
        "CUDA error was detected. Some assertion failures:\n"
        "  Name of kernel launched that led to failure = _rejection_kernel<float>\n"
    )
    violation = crash_violation(None, RuntimeError(text))
    assert "an illegal memory access was encountered (kernel _rejection_kernel<float>)" in violation.message
    assert violation.signature == "CRASH-open-RuntimeError"
    plain = crash_violation(None, RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert "(kernel" not in plain.message
    assert plain.signature == violation.signature


def test_the_message_names_type_place_and_function() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("[")
    violation = crash_violation(None, caught.value)
    assert violation.message.startswith("CRASH: the target raised JSONDecodeError: Expecting value")
    assert " at json/decoder.py:" in violation.message
    assert violation.field == "JSONDecodeError-raw_decode"


def test_a_function_without_a_name_of_its_own_is_named_in_full() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        sum(1 // zero for zero in [0])
    assert crash_violation(None, caught.value).signature == "CRASH-open-ZeroDivisionError-genexpr"


def function_of(module: str, body: str, **names: object) -> Callable[[], None]:
    """Return a function of a module that does not exist."""
    scope: dict[str, Any] = {"__name__": module, **names}
    exec(f"def function():\n    {body}", scope)
    function: Callable[[], None] = scope["function"]
    return function


def test_what_adapters_share_is_the_adapters() -> None:
    """Triton's interpreter is no folder of the adapter that installed it: its own mistakes are not the engine's."""
    interpreter = function_of("hybridfuzz.targets.triton_interpreter.launch", "raise TypeError('its own')")
    engine = function_of("vllm.v1.worker", "call()", call=interpreter)
    adapter = function_of("hybridfuzz.targets.vllm.target", "call()", call=engine)
    with pytest.raises(TypeError) as caught:
        adapter()
    stack = caught.value.__traceback__
    assert stack is not None
    error = caught.value.with_traceback(stack.tb_next)  # the frame of this test is no adapter's
    assert owner(error, ("vllm",)) == ("adapter", "hybridfuzz.targets.triton_interpreter.launch")
