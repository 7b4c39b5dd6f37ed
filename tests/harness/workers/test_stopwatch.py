"""Each second of a trace is counted once, under what it went into."""

from time import perf_counter, sleep

import pytest

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.workers.stopwatch import Stopwatch
from hybridfuzz.targets.base.protocol import Waits
from hybridfuzz.targets.base.proxy import FactoryProxy, TargetProxy
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory

PAUSE = 0.02


class Slow(TargetProxy):
    """Takes long for an event, and says that half of it was spent in a compiler."""

    def __init__(self, target, factory):
        super().__init__(target)
        self.factory = factory

    def apply(self, event):
        sleep(PAUSE)
        self.factory.events += 1
        if self.factory.compiles:
            self.factory.waited["compiling"] += PAUSE / 2
        return super().apply(event)


class SlowFactory(FactoryProxy):
    def __init__(self, compiles):
        super().__init__(load_factory("hybrid"))
        self.compiles, self.events = compiles, 0
        self.waited = {"compiling": 5.0} if compiles else {}  # before the first trace

    def open(self, config):
        sleep(PAUSE)
        return Slow(super().open(config), self)


@pytest.mark.parametrize("compiles", [False, True])
def test_engine_opening_and_compiling_are_told_apart(compiles: bool) -> None:
    factory = SlowFactory(compiles)
    watch = Stopwatch(factory, factory.waited)
    trace = draw_trace(watch.capabilities, 1, 1, supports=watch.supports)
    before = perf_counter()
    watch.begin()
    began = perf_counter()
    run_trace(watch, trace)
    least, took, longest = perf_counter() - began, watch.took(), factory.events * PAUSE
    assert took["opening"] >= PAUSE and took["judging"] > 0
    assert took.get("compiling", 0.0) == pytest.approx(longest / 2 if compiles else 0.0)
    assert took["engine"] >= (longest / 2 if compiles else longest)
    assert least <= sum(took.values()) <= perf_counter() - before


def test_a_factory_says_what_it_waits_for() -> None:
    assert isinstance(GpuFactory("vllm", "cuda", ()), Waits)  # behind a proxy not, from Python 3.12 on
    assert not isinstance(load_factory("hybrid"), Waits)


def test_a_trace_begins_at_nothing() -> None:
    watch = Stopwatch(load_factory("hybrid"), {})
    assert watch.timed("drawing", sleep)(PAUSE) is None
    assert watch.took()["drawing"] >= PAUSE
    watch.begin()
    assert watch.took().keys() == {"judging"}


def test_an_error_is_passed_on_and_its_time_is_counted() -> None:
    watch = Stopwatch(load_factory("hybrid"), {})
    with pytest.raises(ZeroDivisionError):
        watch.timed("engine", lambda: 1 // 0)()
    assert watch.took()["engine"] > 0


def test_what_is_observed_is_the_same() -> None:
    factory = load_factory("hybrid")
    for index in range(5):
        trace = draw_trace(factory.capabilities, 3, index, supports=factory.supports)
        assert run_trace(Stopwatch(factory, {}), trace) == run_trace(factory, trace)
