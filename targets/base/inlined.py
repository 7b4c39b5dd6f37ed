"""Copies definitions of ours into scripts: those that are asked for, and all that they use.

What is copied must need the engine, torch and the standard library only. A script is one module: names that are defined
in several files cannot be copied together, a function of one of our modules (`parts.make_cache`) is called by its own
name, and imports of ours inside functions are left out.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import StringIO
from posixpath import dirname, normpath
from typing import NamedTuple


class Part(NamedTuple):
    """Copied text of one file, and the imports that it needs, one to a line. `is_inner`: no engine has its objects."""

    imports: Sequence[str]
    text: str
    is_inner: bool = False


class _File(NamedTuple):
    """A file's lines (None: not for scripts) and definitions by name; what it imports by name: an import line, or
    (file, name) of ours, with the name "" for a whole module."""

    lines: Sequence[str | None]
    tree: ast.Module
    definitions: Mapping[str, ast.stmt]
    imported: Mapping[str, str | tuple[str, str]]


class Sources:
    """The sources of one package, and of what it imports. A file's name is relative to the package.

    `left_out`: names that are not copied, since a script has its own, or since they occur in annotations only.
    `inner`: files of whose classes an engine has no object.
    """

    def __init__(self, package: str, left_out: Collection[str] = (), inner: Collection[str] = ()) -> None:
        self.package = package
        self.left_out = frozenset(left_out)
        self.inner = frozenset(inner)

    def names(self, name: str) -> frozenset[str]:
        """Return the names that a file defines."""
        return frozenset(_read(self.package, name).definitions)

    def uses(self, name: str) -> list[tuple[str, str]]:
        """Return the (file, name) definitions of other files that a file uses."""
        file = _read(self.package, name)
        found = [one for definition in file.definitions for one in self._used(name, definition)]
        return [one for one in dict.fromkeys(found) if not isinstance(one, str) and one[0]]

    def whole(self, name: str) -> Part:
        """Return a whole file but for its docstring and its imports."""
        file = _read(self.package, name)
        imports = [one for one in file.imported.values() if isinstance(one, str)]
        heads = [node for node in file.tree.body[1:] if isinstance(node, ast.Import | ast.ImportFrom)]
        text = _copied(file, max(node.end_lineno or 0 for node in heads) + 1, len(file.lines))
        return Part(list(dict.fromkeys(imports)), text.strip("\n"))

    def definitions(self, *wanted: tuple[str, str]) -> list[Part]:
        """Return (file, name) definitions and all that they use, one part for each file, the used files first.

        Raises ValueError if a name means two things: what two files define, or import from two modules.
        """
        needed: dict[str, list[str]] = {}
        imports: dict[str, dict[str, None]] = {}
        order: list[str] = []
        homes: dict[str, str] = {}
        bound: dict[str, str] = {}

        def need(name: str, definition: str) -> None:
            found = needed.setdefault(name, [])
            if definition in found:
                return
            if homes.setdefault(definition, name) != name:
                raise ValueError(f"{definition} is defined in {homes[definition]} and in {name}")
            found.append(definition)
            for source in self._used(name, definition):
                if isinstance(source, str):
                    imports.setdefault(name, {})[source] = None
                    known = bound.setdefault(source.split()[-1], source)
                    if known != source:
                        raise ValueError(f"{name} has '{source}', another file '{known}'")
                else:
                    need(source[0] or name, source[1])
            if name not in order:
                order.append(name)

        for one in wanted:
            need(*one)
        for both in sorted(homes.keys() & bound.keys()):
            raise ValueError(f"{both} is defined in {homes[both]}, another file has '{bound[both]}'")
        placed: dict[str, None] = {}

        def place(name: str) -> None:
            for base in _bases(_read(self.package, name), needed[name]):
                if base in needed and base != name and base not in placed:
                    place(base)
            placed[name] = None

        for name in order:
            if name not in placed:
                place(name)
        return [
            Part(list(imports.get(name, {})), _text(_read(self.package, name), needed[name]), name in self.inner)
            for name in placed
        ]

    def _used(self, name: str, definition: str) -> Iterator[str | tuple[str, str]]:
        """Yield what a definition of a file uses, but for what is not copied."""
        return (used for named, used in _uses(self.package, name, definition) if named not in self.left_out)


def trimmed(parts: Sequence[Part], used: str) -> list[Part]:
    """Return parts of a script without functions and classes that nothing names, without such methods where only the
    script calls them, and without what is done for objects that nothing makes.

    `used` is the text that calls the last part, whose objects are the script's own, as those of inner parts are: of the
    others an engine may call a method by its name.
    """
    found = [part._replace(is_inner=part.is_inner or part is parts[-1]) for part in parts]
    while (shorter := _without_unmade(_without_unread(found, used), used)) != found:
        found = shorter
    return found


def _without_unread(parts: Sequence[Part], used: str) -> list[Part]:
    """Return parts without definitions that nothing names. Only the last one and what calls it name those in it."""
    [last] = _read_ones(parts[-1:], used)
    return [*_read_ones(parts[:-1], f"{used}\n{last.text}"), last]


def _read_ones(parts: Sequence[Part], used: str) -> list[Part]:
    read = [_named(part.text, part.is_inner) for part in parts]
    unread = [one for file in read for one in file.plain]
    named = _names(used).union(*(file.outside for file in read))
    while reached := [one for one in unread if one.name in named]:
        unread = [one for one in unread if one.name not in named]
        named = named.union(*(one.names for one in reached))
    left_out = [[one.lines for one in file.plain if one.name not in named] for file in read]
    return [part._replace(text=_without(part.text, lines)) for part, lines in zip(parts, left_out, strict=True)]


class _Plain(NamedTuple):
    """A definition that can only be used by its name: its first and last line, and the names in it, but for those in
    such definitions inside it."""

    name: str
    lines: tuple[int, int]
    names: frozenset[str]


class _Named(NamedTuple):
    """Definitions of a text that can only be used by their names, and the names outside of them."""

    plain: Sequence[_Plain]
    outside: frozenset[str]


@lru_cache(maxsize=2048)
def _tree(text: str) -> ast.Module:
    """Parse a text. Most parts are alike in all scripts, and left as they are from one round to the next."""
    return ast.parse(text)


@lru_cache(maxsize=2048)
def _named(text: str, of_classes: bool) -> _Named:
    """Read a text, once."""
    tree = _tree(text)
    nodes = {id(node): node for node in _plain(tree, of_classes=of_classes)}

    def outside_of_others(node: ast.AST) -> frozenset[str]:
        return frozenset(map(_name_of, _walk_without(node, nodes.keys() - {id(node)})))

    plain = [_Plain(node.name, _lines_of(node), outside_of_others(node)) for node in nodes.values()]
    return _Named(plain, outside_of_others(tree))


@lru_cache(maxsize=2048)
def _names(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(map(_name_of, ast.walk(_tree(text))))


def _without_unmade(parts: Sequence[Part], used: str) -> list[Part]:
    """Return parts without cases, tests and keys of tables for classes of the script that nothing makes."""
    read = [_makes(part.text) for part in parts]
    classes = {name: bases for one in read for name, bases in one.classes.items()}
    made = _makes(used).made.union(*(one.made for one in read))
    while bases := {name for one in made & classes.keys() for name in classes[one]} - made:
        made |= bases
    unmade = classes.keys() - made
    left_out = [[lines for node in one.branching for lines in _dead(node, unmade)] for one in read]
    return [part._replace(text=_without(part.text, lines)) for part, lines in zip(parts, left_out, strict=True)]


class _Makes(NamedTuple):
    """A text's classes with their bases, the names by which it may make an object, and where it asks for classes."""

    classes: Mapping[str, Sequence[str]]
    made: frozenset[str]
    branching: Sequence[ast.AST]


@lru_cache(maxsize=2048)
def _makes(text: str) -> _Makes:
    """Read a text, once."""
    tree = _tree(text)
    nodes = list(ast.walk(tree))
    classes = {node.name: tuple(map(_name_of, node.bases)) for node in tree.body if isinstance(node, ast.ClassDef)}
    asked = {id(name) for node in nodes for name in _asked(node)}
    asked |= {id(name) for annotation in _annotations(tree) for name in ast.walk(annotation)}
    made = frozenset(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in asked)
    return _Makes(classes, made, [node for node in nodes if isinstance(node, ast.Match | ast.Dict)])


def _asked(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the names by which a node asks for the class of an object."""
    match node:
        case ast.MatchClass(cls=asked):
            yield asked
        case ast.Call(func=ast.Name("isinstance"), args=[_, asked]):
            yield from ast.walk(asked)
        case ast.Dict(keys=keys):
            yield from filter(None, keys)
        case ast.ClassDef(bases=bases):
            yield from bases


def _dead(node: ast.AST, unmade: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of what a node does for objects of classes that nothing makes."""
    match node:
        case ast.Match(cases=cases):
            dead = [one for one in cases if _is_of(one.pattern, unmade)]
            for one in dead if len(dead) < len(cases) else ():
                yield one.pattern.lineno, one.body[-1].end_lineno or 0
        case ast.Dict(keys=keys, values=values):
            lines = [(key.lineno, value.end_lineno or 0) for key, value in zip(keys, values, strict=True) if key]
            apart = len({first for first, _ in lines} | {node.lineno, node.end_lineno}) == len(lines) + 2
            for key, place in zip(filter(None, keys), lines, strict=True):
                if apart and _name_of(key) in unmade:
                    yield place


def _is_of(pattern: ast.pattern, unmade: Collection[str]) -> bool:
    """Return True for a pattern that only objects of these classes match."""
    match pattern:
        case ast.MatchClass(cls=asked):
            return _name_of(asked) in unmade
        case ast.MatchOr(patterns=patterns):
            return all(_is_of(one, unmade) for one in patterns)
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return _is_of(inner, unmade)
    return False


@lru_cache(maxsize=2048)
def bare(text: str) -> str:
    """Return a text without docstrings and without comments in our own terms, and with one empty line before a
    definition and no other."""
    lines = _without_own_comments(text)
    tree = ast.parse("\n".join(lines))
    left_out: set[int] = set()
    spaced: set[int] = set()
    whole: set[int] = set()  # lines of strings
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        told = [one for one in body if _is_told(one)] if isinstance(body, list) else []
        for one in told[1:] if body == told else told:
            left_out |= set(range(one.lineno, (one.end_lineno or 0) + 1))
        if body and body == told and OWN_TERM.search(ast.unparse(told[0])):
            left_out |= set(range(told[0].lineno + 1, (told[0].end_lineno or 0) + 1))
            lines[told[0].lineno - 1] = f"{' ' * told[0].col_offset}pass"
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            spaced.add(min([node.lineno, *(one.lineno for one in node.decorator_list)]))
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            whole |= set(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    kept: list[str] = []
    for number, line in enumerate(lines, 1):
        if number in left_out or not (line.strip() or number in whole):
            continue
        is_first = not kept or kept[-1].startswith("#") or kept[-1].startswith("class ")
        kept += [""] * (number in spaced and not is_first) + [line]
    return "\n".join(kept)


OWN_TERM = re.compile(r"\b(?:traces?|adapters?|scenarios?|oracles?|harness|findings?|HANG)\b")
"""A word that a developer of an engine does not have for what it names here."""


def _without_own_comments(text: str) -> list[str]:
    """Return the lines of a text, without comments that have a term of our own."""
    lines, gone = text.splitlines(), set[int]()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        row, column = token.start
        if token.type != tokenize.COMMENT or not OWN_TERM.search(token.string):
            continue
        lines[row - 1] = lines[row - 1][:column].rstrip()
        if not lines[row - 1]:  # the whole of a comment of several lines
            for step in (-1, 1):
                at = row - 1
                while 0 <= at < len(lines) and (at == row - 1 or lines[at].lstrip().startswith("#")):
                    gone.add(at)
                    at += step
    return [line for number, line in enumerate(lines) if number not in gone]


def _is_told(node: ast.AST) -> bool:
    """Return True for a docstring, of whatever."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


PLAIN_DECORATORS = frozenset({"property", "staticmethod", "contextmanager", "cache", "dataclass"})
"""Of definitions that are only used by their names."""


def _plain(tree: ast.Module, *, of_classes: bool) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield functions and classes, and methods, that can only be used by their names."""
    bodies = [tree.body, *(node.body for node in tree.body if of_classes and isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("__"):
            continue
        if all(_name_of(getattr(one, "func", one)) in PLAIN_DECORATORS for one in node.decorator_list):
            yield node


def _walk_without(node: ast.AST, left_out: Collection[int]) -> Iterator[ast.AST]:
    """Yield a node and those below it, without some of them."""
    if id(node) not in left_out:
        yield node
        for one in ast.iter_child_nodes(node):
            yield from _walk_without(one, left_out)


def _lines_of(node: ast.FunctionDef | ast.ClassDef) -> tuple[int, int]:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.end_lineno or 0


def _without(text: str, left_out: Sequence[tuple[int, int]]) -> str:
    """Return a text without some lines, first to last, and without the empty lines before them."""
    lines: list[str | None] = list(text.splitlines())
    for first, last in left_out:
        begin = first - 1
        while begin and not (lines[begin - 1] or "").strip():
            begin -= 1
        lines[begin:last] = [None] * (last - begin)
    return "\n".join(line for line in lines if line is not None).strip("\n")


def _name_of(node: ast.AST) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Constant(value=str() as text) if text.isidentifier():
            return text
        case _:
            return ""


def import_block(parts: Sequence[Part], *more: str) -> list[str]:
    """Return the imports of all parts and `more`, a line for each module: those of whole modules first."""
    modules: dict[str, set[str]] = {}
    for line in sorted({*more, *(line for part in parts for line in part.imports)}):
        head, _, name = line.partition(" import ") if line.startswith("from ") else (line, "", "")
        modules.setdefault(head, set()).update([name] if name else [])
    ordered = sorted(modules.items(), key=lambda one: (one[0].startswith("from "), one[0]))
    return [f"{head} import {', '.join(sorted(names))}" if names else head for head, names in ordered]


@cache
def _uses(package: str, name: str, definition: str) -> Sequence[tuple[str, str | tuple[str, str]]]:
    """Return (name, what it stands for) of all that a definition uses: import lines, and (file, name) of ours, with the
    file "" for its own. Those in annotations have no name."""
    file = _read(package, name)
    node = file.definitions[definition]
    unread = {id(one) for each in _annotations(node) for one in ast.walk(each)}
    found: list[tuple[str, str | tuple[str, str]]] = []
    for one in ast.walk(node):
        if id(one) in unread:
            source = file.imported.get(one.id, "") if isinstance(one, ast.Name) else ""
            if source and isinstance(source, str):
                found.append(("", source))
        elif isinstance(one, ast.Attribute):
            if module := _module(file, one):
                found.append((one.attr, (module, one.attr)))
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
            source = file.imported.get(one.id, "")
            if one.id in file.definitions:
                found.append((one.id, ("", one.id)))
            elif source and (isinstance(source, str) or source[1]):
                found.append((one.id, source))
    return found


def _bases(file: _File, definitions: Sequence[str]) -> Iterator[str]:
    """Yield the files of ours that stand before a file: those of the classes that its own derive from."""
    for node in map(file.definitions.__getitem__, definitions):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            source = file.imported.get(_name_of(base), "")
            if isinstance(source, tuple) and source[1]:
                yield source[0]


def _annotations(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the annotations in a definition: a script never evaluates them."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef) and one.returns:
            yield one.returns
        elif isinstance(one, ast.arg | ast.AnnAssign) and one.annotation:
            yield one.annotation


def _module(file: _File, node: ast.Attribute) -> str:
    """Return the file of our module whose attribute a node is, "" if it is none."""
    source = file.imported.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
    return source[0] if isinstance(source, tuple) and not source[1] else ""


def _text(file: _File, needed: Sequence[str]) -> str:
    nodes = {node.lineno: node for name, node in file.definitions.items() if name in needed}
    starts = [(getattr(node, "decorator_list", None) or [node])[0].lineno for node in nodes.values()]
    ends = [node.end_lineno or 0 for node in nodes.values()]
    return "\n\n\n".join(_copied(file, first, last) for first, last in zip(starts, ends, strict=True))


def _copied(file: _File, first: int, last: int) -> str:
    """Return lines `first` to `last`, counted from 1."""
    return "\n".join(line for line in file.lines[first - 1 : last] if line is not None)


def _rewritten(file: _File) -> _File:
    """Return a file as a script of one module has it: no imports of ours in functions, no names of our modules."""
    lines, prefixes = list(file.lines), []
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and node.level and node.col_offset:
            end = node.end_lineno or 0
            end += not lines[end]  # and the empty line behind it
            lines[node.lineno - 1 : end] = [None] * (end - node.lineno + 1)
        elif isinstance(node, ast.Attribute) and _module(file, node):
            prefixes.append((node.lineno, node.col_offset, (node.value.end_col_offset or 0) + 1))
    for line, start, stop in sorted(prefixes, reverse=True):
        if text := lines[line - 1]:
            lines[line - 1] = text[:start] + text[stop:]
    return file._replace(lines=lines)


def _ours(root: Traversable, name: str, node: ast.ImportFrom, one: ast.alias) -> tuple[str, str]:
    """Return (file, name) of something that a file imports from ours, with the name "" for a module."""
    folder = normpath("/".join([dirname(name) or ".", *[".."] * (node.level - 1)]))
    place = normpath(f"{folder}/{(node.module or '').replace('.', '/')}")
    module = normpath(f"{place}/{one.name}.py")
    return (module, "") if (root / module).is_file() else (f"{place}.py", one.name)


@cache
def _read(package: str, name: str) -> _File:
    root = files(package)
    text = (root / name).read_text(encoding="utf-8")
    tree = ast.parse(text)
    found: dict[str, ast.stmt] = {}
    imported: dict[str, str | tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one for each in targets for one in (each.elts if isinstance(each, ast.Tuple) else [each])]
            found |= {one.id: node for one in names if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Import):
            imported |= {(one.asname or one.name): ast.unparse(ast.Import([one])) for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module != "__future__":
            imported |= {
                (one.asname or one.name): ast.unparse(ast.ImportFrom(node.module, [one], 0)) for one in node.names
            }
    for one in ast.walk(tree):
        if isinstance(one, ast.ImportFrom) and one.level:
            imported |= {(alias.asname or alias.name): _ours(root, name, one, alias) for alias in one.names}
    return _rewritten(_File(text.splitlines(), tree, found, imported))
