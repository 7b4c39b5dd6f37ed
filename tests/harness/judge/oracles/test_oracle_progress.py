"""S6, S8 and M8 fire: what comes out, in which order the device works, and that it goes on."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from support import (
    CLEAN,
    Case,
    Tampered,
    arrive,
    broken,
    check_case,
    check_sentence,
    make_trace,
    steps,
)

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.reference.tokens import other_token
from hybridfuzz.targets.base.observe import Copied, Forward, Record, Zeroed
from hybridfuzz.targets.base.trace import Abort, Preempt, Step
from hybridfuzz.targets.hybrid.host.scheduler import Scheduler
from hybridfuzz.targets.hybrid.target import HybridTarget
from hybridfuzz.targets.hybrid.worker.model_runner import ModelRunner

ONE = make_trace(arrive("r0", 20, new=4), *steps(6))
CHUNKS = make_trace(arrive("r0", 20, new=3), *steps(8), max_num_batched_tokens=9)
DRAFTS = make_trace(arrive("r0", 12, new=20), *steps(12, drafts=3, right=1), num_speculative_tokens=3)
AHEAD = make_trace(arrive("r0", 20, new=9), *steps(14), async_depth=1)
TWO_AHEAD = make_trace(arrive("r0", 20, new=20), *steps(24), async_depth=2)
REUSED = make_trace(
    arrive("r0", 20, new=9), *steps(2), Abort("r0"), arrive("r1", ("e", 40), new=4), *steps(9),
    async_depth=1, num_blocks=11, max_model_len=48,
)  # fmt: skip
NO_CACHE = {"mamba_cache_mode": "none"}


class SamplesWrongly(ModelRunner):
    """One token is not the model's choice."""

    def verify(self, row: Any, tags: Any, inputs: Any) -> list[int]:
        return [other_token(token) for token in super().verify(row, tags, inputs)]


class AcceptsTooMany(ModelRunner):
    """A wrong draft is accepted."""

    def verify(self, row: Any, tags: Any, inputs: Any) -> list[int]:
        sampled = super().verify(row, tags, inputs)
        wrong = len(sampled) <= row.drafts and row.drafts
        return [*sampled[:-1], inputs.tokens[-row.drafts + len(sampled) - 1], 5] if wrong else sampled


class RepeatsToken(ModelRunner):
    """The last known token is fed once more."""

    def row_input(self, index: int, row: Any) -> Any:
        inputs = super().row_input(index, row)
        if inputs.position < 16:
            return inputs
        return msgspec.structs.replace(inputs, tokens=(other_token(inputs.tokens[0]), *inputs.tokens[1:]))


class SkipsPosition(ModelRunner):
    """A chunk starts one position too far."""

    def row_input(self, index: int, row: Any) -> Any:
        inputs = super().row_input(index, row)
        return msgspec.structs.replace(inputs, position=inputs.position + (inputs.position >= 16))


class DeliversTwice(Scheduler):
    """The client gets a token that it had."""

    def settle(self, row: Any, sampled: Any) -> tuple[list[int], bool]:
        new, finished = super().settle(row, sampled)
        return [*new[:1], *new], finished


class EndsEarly(HybridTarget):
    """The last token never reaches the client."""

    def complete(self, records: list[Record]) -> None:
        super().complete(records)
        last: Any = records[-1]
        if last.finished:
            records[-1] = msgspec.structs.replace(last, outputs=())


class RunsNewestFirst(HybridTarget):
    """The newest planned step overtakes the older one."""

    def complete(self, records: list[Record]) -> None:
        if len(self.in_flight) > 1 and self.step > 4:
            self.in_flight.rotate(1)
        super().complete(records)


class SchedulesNothing(Scheduler):
    """vLLM #40709: a chunk that does not reach the grid is rounded down to nothing."""

    def align_chunk(self, request: Any, *arguments: Any) -> int:
        return super().align_chunk(request, *arguments) // 8 * 8


class NeverAdmits(Scheduler):
    """Waiting requests wait."""

    def schedule_waiting(self, plan: Any, limits: Any) -> None:
        pass


class StartsOver(HybridTarget):
    """Every step preempts what ran before: work is done, progress is not made."""

    def run_step(self, event: Step) -> list[Record]:
        for request in list(self.scheduler.running):
            self.scheduler.preempt(request)
        return super().run_step(event)


class ForgetsAborts(HybridTarget):
    """A request goes on to its end although its client has left."""

    def abort(self, event: Abort) -> list[Record]:
        return []


class WorksAtPlanning(HybridTarget):
    """Zeroing and copies of a step run when it is planned, before the forward that is in flight."""

    early: type = Zeroed

    def run_step(self, event: Step) -> list[Record]:
        records = super().run_step(event)
        if self.in_flight:
            plan = self.in_flight[-1][0]
            if self.early is Zeroed and plan.zero:
                records.insert(1, Zeroed(plan.step, plan.zero))
            for row in plan.rows.values() if self.early is Copied else ():
                table = self.cache.tables(row.name)[0]
                block = max(table)
                column = table.index(block)
                records.insert(1, Copied(plan.step, row.name, 0, column, block, column, block, 0, True, True))
        return records


class CopiesAtPlanning(WorksAtPlanning):
    """The copy of the running state is issued at planning."""

    early = Copied


CASES = [
    Case("token not the model's", broken(SamplesWrongly), ONE, "S6", "sampled", ("r0, with 16 tokens computed",)),
    Case("wrong draft accepted", broken(AcceptsTooMany), DRAFTS, "S6", "sampled", ("r0",)),
    Case(
        "wrong input token",
        broken(RepeatsToken),
        make_trace(arrive("r0", 20), *steps(4), **NO_CACHE, max_num_batched_tokens=16),
        "S6",
        "input",
    ),
    Case(
        "position skipped",
        broken(SkipsPosition),
        make_trace(arrive("r0", 20), *steps(4), **NO_CACHE, max_num_batched_tokens=16),
        "S6",
        "position",
    ),
    Case("delivered twice", broken(DeliversTwice), ONE, "S6", "delivered", ("r0",)),
    Case("ended early", broken(EndsEarly), ONE, "S6", "length", ("expected 4",)),
    Case(
        "newest step first",
        broken(RunsNewestFirst),
        AHEAD,
        "S8",
        "forward",
        ("forward of step 4 runs before that of step 3",),
    ),
    Case("newest of three first", broken(RunsNewestFirst), TWO_AHEAD, "S8", "forward"),
    Case("zeroed while in use", broken(WorksAtPlanning), REUSED, "S8", "overtaken", ("is zeroed for step .* for r0",)),
    Case(
        "copied over while in use",
        broken(CopiesAtPlanning),
        AHEAD,
        "S8",
        "overtaken",
        ("is overwritten by a copy for step 2 while step 1 still uses it for r0",),
    ),
    Case(
        "chunks below the grid",
        broken(SchedulesNothing),
        make_trace(arrive("r0", 20), *steps(20, budget=5), long_prefill_token_threshold=5),
        "M8",
        "stall",
        ("r0 could run",),
    ),
    Case("never admitted", broken(NeverAdmits), ONE, "M8", "stall", ("r0 could run",)),
    Case(
        "starts over for ever",
        broken(StartsOver),
        make_trace(arrive("r0", 20), *steps(2), **NO_CACHE, max_num_batched_tokens=16),
        "M8",
        "drain",
        ("r0 did not end",),
    ),
    Case(
        "an abort is lost",
        broken(ForgetsAborts),
        make_trace(arrive("r0", 20, new=9), *steps(3), Abort("r0"), *steps(4)),
        "M8",
        "aborted",
        ("r0 was aborted, but",),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_fires(case: Case) -> None:
    check_case(case)


def test_a_short_stall_is_no_violation() -> None:
    """Steps without a row are legal for a while: a deferred hit, results still in flight."""

    class AdmitsLate(Scheduler):
        def schedule_waiting(self, plan: Any, limits: Any) -> None:
            if plan.step >= 8:
                super().schedule_waiting(plan, limits)

    assert run_trace(broken(AdmitsLate), ONE).violation is None


def test_forward_of_an_unplanned_step_is_found() -> None:
    """A forward that no plan stands behind has no live rows; what it writes is a dead row's."""

    def renumber(records: list[Record]) -> list[Record]:
        return [
            msgspec.structs.replace(one, step=one.step + 50) if isinstance(one, Forward) else one for one in records
        ]

    violation = run_trace(Tampered(renumber), ONE).violation
    assert violation is not None
    assert violation.oracle in {"S8", "M4"}
    check_sentence(violation)


def test_a_request_that_vanishes_is_found() -> None:
    """The engine forgets a preempted request; the client waits for ever."""

    class Loses(Scheduler):
        def preempt(self, request: Any, plan: Any = None) -> None:
            super().preempt(request, plan)
            self.waiting.remove(request)
            del self.requests[request.name]

    trace = make_trace(arrive("r0", 20, new=6), *steps(3), Preempt("r0"), *steps(4))
    assert run_trace(CLEAN, trace).violation is None
    violation = run_trace(broken(Loses), trace).violation
    assert violation is not None
    assert (violation.oracle, violation.field, violation.request) == ("M8", "lost", "r0")


def test_cases_cover_their_oracles_twice() -> None:
    counts = Counter(case.oracle for case in CASES)
    assert {"S6", "S8", "M8"} == counts.keys()
    assert min(counts.values()) >= 2
