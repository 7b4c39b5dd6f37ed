"""What the scripts of several engines share."""

import ast

from hybridfuzz.targets.base.client_script import (
    WAITING,
    WRONG_TOKENS,
    End,
    Frame,
    asked_again,
    asking,
    beginning,
    folded,
    marked,
    place_of,
    prompt_of,
    tokens_in,
)
from hybridfuzz.targets.base.client_turn import ClientTurn, prompt_path
from hybridfuzz.targets.base.inlined import Part
from hybridfuzz.targets.base.repro import DEVIATION, Failure, Place

FRAME = Frame("Nothing", "Needs nothing.", "nothing", "Of nothing.\n", "os.environ['X'] = '1'\n", "prepare")


def test_equal_calls_are_a_loop_and_equal_comments_one() -> None:
    """A loop of comments alone was no Python."""
    lines = ["# a", "# a", "# a", "b()", "b()", "c()", "c()", "c()"]
    assert list(folded(lines)) == ["# a", "b()", "b()", "for _ in range(3):", "    c()"]


def test_a_prompt_keeps_what_is_no_plain_text_and_images_whole() -> None:
    """An adapter is only known by the name of its document, and a part of an image would be another image."""
    path = (("adapter.x", 3), ("a", 2), ("image.b", 9))
    prompt = prompt_of(path, [7, 7, 7, 4, 5, *[1] * 9])
    assert prompt == [("adapter.x", 3), 4, 5, ("image.b", 9)]
    assert prompt_path(prompt) == (("adapter.x", 3), ((4, 5), 2), ("image.b", 9))
    assert [beginning(prompt, length) for length in (2, 4)] == [[("adapter.x", 2)], [("adapter.x", 3), 4]]
    assert [tokens_in(beginning(prompt, length)) for length in (5, 6, 12, 13, 14, 99)] == [5, 12, 12, 14, 14, 14]


def test_tokens_behind_an_abort_are_counted_by_step() -> None:
    turn = ClientTurn("r0", [5], [6, 7, 8])
    turn.receive([6])
    turn.end = "aborted"
    turn.receive([7, 8])
    turn.receive([])
    assert (turn.received, turn.late) == ([6, 7, 8], 1)


def test_a_script_begins_with_what_is_asked_and_imports_the_engine_once_it_is_prepared() -> None:
    body = asking(["engine = None"], ["# nothing happens"] * 3, list(asked_again([[5, 6]], "A cache")), WRONG_TOKENS)
    parts = [Part(["import sys"], "def prepare():\n    sys"), Part(["from engine import one"], "two = one, THREE")]
    script = FRAME.script(
        Failure("S3", "temporal", "", (), 1, sentence='It is """broken"""'), body, WRONG_TOKENS, parts, ["THREE = 3"]
    )
    text = script.text
    raising = FRAME.script(Failure("CRASH", "E-f", "", (), 1), body, End("E", []), parts, ["THREE = 3"]).text
    assert ["Prints what" in one for one in (text, raising)] == [True, False], "nothing is printed before it raises"
    tree = ast.parse(text)
    assert isinstance(tree.body[2], ast.FunctionDef) and tree.body[2].name == "reproduce"
    order = [
        "def reproduce", "engine.add('again 0', [5, 6]", "# ---- Machinery. Of nothing.", "import os", "import sys",
        "os.environ", "warnings.simplefilter", "prepare()\n", "from engine import one", "THREE = 3", "two = one",
    ]  # fmt: skip
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert script.body == body and "THREE = 3" in script.machinery and "reproduce" not in script.machinery


def test_a_script_of_a_wait_reads_the_tokens_of_those_that_do_not_wait() -> None:
    """With a larger pool nobody waited, a client received wrong tokens, and the script said: no bug here."""
    assert WAITING.last[-len(WRONG_TOKENS.last) :] == list(WRONG_TOKENS.last)
    assert "scheduled any more" in WAITING.last[-len(WRONG_TOKENS.last) - 1]


def test_a_script_marks_the_call_that_fails_and_knows_the_place_of_the_failure() -> None:
    """A script was good that failed at another defect, steps before."""
    assert list(folded(marked(["add()", *["step()"] * 4]))) == [
        "add()", "for _ in range(3):", "    step()", DEVIATION, "step()",
    ]  # fmt: skip
    wrong_read, published = (Failure(oracle, "temporal", "", (), 4, "r1") for oracle in ("S3", "S1"))
    assert place_of(wrong_read, WRONG_TOKENS) == Place(4, "r1")
    assert place_of(published, WRONG_TOKENS) == Place(4), "who meets a wrong block is not known"
    assert place_of(wrong_read, WAITING) == Place()
    assert place_of(Failure("CRASH", "KeyError-node_by_id", "", (), 4), WRONG_TOKENS) == Place(function="node_by_id")
