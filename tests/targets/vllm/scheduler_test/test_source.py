"""Values become source that makes them again, with what has to be imported for it."""

from __future__ import annotations

import enum
import subprocess
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pytest
import torch

from hybridfuzz.targets.vllm.scheduler_test import writing
from hybridfuzz.targets.vllm.scheduler_test.source import NoSource, source


class Status(enum.Enum):
    """An enumeration of an engine."""

    ABORTED = 3


@dataclass
class Spec:
    """A dataclass of an engine."""

    size: int
    dtype: torch.dtype = torch.float32
    shapes: tuple[tuple[int, ...], ...] = ()
    names: list[str] = field(default_factory=list)
    derived: int = field(init=False, default=7)


class Adapter(msgspec.Struct):
    """A struct of an engine."""

    name: str
    path: str = ""


class Copy(NamedTuple):
    """A pair of an engine."""

    source: int
    target: int


@pytest.mark.parametrize(
    "value",
    [
        None, True, -3, 0.5, "it's", b"\x00", [1, [2]], (1,), (), {"r0": [], "r1": [4, 5]}, {3, 1}, set(),
        Status.ABORTED, torch.int64, Spec(4), Spec(4, torch.int64, ((3, 1), (1,)), ["a"]), Adapter("a"),
        Adapter("a", path="/a"), Copy(1, 2), [Spec(1), Spec(2)],
    ],
)  # fmt: skip
def test_source_makes_the_value_again(value: object) -> None:
    imports: set[tuple[str, str]] = set()
    text = source(value, imports)
    names = {name: globals()[name] for _, name in imports if name}
    assert eval(text, {**names, "torch": torch}) == value


def test_fields_that_have_their_defaults_are_left_out() -> None:
    assert source(Spec(4, names=["a"]), set()) == "Spec(size=4, names=['a'])"
    assert source(Adapter("a"), set()) == "Adapter(name='a')"


def test_a_flag_is_not_the_number_that_it_equals() -> None:
    @dataclass
    class Flags:
        width: object = 1

    assert source(Flags(True), set()) == "Flags(width=True)"


def test_what_has_to_be_imported_is_told() -> None:
    imports: set[tuple[str, str]] = set()
    source([Status.ABORTED, Spec(1, torch.int64)], imports)
    assert imports == {(__name__, "Status"), (__name__, "Spec"), ("torch", "")}


def test_an_object_of_unknown_fields_is_refused() -> None:
    with pytest.raises(NoSource, match="object cannot be written down"):
        source([object()], set())


def test_our_process_needs_no_torch_to_write_a_test() -> None:
    program = f"import sys; sys.modules['torch'] = None; import {writing.__name__}"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
