"""Changed lines: of git's diff, those with code of functions, at their places in what the engine is imported from."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import arrive, make_trace

from hybridfuzz.harness.campaign_summary import Changed, ChangedLine
from hybridfuzz.harness.record.changed_lines import (
    ChangedSource,
    ChangedTally,
    Place,
    changed_for,
    changed_in,
    changed_source,
)
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.protocol import TargetError

BEFORE = '''"""An engine."""

LIMIT = 3


class Cache:
    """A cache."""

    def add(self, block):
        """Add."""
        first = block
        second = first
        self.blocks = [
            first,
            second,
        ]
        return True


def never():
    return 1
'''
Git = Callable[..., None]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Runs git in a repository whose first commit, `base`, has the package `engine`."""

    def run(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/__init__.py").touch()
    (tmp_path / "engine/cache.py").write_text(BEFORE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_cache.py").write_text("def test():\n    assert True\n")
    run("init", "--quiet", "--initial-branch", "main")
    run("add", ".")
    run("commit", "--quiet", "-m", "base")
    run("tag", "base")
    return run


def edit(tmp_path: Path, *exchanges: tuple[str, str]) -> None:
    path = tmp_path / "engine/cache.py"
    text = path.read_text()
    for old, new in exchanges:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)


def changed(tmp_path: Path, since: str = "base") -> tuple[list[tuple[str, int]], int]:
    """The changed statements, and how many changed lines do not count."""
    source = changed_source(tmp_path, since, tmp_path, kernels=False)
    return [(place.file, place.line) for place in source.places], source.unrecorded


def test_statements_in_functions_count_by_their_first_lines(git: Git, tmp_path: Path) -> None:
    """What runs at import is told apart; docstrings, comments and other folders are nothing."""
    edit(
        tmp_path,
        ("            second,", "            second,  # now"),
        ('"""Add."""', '"""Add it."""'),
        ("LIMIT = 3", "LIMIT = 4"),
    )
    (tmp_path / "tests/test_cache.py").write_text("def test():\n    assert 1\n")
    assert changed(tmp_path) == ([("engine/cache.py", 13)], 1)


def test_where_lines_were_only_removed_the_statement_before_them_counts(git: Git, tmp_path: Path) -> None:
    edit(tmp_path, ("        second = first\n", ""))
    assert changed(tmp_path) == ([("engine/cache.py", 11)], 0)


def test_changes_of_the_branch_itself_count_not_those_that_it_lacks(git: Git, tmp_path: Path) -> None:
    """As on the page of a pull request: against the commit at which the two parted."""
    git("switch", "--quiet", "-c", "change")
    edit(tmp_path, ("first = block", "first = block + 0"))
    git("commit", "--quiet", "-am", "change")
    git("switch", "--quiet", "main")
    edit(tmp_path, ("return 1", "return 2"))
    git("commit", "--quiet", "-am", "elsewhere")
    git("switch", "--quiet", "change")
    assert changed(tmp_path, "main") == ([("engine/cache.py", 11)], 0)


def test_a_package_in_a_folder_of_the_repository_is_found(git: Git, tmp_path: Path) -> None:
    """As SGLang's, in python/: the engine is imported from a view of the package alone."""
    git("mv", "engine", "python_engine")
    (tmp_path / "python").mkdir()
    git("mv", "python_engine", "python/engine")
    git("commit", "--quiet", "-m", "moved")
    path = tmp_path / "python/engine/cache.py"
    path.write_text(path.read_text().replace("return 1", "return 2"))
    source = changed_source(tmp_path, "HEAD", tmp_path / "python", kernels=False)
    assert [(place.file, place.path) for place in source.places] == [("python/engine/cache.py", str(path))]


def test_lines_are_found_in_a_copy_with_fixes(git: Git, tmp_path: Path) -> None:
    """Lines that a fix moved count at their new places; one that it replaces does not."""
    edit(tmp_path, ("first = block", "first = block + 0"), ("return 1", "return 2"))
    fixed = tmp_path / "fixed"
    (fixed / "engine").mkdir(parents=True)
    (fixed / "engine/__init__.py").touch()
    text = (tmp_path / "engine/cache.py").read_text()
    (fixed / "engine/cache.py").write_text("# fixed\n" + text.replace("return 2", "return 3"))
    source = changed_source(tmp_path, "base", fixed, kernels=False)
    assert [(place.line, place.ran_line) for place in source.places] == [(11, 12)]
    assert source.unrecorded == 1


def test_kernels_count_only_where_their_lines_are_recorded(git: Git, tmp_path: Path) -> None:
    edit(tmp_path, ("def never():\n    return 1", "@triton.jit\ndef never():\n    return 2"))
    assert changed_source(tmp_path, "base", tmp_path, kernels=False).places == ()
    assert [place.line for place in changed_source(tmp_path, "base", tmp_path, kernels=True).places] == [22]


def test_content_of_a_hunk_is_no_header() -> None:
    diff = (
        "--- a/x.py\n+++ b/x.py\n@@ -3,2 +3,2 @@\n--- a\n-@@ -1 +1 @@\n+++ b/y.py\n+@@ -7 +7 @@\n@@ -9 +9 @@\n-a\n+b\n"
    )
    assert list(changed_in(diff)) == [("x.py", {3, 4, 9})]


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("gone", "git knows no commit 'gone'"),
        ("--output=x", "begins with '-'"),
        ("base:engine", "git knows no commit"),
        ("", "no commit"),
    ],
)
def test_what_is_no_commit_is_refused(git: Git, tmp_path: Path, since: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        changed(tmp_path, since)
    assert not (tmp_path / "x").exists()


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="not a git repository"):
        changed(tmp_path)


def test_a_target_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    for target in ("hybrid", "vllm", "vllm@0.33.0"):
        with pytest.raises(TargetError, match="is no checkout"):
            changed_for(target, "main", Launch("python", {}, tree=str(tmp_path)), Launch("python", {}))


def test_source_that_cannot_be_parsed_is_refused(git: Git, tmp_path: Path) -> None:
    edit(tmp_path, ("return 1", "return ("))
    with pytest.raises(TargetError, match=r"cache\.py: cannot be parsed"):
        changed(tmp_path)


RARE, USUAL = Place("a.py", 5, "/a.py", 5, 2), Place("a.py", 9, "/a.py", 9, 2)
PRIORITY, PLAIN = (make_trace(arrive("r0", 9), policy=policy) for policy in ("priority", "fcfs"))


def test_lines_that_few_traces_run_are_aimed_at_by_what_these_have_in_common() -> None:
    tally = ChangedTally(ChangedSource("base", (RARE, USUAL), 0))
    assert tally.aim() == {}, "nothing is known yet"
    for number in range(20):
        rare = number % 5 == 0
        tally.add({"/a.py": [2, 9, *([5] if rare else [])]}, PRIORITY if rare else PLAIN)
    aim = tally.aim()
    assert aim["policy=priority"] > 1 and aim["policy=fcfs"] < 0
    assert abs(aim["async_depth=0"]) < 0.2, "all traces have it"
    assert tally.result() == Changed("base", [ChangedLine("a.py", 5, 4), ChangedLine("a.py", 9, 20)], 0, 20)


def test_a_line_that_never_ran_is_approached_through_its_function() -> None:
    tally = ChangedTally(ChangedSource("base", (RARE,), 0))
    for number in range(20):
        near = number % 5 == 0
        tally.add({"/a.py": [2]} if near else {}, PRIORITY if near else PLAIN)
    assert tally.aim()["policy=priority"] > 1


def test_counts_of_an_interrupted_campaign_go_on_if_they_are_of_the_same_change() -> None:
    source = ChangedSource("base", (RARE,), 0)
    earlier = Changed("base", [ChangedLine("a.py", 5, 7), ChangedLine("a.py", 6, 7)], 0, 10)
    for since, traces, count in (("base", 11, 8), ("other", 1, 1)):
        tally = ChangedTally(source, Changed(since, earlier.lines, 0, earlier.traces))
        tally.add({"/a.py": [5]})
        assert tally.result() == Changed("base", [ChangedLine("a.py", 5, count)], 0, traces)
