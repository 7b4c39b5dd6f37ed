"""Who asks a target whether it supports a configuration, and how often."""

from collections import Counter
from collections.abc import Callable
from io import BytesIO

import msgspec
import pytest
from support import make_trace

from hybridfuzz.harness.explore.expand import Expander
from hybridfuzz.harness.judge.situations import SpeciesReporter
from hybridfuzz.harness.record.line_recorder import LineRecorder
from hybridfuzz.harness.record.watched_lines import WatchedLines
from hybridfuzz.harness.workers.messages import Done, Drawn, Fuzz, Reply, Request, Run
from hybridfuzz.harness.workers.outbox import Outbox
from hybridfuzz.harness.workers.request_loop import serve
from hybridfuzz.harness.workers.stopwatch import Stopwatch
from hybridfuzz.targets.base.protocol import TargetError, TargetFactory, open_supported
from hybridfuzz.targets.base.proxy import FactoryProxy
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Config, TraceError
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.release import Release


class Counting(FactoryProxy):
    """Counts how often each configuration is asked about, and refuses those with a small pool."""

    def __init__(self, factory: TargetFactory) -> None:
        super().__init__(factory)
        self.asked: Counter[bytes] = Counter()
        self.opened = 0

    def supports(self, config: Config) -> str:
        self.asked[msgspec.json.encode(config)] += 1
        return "the pool is small" if config.num_blocks < 20 else super().supports(config)

    def open(self, config: Config) -> object:
        assert self.asked[msgspec.json.encode(config)], "opened without a question"
        self.opened += 1
        return super().open(config)


class Listening(Outbox):
    """Gives replies to a function instead of writing them."""

    def __init__(self, listen: Callable[[Reply], object]) -> None:
        super().__init__(BytesIO(), b"")
        self._listen = listen

    def _write(self, reply: Reply) -> None:
        self._listen(reply)


@pytest.fixture
def factory() -> Counting:
    return Counting(load_factory("hybrid"))


def answer(request: Request, factory: Counting, listen: Callable[[Reply], None] = lambda reply: None) -> None:
    serve(
        request, Stopwatch(factory, {}), Listening(listen), LineRecorder(), WatchedLines({}), Expander(factory),
        SpeciesReporter(),
    )  # fmt: skip


def test_a_drawn_trace_is_asked_about_while_it_is_drawn(factory: Counting) -> None:
    asked: list[tuple[type[Reply], int]] = []

    def listen(reply: Reply) -> None:
        asked.append((type(reply), factory.asked.total()))

    answer(Fuzz(seed=3, first=0, count=6, overrides={}, twice_every=1), factory, listen)
    assert [kind for kind, _ in asked] == [Drawn, Done] * 6
    assert factory.opened == 12  # each trace runs twice
    assert [count for kind, count in asked if kind is Drawn] == [count for kind, count in asked if kind is Done]


def test_a_trace_that_is_sent_is_asked_about_once(factory: Counting) -> None:
    answer(Run(make_trace(num_blocks=40), twice=True), factory)
    assert (factory.opened, set(factory.asked.values())) == (2, {1})


def test_a_trace_that_is_sent_may_be_refused(factory: Counting) -> None:
    with pytest.raises(TraceError, match="hybrid does not take it: the pool is small"):
        answer(Run(make_trace(num_blocks=19)), factory)
    traces = (make_trace(num_blocks=19),)
    with pytest.raises(TraceError, match="hybrid does not take it: the pool is small"):
        answer(Fuzz(3, 0, 1, {}, traces=traces), factory)
    assert not factory.opened


def test_who_opens_without_a_trace_is_told_why_not(factory: Counting) -> None:
    with pytest.raises(TargetError, match=r"^hybrid: the pool is small; change the configuration$"):
        open_supported(factory, make_trace(num_blocks=19).config)
    assert not factory.opened
    open_supported(factory, make_trace(num_blocks=40).config).close()
    assert factory.opened == 1


def test_an_engine_is_not_imported_for_a_configuration_that_it_does_not_take() -> None:
    config = make_trace().config
    states = msgspec.structs.replace(config, groups=config.groups[:1])
    with pytest.raises(TargetError, match=r"^vllm: it needs groups of both kinds"):
        open_supported(VllmFactory("vllm", Release()), states)
