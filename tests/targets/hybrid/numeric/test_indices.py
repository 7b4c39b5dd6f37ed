"""Indices are computed on the device from block tables, used by the layers, and compared with expected values.

A wrong kernel is found twice over: by comparison, and by the numbers. Only what a broken part takes from elsewhere is
sent along.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import ATTENTION, MAMBA, arrive, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Numeric
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import AnyEvent, DummyRun, Group, Step, Trace
from hybridfuzz.targets.hybrid.numeric import device_state, forward
from hybridfuzz.targets.hybrid.numeric.indices import IndexArrays, differing, slot_rule, state_rule, stop_rule
from hybridfuzz.targets.hybrid.numeric.kernels import torch_reference
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Rows

MODES = ("align", "all", "none")


def run(slug: str, trace: Trace) -> tuple[int, list[str]]:
    """Return (overridden indices, arrays that the device computed differently) of a run without oracles."""
    target: Any = load_factory(f"hybrid:{slug}@cpu" if slug else "hybrid@cpu").open(trace.config)
    failed: list[str] = []
    for event in trace.events:
        for record in target.apply(event).records:
            failed += record.failed if isinstance(record, Numeric) else []
    return target.device_state.indices_sent, failed


def busy(mode: str) -> Trace:
    """Chunks that begin and end off the grid of blocks, drafts, padding, two equal groups."""
    return make_trace(
        arrive("r0", 30, new=9),
        arrive("r1", 17, ("e", 5), new=8),
        Step(chunks={"r0": 5}),
        *steps(8, drafts=3, right=2),
        groups=(MAMBA, MAMBA, ATTENTION),
        mamba_cache_mode=mode,
        num_speculative_tokens=3,
        graph_sizes=(2, 4),
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_correct_target_sends_no_index(mode: str) -> None:
    assert run("", busy(mode)) == (0, [])


def test_nor_does_it_in_drawn_traces() -> None:
    factory = load_factory("hybrid@cpu")
    for index in range(3):
        trace = draw_trace(factory.capabilities, 51, index, {}, factory.supports)
        assert run("", Trace(trace.config, trace.events[:15])) == (0, [])


def last_entry_elsewhere(kernel: Callable[..., None], output: int) -> Callable[..., None]:
    """The kernel with one entry of its result changed to another block."""

    def wrong(*arguments: Any, **options: Any) -> None:
        kernel(*arguments, **options)
        given = arguments[output].view(-1)
        given[-1] = torch.where(given[-1] > 0, given[-1] + 1, given[-1])

    return wrong


@pytest.mark.parametrize(
    ("kernel", "output", "mode"),
    [
        ("state_indices", 8, "align"),
        ("state_indices", 6, "none"),
        ("boundary_stops", 5, "all"),
        ("slot_mapping", 4, "align"),
    ],
)
def test_a_wrong_kernel_is_found_by_comparison(
    kernel: str, output: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_reference, kernel, last_entry_elsewhere(getattr(torch_reference, kernel), output))
    violation = run_trace(load_factory("hybrid@cpu"), busy(mode)).violation
    assert violation is not None
    assert (violation.oracle, violation.field) == ("M3", "indices")


@pytest.mark.parametrize(
    ("kernel", "output", "mode"),
    [
        ("state_indices", 8, "align"),
        ("boundary_stops", 5, "all"),
        ("slot_mapping", 4, "align"),
        ("gather_columns", 3, "align"),
    ],
)
def test_layers_use_what_the_device_computed(
    kernel: str, output: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparison the wrong entry is detected in numbers or between the fills."""

    def wrong(*arguments: Any, **options: Any) -> None:
        getattr(torch_reference.tables, kernel)(*arguments, **options)
        arguments[output].clamp_(max=arguments[output].max() - 1)

    monkeypatch.setattr(device_state, "differing", lambda expected, found: [])
    monkeypatch.setattr(torch_reference, kernel, wrong)
    violation = run_trace(load_factory("hybrid@cpu-bytes"), busy(mode)).violation
    assert violation is not None
    assert violation.field in ("numbers", "fills", "nan", "state-bytes", "key-bytes", "guard")


@pytest.mark.parametrize("slug", ["metadata-buffer-aliased-to-first-group", "all-mode-partial-block"])
def test_what_a_broken_part_takes_from_elsewhere_is_sent(slug: str) -> None:
    sent, failed = run(slug, busy("all"))
    assert sent
    assert not failed, "what the device computes is right all the same"


def test_a_table_that_is_too_narrow_needs_nothing_sent() -> None:
    """The device's table has the worker's row stride: columns beyond a row are the next row's there, too."""
    (path,) = (Path(__file__).parents[4] / "corpus" / "numeric").glob("all-spec-table-width--*")
    assert run_trace(load_factory("hybrid:all-spec-table-width@cpu-bytes"), load_trace(path)).violation
    assert run("all-spec-table-width", load_trace(path)) == (0, [])


def drafter_trace(*events: AnyEvent) -> Trace:
    """A drafter with its own tables, then other events."""
    groups = (MAMBA, Group("attention", 8), Group("attention", 4, draft=True))
    return make_trace(
        arrive("r0", 9, new=5), *steps(3, drafts=3, right=1), *events, groups=groups, num_speculative_tokens=3
    )


def test_what_a_drafter_stores_goes_where_its_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("", drafter_trace()) == (0, [])
    computed = []
    slots_of_drafts = forward.Network.write_lone

    def noted(*arguments: Any) -> torch.Tensor:
        computed.append(slots_of_drafts(*arguments))
        return computed[-1]

    monkeypatch.setattr(forward.Network, "write_lone", noted)
    run("", drafter_trace())
    assert computed and all((slots > 0).all() for slots in computed)
    monkeypatch.setattr(forward.Network, "write_lone", lambda *arguments: slots_of_drafts(*arguments) + 1)
    _, failed = run("", drafter_trace())
    assert set(failed) == {"computing the drafter's slots of group 2"}


def test_a_dummy_batch_that_names_request_slots_needs_nothing_sent() -> None:
    """The mutant's slots come from stale tables, on the device as in the symbolic run."""
    slug = "draft-steps-through-stale-rows"
    trace = drafter_trace(*steps(8), DummyRun(2))
    assert run_trace(load_factory(f"hybrid:{slug}@cpu"), trace).violation
    assert run(slug, trace) == (0, [])


@pytest.fixture(params=range(6))
def drawn(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Tables and rows of any kind: padding, rows and columns that do not exist."""
    random = np.random.default_rng(request.param)
    count = int(random.integers(1, 7))
    return {
        "table": random.integers(0, 9, (5, 6)).astype(np.int32),
        "rows": random.integers(-1, 6, count).astype(np.int32),
        "positions": random.integers(0, 20, count).astype(np.int32),
        "counts": random.integers(0, 9, count).astype(np.int32),
        "columns": random.integers(-1, 7, count).astype(np.int32),
        "offsets": random.integers(0, 3, count).astype(np.int32),
    }


def as_tensors(drawn: dict[str, Any], *names: str) -> list[torch.Tensor]:
    return [torch.from_numpy(drawn[name]) for name in names]


@pytest.mark.parametrize("size", [0, 4])
def test_the_rule_of_states_is_that_of_the_kernels(drawn: dict[str, Any], size: int) -> None:
    rule = state_rule(*(drawn[name] for name in drawn), size=size, width=3)
    outputs = torch.empty((len(drawn["rows"]), 3), dtype=torch.int32)
    sources, windows = (torch.empty(len(drawn["rows"]), dtype=torch.int32) for _ in range(2))
    torch_reference.state_indices(
        *as_tensors(drawn, *drawn), sources, windows, outputs, mode="align" if size else "none", block_size=size or 1
    )
    for ruled, given in zip(rule, (sources, windows, outputs), strict=True):
        assert np.array_equal(ruled, given.numpy())


def test_the_rule_of_stops_is_that_of_the_kernels(drawn: dict[str, Any]) -> None:
    drawn["counts"] = np.maximum(drawn["counts"], 1)
    names = ("table", "rows", "positions", "counts")
    rule = stop_rule(*(drawn[name] for name in names), size=4, capacity=4)
    counts, blocks = (torch.empty((len(drawn["rows"]), 4), dtype=torch.int32) for _ in range(2))
    torch_reference.boundary_stops(*as_tensors(drawn, *names), counts, blocks, block_size=4)
    assert np.array_equal(rule[0], counts.numpy())
    assert np.array_equal(rule[1], blocks.numpy())


def test_the_rule_of_slots_is_that_of_the_kernels(drawn: dict[str, Any]) -> None:
    tokens = int(drawn["counts"].sum()) + 3
    rule = slot_rule(drawn["table"], drawn["rows"], drawn["positions"], drawn["counts"], 4, tokens)
    slots = torch.empty(tokens, dtype=torch.int64)
    table, rows, positions = as_tensors(drawn, "table", "rows", "positions")
    torch_reference.slot_mapping(table, rows, Rows.of(drawn["counts"].tolist()), positions, slots, block_size=4)
    assert np.array_equal(rule, slots.numpy())


def test_stops_that_are_not_the_rule_are_sent_row_by_row() -> None:
    rule = np.array([[4, 6], [-1, 2]], np.int32), np.array([[7, 8], [0, 9]], np.int32)
    index_arrays = IndexArrays()
    index_arrays.add_stops("", rule, [[(6, 8), (4, 7)], [(1, 9)]])
    assert index_arrays.arrays["counts"].tolist() == [-2, -2, 1, -1]
    assert index_arrays.arrays["blocks"].tolist() == [-2, -2, 9, 0]
    assert index_arrays.sent == 1


def test_arrays_that_differ_are_named() -> None:
    expected = {"1 slots": np.array([3, 4], np.int32), "0 update sources": np.array([5], np.int32)}
    assert differing(expected, np.array([5, 3, 4], np.int32)) == []
    assert differing(expected, np.array([5, 3, 5], np.int32)) == ["computing the slots of group 1"]
