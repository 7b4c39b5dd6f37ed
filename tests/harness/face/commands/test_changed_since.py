"""`fuzz --changed-since`: which changed lines of a checkout ran, and by how many traces."""

from pathlib import Path
from typing import Any

import pytest
import toy_checkout
from cli_process import Cli

FUZZ = ("fuzz", "--target", toy_checkout.TARGET, "--no-canary", "--seed", "3", "-o", "out")


def counts(changed: dict[str, Any]) -> dict[int, int]:
    """Line -> traces, of the toy."""
    assert {line["file"] for line in changed["lines"]} == {"toy_target.py"}
    return {line["line"]: line["traces"] for line in changed["lines"]}


def test_it_says_which_changed_lines_ran(hybridfuzz: Cli, tmp_path: Path) -> None:
    """All workers count, and a campaign that goes on goes on counting; the branch that nothing takes never ran."""
    toy_checkout.make(tmp_path)
    ran = hybridfuzz(*FUZZ, "--changed-since", "HEAD", "--traces", "20", "-j", "2", "--json")
    first, cut = toy_checkout.line("more = needs - has"), toy_checkout.line("more = 500")
    changed = ran.json["changed"]
    assert counts(changed) == {
        first: changed["traces"],
        first + 1: changed["traces"],
        cut: 0,
        cut + 1: changed["traces"],
    }
    assert changed["traces"] > 20, "traces of the corpus count as well"
    assert (
        f"changed since HEAD: 3 of 4 changed lines ran in {changed['traces']} traces; never: toy_target.py:{cut}"
        in ran.err
    )


def test_without_changes_there_is_nothing_to_say(hybridfuzz: Cli, tmp_path: Path) -> None:
    toy_checkout.make(tmp_path)
    (tmp_path / "toy_target.py").write_text((toy_checkout.DOCS / "toy_target.py").read_text())
    ran = hybridfuzz(*FUZZ, "--changed-since", "HEAD", "--traces", "3", "-j", "1")
    assert "changed since HEAD: no line in a function of the engine" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--changed-since", "gone"), "git knows no commit 'gone'"),
        (("--changed-since=--output=x",), "it begins with '-'"),
        (("--changed-since", "HEAD", "--cluster", "auto"), "--changed-since records lines on this machine"),
        (("--changed-since", "HEAD", "--target", "hybrid"), "is no checkout"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    hybridfuzz: Cli, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    toy_checkout.make(tmp_path)
    ran = hybridfuzz(*FUZZ, *arguments)
    assert ran.status == 2
    assert words in ran.error


def test_without_git_it_is_one_line(hybridfuzz: Cli, tmp_path: Path) -> None:
    toy_checkout.make(tmp_path)
    ran = hybridfuzz(*FUZZ, "--changed-since", "HEAD", env={"PATH": ""})
    assert ran.status == 2
    assert "git cannot be run" in ran.error
