"""Text of strangers in a script is a string, a comment or a message, and never code."""

import ast
import tokenize
from io import BytesIO

import pytest
from hypothesis import given
from msgspec import structs
from support import HOSTILE, TEXTS

from hybridfuzz.targets.base.deployment import Deployment, Scale
from hybridfuzz.targets.base.registry import write_attempts, write_scripts
from hybridfuzz.targets.base.repro import (
    MACHINERY,
    Failure,
    Script,
    Sizes,
    python_comment,
    python_format,
    served,
    with_other_prompts,
    with_sizes,
)
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Resume, Step, Trace


@given(TEXTS)
def test_a_python_comment_and_a_docstring_hold_it(text: str) -> None:
    code = f'"""{python_comment(text)}\n\nMore.\n"""\n# {python_comment(text)}\nx = 1\n'
    tree = ast.parse(code.encode())
    assert [type(node) for node in tree.body] == [ast.Expr, ast.Assign]
    assert isinstance(tree.body[0], ast.Expr)
    assert isinstance(tree.body[0].value, ast.Constant)
    assert len([one for one in tokenize.tokenize(BytesIO(code.encode()).readline) if one.type == tokenize.COMMENT]) == 1


@given(TEXTS)
def test_a_python_format_stands_for_itself(text: str) -> None:
    [node] = ast.parse(f'f"{python_format(text)}"').body
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.JoinedStr)
    assert all(isinstance(value, ast.Constant) for value in node.value.values), "no expression"
    assert "".join(value.value for value in node.value.values if isinstance(value, ast.Constant)) == text


def shape(code: str) -> str:
    """The syntax tree without its strings and numbers (a document's tokens follow from its name)."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
            node.value = 0
        if isinstance(node, ast.JoinedStr):
            node.values = [value for value in node.values if not isinstance(value, ast.Constant)]
    return ast.dump(tree)


def scripts(target: str, oracle: str, field: str, name: str, message: str) -> list[str]:
    """Scripts for a failure of one request; the trace is made without the checks of a reader."""
    events = (Arrive(name, ((name, 12),), 2), Step(chunks={name: 3}, per_request={name: (1, 1)}))
    groups = (Group("mamba", 8), Group("attention", 8))
    trace = Trace(Config(20, groups, max_model_len=16, options={"x": name}), events)
    failure = Failure(oracle, field, message, events, 1, name, 0, 3, 8, name)
    return [script.text for script in write_scripts(target, trace, failure)]


CASES = [
    ("S3", "temporal"),
    ("S4", "phantom-state"),
    ("S1", "temporal"),
    ("M2", "key"),
    ("M7", "blocks"),
    ("CRASH", "x"),
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(("oracle", "field"), CASES)
@pytest.mark.parametrize("target", ["hybrid", pytest.param("vllm@0.33.0", marks=pytest.mark.exhaustive)])
def test_a_hostile_name_or_message_changes_no_code(target: str, oracle: str, field: str, text: str) -> None:
    """Only the readers refuse such a name, so the writers must not rely on it. (It ran `os.system` once.)"""
    harmless = scripts(target, oracle, field, "r0", "harmless")
    name = text.encode(errors="replace").decode() or "r0"  # JSON has neither lone surrogates nor empty names
    hostile = scripts(target, oracle, field, name, text)
    for one, other in zip(harmless, hostile, strict=True):
        compile(other.encode(), "repro.py", "exec")
        assert shape(one) == shape(other)


@pytest.mark.parametrize(("oracle", "field"), CASES)
@pytest.mark.parametrize("end", ['"', "\\"])
def test_all_hostile_texts_change_no_code_of_an_engines_scripts(oracle: str, field: str, end: str) -> None:
    """Its scripts have thousands of lines: all texts at once; each by itself is exhaustive."""
    message = "".join(HOSTILE) + end
    name = message.encode(errors="replace").decode()  # JSON has no lone surrogates
    harmless = scripts("vllm@0.33.0", oracle, field, "r0", "harmless")
    hostile = scripts("vllm@0.33.0", oracle, field, name, message)
    assert len(harmless) == len(hostile)
    for one, other in zip(harmless, hostile, strict=True):
        compile(other.encode(), "repro.py", "exec")
        assert shape(one) == shape(other)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_command_of_a_server_stands_at_the_machinery_as_a_shell_takes_it(text: str) -> None:
    """A script had options of ours only, and a maintainer had to guess the flags."""
    script = Script(f'"""broken"""\nx = 1\n{MACHINERY} It runs.\n# Note.\n\ny = 2\n', "", "")
    server = Deployment("E", ("serve", '"$MODEL"'), ("--eager", "--order", text), {"V": "1"})
    told = served(script, server).text
    compile(told.encode(errors="replace"), "repro.py", "exec")
    assert shape(told.encode(errors="replace").decode()) == shape(script.text)
    lines = told.splitlines()
    assert lines[:4] == ['"""broken"""', "x = 1", f"{MACHINERY} It runs.", "# Note."]
    assert lines[5:9] == ["# A server with the same settings:", "#", '#     V=1 serve "$MODEL" \\', "#     --eager \\"]
    assert served(script, Deployment("E")) == script
    larger = served(script, structs.replace(server, scale=Scale(64)))
    assert "# A server with the same settings, in its own lengths (blocks of 64 tokens):" in larger.text


def test_the_last_script_of_wrong_tokens_has_other_prompts() -> None:
    """What followed from a wrong state was the right token, by chance, and no script of the trace failed."""
    events = (Arrive("r0", (("a", 12), ("~", 2)), 2), Step(), Resume("r0", (("a", 3),), 1), Step())
    other = with_other_prompts(events)
    assert other == (Arrive("r0", (("a-2", 12), ("~", 2)), 2), Step(), Resume("r0", (("a-2", 3),), 1), Step())
    trace = Trace(Config(20, (Group("mamba", 8), Group("attention", 8)), max_model_len=16), events[:2])

    def prompts(oracle: str, field: str) -> list[str]:
        failure = Failure(oracle, field, "wrong", trace.events, 1, "r0", 0, 3, 8, "r0")
        found = [one.text for one in write_attempts("vllm@0.33.0", trace, failure)]
        return [next(line for line in text.splitlines() if "engine.add('r0'" in line) for text in found]

    first, *_, last = prompts("S3", "temporal")
    assert first != last and first.count(",") == last.count(",")
    assert len({*prompts("M8", "stall")}) == 1, "what no token shows has no other prompts"


def test_a_script_says_with_which_sizes_it_fails() -> None:
    """A pool of 13 blocks looked as needed as steps of 128 tokens that any server has."""
    body = "    num_blocks=13,\n    tokens=128,\n    rows=4,  # seats\n    pages=9,"
    script = Script(f"{body}\n{MACHINERY} x\n    rows=4,\n", "E", "e", limits={
        "num_blocks": ("num_blocks", 0), "budget": ("tokens", 0), "seats": ("rows", 0), "more": ("pages", 1),
    })  # fmt: skip
    sizes = {"num_blocks": Sizes(13, 12, 15), "budget": Sizes(128, 128), "seats": Sizes(4, 4, 4), "more": Sizes(9, 9)}
    assert with_sizes(script, sizes).text.splitlines() == [
        "    num_blocks=13,  # fails with 12 to 15", "    tokens=128,  # larger ones fail, too",
        "    rows=4,  # seats", "    pages=9,", f"{MACHINERY} x", "    rows=4,",
    ]  # fmt: skip
