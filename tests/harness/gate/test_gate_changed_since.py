"""`--hybridfuzz-changed-since`: the gate says which changed lines ran, and aims half of its search at them."""

import os
from pathlib import Path

import pytest
import toy_checkout

pytest_plugins = ["pytester"]

GATE = (f"--hybridfuzz-target={toy_checkout.TARGET}", "--hybridfuzz-budget=0.16s", "--hybridfuzz-changed-since=HEAD")


@pytest.fixture(autouse=True)
def checkout(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    toy_checkout.make(pytester.path)


@pytest.mark.parametrize("more", [[], ["-n2"]])
def test_it_says_which_changed_lines_ran(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: list[str]
) -> None:
    """On the terminal and on the page of a GitHub workflow's run, whatever process ran the traces."""
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    result = pytester.runpytest_subprocess(*GATE, "-v", *more)
    assert result.ret == 0
    cut = toy_checkout.line("more = 500")
    result.stdout.fnmatch_lines(
        ["hybridfuzz::aimed/*", f"changed since HEAD: 3 of 4 changed lines ran in * traces; never: toy_target.py:{cut}"]
    )
    text = page.read_text()
    assert "### Changed lines" in text
    assert f"{cut} never" in text
    assert "| `toy_target.py` |" in text


def test_an_unknown_commit_is_one_line(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*GATE[:2], "--hybridfuzz-changed-since=gone")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: hybridfuzz: *git knows no commit 'gone'"])
