"""Tests for an engine's own tree hold what the script holds, as formatters lay it out, and import nothing of ours."""

import ast
from collections.abc import Mapping

import pytest

from hybridfuzz.targets.base.engine_tests import class_name, docstring, double_quoted, indented, scenario
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import write_scripts, write_test
from hybridfuzz.targets.base.repro import Failure, Script
from hybridfuzz.targets.base.trace import Arrive, Config, Event, Group, Step, Trace

SCRIPT = Script(
    '"""It is broken.\n\nNeeds nothing.\n"""\n',
    "AssertionError: it is",
    "nothing",
    ["engine = Engine()", "print(engine.turns)"],
    "import os\n\n\nclass Engine:\n    pass\n\n\ndef other():\n    pass\n",
)
WRONG = "r0 continues from a wrong state"
EVENTS: tuple[Event, ...] = (Arrive("r0", (("a", 40),), 2), Step(budget=2), Step())
GROUPS = (Group("mamba", 8), Group("attention", 8))
PLAIN = Config(20, GROUPS, max_model_len=64, max_num_seqs=2)
FAMILY = Config(
    16,
    (Group("mamba", 8), Group("attention", 1)),
    max_model_len=64,
    mamba_cache_mode="none",
    enable_prefix_caching=False,
    options={"family": "jamba"},
)
SLOTS = Config(
    20, (Group("mamba", 4), Group("attention", 1)), max_model_len=64, mamba_cache_mode="slots", max_num_seqs=2
)
PLACES = {
    "vllm@0.33.0": (PLAIN, "tests/v1/core/test_wrong_tokens.py", "pytestmark = pytest.mark.cpu_test"),
    "sglang@0.5.23": (SLOTS, "test/registered/unit/mem_cache/test_wrong_tokens.py", "register_cpu_ci("),
    "transformers@5.24.0": (FAMILY, "tests/models/jamba/test_wrong_tokens.py", "@require_torch"),
}


def files_for(spec: str) -> Mapping[str, str]:
    trace = Trace(PLACES[spec][0], EVENTS)
    failure = Failure("S3", "temporal", f"S3: {WRONG}", EVENTS, 1, "r0", 0, 3, 3, "r0", sentence=WRONG)
    return write_test(spec, trace, write_scripts(spec, trace, failure)[0], "wrong_tokens").files


@pytest.mark.parametrize("spec", PLACES)
def test_it_stands_where_the_engine_has_such_tests_and_imports_nothing_of_ours(spec: str) -> None:
    _, place, sign = PLACES[spec]
    files = files_for(spec)
    first, *_ = files
    assert first == place
    assert sign in files[first]
    assert "def test_wrong_tokens(" in files[first]
    assert (ast.get_docstring(ast.parse(files[first])) or "").startswith("r0 continues from a wrong state")
    for text in files.values():
        compile(text, "test", "exec")
        assert "hybridfuzz" not in text


@pytest.mark.parametrize(("spec", "width"), [("vllm@0.33.0", 88), ("sglang@0.5.23", 88), ("transformers@5.24.0", 119)])
def test_lines_are_as_long_as_the_engine_has_them(spec: str, width: int) -> None:
    """Lists of tokens are not broken."""
    text = next(iter(files_for(spec).values()))
    long = [line for line in text.splitlines() if len(line) > width and "[" not in line and "pytest test/" not in line]
    assert not long


@pytest.mark.parametrize("spec", ["vllm@0.33.0", "sglang@0.5.23"])
def test_what_prepares_a_process_is_imported_in_that_process(spec: str) -> None:
    """Else the collection of an engine's whole suite would turn CUDA off."""
    text = next(iter(files_for(spec).values()))
    assert "os.environ" not in text
    assert "_engine import" not in "\n".join(line for line in text.splitlines() if not line.startswith(" "))


def test_an_engine_without_such_tests_says_what_there_is() -> None:
    with pytest.raises(TargetError, match="use test_repro"):
        write_test("hybrid", Trace(PLAIN, EVENTS), SCRIPT, "wrong_tokens")


def test_a_scenario_imports_what_its_body_uses() -> None:
    text = scenario(SCRIPT, ".broken_engine", 88)
    assert text.splitlines()[:3] == ["def scenario() -> None:", "    from .broken_engine import Engine", ""]
    assert docstring(SCRIPT, 88) == "It is broken."


def test_long_calls_are_broken_into_arguments_and_others_are_not() -> None:
    lines = ["short(1)", "with x:", "    one = longer(2, [3, 4], name=5)", "from a import bbbbbbbb, cccccccc"]
    assert list(indented(lines, 4, 34)) == [
        "    short(1)", "    with x:", "        one = longer(", "            2,", "            [3, 4],",
        "            name=5,", "        )", "    from a import (", "        bbbbbbbb,", "        cccccccc,", "    )",
    ]  # fmt: skip


def test_long_comments_are_broken() -> None:
    """A report on SGLang ended with an internal error here."""
    assert list(indented(["    # one two three"], 2, 15)) == ["      # one two", "      # three"]


def test_strings_stand_in_double_quotes_unless_they_hold_one() -> None:
    assert double_quoted("a('x', 'say \"y\"', f'{z}')\nb('')") == 'a("x", \'say "y"\', f\'{z}\')\nb("")'


def test_a_class_is_named_for_its_test() -> None:
    assert class_name("wrong_tokens_v2") == "TestWrongTokensV2"


def test_what_is_too_long_is_spread_over_lines_part_by_part() -> None:
    code = (
        'scheduler.add_request(create_request("r0", [10, 11, 12, 13, 14, 15], Sampling(max_tokens=1), {"a": (1, 2)}))'
    )
    assert list(indented([code], 4, 40)) == [
        "    scheduler.add_request(",
        "        create_request(",
        '            "r0",',
        "            [10, 11, 12, 13, 14, 15],",
        "            Sampling(max_tokens=1),",
        '            {"a": (1, 2)},',
        "        ),",
        "    )",
    ]


def test_many_numbers_share_lines() -> None:
    assert list(indented(["found = [100, 101, 102, 103, 104, 105, 106]"], 0, 24)) == [
        "found = [",
        "    100, 101, 102, 103,",
        "    104, 105, 106,",
        "]",
    ]


def test_the_right_side_of_an_assertion_is_spread() -> None:
    assert list(indented(['assert step.scheduled == {"r0": 1, "r1": 2}'], 0, 30)) == [
        "assert step.scheduled == {",
        '    "r0": 1,',
        '    "r1": 2,',
        "}",
    ]


def test_a_long_argument_of_a_spread_call_stays_what_it_is() -> None:
    """Options of a configuration became a tuple of one dictionary."""
    lines = ["make(", "    options={'one': 1, 'two': 'three'},", ")"]
    text = "\n".join(indented(lines, 0, 24))
    assert max(len(line) for line in text.splitlines()) <= 24
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse("\n".join(lines)))
