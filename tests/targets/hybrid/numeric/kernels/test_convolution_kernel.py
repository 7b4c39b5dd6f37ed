"""Causal convolution: outputs within the bound of float64, windows moved bit for bit, nothing else touched."""

import random
from typing import Any

from device_support import (
    FORMATS,
    Backend,
    assert_within,
    draw_rows,
    exact,
    ints,
    normal,
    poisoned,
    same_bits,
    strided,
    torch,
)  # fmt: skip
from states_support import States

from hybridfuzz.reference import numeric
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Rows, Stops


class Case:
    """A layer, its pool and a drawn batch; window r is the initial window of row r."""

    def __init__(self, seed: int, small: bool, decode: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        self.tokens = draw_rows(rng, small, decode).tokens
        self.width, self.channels = rng.randint(2, 8), rng.choice([1, 5, 33, 140])
        self.kind = rng.choice([torch.float32, torch.bfloat16])
        self.states = States(rng, seed, (self.width - 1 + rng.randint(0, 4), self.channels), self.tokens)
        length = self.states.shape[0]
        self.offsets = [rng.randint(-1, length) for _ in self.tokens]
        self.windows = []
        for (_, held), offset in zip(self.states.starts, self.offsets, strict=True):
            window = torch.zeros(self.width - 1, self.channels, dtype=self.states.dtype)
            for entry in range(self.width - 1):
                if 0 <= offset + entry < length:
                    window[entry] = torch.from_numpy(held[offset + entry])
            self.windows.append(window)
        count = sum(self.tokens)
        self.inputs = normal(seed, count + 2, self.channels, dtype=self.kind)
        self.weight = strided(rng, normal(seed + 1, self.channels, self.width))
        self.bias = strided(rng, normal(seed + 2, self.channels))
        self.output = poisoned(rng, count + 2, self.channels, dtype=self.kind)

    def history(self, row: int, first: int, end: int) -> Any:
        """Return window and inputs as the state stores them."""
        return torch.cat([self.windows[row], self.inputs[first:end].to(self.states.dtype)])

    def run(self, operation: Any, backend: Backend, *where: Any) -> tuple[Any, Any]:
        """Launch, check the outputs and return them with the pool."""
        arena = self.states.arena.copy(backend.device)
        inputs, weight, bias, output = backend.put(
            strided(self.rng, self.inputs), self.weight, self.bias, self.output
        )  # fmt: skip
        rows = Rows.of(self.tokens, backend.device)
        blocks, offsets = backend.put(ints([block for block, _ in self.states.starts]), ints(self.offsets))
        operation(inputs, weight, bias, self.states.field(arena), rows, blocks, offsets, *where, output)
        end = 0
        for row, n in enumerate(self.tokens):
            start, end = end, end + n
            expected = numeric.convolution(
                exact(self.inputs[start:end]), exact(self.weight), exact(self.bias), exact(self.windows[row]),
                output=FORMATS[self.kind],
            )  # fmt: skip
            assert_within(output[start:end], expected)
        assert output[end:].isnan().all()
        return arena, output


def test_prefill(backend: Backend, seed: int) -> None:
    case = Case(seed, backend.name == "interpreter")
    states = case.states
    stops = [states.stops(n, block) for n, (block, _) in zip(case.tokens, states.starts, strict=True)]
    arena, _ = case.run(backend.ops.conv_prefill, backend, Stops.of(stops, backend.device))
    expected, end = states.arena.copy(), 0
    for row, (n, row_stops) in enumerate(zip(case.tokens, stops, strict=True)):
        start, end = end, end + n
        history = case.history(row, start, end)
        for count, block in row_stops:
            if 0 <= count <= n and states.is_real(block):
                states.field(expected)[block, : case.width - 1] = history[count : count + case.width - 1]
    assert torch.equal(arena.bytes(), expected.bytes())


def test_update(backend: Backend, seed: int) -> None:
    case = Case(seed, backend.name == "interpreter", decode=5)
    states = case.states
    blocks = [
        block if states.is_real(block) and case.rng.random() < 0.5 else case.rng.choice([0, -1, states.free.pop()])
        for block, _ in states.starts
    ]
    arena, _ = case.run(backend.ops.conv_update, backend, ints(blocks).to(backend.device))
    expected, end = states.arena.copy(), 0
    for row, (n, block) in enumerate(zip(case.tokens, blocks, strict=True)):
        start, end = end, end + n
        kept = case.history(row, start, end)[1:][: states.shape[0]]
        if n and states.is_real(block):
            states.field(expected)[block, : len(kept)] = kept
    assert torch.equal(arena.bytes(), expected.bytes())


def test_payloads_of_nan_survive_a_shift(backend: Backend) -> None:
    """Moving a window keeps every bit of poison, which identifies its block."""
    state = torch.zeros(3, 3, 2)
    bits = torch.arange(6, dtype=torch.int32).reshape(3, 2) + 0x7F800001  # signalling
    state.view(torch.int32)[1] = bits
    inputs, weight, bias, state, output = backend.put(
        torch.ones(1, 2), torch.ones(2, 4), torch.zeros(2), state, torch.zeros(1, 2)
    )  # fmt: skip
    blocks, offsets = backend.put(ints([1]), ints([0]))
    rows = Rows.of([1], backend.device)
    stops = Stops.of([[(1, 1), (0, 2)]], backend.device)
    backend.ops.conv_prefill(inputs, weight, bias, state, rows, blocks, offsets, stops, output)
    assert output.isnan().all()
    assert same_bits(state[2].view(torch.int32), bits)
    assert same_bits(state[1, :2].view(torch.int32), bits[1:])
    assert (state[1, 2] == 1).all()
