"""A forward that SGLang's own state makes impossible is the engine's error, not the adapter's."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.targets.base.protocol import EngineError
from hybridfuzz.targets.sglang.batch_rows import Row
from hybridfuzz.targets.sglang.device import Device, KernelLaunch


def row(name: str | None, tokens: tuple[int, ...] | None) -> Any:
    """A row of a prefill."""
    return Row(name, 1, 0, len(tokens or (0,)), tokens, True, 2, (2,), [4], [4])


def compute(*rows: Any) -> None:
    """Compute a launch on a device without layers."""
    device = Device.__new__(Device)
    device.tier, device.records, device.relay = None, [], {}
    device.engine = SimpleNamespace(layers=[])  # type: ignore[assignment]
    device._snapshot = lambda launch: None  # type: ignore[method-assign]
    device.compute(KernelLaunch(3, list(rows), deque(), lambda launch: None))


def test_a_row_without_tokens_is_an_error_of_the_engine() -> None:
    """Layers compute at least one token of each request: with none they would leave its state to chance."""
    with pytest.raises(EngineError, match=r"a forward has rows without tokens, of r1, r3$"):
        compute(row("r0", (5,)), row("r1", ()), row("r2", None), row("r3", ()), row(None, ()))


def test_padding_and_rows_whose_token_is_relayed_have_none_of_their_own() -> None:
    compute(row("r0", (5,)), row("r2", None), row(None, ()))
