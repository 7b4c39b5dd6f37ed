"""Names that an engine has renamed are found where that is certain, and nowhere else."""

import sys
from pathlib import Path

import pytest

from hybridfuzz.targets.base.registry import FOLDERS, prepare
from hybridfuzz.targets.base.renamed import (
    NAMES_FILE,
    aliased,
    load,
    main,
    moves,
    new_words,
    old_name,
    put,
    record,
    renames,
)

BEFORE = """\
from dataclasses import dataclass
from math import gcd

def key_of(block):
    return block.number

@dataclass(slots=True)
class Block:
    number: int
    references: int = 0

class Pool:
    def __init__(self, size: int) -> None:
        self.size = size
        self.free: list[int] = []
        self.used: list[int] = []
        self.by_key: dict[int, int] = {}

    def take(self) -> int:
        self.used.append(1)
        return self.free.pop()
"""
ADAPTER = """\
def read(pool, block, module):
    pool.take(), pool.by_key, pool.used, block.references
    return getattr(pool, "free"), module.key_of
"""


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """The folder of an adapter, with the names of the engine below tmp_path/old."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old/my_pool.py").write_text(BEFORE)
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "target.py").write_text(ADAPTER)
    main(["1.0", str(tmp_path / "old"), str(folder), "my_pool.py"])
    return folder


def found(adapter: Path, text: str) -> set[tuple[str, str, str]]:
    """What is taken to be renamed in a version with this text."""
    root = adapter.parent / "new"
    root.mkdir(exist_ok=True)
    (root / "my_pool.py").write_text(text)
    names = load(adapter)
    assert names
    return {(one.owner, one.old, one.new) for one in renames(names, root)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("by_key", "blocks", {("Pool", "by_key", "blocks")}),
        ("free", "unused", {("Pool", "free", "unused")}),
        ("take", "allocate", {("Pool", "take", "allocate")}),
        ("references", "count", {("Block", "references", "count")}),
        ("key_of", "label_of", {("", "key_of", "label_of")}),
    ],
)
def test_a_new_name_at_the_old_place(adapter: Path, old: str, new: str, expected: set[tuple[str, str, str]]) -> None:
    assert found(adapter, BEFORE.replace(old, new)) == expected


def test_two_neighbours_of_one_type_keep_their_order(adapter: Path) -> None:
    both = BEFORE.replace("self.free", "self.unused").replace("self.used", "self.taken")
    assert found(adapter, both) == {("Pool", "free", "unused"), ("Pool", "used", "taken")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.by_key: dict[int, int] = {}", "self.blocks: dict[str, int] = {}"),  # another type
        ("self.by_key: dict[int, int] = {}", "pass"),  # it is gone
        ("self.by_key: dict[int, int] = {}", "self.one: dict[int, int] = {}\n        self.two: dict[int, int] = {}"),
        ("        self.used: list[int] = []\n        self.by_key", "        self.blocks"),  # another name is gone, too
        ("self.free: list[int] = []\n        self.used", "self.new: list[int] = []\n        self.other: set = set()\n"
         "        self.used"),  # moved on
    ],
)  # fmt: skip
def test_what_is_not_certain_stays_missing(adapter: Path, old: str, new: str) -> None:
    text = BEFORE.replace(old, new)
    assert text != BEFORE
    lost = {pair for pair in found(adapter, text) if pair[1] == "by_key"}
    assert not lost


def test_names_that_the_adapter_does_not_mention_are_left_alone(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(adapter, BEFORE.replace("size", "length")) == {("Pool", "size", "length")}
    root = adapter.parent / "new"
    monkeypatch.syspath_prepend(str(root))
    assert aliased(adapter, root, "2.0") == []


def test_words_of_a_patch_have_their_new_names(adapter: Path) -> None:
    """All but those that became several."""
    found(adapter, BEFORE.replace("size", "length").replace("key_of", "label_of"))
    root = adapter.parent / "new"
    assert new_words(root, adapter.parent) == {"size": "length", "key_of": "label_of"}
    assert new_words(adapter.parent / "old", adapter.parent) == {}


def test_an_alias_reads_and_sets_the_new_name(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = BEFORE
    for old, new in (("by_key", "blocks"), ("references", "count"), ("take", "allocate"), ("key_of", "label_of")):
        text = text.replace(old, new)
    found(adapter, text)
    root = adapter.parent / "new"
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.delitem(sys.modules, "my_pool", raising=False)
    assert {str(one) for one in aliased(adapter, root, "2.0")} >= {"Pool.by_key is called blocks here"}
    import my_pool  # type: ignore[import-not-found]

    pool, block = my_pool.Pool(3), my_pool.Block(7)
    block.references += 2
    pool.by_key = {1: 2}
    assert (block.count, pool.blocks, my_pool.key_of(block)) == (2, {1: 2}, 7)
    assert old_name(pool, "blocks") == "by_key" and old_name(pool, "size") == "size"
    put(my_pool.Pool, "take", lambda self: "wrapped")
    put(my_pool, "key_of", lambda block: "wrapped")
    assert (pool.allocate(), my_pool.label_of(block)) == ("wrapped", "wrapped"), "the engine calls what was put there"


def test_the_engine_calls_what_a_class_of_the_adapter_defines(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(adapter, BEFORE.replace("take", "allocate"))
    root = adapter.parent / "new"
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.delitem(sys.modules, "my_pool", raising=False)
    assert aliased(adapter, root, "2.0")
    import my_pool

    class Mine(my_pool.Pool):  # type: ignore[misc]
        def take(self) -> str:
            return "mine"

    of_engine = type("Other", (my_pool.Pool,), {"take": lambda self: "unrelated", "__module__": "my_pool"})
    assert Mine(1).allocate() == "mine"
    assert of_engine.allocate is my_pool.Pool.allocate


@pytest.mark.parametrize("text", ["def broken(:\n", "x = '\0'\n", f"x = {'(' * 5000}{')' * 5000}\n"])
def test_a_module_that_cannot_be_read_has_no_new_names(adapter: Path, text: str) -> None:
    assert found(adapter, text) == set()


def test_a_module_that_cannot_be_imported_here_gets_no_aliases(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for a device, say."""
    found(adapter, BEFORE.replace("take", "allocate") + "raise RuntimeError('no device')\n")
    root = adapter.parent / "new"
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.delitem(sys.modules, "my_pool", raising=False)
    assert [one.new for one in aliased(adapter, root, "2.0")] == ["allocate"]


KEY_OF = "def key_of(block):\n    return block.number\n"
MOVED = BEFORE.replace(KEY_OF, "from my_engine.keys import key_of as own\n")


class TestMovedHelper:
    """A function that stands in another module."""

    @pytest.fixture
    def engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder of an adapter, which knows the package my_engine; below `new` it is another version of that."""
        folder = tmp_path / "adapter"
        folder.mkdir()
        (folder / "target.py").write_text(ADAPTER)
        self.write(tmp_path / "old", pool=BEFORE, other="def unrelated(): pass\n")
        main(["1.0", str(tmp_path / "old"), str(folder), "my_engine"])
        monkeypatch.syspath_prepend(tmp_path / "new")
        for module in [name for name in sys.modules if name.partition(".")[0] == "my_engine"]:
            monkeypatch.delitem(sys.modules, module)
        return folder

    def write(self, root: Path, **modules: str) -> Path:
        (root / "my_engine").mkdir(parents=True)
        for name, text in modules.items():
            (root / "my_engine" / f"{name}.py").write_text(text)
        (root / "my_engine/__init__.py").write_text("")
        return root

    def test_it_is_taken_from_the_only_module_that_defines_it(self, engine: Path, tmp_path: Path) -> None:
        root = self.write(tmp_path / "new", pool=MOVED, keys=KEY_OF, other="def unrelated(): pass\n")
        [one] = aliased(engine, root, "1.1")
        assert str(one) == "key_of of my_engine.pool is in my_engine.keys here"
        import my_engine.keys
        import my_engine.pool

        assert my_engine.pool.key_of is my_engine.keys.key_of
        put(my_engine.pool, "key_of", len)
        assert my_engine.keys.key_of is my_engine.pool.key_of is len

    @pytest.mark.parametrize(
        "others",
        [{}, {"keys": KEY_OF, "more": KEY_OF}, {"keys": "class Keys:\n    def key_of(self): pass\n"}],
        ids=["gone", "two", "a method"],
    )
    def test_what_is_not_certain_stays_missing(self, engine: Path, tmp_path: Path, others: dict[str, str]) -> None:
        assert not aliased(engine, self.write(tmp_path / "new", pool=MOVED, **others), "1.1")

    def test_one_that_was_there_before_is_another(self, tmp_path: Path) -> None:
        old = self.write(tmp_path / "old", pool=BEFORE, keys=KEY_OF)
        names = record("1.0", old, ["my_engine"])
        assert not moves(names, self.write(tmp_path / "new", pool=MOVED, keys=KEY_OF), {"key_of"})

    def test_a_copy_of_links_is_searched_once(self, engine: Path, tmp_path: Path) -> None:
        real = self.write(tmp_path / "real", pool=MOVED)
        (real / "my_engine/inner").mkdir()
        (real / "my_engine/inner/keys.py").write_text(KEY_OF)
        (real / "my_engine/inner/loop").symlink_to(real / "my_engine")
        (tmp_path / "new").mkdir()
        (tmp_path / "new/my_engine").symlink_to(real / "my_engine")
        names = load(engine)
        assert names
        [one] = moves(names, tmp_path / "new", {"key_of"})
        assert one.home == "my_engine.inner.keys"


def test_an_older_release_has_names_of_its_own(adapter: Path) -> None:
    found(adapter, BEFORE.replace("by_key", "blocks"))
    assert aliased(adapter, adapter.parent / "new", "0.9") == []
    assert aliased(adapter.parent / "old", adapter.parent / "new", "2.0") == [], "an adapter without the file"


@pytest.mark.engine
@pytest.mark.parametrize("engine", [path.parent.name for path in FOLDERS.glob(f"*/{NAMES_FILE}")])
def test_the_file_is_that_of_the_release(engine: str) -> None:
    """If this fails, write it again (`hybridfuzz.targets.base.renamed`)."""
    names = load(FOLDERS / engine)
    assert names
    root = Path(prepare(f"{engine}@{names.release}", print).env["PYTHONPATH"].rpartition(":")[2])
    paths = [f"{module.replace('.', '/')}.py" for module in names.classes]
    assert record(names.release, root, paths) == names
