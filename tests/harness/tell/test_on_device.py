"""What `confirm` shows of a real model's numbers, on rows as a GPU gives them."""

import io
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from hybridfuzz.harness.tell import on_device
from hybridfuzz.harness.tell.on_device import affected, distance, greedy, paragraphs
from hybridfuzz.targets.base.confirmation import ALONE, Shown, Wanted
from hybridfuzz.targets.base.trace import Config, Group, Trace


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float32)


RIGHT, WRONG, NAN = values(0, -3, -5), values(-5, -3, 0), values(np.nan, 0, 0)


def test_a_token_among_nan_is_none() -> None:
    assert [greedy(one) for one in (RIGHT, WRONG, NAN, None)] == [0, 2, -1, -1]


def test_the_distance_is_that_of_the_worst_fill() -> None:
    assert distance({ALONE: RIGHT, "zero": RIGHT, "random": WRONG}) == 5.0
    assert distance({ALONE: RIGHT, "nan": NAN}) == float("inf")
    assert distance({ALONE: None, "zero": WRONG}) == 0.0


def test_the_affected_request_is_one_whose_tokens_differ() -> None:
    rows = {("r0", 1): {ALONE: RIGHT, "zero": RIGHT}, ("r1", 1): {ALONE: RIGHT, "zero": WRONG}}
    assert affected(rows, "r1") == affected(rows, "r0") == affected(rows, "") == "r1"
    assert affected({("r0", 1): {ALONE: RIGHT, "zero": RIGHT}}, "r0") == "r0"


def test_the_section_shows_tokens_and_whether_the_patch_helps() -> None:
    bad = Shown(0, "gdn v2", "S6-step-logprobs", "S6: r1 differs", "r1", 1, [81, 99], {"nan": [81, -1]}, 4.4)
    good = Shown(0, "gdn v1")
    text = "\n".join(paragraphs("vllm 0.33.0", [bad, good], [good, good], ["fix.patch"]))
    assert "r1 alone, from token 1: `81 99`" in text
    assert "`81 ?`" in text
    assert "Passes: gdn v1." in text
    assert "every configuration passes" in text
    assert "still fails" in "\n".join(paragraphs("", [bad], [bad], ["fix.patch"]))


@pytest.mark.parametrize(("until_met", "shown"), [(False, ["0 a", "0 b", "1 a", "1 b"]), (True, ["0 a", "0 b"])])
def test_until_met_ends_behind_the_first_violation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, until_met: bool, shown: list[str]
) -> None:
    """The second choice fails."""
    config = Config(num_blocks=20, groups=(Group("mamba", 16), Group("attention", 16)))
    wanted = Wanted("any", [Trace(config, ())] * 2, [{"mixer": "a"}, {"mixer": "b"}], until_met)
    engine = SimpleNamespace(configured=lambda trace, options: trace)

    def show(factory: object, engine: object, number: int, trace: Trace, setup: str) -> Shown:
        return Shown(number, setup, "S1" if setup == "b" else "")

    monkeypatch.setattr(on_device, "confirmation", lambda spec: engine)
    monkeypatch.setattr(on_device, "load_factory", lambda spec: None)
    monkeypatch.setattr(on_device, "show", show)
    monkeypatch.setattr(os, "_exit", lambda status: None)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(msgspec.json.encode(wanted))))
    on_device.main([str(tmp_path / "shown")])
    lines = (tmp_path / "shown").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=Shown) for line in lines]
    assert [f"{one.trace} {one.setup}" for one in rows] == shown
