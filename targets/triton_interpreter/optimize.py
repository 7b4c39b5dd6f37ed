"""Shortens generated code: removes unused values, and moves work into the branch that needs it.

Every assignment in generated code is free of side effects (stores to memory are statements of their
own), so one whose names are never read can go. One that is read in a single branch only moves there:
a greedy rejection step never draws the random number that only a sampled one needs.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

Statements = list[ast.stmt]


def optimize(source: str) -> str:
    tree = ast.parse(source)
    program = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "program")
    program.body = drop_dead(program.body, live_names(program.body))
    known: dict[ast.stmt, Names] = {}
    sink(program.body, count_names(program.body, known), known)
    return ast.unparse(tree)


def all_loaded(node: ast.AST) -> Iterator[str]:
    """The name of every place that reads a name."""
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            yield n.id


def loaded(node: ast.AST) -> set[str]:
    return set(all_loaded(node))


def stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def pairs(node: ast.stmt) -> list[tuple[str, ast.expr]] | None:
    """The names and expressions of an assignment to local names; None for any other statement."""
    if not isinstance(node, ast.Assign):
        return None
    (target,) = node.targets
    if isinstance(target, ast.Name):
        return [(target.id, node.value)]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return [(t.id, v) for t, v in zip(target.elts, node.value.elts, strict=True) if isinstance(t, ast.Name)]
    return None


def bodies(node: ast.stmt) -> list[Statements]:
    if isinstance(node, ast.If):
        return [node.body, node.orelse]
    return [node.body] if isinstance(node, ast.For | ast.While) else []


def statements(nodes: Statements) -> Iterator[ast.stmt]:
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from statements(body)


def live_names(nodes: Statements) -> set[str]:
    """Return the names that statements with an effect read, directly or through assignments."""
    live: set[str] = set()
    sources: dict[str, set[str]] = {}
    for node in statements(nodes):
        assignments = pairs(node)
        if assignments is not None:
            for name, value in assignments:
                sources.setdefault(name, set()).update(loaded(value))
        elif isinstance(node, ast.If | ast.While):
            live |= loaded(node.test)
        elif isinstance(node, ast.For):
            live |= loaded(node.iter)
        else:
            live |= loaded(node)
    new = set(live)
    while new:
        new = {name for target in new for name in sources.get(target, ())} - live
        live |= new
    return live


def drop_dead(nodes: Statements, live: set[str]) -> Statements:
    kept: Statements = []
    for node in nodes:
        assignments = pairs(node)
        if assignments is not None:
            alive = [(name, value) for name, value in assignments if name in live]
            if len(alive) == len(assignments):
                kept.append(node)
            elif alive:
                kept.append(assignment(alive))
            continue
        if isinstance(node, ast.If):
            node.body, node.orelse = drop_dead(node.body, live), drop_dead(node.orelse, live)
            if not node.body and not node.orelse:
                continue
            node.body = node.body or [ast.Pass()]
        elif isinstance(node, ast.For | ast.While):
            node.body = drop_dead(node.body, live) or [ast.Pass()]
        if not isinstance(node, ast.Pass):
            kept.append(node)
    return kept


def assignment(members: list[tuple[str, ast.expr]]) -> ast.stmt:
    target = ", ".join(name for name, _ in members)
    value = ", ".join(ast.unparse(value) for _, value in members)
    return ast.parse(f"{target} = {value}").body[0]


def reads_memory(names: Iterable[str]) -> bool:
    return any(name.startswith(("scalars_", "load")) for name in names)


class Names(NamedTuple):
    """What a statement reads (how often) and stores, and what each of its branches reads."""

    loaded: Counter[str]
    stored: set[str]
    branches: list[Counter[str]]


def count_names(nodes: Statements, known: dict[ast.stmt, Names]) -> Counter[str]:
    """Fill `known` for statements and those inside them; return what all of them read."""
    total = Counter[str]()
    for node in nodes:
        inner = bodies(node)
        known[node] = names = Names(Counter(), set(), [count_names(body, known) for body in inner])
        for one in chain.from_iterable(inner):
            names.stored.update(known[one].stored)
        for branch in names.branches:
            names.loaded.update(branch)
        for head in [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)] if inner else [node]:
            names.loaded.update(all_loaded(head))
            names.stored.update(stored(head))
        total.update(names.loaded)
    return total


def sink(nodes: Statements, reads: Counter[str], known: dict[ast.stmt, Names]) -> None:
    """Move assignments down into the one branch that reads them; then the same inside branches.

    reads  how often the whole program reads each name
    known  the names of every statement, which are kept up to date: a search for a reader looks at each statement behind
    """
    for place in range(len(nodes) - 1, -1, -1):
        assignments = pairs(nodes[place])
        if assignments is None or len(assignments) != 1:
            continue
        ((name, value),) = assignments
        moved = known[nodes[place]]
        if reads_memory(moved.loaded):  # a store may lie between
            continue
        found = only_reader(name, reads[name], nodes[place + 1 :], moved.loaded.keys() | stored(value) | {name}, known)
        if found is not None:
            node, branch = found
            bodies(node)[branch].insert(0, nodes.pop(place))
            for counted in (known[node].loaded, known[node].branches[branch]):
                counted.update(moved.loaded)
            known[node].stored.update(moved.stored)
    for node in nodes:
        for body in bodies(node):
            sink(body, reads, known)


def only_reader(
    name: str, reads: int, following: Statements, fixed: set[str], known: dict[ast.stmt, Names]
) -> tuple[ast.stmt, int] | None:
    """The statement and the number of its one branch that reads a name, if nothing assigns the names of `fixed` on the
    way to it."""
    for node in following:
        names = known[node]
        for number, branch in enumerate(names.branches if isinstance(node, ast.If) else ()):
            if inside := branch[name]:
                return (node, number) if inside == reads else None
        if not fixed.isdisjoint(names.stored):
            return None
    return None
