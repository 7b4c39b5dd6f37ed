"""Finds what an engine has renamed, by structure, and lets the adapter go on under the old name.

An adapter reads private names of its engine. Of its newest tested release it keeps where those stand (`names.json`):
in each class the order of its attributes and methods, in each module that of its functions, classes and imports, and
for each a digest of what defines it (type and first value, arguments and body, the module that it comes from) without
the names of the object's own attributes. In another version a name that is missing is taken to be renamed if exactly
one new name of the same class or module is defined in the same way, at the same place among its neighbours, and if that
holds for every name that the class or module has lost: otherwise it is another one. Then it gets an alias: the old name
reads and sets the new one. A function or class that has left its module under its old name is taken from another one,
if exactly one module of the package defines that name at its top, and did not before. Nothing is guessed: where there
are several candidates, or none, the name stays missing, and the adapter does not fit.

`python -m hybridfuzz.targets.base.renamed RELEASE TREE targets/ENGINE PATH...` writes the file, of modules and folders
of the engine.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from .checkout import UNBUILT
from .pip import version_numbers
from .regular_file import start_of_regular

ADAPTERS = Path(__file__).parents[1]
NAMES_FILE = "names.json"
SOURCE_BYTES_MAX = 4 << 20
IN_MODULE = "__hybridfuzz_renamed__"
"""The attribute of a module that holds its aliases, old name -> (module, new name)."""


class Named(Struct, frozen=True, array_like=True):
    """A name in a class: its digest is that of its definition."""

    name: str
    digest: int


Members = dict[str, list[Named]]
"""Class -> its names in order; the class "" stands for the module itself."""
Classes = dict[str, Members]
"""By module."""


class Names(Struct, frozen=True):
    """The content of the file. `sources` are the checksums of modules."""

    release: str
    sources: dict[str, int]
    classes: Classes


class Renamed(Struct, frozen=True):
    """A name that a class of a module has under another one. The owner "" is the module itself, whose name may also
    stand in another module, `home`."""

    module: str
    owner: str
    old: str
    new: str
    home: str = ""

    def __str__(self) -> str:
        if self.home:
            return f"{self.old} of {self.module} is in {self.home} here"
        return f"{self.owner or self.module}.{self.old} is called {self.new} here"


class Alias:
    """An attribute under its old name. It works for reads and for sets on objects, and for reads on classes.

    A class that is set an attribute itself replaces its alias: `put` does it right.
    """

    def __init__(self, new: str) -> None:
        self.new = new

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(owner if instance is None else instance, self.new)

    def __set__(self, instance: object, value: object) -> None:
        setattr(instance, self.new, value)


def old_name(instance: object, name: str) -> str:
    """Return the name that the adapter knows for an attribute of an object, which may have been renamed."""
    kind: Any = type(instance)  # mypy takes no class for hashable
    return _old_names(kind).get(name, name)


@cache
def _old_names(kind: type[Any]) -> Mapping[str, str]:
    """Return the aliases of a class and its bases: new name -> old one. `install` forgets what was found before."""
    members = [member for base in reversed(kind.__mro__) for member in vars(base).items()]
    return {value.new: old for old, value in members if isinstance(value, Alias)}


def put(owner: object, name: str, value: object) -> None:
    """Set an attribute of a module, class or object, under its new name if it was renamed."""
    if isinstance(owner, ModuleType) and (found := vars(owner).get(IN_MODULE, {}).get(name)):
        home, new = found
        setattr(home, new, value)
    alias = vars(owner).get(name) if isinstance(owner, type) else None
    setattr(owner, alias.new if isinstance(alias, Alias) else name, value)


def install(renames: Iterable[Renamed]) -> None:
    """Give the classes their aliases. Imports their modules; one that cannot be imported here has none, and an adapter
    that needs it meets its error by itself."""
    for one in renames:
        try:
            owner: Any = importlib.import_module(one.module)
            home = importlib.import_module(one.home or one.module)
        except Exception:  # whatever it asks of the machine
            continue
        if not one.owner:
            vars(owner).setdefault(IN_MODULE, {})[one.old] = (home, one.new)
            setattr(owner, one.old, getattr(home, one.new))
            continue
        for part in one.owner.split("."):
            owner = getattr(owner, part)
        setattr(owner, one.old, Alias(one.new))
        _hand_down(owner, one)
    _old_names.cache_clear()


def _hand_down(owner: Any, one: Renamed) -> None:
    """Make the engine find what a class of the adapter, which derives from one of the engine's, defines under the old
    name."""
    before = vars(owner).get("__init_subclass__")
    engine = owner.__module__.partition(".")[0]

    def init_subclass(cls: type, /, **keywords: Any) -> None:
        if before:
            before.__get__(None, cls)(**keywords)
        else:
            super(owner, cls).__init_subclass__(**keywords)
        if one.old in vars(cls) and cls.__module__.partition(".")[0] != engine:
            setattr(cls, one.new, vars(cls)[one.old])

    owner.__init_subclass__ = classmethod(init_subclass)


def renames(names: Names, root: Path) -> list[Renamed]:
    """Return what an engine, whose packages are below `root`, has renamed."""
    return [
        Renamed(module, owner, old, new)
        for module, now in _changed(names, root)
        for owner, before in names.classes[module].items()
        for old, new in _pairs(before, now.get(owner, []))
    ]


def moves(names: Names, root: Path, wanted: Collection[str]) -> list[Renamed]:
    """Return which of the wanted functions and classes an engine has moved to another module."""
    lost = [
        (module, one.name)
        for module, now in _changed(names, root)
        for one in names.classes[module].get("", ())
        if one.name in wanted and one.name not in {other.name for other in now.get("", ())}
    ]
    found = []
    for package in {module.partition(".")[0] for module, _ in lost}:
        homes = _homes(root, package, {name for _, name in lost})
        for module, name in lost:
            new = [home for home in homes.get(name, ()) if not _has(names, home, name)]
            if module.partition(".")[0] == package and len(new) == len(homes.get(name, ())) == 1:
                found.append(Renamed(module, "", name, name, new[0]))
    return found


def _has(names: Names, module: str, name: str) -> bool:
    """Return True if a module had a name in the tested release."""
    return any(one.name == name for one in names.classes.get(module, {}).get("", ()))


def _changed(names: Names, root: Path) -> Iterator[tuple[str, Members]]:
    """Yield each module that is not as it was, with its classes now."""
    for module in names.classes:
        try:
            data = start_of_regular(root.joinpath(*module.split(".")).with_suffix(".py"), SOURCE_BYTES_MAX)
            if crc32(data) != names.sources[module]:
                yield module, classes_of(data.decode())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # it is gone, or no source: its import says so, if the adapter needs it


def _homes(root: Path, package: str, wanted: Collection[str]) -> dict[str, list[str]]:
    """Return the modules of a package that define a name at their top, by name."""
    definition = re.compile(rb"^(?:def|class) (" + "|".join(map(re.escape, wanted)).encode() + rb")\b", re.MULTILINE)
    found: dict[str, list[str]] = {}
    for path in _sources(root / package):
        try:
            text = start_of_regular(path, SOURCE_BYTES_MAX)
        except OSError:
            continue
        for name in definition.findall(text):
            found.setdefault(name.decode(), []).append(".".join(path.relative_to(root).with_suffix("").parts))
    return found


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the modules below a folder, which may consist of links (a patched copy), each folder once."""
    seen = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(where))
        folders[:] = [one for one in folders if os.path.realpath(Path(where, one)) not in seen]
        yield from (Path(where, name) for name in sorted(files) if name.endswith(".py") and name != "__init__.py")


def new_words(root: Path, adapters: Path = ADAPTERS) -> dict[str, str]:
    """Return old name -> new one of all that the engine below `root` has renamed, without names that became several."""
    found: dict[str, set[str]] = {}
    for path in adapters.glob(f"*/{NAMES_FILE}"):
        if names := load(path.parent):
            for one in renames(names, root):
                found.setdefault(one.old, set()).add(one.new)
    return {old: new.pop() for old, new in found.items() if len(new) == 1}


def _pairs(before: Sequence[Named], now: Sequence[Named]) -> list[tuple[str, str]]:
    """Return (old, new) of each name that a class has lost, nothing if one of them is not certain.

    Neighbours that are defined alike and renamed together keep their order.
    """
    old, new = {one.name for one in before}, {one.name for one in now}
    missing, added = _places(before, new), _places(now, old)
    if any(len(added.get(place, ())) != len(names) for place, names in missing.items()):
        return []
    return [pair for place, names in missing.items() for pair in zip(names, added[place], strict=True)]


Place = tuple[str, str, int]
"""The names before and behind that did not change, and the digest."""


def _places(names: Sequence[Named], others: Collection[str]) -> dict[Place, list[str]]:
    """Return the names that are not among the others, by place."""
    places: dict[Place, list[str]] = {}
    kept = [one.name if one.name in others else "" for one in names]
    for index, one in enumerate(names):
        if not kept[index]:
            before = next(filter(None, reversed(kept[:index])), "")
            behind = next(filter(None, kept[index:]), "")
            places.setdefault((before, behind, one.digest), []).append(one.name)
    return places


def classes_of(source: str) -> dict[str, list[Named]]:
    """Return the classes of a module with their names; an inner class is called OUTER.INNER, the module "" itself."""
    module = ast.parse(source)
    classes = dict(_classes(module.body, ""))  # first: a digest of a class takes the names out of it
    return {**classes, "": list(_of_module(module))}


def _of_module(module: ast.Module) -> Iterator[Named]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield Named(node.name, _digest(node.name, "function", *_function(node)))
        elif isinstance(node, ast.ClassDef):
            yield Named(node.name, _digest(node.name, "class", *node.bases, *node.body))
        elif isinstance(node, ast.ImportFrom):
            yield from (Named(one.asname or one.name, _digest("", "import", node.module)) for one in node.names)


def _digest(name: str, *parts: ast.AST | str | None) -> int:
    """Return the digest of a definition, in which its own name may stand."""
    text = "|".join(part if isinstance(part, str) else ast.dump(_Anonymous().visit(part)) for part in parts if part)
    return crc32((text.replace(repr(name), "") if name else text).encode())


def _function(node: ast.FunctionDef) -> list[ast.AST]:
    """Return what defines a function."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return [*node.decorator_list, node.args, *body]


def _classes(body: Sequence[ast.stmt], outer: str) -> Iterator[tuple[str, list[Named]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield outer + node.name, _names(node)
            yield from _classes(node.body, f"{outer}{node.name}.")


def _names(node: ast.ClassDef) -> list[Named]:
    found: dict[str, Named] = {}

    def add(name: str, *parts: ast.AST | str | None) -> None:
        found.setdefault(name, Named(name, _digest(name, *parts)))

    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            add(item.target.id, "field", item.annotation, item.value)
        elif isinstance(item, ast.FunctionDef):
            for inner in ast.walk(item):
                if isinstance(inner, ast.Assign):
                    for target in inner.targets:
                        if name := _of_self(target):
                            add(name, item.name, "value", inner.value)
                elif isinstance(inner, ast.AnnAssign) and (name := _of_self(inner.target)):
                    add(name, item.name, inner.annotation, inner.value)
            add(item.name, "method", *_function(item))
    return list(found.values())


def _of_self(target: ast.expr) -> str:
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if is_own and isinstance(target, ast.Attribute) else ""


class _Anonymous(ast.NodeTransformer):
    """Takes the names of attributes out of a definition: others may be renamed with it."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace the name of an attribute of `self`."""
        self.generic_visit(node)
        return ast.Attribute(node.value, "", node.ctx) if _of_self(node) else node


def mentioned(folder: Path) -> set[str]:
    """Return the names of attributes, and the strings that may be some, in the sources of an adapter."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                found.update(one.name for one in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
    return found


def record(release: str, root: Path, paths: Sequence[str]) -> Names:
    """Return the names in modules and folders of an engine."""
    classes: Classes = {}
    sources = {}
    for given in paths:
        for path in sorted((root / given).rglob("*.py") if (root / given).is_dir() else [root / given]):
            data, module = path.read_bytes(), ".".join(path.relative_to(root).with_suffix("").parts)
            if kept := {owner: found for owner, found in classes_of(data.decode()).items() if found}:
                classes[module], sources[module] = kept, crc32(data)
    return Names(release, sources, classes)


def load(folder: Path) -> Names | None:
    """Return the file of an adapter, None for one without."""
    path = folder / NAMES_FILE
    return msgspec.json.decode(path.read_bytes(), type=Names) if path.exists() else None


def aliased(folder: Path, root: Path, version: str) -> list[Renamed]:
    """Find what an engine has renamed, of what its adapter mentions, since the release that this was tested with, and
    give it aliases.

    `root` is what the engine is imported from. Returns what was renamed; nothing for an older release, which the
    adapter knows by its own names, and for an adapter without the file.
    """
    names = load(folder)
    if names is None or (version not in ("", UNBUILT) and version_numbers(version) < version_numbers(names.release)):
        return []
    wanted = mentioned(folder) if any(_changed(names, root)) else set()
    found = [one for one in renames(names, root) if one.old in wanted]
    found += moves(names, root, wanted - {one.old for one in found})
    install(found)
    return found


def main(arguments: Sequence[str]) -> None:
    """Write the file of an adapter: RELEASE TREE ADAPTER PATH..., of a release that is unpacked in TREE."""
    release, root, adapter, *paths = arguments
    names = record(release, Path(root), paths)
    (Path(adapter) / NAMES_FILE).write_bytes(msgspec.json.encode(names) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
