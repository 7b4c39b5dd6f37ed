"""A history agrees with the views, and recording one changes nothing."""

from pathlib import Path

import msgspec
import pytest
from support import CLEAN, arrive, drawn, make_trace, steps, watch

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.record.history import History
from hybridfuzz.harness.record.history_builder import HistoryBuilder
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.harness.record.tag_names import Names
from hybridfuzz.harness.tell.clauses import Blocks
from hybridfuzz.harness.tell.explain import explain
from hybridfuzz.reference.layout import Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.tokens import NO_INPUT, Truth
from hybridfuzz.targets.base.observe import Copied, View
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Abort, DummyRun, Group, Preempt

SEEDS = range(12)
LAYOUT = Layout((Group("mamba", 8), Group("attention", 8)), 12, 4, "align", True)
CORPUS = Path(__file__).parents[3] / "corpus" / "numeric"
NUMERIC = [
    "all-mode-partial-block--S1-step-mamba-state-bytes",
    "connector-positional-mirror--S1-move_tier-mamba-stored-state-bytes",
]


@pytest.mark.parametrize("index", SEEDS)
def test_recording_changes_nothing(index: int) -> None:
    trace = drawn(5, index)
    assert record_history(CLEAN, trace)[0] == run_trace(CLEAN, trace)


@pytest.mark.parametrize("stem", NUMERIC)
def test_a_violation_of_a_numeric_target_can_be_recorded(stem: str) -> None:
    """The oracles on bytes read pages through the recorder."""
    pytest.importorskip("torch")
    slug, _, signature = stem.partition("--")
    trace = load_trace(CORPUS / f"{stem}.json")
    outcome, history = record_history(load_factory(f"hybrid:{slug}@cpu-bytes"), trace)
    assert outcome.violation is not None
    assert outcome.violation.signature == signature, outcome.violation.message
    assert history.violation == outcome.violation
    explanation = explain(history)
    assert explanation is not None
    assert explanation.story


@pytest.mark.parametrize("index", SEEDS)
def test_marks_add_up_to_the_last_view(index: int) -> None:
    trace = drawn(6, index)
    history = record_history(CLEAN, trace)[1]
    _, _, view = watch(trace).history[-1]
    blocks = Blocks(history)
    for mark in history.marks:
        blocks.take(mark)
    null = history.null_block
    for block in range(history.num_blocks):
        held = {name for name, table in view.tables.items() if any(block in columns for columns in table)}
        if block != null:
            assert set(blocks.of(block).holders) == held, block
        assert bool(blocks.of(block).key) == (block in view.published), block


def test_a_life_of_a_block() -> None:
    trace = make_trace(
        arrive("x", 20, new=1), *steps(3), arrive("y", 20, new=9), *steps(2), Preempt("y"), *steps(1), Abort("y"),
        *steps(1), DummyRun(1),
    )  # fmt: skip
    history = record_history(CLEAN, trace)[1]
    hits = {(mark.block, mark.who) for mark in history.marks if mark.what == "hit"}
    assert hits, "y resumes from what x left"
    block, _ = min(hits)
    life = [mark.what for mark in history.marks if mark.block == block]
    assert life[:2] == ["alloc", "hash"]
    assert life.index("free") < life.index("hit")
    assert [turn.request for turn in history.request_steps if turn.admitted] == ["x", "y", "y"]
    assert {moment.kind for moment in history.moments} >= {"arrive", "step", "preempt", "abort", "dummy_run"}


@pytest.mark.parametrize(
    ("temporal", "conv", "slots", "words"),
    [(True, True, 0, "state and window"), (False, False, 3, "KV in the first 3 slots")],
)
def test_what_is_copied_has_a_noun(temporal: bool, conv: bool, slots: int, words: str) -> None:
    """ "r1's  is copied from block 2 to block 5" was said of slots of an attention page."""
    trace = make_trace(arrive("r1", 8), *steps(1))
    builder = HistoryBuilder(LAYOUT, trace.events)
    builder.begin(trace.events[0])
    builder.take(Copied(0, "r1", 1, 0, 2, 1, 5, 0, temporal, conv, slots=slots))
    [mark] = [one for one in builder.marks_until(None) if one.what == "copy"]
    assert mark.content == words


def test_travels_as_json() -> None:
    history = record_history(CLEAN, drawn(5, 0))[1]
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history


def test_names() -> None:
    names = Names([arrive("x", ("a", 8), ("b", 2)), arrive("y", ("a", 8), ("c", 3)), arrive("x", ("z", 9))])
    x = Truth([("a", 8), ("b", 2)])
    assert names.name(x.tag(0)) == "the empty state"
    assert names.name(x.tag(8)) == "state@8 of document a"
    assert names.name(x.tag(9)) == "state@9 of x"
    assert names.of("y", 11) == "state@11 of y"
    assert names.of("nobody", 1) == ""
    assert names.name(NO_INPUT) == "zeroed memory"
    assert names.name(-5) == "bytes of another dtype"
    assert names.name(12345) == "bytes that were never written"
    names.note(12345, "x wrote in step 4")
    names.note(12345, "y wrote in step 5")
    assert names.name(12345) == "what x wrote in step 4"
    assert names.span(0, x.slots(0, 8)) == "KV of positions 0 to 7 of document a"
    assert names.span(9, x.slots(9, 10)) == "KV of position 9 of x"
    assert names.span(3, [7]) == "KV of position 3 (bytes that were never written)"
    assert names.span(3, x.slots(8, 9)) == "KV of position 3 (KV of position 8 of x)"
    swapped = [*x.slots(0, 2), *x.slots(4, 5)]
    assert names.span(0, swapped) == "KV of positions 0 to 2 (position 2: KV of position 4 of document a)"
    assert names.span(1, [x.tag(0)]) == "KV of position 1 (the empty state)"


@pytest.mark.parametrize(("missing", "what"), [([], "hit"), (["r1"], "alloc")])
def test_a_request_without_a_hit_has_none_of_its_blocks_from_the_cache(missing: list[str], what: str) -> None:
    """A preempted request that does not read the cache got its old block again, and published the same key."""
    trace = make_trace(arrive("r1", 8))
    builder = HistoryBuilder(LAYOUT, trace.events)
    builder.begin(trace.events[0])
    key = Key(1, 8, Truth((("a", 8),)).tag(8))
    cached = View((0, 1), (0,) * 12, {1: key}, None, {}, ("r1",), ())
    builder.see(cached)
    builder.see(
        msgspec.structs.replace(cached, free=(0,), tables={"r1": ((), (1,))}, waiting=(), running=("r1",)), missing
    )
    assert [(mark.what, mark.block) for mark in builder.marks_until(None)] == [(what, 1)]
