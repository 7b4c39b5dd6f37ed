"""S6 and M9 fire for requests that are over: nothing is delivered for them, and the engine forgets them."""

from typing import Any

import pytest
from msgspec import structs
from support import CLEAN, Case, Tampered, arrive, broken, check_case, make_trace, steps

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Delivered, Forward, ForwardRow, Record
from hybridfuzz.targets.base.trace import Abort, Step
from hybridfuzz.targets.hybrid.host.scheduler import Scheduler

ENDS = make_trace(arrive("r0", 6, new=2), arrive("r1", ("e", 6), new=9), *steps(12))


@pytest.mark.parametrize(
    "ghost",
    [
        Delivered(0, [("never-arrived", (9,))], (), ()),
        Delivered(0, [], ("never-arrived",), ()),
        Delivered(0, [], (), ("never-arrived",)),
    ],
)
def test_a_request_that_never_arrived_gets_nothing(ghost: Delivered) -> None:
    def haunted(records: list[Record]) -> list[Record]:
        return [*records, ghost] if records else records

    check_case(Case("", Tampered(haunted), ENDS, "S6", "after-end", ("never-arrived, which has ended",)))


def test_a_request_that_ended_gets_nothing_more() -> None:
    ended: list[str] = []

    def again(records: list[Record]) -> list[Record]:
        ghosts = [Delivered(0, [(name, (5,))], (), ()) for name in ended]
        ended.extend(name for one in records if isinstance(one, Delivered) for name in one.finished)
        return [*records, *ghosts]

    check_case(Case("", Tampered(again), ENDS, "S6", "after-end", ("r0, which has ended", "tokens")))


def test_results_in_flight_may_reach_a_request_that_its_client_ended() -> None:
    """An engine may report what it had computed, or the end, after the abort."""
    aborted: list[str] = []

    def late(records: list[Record]) -> list[Record]:
        ghosts = [Delivered(0, [(name, (5,))], (name,), ()) for name in aborted]
        aborted.append("r1")
        return [*records, *ghosts[:1]]

    trace = make_trace(arrive("r0", 6, new=9), arrive("r1", ("e", 6), new=9), *steps(2), Abort("r1"), *steps(3))
    assert run_trace(Tampered(lambda records: records), trace).violation is None
    after = [0]

    def only_later(records: list[Record]) -> list[Record]:
        after[0] += 1
        return late(records) if after[0] > 5 else records

    assert run_trace(Tampered(only_later), trace).violation is None


@pytest.mark.parametrize("guessed", [1, 2, 3])
def test_what_a_drafter_guesses_right_is_in_the_verification(guessed: int) -> None:
    """Two drafts are right, whatever the drafter says."""

    def told(records: list[Record]) -> list[Record]:
        def rows(forward: Forward) -> list[ForwardRow]:
            return [structs.replace(row, guessed=guessed if row.drafts else 0) for row in forward.rows]

        return [structs.replace(one, rows=rows(one)) if isinstance(one, Forward) else one for one in records]

    trace = make_trace(arrive("r0", 6, new=9), *(Step(drafts=3, right=2),) * 6, num_speculative_tokens=3)
    if guessed <= 2:
        assert run_trace(Tampered(told), trace).violation is None
    else:
        check_case(Case("", Tampered(told), trace, "S6", "guess", ("its drafter guesses",)))


class KeepsRequests(Scheduler):
    """Requests that ended stay in the scheduler's dict."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)

        class Kept(dict[str, Any]):
            def pop(self, name: str, *default: Any) -> Any:
                return self.get(name, *default)

            def __delitem__(self, name: str) -> None:
                pass

        self.requests = Kept(self.requests)


def test_a_request_that_is_never_forgotten_is_m9() -> None:
    """The number of requests is counted although the rest of what may be left over is not, while there are any."""
    assert run_trace(CLEAN, ENDS).violation is None
    check_case(Case("", broken(KeepsRequests), ENDS, "M9", "requests", ("requests are left: 2",)))
