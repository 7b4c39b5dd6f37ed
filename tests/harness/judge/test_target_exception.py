"""A crash has the same message wherever the engine is installed."""

import json
from pathlib import Path

import pytest

from hybridfuzz.harness.judge.target_exception import crash_violation, importable


def test_a_file_is_named_from_the_folder_that_it_is_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "tree"))
    assert importable(str(tmp_path / "tree" / "engine" / "scheduler.py")) == "engine/scheduler.py"
    assert importable(str(tmp_path / "other.py")) == "other.py"
    assert importable("/nowhere/else.py") == "/nowhere/else.py"


def test_the_message_names_type_place_and_function() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("[")
    violation = crash_violation(None, caught.value)
    assert violation.message.startswith("CRASH: the target raised JSONDecodeError: Expecting value")
    assert " at json/decoder.py:" in violation.message
    assert violation.field == "JSONDecodeError-raw_decode"
