"""Patches are data: they change text files below a tree and nothing else, and compose by the lines that they change."""

import difflib
import re
import subprocess
from pathlib import Path

import pytest

from hybridfuzz.targets.base.patches import PATCH_BYTES_MAX, Patch, PatchError, merged, parse_patch

BASE = "".join(f"line {number}\n" for number in range(1, 41))
CORPUS = Path(__file__).parents[3] / "corpus"


def diff(old: str, new: str, path: str = "engine/pool.py", context: int = 3) -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}", n=context)
    return "".join(lines)


def change(*numbers: int, base: str = BASE) -> str:
    for number in numbers:
        base = base.replace(f"line {number}\n", f"new {number}\n")
    return base


def patch(name: str, new: str, **more: int) -> Patch:
    return parse_patch(diff(BASE, new, **more), name)


def apply(*patches: Patch, text: str | None = BASE) -> str:
    [result] = merged(patches, lambda path: text).values()
    return result


@pytest.mark.parametrize("context", [1, 3])
@pytest.mark.parametrize("numbers", [(1,), (40,), (3, 5, 30), (10, 11)])
def test_a_patch_gives_the_new_text(numbers: tuple[int, ...], context: int) -> None:
    assert apply(patch("one", change(*numbers), context=context)) == change(*numbers)


def test_added_and_removed_lines() -> None:
    added = BASE.replace("line 7\n", "line 7\nmore\nand more\n")
    removed = BASE.replace("line 9\nline 10\n", "")
    assert apply(patch("one", added)) == added
    assert apply(patch("one", removed)) == removed


def test_a_hunk_is_found_where_lines_above_it_were_added() -> None:
    assert apply(patch("one", change(20)), text="first\n" * 9 + BASE) == "first\n" * 9 + change(20)


def test_a_hunk_that_fits_at_two_other_places_is_refused() -> None:
    twice = "x\n" + BASE + BASE
    with pytest.raises(PatchError, match="several places"):
        apply(patch("one", change(20)), text=twice)
    assert apply(patch("one", change(20)), text=BASE + BASE) == change(20) + BASE  # at the line that it names


def test_a_patch_that_does_not_fit_is_named_in_one_line() -> None:
    with pytest.raises(PatchError) as caught:
        apply(patch("cause-8", change(20)), text=change(19))
    assert "patch cause-8 does not apply: engine/pool.py: hunk 1 (line 17, 'line 17')" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_patches_compose_in_any_order_also_within_each_others_context() -> None:
    """`git apply` would refuse the second: the first has changed its context lines."""
    first, second = patch("first", change(20)), patch("second", change(22))
    assert apply(first, second) == apply(second, first) == change(20, 22)


def test_patches_that_change_the_same_line_conflict_and_are_both_named() -> None:
    one, other = patch("one", change(20)), patch("other", BASE.replace("line 20\n", "else\n"))
    with pytest.raises(PatchError, match=r"patches one and other conflict: engine/pool.py: both change line 20"):
        apply(one, other)
    with pytest.raises(PatchError, match="conflict"):  # lines added at one place: their order would be arbitrary
        apply(patch("a", BASE.replace("line 9\n", "line 9\na\n")), patch("b", BASE.replace("line 9\n", "line 9\nb\n")))


def test_the_same_change_in_two_patches_is_made_once() -> None:
    assert apply(patch("one", change(20)), patch("other", change(20, 30))) == change(20, 30)


def test_a_last_line_without_newline() -> None:
    old, new = BASE + "end", BASE + "END"
    text = diff(old, new).replace(
        "-end+END", "-end\n\\ No newline at end of file\n+END\n\\ No newline at end of file\n"
    )
    assert apply(parse_patch(text, "one"), text=old) == new


def test_a_new_file() -> None:
    text = "--- /dev/null\n+++ b/engine/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    assert merged([parse_patch(text, "one")], lambda path: None) == {"engine/new.py": "one\ntwo\n"}
    with pytest.raises(PatchError, match="there already"):
        apply(parse_patch(text, "one"))


def test_what_git_writes_is_read_and_text_before_it_is_kept(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(BASE)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "pool.py").write_text(change(5, 30))
    text = subprocess.run([*git, "diff"], check=True, capture_output=True, text=True).stdout
    read = parse_patch(f"# vLLM #57580\n{text}", "one")
    assert (read.about, apply(read)) == ("vLLM #57580", change(5, 30))


@pytest.mark.parametrize(
    "path", ["../pool.py", "/etc/passwd", "a/../../x", "a//b", "./x", "a\\b", "~/x y", "a/\x00", "b/.."]
)
def test_a_path_outside_of_the_tree_is_refused(path: str) -> None:
    with pytest.raises(PatchError, match="no relative path"):
        parse_patch(diff(BASE, change(3)).replace("b/engine/pool.py", path), "one")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no unified diff"),
        ("rename from a.py\nrename to b.py\n", "only text files"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n", "only text files"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "only text files"),
        ("GIT binary patch\n", "only text files"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "may not delete"),
        ("--- a/x\n+++ b/x\n", "no hunk"),
        ("@@ -1 +1 @@\n-x\n+y\n", "without a file"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n x\n-y\n", "cut off"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n x\n", "cut off"),
        ("--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n+y\n", "no context"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n" * 2, "a file twice"),
        ("#" * (PATCH_BYTES_MAX + 1), "more than"),
    ],
)
def test_what_is_no_change_of_text_files_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(PatchError, match=why) as caught:
        parse_patch(text, "one")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.patch")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_patches_are_read_and_say_what_they_are(path: Path) -> None:
    read = parse_patch(path.read_text(encoding="utf-8"), path.stem)
    assert path.stem in read.about and path.parent.name in read.about
    assert re.search(r"#\d{4,}|Not found in public|not searched|Fixed in", read.about)
