"""Rows count for the turn that they were planned for, and for no other with the same token at their position."""

from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.observe import Forward, ForwardRow
from hybridfuzz.targets.vllm.gpu.turns import Turns

FIRST = Truth((("a", 35),))
SECOND = FIRST.continued(38, (("c", 2),))
"""Behind a turn of four tokens, of which the last one was not computed: token 39 of both turns is 64."""


def forward(step: int, start: int, tokens: list[int], request: str | None = "r0") -> Forward:
    return Forward(step, [ForwardRow(request, start, tokens, 0, ())], ())


def begun() -> tuple[dict[str, Truth], Turns]:
    truths = {"r0": FIRST}
    turns = Turns(truths)
    turns.begin("r0", 39)
    FIRST.reach(45)
    return truths, turns


def test_a_step_in_flight_over_the_end_of_a_turn_is_not_the_next_turns() -> None:
    """As in a campaign on a GPU (V1, asynchronous, three drafts), where it was a false alarm of S6."""
    truths, turns = begun()
    turns.planned(2, ["r0"])
    truths["r0"] = SECOND
    turns.begin("r0", 41)
    SECOND.reach(45)
    assert FIRST.tokens[39] == SECOND.tokens[39]
    assert turns.places(forward(2, 39, list(FIRST.tokens[39:43]))) == [[None] * 4]
    turns.planned(3, ["r0"])
    assert turns.places(forward(3, 38, list(SECOND.tokens[38:40]))) == [[("r0", 38), ("r0", 39)]]
    assert list(turns.tokens("r0")) == list(SECOND.tokens[:41])


def test_what_is_thrown_away_has_no_place() -> None:
    _, turns = begun()
    turns.planned(0, ["r0"])
    tokens = list(FIRST.tokens[36:38])
    assert turns.places(forward(0, 36, [*tokens, 3, 4])) == [[("r0", 36), ("r0", 37), None, None]], "wrong drafts"
    turns.planned(1, ["r0"])
    assert turns.places(forward(1, 38, list(FIRST.tokens[38:41]))) == [[("r0", 38), None, None]], "behind the end"
    turns.planned(2, [])
    assert turns.places(forward(2, 0, [0, 0], None)) == [[None, None]], "padding"
