"""An overlay imports as the tree does, with patches applied; nothing is written to the tree."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patch_names import with_head
from hybridfuzz.targets.base.patched_copy import as_applied, functions_at, misfits, patched
from hybridfuzz.targets.base.patches import Patch, PatchError, parse_patch
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare

POOL = "a = 1\nb = 1\nc = 1\n"
ASK = "import engine.core.pool as p, engine.core.deep, engine.layers; print(p.a, p.b, p.c)"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for name in ("__init__.py", "core/__init__.py", "core/deep/__init__.py", "layers/__init__.py"):
        (tree / "engine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "engine" / name).write_text("")
    (tree / "engine" / "core" / "pool.py").write_text(POOL)
    (tree / "notes.txt").write_text("no package")
    return tree


def launch(tree: Path) -> Launch:
    return Launch(sys.executable, {"PYTHONPATH": f"/elsewhere:{tree}"}, "1.0", str(tree))


def patch(letter: str, name: str = "one", path: str = "engine/core/pool.py", value: int = 2) -> Patch:
    lines = [f"-{letter} = 1\n+{letter} = {value}\n" if one == letter else f" {one} = 1\n" for one in "abc"]
    return parse_patch(f"--- a/{path}\n+++ b/{path}\n@@ -1,3 +1,3 @@\n{''.join(lines)}", name)


def ask(of: Launch, code: str = ASK) -> str:
    env = {**os.environ, **of.env, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([of.python, "-c", code], env=env, capture_output=True, text=True, check=False)
    return ran.stdout.strip() or ran.stderr


def contents(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_patches_are_in_effect_and_the_tree_is_as_before(tree: Path) -> None:
    before = contents(tree)
    fixed = patched(launch(tree), [patch("a"), patch("c", "two")])
    assert (ask(fixed), fixed.version) == ("2 1 2", "1.0 + 2 fixes")
    assert contents(tree) == before
    assert patched(launch(tree), []) == launch(tree)


def test_a_patch_is_told_with_the_lines_of_the_tree(tree: Path) -> None:
    """A report of one release had the line numbers, and the name, of another."""
    (tree / "engine" / "core" / "pool.py").write_text("z = 1\ny = 1\n" + POOL)
    made = patch("b")
    told, changed = as_applied(launch(tree), made)
    assert changed and all(place.startswith("engine/core/pool.py:") for place in changed)
    assert told.startswith("--- a/engine/core/pool.py\n+++ b/engine/core/pool.py\n@@ -1,5 +1,5 @@\n z = 1\n")
    assert ask(patched(launch(tree), [parse_patch(told, "again")])) == ask(patched(launch(tree), [made])) == "1 2 1"
    of_repository = as_applied(launch(tree), made, "python")[0]
    assert of_repository.startswith(
        "--- a/python/engine/core/pool.py\n+++ b/python/engine/core/pool.py\n@@ -1,5 +1,5 @@"
    )
    assert ask(patched(launch(tree), [parse_patch(of_repository, "again")])) == "1 2 1"


def test_the_lines_that_a_patch_changes_are_of_functions(tree: Path) -> None:
    """A tracker is searched for the functions of the engine, and a patch has only their lines."""
    text = "x = 1\n\n\nclass Pool:\n    size = 1\n\n    def take(self):\n        def one():\n            return 1\n"
    (tree / "engine" / "core" / "of_pool.py").write_text(f"{text}\n\nasync def free():\n    return 2\n")
    places = [f"engine/core/of_pool.py:{line}" for line in (1, 5, 9, 8, 13)]
    assert functions_at(launch(tree), [*places, "engine/kernel.cu:1"]) == ["Pool", "Pool.take", "free"]


def test_everything_but_the_patched_file_is_a_link(tree: Path) -> None:
    overlay = Path(patched(launch(tree), [patch("a")]).tree)
    made = [path for path in overlay.rglob("*") if not path.is_symlink() and path.is_file()]
    assert [path.relative_to(overlay).as_posix() for path in made] == ["engine/core/pool.py"]
    assert (overlay / "engine/layers").is_symlink() and not (overlay / "notes.txt").exists()


def test_an_overlay_is_named_by_its_content(tree: Path) -> None:
    one = patched(launch(tree), [patch("a")]).tree
    assert patched(launch(tree), [patch("a", "other name")]).tree == one
    assert patched(launch(tree), [patch("b")]).tree != one
    (tree / "engine/core/pool.py").write_text(POOL + "d = 1\n")
    assert patched(launch(tree), [patch("a")]).tree != one


def test_campaigns_that_start_together_share_one(tree: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: patched(launch(tree), [patch("a")]).tree, range(16)))
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "cache" / "patched").iterdir()] == [Path(made.pop()).name]


def test_a_patch_of_the_repository_names_other_folders_too(tree: Path) -> None:
    """Folders above the package are dropped; tests and documents, which a tree does not have, are left out."""
    inside = patch("a", path="python/engine/core/pool.py")
    tests = patch("a", path="tests/test_pool.py")
    both = Patch("one", (*inside.files, *tests.files))
    assert ask(patched(launch(tree), [both])) == "2 1 1"
    with pytest.raises(PatchError, match="changes nothing in the packages"):
        patched(launch(tree), [tests])


def test_misfits_are_named_and_the_others_still_apply(tree: Path) -> None:
    patches = [patch("a"), patch("a", "again", value=3), patch("b", "lost", path="engine/gone.py"), patch("c", "three")]
    problems = misfits(launch(tree), patches)
    assert {name: text.partition(":")[0] for name, text in problems.items()} == {
        "again": "patches one and again conflict",
        "lost": "patch lost does not apply",
    }
    assert ask(patched(launch(tree), [one for one in patches if one.name not in problems])) == "2 1 2"


def test_a_new_file_cannot_leave_the_overlay_through_a_link_in_the_tree(tree: Path, tmp_path: Path) -> None:
    """The patched file's folders are made anew, so a link in the tree is not followed."""
    (tmp_path / "outside").mkdir()
    (tree / "engine" / "linked").symlink_to(tmp_path / "outside")
    text = "--- /dev/null\n+++ b/engine/linked/new.py\n@@ -0,0 +1 @@\n+x = 7\n"
    fixed = patched(launch(tree), [parse_patch(text, "one")])
    assert ask(fixed, "from engine.linked.new import x; print(x)") == "7"
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "binary", "fifo"])
def test_what_is_no_text_file_cannot_be_patched(tree: Path, kind: str) -> None:
    path = tree / "engine/core/pool.py"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(PatchError, match=r"engine/core/pool\.py"):
        patched(launch(tree), [patch("a")])


def test_a_target_without_a_tree_takes_no_patches() -> None:
    with pytest.raises(TargetError, match="cannot be applied to this target"):
        patched(prepare("hybrid", print), [patch("a")])


def test_the_module_of_a_user_can_be_patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it lies in the working directory, which a worker has on its path."""
    (tmp_path / "mine.py").write_text(POOL)
    monkeypatch.chdir(tmp_path)
    fixed = patched(prepare("python:mine:FACTORY", print), [patch("a", path="mine.py")])
    assert ask(fixed, "import mine; print(mine.a)") == "2"


def test_a_patch_is_rewritten_with_what_the_engine_has_renamed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renamed name in a line beside it is no reason that it does not fit; a patch that fits is left alone."""
    monkeypatch.setattr("hybridfuzz.targets.base.patched_copy.new_words", lambda tree: {"b": "beta", "c": "gamma"})
    pool = tree / "engine" / "core" / "pool.py"
    ask_all = "import engine.core.pool as p; print(vars(p).get('b'), vars(p).get('beta'), p.c)"
    assert ask(patched(launch(tree), [patch("b")]), ask_all) == "2 None 1"
    pool.write_text(POOL.replace("b", "beta"))
    assert misfits(launch(tree), [patch("b"), patch("c", "two")]) == {}, "c is not renamed there"
    pool.write_text(POOL.replace("b", "delta"))
    assert list(misfits(launch(tree), [patch("b"), patch("c", "two")])) == ["one", "two"]
    pool.write_text(POOL.replace("b", "beta").replace("c", "gamma"))
    assert misfits(launch(tree), [patch("b"), patch("a", "two")]) == {}
    ask_new = "import engine.core.pool as p; print(p.a, p.beta, p.gamma)"
    assert ask(patched(launch(tree), [patch("b"), patch("a", "two")]), ask_new) == "2 2 1"
    assert "beta" in pool.read_text() and "= 2" not in pool.read_text()


def test_added_lines_have_the_new_name_too(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch fits as it is; what it adds asked for a name that is gone, which was a crash of the engine."""
    monkeypatch.setattr("hybridfuzz.targets.base.patched_copy.new_words", lambda tree: {"b": "beta"})
    pool = tree / "engine" / "core" / "pool.py"
    pool.write_text("a = 1\nc = 1\nother = 1\nbeta = 5\nlast = 1\n")
    added = parse_patch(
        "--- a/engine/core/pool.py\n+++ b/engine/core/pool.py\n@@ -5,1 +5,2 @@\n last = 1\n+p = b\n", "x"
    )
    code = "import engine.core.pool as pool; print(pool.p)"
    assert ask(patched(launch(tree), [added]), code) == "5"
    pool.write_text(pool.read_text().replace("other = 1", "b = 7"))
    assert ask(patched(launch(tree), [added]), code) == "7", "another thing has the old name there"


class TestNamesThatAPatchNeeds:
    """A packaged patch says which names its added lines need: where one is gone, it does not apply, though it fits."""

    SOURCE = "def free(self, block):\n    self.count -= 1\n\n\ndef size(self):\n    return self.limit\n"
    DIFF = (
        "--- a/engine/core/pool.py\n+++ b/engine/core/pool.py\n@@ -1,2 +1,5 @@\n def free(self, block):\n"
        "+    room = self.limit - 1  # as size\n+    if room < 0:\n+        return\n     self.count -= 1\n"
    )

    @pytest.fixture
    def packaged(self, tree: Path) -> Patch:
        (tree / "engine/core/pool.py").write_text(self.SOURCE)
        plain = parse_patch(self.DIFF, "one")
        text = with_head(self.DIFF, plain, {"engine/core/pool.py": self.SOURCE}.get)
        assert text == "# names engine/core/pool.py: limit\n" + self.DIFF, "neither its own names nor those of comments"
        assert with_head(text, plain, {"engine/core/pool.py": self.SOURCE}.get) == text
        return parse_patch(text, "one")

    def test_it_applies_to_its_release(self, tree: Path, packaged: Patch) -> None:
        assert misfits(launch(tree), [packaged]) == {}

    def test_it_does_not_apply_where_a_name_is_gone(self, tree: Path, packaged: Patch) -> None:
        """It fits by its lines, and the patched engine would raise."""
        (tree / "engine/core/pool.py").write_text(self.SOURCE.replace("limit", "most"))
        assert misfits(launch(tree), [parse_patch(self.DIFF, "one")]) == {}, "by its lines alone"
        problem = "patch one does not apply: engine/core/pool.py: it needs 'limit', which is not there any more"
        assert misfits(launch(tree), [packaged]) == {"one": problem}
        with pytest.raises(PatchError, match="it needs 'limit'"):
            patched(launch(tree), [packaged])

    def test_a_name_that_was_found_again_is_there(
        self, tree: Path, packaged: Patch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where it is known what became of the name, the patch gets the new one."""
        (tree / "engine/core/pool.py").write_text(self.SOURCE.replace("limit", "most"))
        monkeypatch.setattr("hybridfuzz.targets.base.patched_copy.new_words", lambda tree: {"limit": "most"})
        assert misfits(launch(tree), [packaged]) == {}
        text = (Path(patched(launch(tree), [packaged]).tree) / "engine/core/pool.py").read_text()
        assert "room = self.most - 1" in text

    def test_a_folder_above_the_package_is_no_obstacle(self, tree: Path, packaged: Patch) -> None:
        (tree / "engine/core/pool.py").write_text(self.SOURCE.replace("limit", "most"))
        text = with_head(self.DIFF, packaged, {"engine/core/pool.py": self.SOURCE}.get)
        below = parse_patch(text.replace("engine/", "python/engine/"), "one")
        assert "it needs 'limit'" in misfits(launch(tree), [below])["one"]
