"""A crash has the same message wherever the engine is installed."""

import json
from pathlib import Path

import pytest

from hybridfuzz.harness.lockstep.target_exception import crash_violation, importable


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
