"""The suspicious function is the one in which failing and passing runs part."""

from hybridfuzz.harness.explain.executed import RETURN, Executed
from hybridfuzz.harness.identity.spectrum import PLACES, Spectrum

FAILING = (
    Executed("engine/sched.py", "schedule", ((0, 10, 1), (10, 11, 2), (11, 12, 3))),
    Executed("engine/run.py", "execute", ((0, 5, 4), (5, 9, 5))),
)
NEAR = (
    Executed("engine/sched.py", "schedule", ((0, 10, 1), (10, 12, 2))),
    Executed("engine/run.py", "execute", ((0, 5, 3), (5, 6, 4))),
)
FAR = (Executed("engine/sched.py", "schedule", ((0, 10, 1), (10, 11, 2), (11, 12, 3), (12, 40, 4))),)


def test_the_first_place_comes_before_its_consequences() -> None:
    first, second = Spectrum(FAILING, [NEAR]).places()
    assert (first.file, first.function, first.line, first.score) == ("engine/sched.py", "schedule", 11, 1.0)
    assert second.function == "execute"


def test_what_passing_runs_execute_too_is_less_suspicious() -> None:
    scores = {place.function: place.score for place in Spectrum(FAILING, [NEAR, FAR]).places()}
    assert scores["execute"] == 1.0
    assert scores["schedule"] < 1.0


def test_nearest_neighbours_decide_where_runs_part() -> None:
    spectrum = Spectrum(FAILING, [FAR, NEAR])
    assert "+engine/sched.py:schedule:10>11" not in spectrum.parting(2)
    assert set(Spectrum(FAILING, [NEAR]).parting(1)) == {
        "+engine/sched.py:schedule:10>11",
        "+engine/sched.py:schedule:11>12",
        "-engine/sched.py:schedule:10>12",
        "+engine/run.py:execute:5>9",
        "-engine/run.py:execute:5>6",
    }


def test_a_returned_value_is_a_difference() -> None:
    failing = (Executed("engine/run.py", "is_decode", ((0, 5, 1), (RETURN, 3, 2))),)
    passing = (Executed("engine/run.py", "is_decode", ((0, 5, 1), (RETURN, 2, 2))),)
    [place] = Spectrum(failing, [passing]).places()
    assert (place.function, place.score) == ("is_decode", 1.0)


def test_without_a_passing_run_nothing_is_suspicious() -> None:
    assert Spectrum(FAILING, []).places() == ()
    assert Spectrum(FAILING, []).parting(1) == ()
    many = tuple(Executed("e.py", f"f{number}", ((0, 1, number),)) for number in range(9))
    assert len(Spectrum(many, [NEAR]).places()) == PLACES
