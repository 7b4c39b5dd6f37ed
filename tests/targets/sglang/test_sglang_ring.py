"""Decodes that replay a ring of inputs: what they read, and when the state is stored."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hybridfuzz.reference.tokens import EMPTY
from hybridfuzz.targets.base.observe import StateRead, StateWrite
from hybridfuzz.targets.base.shadow import run_chain
from hybridfuzz.targets.sglang.batch_rows import Replay, Row
from hybridfuzz.targets.sglang.device import Device, KernelLaunch
from hybridfuzz.targets.sglang.ring import replays

SLOT, ENTRIES = 2, 3
PROMPT = (11, 12)


class Layer:
    """One state layer with four slots of ENTRIES inputs, and a request in SLOT."""

    def __init__(self) -> None:
        self.device = Device.__new__(Device)
        self.device.sizes = SimpleNamespace(window=1)  # type: ignore[assignment]
        self.device.tracker = SimpleNamespace(store=lambda *stored: None)  # type: ignore[assignment]
        self.states: Any = SimpleNamespace(
            temporal=np.zeros((1, 4), np.int64),
            window=np.zeros((1, 4, 1), np.int64),
            ring=np.full((1, 4, ENTRIES), 99, np.int64),
        )
        self.device.states = self.states
        self.run(PROMPT, 0, None)

    @property
    def stored(self) -> int:
        return int(self.states.temporal[0, SLOT])

    def run(self, tokens: tuple[int, ...], prefix: int, replay: Replay | None) -> KernelLaunch:
        row = Row("r", 1, prefix, len(tokens), tokens, True, SLOT, (SLOT,), [], [], place=SLOT, replay=replay)
        return self._computed(row)[0]

    def computed(self, tokens: tuple[int, ...], prefix: int) -> tuple[KernelLaunch, tuple[int, ...]]:
        """Return what a prefill has recorded, and the tags of its outputs."""
        return self._computed(Row("r", 1, prefix, len(tokens), tokens, True, SLOT, (SLOT,), [], [], place=SLOT))

    def _computed(self, row: Row) -> tuple[KernelLaunch, tuple[int, ...]]:
        launch = KernelLaunch(0, [row], deque(), lambda launch: None)
        hidden: list[Any] = [None]
        self.device._state_layer(0, launch, [row.tokens], hidden)
        return launch, hidden[0]

    def decode(self, token: int, prefix: int, cursor: int, flushes: bool = False) -> int:
        """Return the state that a decode reads."""
        launch = self.run((token,), prefix, Replay(cursor, flushes))
        read = next(access for access in launch.accesses if isinstance(access, StateRead))
        wrote = next(access for access in launch.accesses if isinstance(access, StateWrite))
        assert read.temporal is not None and wrote.temporal == run_chain(read.temporal, (token,))[-1]
        return read.temporal


def truth(*tokens: int) -> int:
    return run_chain(EMPTY, tokens)[-1]


def test_the_state_is_stored_when_the_ring_is_full_and_read_right_at_each_token() -> None:
    layer = Layer()
    behind_the_prompt = layer.stored
    assert behind_the_prompt == truth(*PROMPT)
    assert layer.decode(21, 2, 0) == truth(*PROMPT)
    assert layer.decode(22, 3, 1) == truth(*PROMPT, 21)
    assert layer.stored == behind_the_prompt and layer.states.ring[0, SLOT].tolist() == [21, 22, 99]
    assert layer.decode(23, 4, 2, flushes=True) == truth(*PROMPT, 21, 22)
    assert layer.stored == truth(*PROMPT, 21, 22, 23) and layer.states.ring[0, SLOT].tolist() == [21, 22, 99]
    assert layer.decode(24, 5, 0) == truth(*PROMPT, 21, 22, 23)
    assert layer.states.ring[0, SLOT].tolist() == [24, 22, 99]


def test_a_boundary_stores_the_state_before_the_ring_is_full() -> None:
    layer = Layer()
    layer.decode(21, 2, 0)
    assert layer.decode(22, 3, 1, flushes=True) == truth(*PROMPT, 21)
    assert layer.stored == truth(*PROMPT, 21, 22)
    assert layer.decode(23, 4, 0) == truth(*PROMPT, 21, 22)


@pytest.mark.parametrize("cursor", [1, 2])
def test_a_cursor_that_another_request_has_left_gives_a_wrong_state(cursor: int) -> None:
    assert Layer().decode(21, 2, cursor) == truth(*PROMPT, *[99] * cursor)


def test_a_prefill_reads_and_stores_the_state_without_the_ring() -> None:
    """A window, however, has advanced with each token: it is that of the decode."""
    layer = Layer()
    layer.decode(21, 2, 0)
    [window] = layer.states.window[0, SLOT].tolist()
    assert window == truth(*PROMPT, 21)
    launch = layer.run((31, 32), 3, None)
    assert next(one for one in launch.accesses if isinstance(one, StateRead)).temporal == truth(*PROMPT)
    assert layer.stored == truth(*PROMPT, 31, 32)
    assert layer.states.ring[0, SLOT].tolist() == [21, 99, 99]


def test_a_window_of_a_later_token_gives_other_outputs() -> None:
    """The state behind them is that of the tokens all the same."""
    layer = Layer()
    _, right = layer.computed((21,), 2)
    layer = Layer()
    layer.states.window[0, SLOT] = truth(*PROMPT, 77)
    _, wrong = layer.computed((21,), 2)
    assert right == (truth(*PROMPT, 21),) and wrong != right
    assert layer.stored == truth(*PROMPT, 21)


def test_the_kernel_stores_at_the_last_entry_and_where_it_is_told_to() -> None:
    metadata = SimpleNamespace(
        replayssm_write_pos=torch.tensor([0, 1, 2, 2, 0]), replayssm_force_flush=torch.tensor([0, 1, 0, 1, 1])
    )
    assert replays(metadata, ENTRIES) == [
        Replay(0, False),
        Replay(1, True),
        Replay(2, True),
        Replay(2, True),
        Replay(0, True),
    ]
