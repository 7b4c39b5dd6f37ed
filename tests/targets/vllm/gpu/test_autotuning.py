"""Property: an autotuned kernel runs with the first configuration that spills nothing, without being timed."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.targets.vllm.gpu.autotuning import TRIED, choose_in_registers

REFUSED = -1
"""Spills of a configuration that the device cannot run."""


def autotuner(spills: Sequence[int]) -> tuple[Any, list[int]]:
    """An autotuner with one configuration for each number of spilled registers, and the indices of those compiled."""
    compiled: list[int] = []

    def run(*arguments: Any, which: int, warmup: bool, **keywords: Any) -> Any:
        from triton.runtime.errors import OutOfResources

        assert warmup
        assert arguments == ("x", "y")
        compiled.append(which)
        if spills[which] == REFUSED:
            raise OutOfResources(1, 0, "shared memory")
        return SimpleNamespace(n_spills=spills[which], _init_handles=lambda: None)

    def candidate(index: int) -> Any:
        return SimpleNamespace(index=index, all_kwargs=lambda: {"which": index})

    class Autotuner:
        fn = SimpleNamespace(run=run)
        nargs = {"a": "x", "b": "y"}  # noqa: RUF012

        def prune_configs(self, keywords: dict[str, Any]) -> list[Any]:
            return [candidate(index) for index in range(len(spills))]

    choose_in_registers(Autotuner)
    return Autotuner(), compiled


@pytest.mark.parametrize(
    ("spills", "chosen", "compiled"),
    [
        ([0, 0], 0, [0]),
        ([8, 0, 0], 1, [0, 1]),
        ([REFUSED, 4, 2], 2, [0, 1, 2]),
        ([9, 8, 7, 6, 0], TRIED - 1, [0, 1, 2, 3]),
    ],
)
def test_the_first_without_spills_is_taken(spills: list[int], chosen: int, compiled: list[int]) -> None:
    pytest.importorskip("triton")
    tuner, tried = autotuner(spills)
    [one] = tuner.prune_configs({"grid": (1,), "warmup": False})
    assert one.index == chosen
    assert tried == compiled
    assert tuner._bench("x", "y", config=one, grid=(1,)) == [0.0]


def test_where_none_can_run_triton_says_so_itself() -> None:
    pytest.importorskip("triton")
    tuner, _ = autotuner([REFUSED, REFUSED])
    assert len(tuner.prune_configs({"grid": (1,), "warmup": False})) == 2
