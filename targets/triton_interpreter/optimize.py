"""Shortens generated code: removes unused values, and moves work into the branch that needs it.

Every assignment in generated code is free of side effects (stores to memory are statements of their
own), so one whose names are never read can go. One that is read in a single branch only moves there:
a greedy rejection step never draws the random number that only a sampled one needs.
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Iterator

Statements = list[ast.stmt]


def optimize(source: str) -> str:
    tree = ast.parse(source)
    program = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "program")
    program.body = drop_dead(program.body, live_names(program.body))
    sink(program.body, collections.Counter(all_loaded(program)))
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


def reads_memory(names: set[str]) -> bool:
    return any(name.startswith(("scalars_", "load")) for name in names)


def sink(nodes: Statements, reads: collections.Counter[str]) -> None:
    """Move assignments down into the one branch that reads them; then the same inside branches."""
    for place in range(len(nodes) - 1, -1, -1):
        assignments = pairs(nodes[place])
        if assignments is None or len(assignments) != 1:
            continue
        ((name, value),) = assignments
        names = loaded(value)
        if reads_memory(names):  # a store may lie between
            continue
        body = only_reader(name, reads[name], nodes[place + 1 :], names | stored(value) | {name})
        if body is not None:
            body.insert(0, nodes.pop(place))
    for node in nodes:
        for body in bodies(node):
            sink(body, reads)


def only_reader(name: str, reads: int, following: Statements, fixed: set[str]) -> Statements | None:
    """The one branch that reads a name, if nothing assigns the names of `fixed` on the way to it."""
    for node in following:
        for body in bodies(node) if isinstance(node, ast.If) else ():
            inside = sum(other == name for n in body for other in all_loaded(n))
            if inside:
                return body if inside == reads else None
        if stored(node) & fixed:
            return None
    return None
