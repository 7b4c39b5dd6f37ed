"""Recipes and documentation: what they tell people to type is accepted by the real command line."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hybridfuzz.harness.cli import COMMANDS, build_parser
from hybridfuzz.harness.gate import plugin

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "docs/how-to/recipes"
WORKFLOWS = sorted(RECIPES.glob("*.yml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def steps(workflow: Path) -> list[dict[str, Any]]:
    """All steps of all jobs."""
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


def texts() -> Iterator[tuple[str, str]]:
    """(where, text in which commands may stand), one line for each command."""
    for workflow in WORKFLOWS:
        yield workflow.name, "\n".join(step.get("run", "") for step in steps(workflow))
    for name in ("crontab", "Containerfile"):
        yield name, (RECIPES / name).read_text()
    for page in PAGES:
        blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
        yield page.name, "\n".join(lines)
    for name in COMMANDS:
        yield f"{name} --help", build_parser(name).format_help()
        epilog = __import__(f"hybridfuzz.harness.commands.{name}", fromlist=["EXAMPLES"]).EXAMPLES
        yield f"{name} --help", epilog


def commands(program: str) -> list[tuple[str, list[str]]]:
    """(where, words) of every call of a program."""
    found = []
    for where, text in texts():
        for line in text.splitlines():
            call = re.sub(rf".*?(?=\b{program} [a-z-])", "", line, count=1)
            call = re.sub(r"\s(>|2>|\|\||&&|#).*", "", call)
            if re.match(rf"{program} [a-z-]", call) and "[" not in call:
                found.append((where, shlex.split(call)))
    return found


FUZZ = [call for call in commands("hybridfuzz") if call[1][1] in COMMANDS]


def test_there_is_something_to_check() -> None:
    assert {"github-nightly.yml", "crontab", "Containerfile", "README.md", "fuzz --help"} <= {
        where for where, _ in FUZZ
    }
    assert {words[1] for _, words in FUZZ} >= {"fuzz", "replay"}


@pytest.mark.parametrize(("where", "words"), FUZZ, ids=lambda value: value if isinstance(value, str) else value[1])
def test_the_command_line_accepts_it(where: str, words: list[str]) -> None:
    build_parser(words[1]).parse_args(words[1:])


def test_the_image_runs_a_command_that_exists() -> None:
    [line] = re.findall(r"^CMD (.*)", (RECIPES / "Containerfile").read_text(), re.MULTILINE)
    words = json.loads(line)
    build_parser(words[0]).parse_args(words)


def test_options_of_the_gate_exist() -> None:
    names: list[str] = []

    class Parser:
        def getgroup(self, *_: str) -> "Parser":
            return self

        def addoption(self, name: str, **_: object) -> None:
            names.append(name)

    plugin.pytest_addoption(Parser())  # type: ignore[arg-type]
    used = {
        word.partition("=")[0] for _, words in commands("pytest") for word in words if word.startswith("--hybridfuzz")
    }
    assert {"--hybridfuzz-target", "--hybridfuzz-budget", "--hybridfuzz-known"} <= used <= set(names)


def test_the_night_is_saved_whatever_happens() -> None:
    """A red night keeps its corpus: restored before, saved after the run with always(), under a new key."""
    all_steps = steps(RECIPES / "github-nightly.yml")
    uses = [step.get("uses", "").partition("@")[0] for step in all_steps]
    [run] = [index for index, step in enumerate(all_steps) if "hybridfuzz fuzz" in step.get("run", "")]
    words = shlex.split(all_steps[run]["run"])
    folder = words[words.index("-o") + 1]
    restore, save = uses.index("actions/cache/restore"), uses.index("actions/cache/save")
    assert restore < run < save
    assert all_steps[save]["if"] == "always()"
    assert all_steps[save]["with"]["path"] == all_steps[restore]["with"]["path"] == folder
    assert all_steps[save]["with"]["key"] == all_steps[restore]["with"]["key"]
    assert all_steps[save]["with"]["key"].startswith(all_steps[restore]["with"]["restore-keys"])
    assert "run_id" in all_steps[save]["with"]["key"]
