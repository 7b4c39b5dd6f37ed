"""Mamba 2 and the gated delta net: outputs and stored states within the bounds of float64, no other byte touched."""

import random
from typing import Any

import numpy as np
from device_support import (
    FORMATS,
    Backend,
    assert_within,
    draw_rows,
    exact,
    ints,
    normal,
    poisoned,
    strided,
    torch,
)  # fmt: skip
from states_support import Row, States

from hybridfuzz.reference import numeric
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Rows, Stops

KINDS = (torch.float32, torch.bfloat16)


class Mamba:
    """A Mamba 2 layer and a drawn batch."""

    def __init__(self, seed: int, small: bool, decode: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        self.tokens = draw_rows(rng, small, decode).tokens
        groups = rng.choice([1, 2])
        heads, head_dim = groups * rng.choice([1, 2, 3]), rng.choice([1, 5, 16, 40])
        entries = rng.choice([1, 6, 16, 70])
        if small:
            heads, head_dim = groups, min(head_dim, 16)
        self.states = States(rng, seed, (heads, head_dim, entries), self.tokens)
        self.kind, count = rng.choice(KINDS), sum(self.tokens) + 1
        shapes = ((heads, head_dim), (heads,), (groups, entries), (groups, entries))
        x, dt, b, c = (normal(seed + i, count, *shape, dtype=self.kind) for i, shape in enumerate(shapes))
        self.inputs = [strided(rng, tensor) for tensor in (x, dt.abs(), b, c)]
        self.heads = [-normal(seed + 5, heads).abs() * rng.choice([0.1, 2.0]), normal(seed + 6, heads)]
        self.output = poisoned(rng, count, heads, head_dim, dtype=self.kind)

    def run(self, operation: Any, backend: Backend, rows: list[Row], *where: Any, **options: Any) -> None:
        """Launch and check."""
        arena = self.states.arena.copy(backend.device)
        x, dt, b, c = backend.put(*self.inputs)
        a, d, output = backend.put(*self.heads, self.output)
        spans = Rows.of(self.tokens, backend.device)
        operation(self.states.field(arena), x, dt, a, b, c, d, spans, *backend.put(*where), output, **options)
        written, end = {}, 0
        for row in rows:
            start, end = end, end + row.tokens
            x, dt, b, c = (exact(tensor[start:end]) for tensor in self.inputs)
            a, d = (exact(tensor) for tensor in self.heads)
            expected, states = numeric.scan(
                x, dt, a, b, c, d, row.start, chunk=options.get("chunk", 16), stored_after=(),
                output=FORMATS[self.kind],
            )  # fmt: skip
            assert_within(output[start:end], expected)
            written.update(self.states.stored(row, states))
        assert output[end:].isnan().all()
        self.states.check(arena, written)


def drafts(case: Any, width: int) -> tuple[list[Row], list[Any]]:
    """Run decode rows that read one of several columns and store each token's state in another column."""
    states, rows, table, columns, targets = case.states, [], [], [], []
    for tokens, (block, held) in zip(case.tokens, states.starts, strict=True):
        column = case.rng.randint(-1, width)
        line = [states.free.pop() for _ in range(width)]
        inside = 0 <= column < width
        if inside:
            line[column] = block
        written = [case.rng.choice([0, -1, states.free.pop()]) for _ in range(width)]
        if inside and states.is_real(block):
            written[case.rng.randrange(width)] = block
        start = held if inside else np.zeros_like(held)
        rows.append(Row(tokens, block, start, [(i + 1, target) for i, target in enumerate(written)]))
        table.append(line)
        columns.append(column)
        targets.append(written)
    return rows, [ints(table), ints(columns), ints(targets)]


def test_state_update(backend: Backend, seed: int) -> None:
    case = Mamba(seed, backend.name == "interpreter", decode=4)
    rows, where = drafts(case, case.rng.choice([1, 3]))
    case.run(backend.ops.state_update, backend, rows, *where)


def stops_of(case: Any, backend: Backend) -> tuple[list[Row], Any]:
    """Run prefill rows with stops."""
    rows = [
        Row(tokens, block, start, case.states.stops(tokens, block))
        for tokens, (block, start) in zip(case.tokens, case.states.starts, strict=True)
    ]
    return rows, Stops.of([row.stops for row in rows], backend.device)


def test_chunk_scan(backend: Backend, seed: int) -> None:
    case = Mamba(seed, backend.name == "interpreter")
    rows, stops = stops_of(case, backend)
    blocks = ints([row.block for row in rows])
    arena = {"chunk": case.rng.choice([16, 32])}

    def operation(*args: Any, **options: Any) -> None:
        backend.ops.chunk_scan(*args[:-1], stops, args[-1], **options)

    case.run(operation, backend, rows, blocks, **arena)


class Delta:
    """A gated delta net and a drawn batch."""

    def __init__(self, seed: int, small: bool, decode: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        self.tokens = draw_rows(rng, small, decode).tokens
        key_heads = rng.choice([1, 2])
        heads, keys, values = key_heads * rng.choice([1, 2, 3]), rng.choice([1, 5, 16, 40]), rng.choice([1, 6, 16, 70])
        self.states = States(rng, seed, (heads, keys, values), self.tokens)
        self.kind, count = rng.choice(KINDS), sum(self.tokens) + 1
        query, key = (normal(seed + i, count, key_heads, keys) for i in range(2))
        query, key = ((tensor / tensor.norm(dim=2, keepdim=True)).to(self.kind) for tensor in (query, key))
        value = normal(seed + 3, count, heads, values, dtype=self.kind)
        gate = -normal(seed + 4, count, heads).abs() * rng.choice([0.1, 2.0])
        beta = normal(seed + 5, count, heads).sigmoid()
        self.inputs = [strided(rng, tensor) for tensor in (query, key, value, gate, beta)]
        self.output = poisoned(rng, count, heads, values, dtype=self.kind)

    def run(self, backend: Backend, rows: list[Row], table: Any, columns: Any, stops: Stops) -> None:
        """Launch and check."""
        arena = self.states.arena.copy(backend.device)
        inputs = backend.put(*self.inputs)
        blocks, columns, output = backend.put(table, columns, self.output)
        spans = Rows.of(self.tokens, backend.device)
        backend.ops.delta_rule(self.states.field(arena), *inputs, spans, blocks, columns, stops, output)
        written, end = {}, 0
        for row in rows:
            start, end = end, end + row.tokens
            expected, states = numeric.delta_rule(
                *(exact(tensor[start:end]) for tensor in self.inputs), row.start, stored_after=(),
                output=FORMATS[self.kind],
            )  # fmt: skip
            assert_within(output[start:end], expected)
            written.update(self.states.stored(row, states))
        assert output[end:].isnan().all()
        self.states.check(arena, written)


def test_delta_rule_prefill(backend: Backend, seed: int) -> None:
    case = Delta(seed, backend.name == "interpreter")
    rows, stops = stops_of(case, backend)
    case.run(backend, rows, ints([[row.block] for row in rows]), ints([0] * len(rows)), stops)


def test_delta_rule_drafts(backend: Backend, seed: int) -> None:
    case = Delta(seed, backend.name == "interpreter", decode=4)
    rows, (table, columns, targets) = drafts(case, case.rng.choice([1, 3]))
    case.run(backend, rows, table, columns, Stops.after_each_token(targets.to(backend.device)))
