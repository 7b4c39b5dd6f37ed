"""Steps overlap: uploads for the next one, kernels of this one, results of the last one; a missing fence is detected.

On a CPU copies run as late as fences allow. On a GPU one of the two streams is kept busy.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Config, ResetPrefixCache, Step
from hybridfuzz.targets.hybrid.factory import HybridFactory
from hybridfuzz.targets.hybrid.numeric.device_state import DeviceState
from hybridfuzz.targets.hybrid.numeric.factory import NumericFactory
from hybridfuzz.targets.hybrid.numeric.kernels.staging import PendingDownload, Slot, Staging
from hybridfuzz.targets.hybrid.numeric.moves import Moves
from hybridfuzz.targets.hybrid.numeric.pool import pack_dead_blocks
from hybridfuzz.targets.hybrid.numeric.prefetch import Prefetch
from hybridfuzz.targets.hybrid.target import HybridTarget

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
CUDA = pytest.param("cuda", marks=GPU)
A_WHILE = 20_000_000
"""Cycles of a GPU, some 10 ms."""
TRACE = make_trace(
    arrive("r0", ("a", 9), new=6),
    Step(),
    arrive("r1", ("b", 9), new=6),
    *steps(2),
    arrive("r2", ("c", 9), new=6),
    *steps(8),
    async_depth=1,
    graph_sizes=(1, 2, 4),
)


class Changed(NumericFactory):
    """The correct target, changed after it was opened."""

    def __init__(self, device: str, change: Callable[[Any], None]) -> None:
        hardware, alone = device.removesuffix("-bytes"), device.endswith("-bytes")
        super().__init__("changed", HybridFactory("hybrid", HybridTarget), HybridTarget, hardware, bytes_alone=alone)
        self._change = change

    def open(self, config: Config) -> Any:
        """Return a new engine for one trace."""
        target = super().open(config)
        self._change(target)
        return target


def keep_busy(stream: str, cycles: int = A_WHILE) -> Callable[[Any], None]:
    """Busy some streams before each event: "kernels", all "copies", or those of "early" uploads."""

    def change(target: Any) -> None:
        apply, lanes = target.apply, target.device_state.lanes
        early, *others = [one.stream for one in (lanes.early.side, lanes.staging.side, lanes.downloads.side)]
        streams = {"kernels": [torch.cuda.current_stream()], "copies": [early, *others], "early": [early]}[stream]

        def busy(event: Any) -> Any:
            for one in streams:
                with torch.cuda.stream(one):
                    torch.cuda._sleep(cycles)
            return apply(event)

        target.apply = busy

    return change


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("stream", ["kernels", "copies", "early"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_slow_stream_changes_nothing(device: str, stream: str, depth: int) -> None:
    factory = load_factory(f"hybrid@{device}")
    trace = draw_trace(factory.capabilities, 41, 0, {"async_depth": depth}, factory.supports)
    trace = msgspec.structs.replace(trace, events=trace.events[:25])
    outcome = run_trace(Changed(device, keep_busy(stream)), trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.digest == run_trace(factory, trace).digest


@pytest.mark.parametrize("device", [CUDA])
def test_uploads_for_the_next_step_run_beside_the_kernels_of_this_one(device: str) -> None:
    """Once warm: pinned memory that is allocated waits for the whole device."""
    target: Any = load_factory(f"hybrid@{device}").open(TRACE.config)
    for event in TRACE.events:
        target.apply(event)
    device_state: DeviceState = target.device_state
    begin, seen = device_state.begin, []

    def watching(step: int) -> None:
        for prefetch in device_state._prefetched.values():
            if prefetch.zero:
                prefetch.zero[1]._copied.hold_host()  # type: ignore[union-attr]
                seen.append(woken.query())
        begin(step)

    device_state.begin = watching  # type: ignore[method-assign]
    for number, event in enumerate(TRACE.events):
        torch.cuda._sleep(20 * A_WHILE)
        woken = torch.cuda.Event()
        woken.record()
        target.apply(arrive(f"s{number}", (f"e{number}", 9), new=6) if number % 3 == 0 else event)
    target.close()
    assert seen
    assert not any(seen), "uploads arrived while the kernels' stream was busy"


def no_fence_for_replays(target: Any) -> None:
    """A replay that does not wait for its arrays reads those of the previous one."""

    class Unfenced(Slot):
        taken = False

        def take(self) -> torch.Tensor:
            if not self.taken:
                super().take()
            self.taken = True
            return self._content

    launcher, lanes = target.device_state.launcher, target.device_state.lanes
    run, fenced, unfenced = launcher.run, lanes.staging, {}

    def careless(arrays: Any, shape: Any, graph: bool) -> Any:
        if graph and shape not in unfenced:
            unfenced[shape] = Staging(target.device.torch)
            unfenced[shape].free = deque([Unfenced(unfenced[shape])])
        lanes.staging = unfenced[shape] if graph else fenced
        results = run(arrays, shape, graph)
        lanes.staging = fenced
        return results

    launcher.run = careless


def pinned_ids_used_again(target: Any) -> None:
    """Uploads blocks to zero through one pinned buffer without waiting for its last copy."""
    device_state: DeviceState = target.device_state
    note_plan = device_state.note_plan
    pinned = torch.zeros(64 * 8, dtype=torch.uint8, pin_memory=target.device.is_cuda)

    def careless(plan: Any, *rest: Any) -> None:
        note_plan(plan, *rest)
        prefetch: Prefetch = device_state._prefetched[plan.step]
        if prefetch.zero:
            ids = torch.tensor(device_state.pool.pages_of(plan.zero)).view(torch.uint8)
            pinned[: len(ids)] = ids
            prefetch.zero[1].send(pinned[: len(ids)], torch.int64)

    device_state.note_plan = careless  # type: ignore[method-assign]


def results_not_waited_for(target: Any) -> None:
    """The host reads a download buffer before the copy has run."""

    class Impatient(PendingDownload):
        def wait(self) -> list[Any]:
            self._copied = type("Nothing", (), {"hold_host": lambda fence: None})()  # type: ignore[assignment]
            self._host.fill_(1)
            return super().wait()

    downloads = target.device_state.lanes.downloads
    downloads.send = lambda tensors: Impatient(downloads, tensors)


@pytest.mark.parametrize(
    ("change", "signature"),
    [
        (no_fence_for_replays, "M3-step-indices"),
        (pinned_ids_used_again, "S7-step-attention-nan"),
        (results_not_waited_for, "M5-step-guard"),
    ],
)
def test_a_missing_fence_is_found_by_its_bytes(change: Callable[[Any], None], signature: str) -> None:
    violation = run_trace(Changed("cpu-bytes", change), TRACE).violation
    assert violation is not None
    assert violation.signature == signature, violation.message
    assert run_trace(load_factory("hybrid@cpu"), TRACE).violation is None


def test_a_pinned_buffer_may_be_used_again_where_nothing_is_in_flight() -> None:
    trace = make_trace(*TRACE.events, async_depth=0, graph_sizes=(1, 2, 4))
    assert run_trace(Changed("cpu-bytes", pinned_ids_used_again), trace).violation is None


@pytest.mark.parametrize("device", [CUDA])
def test_a_pinned_buffer_used_again_is_found_on_a_gpu(device: str) -> None:
    """Once warm: compiling a kernel and capturing a graph wait for the whole device, and hide the race."""
    assert run_trace(load_factory(f"hybrid@{device}-bytes"), TRACE).violation is None

    def change(target: Any) -> None:
        pinned_ids_used_again(target)
        keep_busy("early", 10 * A_WHILE)(target)

    violation = run_trace(Changed(f"{device}-bytes", change), TRACE).violation
    assert violation is not None
    assert violation.oracle in {"S4", "S7"}, violation.message


def test_nothing_overtakes_a_page_that_leaves_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """S8: the saved block dies for the next step, whose ids are on the device already."""

    def saved_in_time() -> bool:
        target: Any = load_factory("hybrid@cpu").open(TRACE.config)
        device_state: DeviceState = target.device_state
        dead = torch.from_numpy(pack_dead_blocks({5: 1}))
        device_state.pool.by_page[0, device_state.pool.pages_of([5])] = 7
        device_state.moves.save(Key(0, 8, 1), 0, 5)
        device_state.moves.flush()
        device_state.pool.fill_dead(dead)
        device_state.lanes.finish()
        [check] = device_state.moves.take_checks()
        return check.holds(check.there.numpy())

    assert saved_in_time()
    monkeypatch.setattr(Moves, "wait_for_saves", lambda moves: None)
    assert not saved_in_time()


def test_steps_that_end_in_one_event_are_launched_before_any_is_waited_for() -> None:
    """Preempting the running requests executes all steps in flight; their results are fetched together."""
    trace = make_trace(*TRACE.events[:6], ResetPrefixCache(preempt_running=True), *steps(9), async_depth=2)
    target: Any = load_factory("hybrid@cpu").open(trace.config)
    order: list[str] = []
    device_state: DeviceState = target.device_state
    begin, send = device_state.begin, device_state.lanes.downloads.send

    def noting(tensors: Any) -> Any:
        download = send(tensors)
        wait = download.wait

        def noted_wait() -> Any:
            order.append("fetched")
            return wait()

        download.wait = noted_wait  # type: ignore[method-assign]
        return download

    device_state.lanes.downloads.send = noting  # type: ignore[method-assign]
    device_state.begin = lambda step: (order.append("begun"), begin(step))[1]  # type: ignore[method-assign, func-returns-value]
    for event in trace.events[:7]:
        order.clear()
        target.apply(event)
    assert order == ["begun", "begun", "fetched", "fetched"]
    target.close()
    assert run_trace(load_factory("hybrid@cpu"), trace).violation is None
