"""The suspicious function is the one in which failing and passing runs part."""

from msgspec import structs

from hybridfuzz.harness.group.causes.evidence import Evidence, FindingEvidence, Place
from hybridfuzz.harness.group.causes.spectrum import PLACES, VOTES, Spectrum
from hybridfuzz.harness.record.executed import RETURN, Executed

FAILING = (
    Executed("engine/sched.py", "schedule", ((0, 10, 1), (10, 11, 2), (11, 12, 3))),
    Executed("engine/run.py", "execute", ((0, 5, 4), (5, 9, 5), (9, 10, 6))),
)
NEAR = (
    Executed("engine/sched.py", "schedule", ((0, 10, 1), (10, 12, 2))),
    Executed("engine/run.py", "execute", ((0, 5, 3), (5, 6, 4))),
)


def test_the_first_place_comes_before_its_consequences() -> None:
    first, second = Spectrum(FAILING, [NEAR]).places()
    assert (first.file, first.function, first.line, first.score) == ("engine/sched.py", "schedule", 10, 0.5)
    assert second.function == "execute"


def test_a_neighbour_that_decides_otherwise_in_one_place_tells_most() -> None:
    """With Ochiai, which counts each neighbour alike, one or two of nine fixed functions of vLLM were among the first
    five of their smallest trace; with shared votes 6 are."""
    nearest = (FAILING[0], NEAR[1])
    scores = {place.function: place.score for place in Spectrum(FAILING, [NEAR, nearest]).places()}
    assert scores == {"execute": 0.75, "schedule": 0.25}


def test_a_function_of_many_lines_gets_more_of_a_vote_than_an_accessor() -> None:
    """With even shares the fixed functions of 6 of 20 causes of vLLM were among the first five, with these of 10."""
    branches = tuple((line, line + 1, line) for line in range(20, 60))
    grown = Executed("engine/sched.py", "schedule", (*FAILING[0].arcs, *branches))
    first, second = Spectrum((grown, FAILING[1]), [NEAR]).places()
    assert first.function == "schedule" and first.score > 0.8 and round(first.score + second.score, 2) == 1


def test_code_that_only_one_run_reaches_is_a_consequence() -> None:
    called = Executed("engine/batch.py", "add", ((0, 3, 6), (3, 4, 7)))
    assert {place.function for place in Spectrum((*FAILING, called), [NEAR]).places()} == {"schedule", "execute"}


def test_each_neighbour_shares_its_vote_among_lines() -> None:
    """The neighbour that differs in one place gives it a whole vote, the one that differs in two half a vote each."""
    nearest = (FAILING[0], NEAR[1])
    assert Spectrum(FAILING, [NEAR, nearest]).votes() == {
        "engine/run.py:execute:5": 0.75,
        "engine/sched.py:schedule:10": 0.25,
    }
    assert Spectrum(FAILING, [FAILING]).votes() == {}


def test_a_returned_value_is_a_difference() -> None:
    failing = (Executed("engine/run.py", "is_decode", ((0, 5, 1), (RETURN, 3, 2))),)
    passing = (Executed("engine/run.py", "is_decode", ((0, 5, 1), (RETURN, 2, 2))),)
    [place] = Spectrum(failing, [passing]).places()
    assert (place.function, place.score) == ("is_decode", 1.0)


def test_a_returned_value_counts_only_if_no_line_differs() -> None:
    failing = (*FAILING, Executed("engine/run.py", "is_decode", ((0, 5, 6), (RETURN, 3, 7))))
    passing = (*NEAR, Executed("engine/run.py", "is_decode", ((0, 5, 6), (RETURN, 2, 7))))
    assert "is_decode" not in {place.function for place in Spectrum(failing, [passing]).places()}


def test_data_that_is_wrong_on_the_same_path_is_suspicious() -> None:
    """With paths alone the fixed functions of 8 of 20 causes of vLLM were among the first five, with values of 11."""
    failing = tuple(structs.replace(each, values=("done: True", "a < b")) for each in FAILING)
    usual = tuple(structs.replace(each, values=("done: False", "a < b")) for each in FAILING)
    wrong = structs.replace(failing[0], values=("done: False", "a < b"))
    [place] = Spectrum((wrong, failing[1]), [usual]).places()
    assert (place.function, place.line, place.score) == ("execute", 5, 1.0)
    assert Spectrum((wrong, failing[1]), [usual, failing]).places() == ()


def test_paths_and_values_have_half_of_the_score_each() -> None:
    usual = tuple(structs.replace(each, values=("done: False",)) for each in NEAR)
    schedule, execute = (structs.replace(each, values=("done: False",)) for each in FAILING)
    failing = (schedule, structs.replace(execute, values=("done: True",)))
    scores = {place.function: place.score for place in Spectrum(failing, [usual]).places()}
    assert scores == {"execute": 0.75, "schedule": 0.25}
    assert Spectrum(failing, [usual]).votes() == Spectrum(FAILING, [NEAR]).votes()


def test_without_a_passing_run_nothing_is_suspicious() -> None:
    valued = [structs.replace(each, values=("done: True",)) for each in FAILING]
    assert Spectrum(FAILING, []).places() == Spectrum(valued, [()]).places() == ()
    assert Spectrum(FAILING, []).votes() == {}


def test_the_number_of_places_is_limited() -> None:
    failing, passing = (
        tuple(Executed("e.py", f"f{number}", ((0, line, number),)) for number in range(PLACES + 4)) for line in (1, 2)
    )
    assert len(Spectrum(failing, [passing]).places()) == PLACES


def test_the_number_of_lines_is_limited() -> None:
    failing, passing = (
        tuple(Executed("e.py", f"f{number}", ((0, line, number),)) for number in range(VOTES + 4)) for line in (1, 2)
    )
    assert len(Spectrum(failing, [passing]).votes()) == VOTES


def test_places_of_a_finding_are_those_that_its_traces_agree_on() -> None:
    def evidence(*places: tuple[str, float]) -> Evidence:
        return Evidence("S3-step", places=[Place("e.py", name, 1, score) for name, score in places])

    found = FindingEvidence([evidence(("helper", 1.0), ("cause", 0.7)), evidence(("cause", 0.9), ("other", 0.5))])
    assert [(place.function, place.score) for place in found.places] == [
        ("cause", 0.8),
        ("helper", 0.5),
        ("other", 0.25),
    ]
