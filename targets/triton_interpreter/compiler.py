"""Compiles a kernel's source, for one set of argument types and constants, to a Python function.

The kernel's syntax tree is walked once: types and constants are known on the way, branches that
constants decide are not compiled, jitted functions are inlined where they are called. Whatever has
no exact translation raises `Unsupported` here, before anything has run.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from .emit import Emitter
from .expressions import Expressions, Frame, assigned, reads, returns, tree_of
from .operators import SYMBOLS, binary
from .values import WEAK, Fails, Unsupported, Value, const, same_constant


class Compiler(Expressions):
    """Statements and control flow."""

    def __init__(self, fn: Any, arguments: dict[str, Value], *, cut: bool, marked: bool = False) -> None:
        self.out = Emitter(cut=cut)
        self.marked = marked  # True if each statement reports its line
        self.frames = [Frame(fn, dict(arguments))]

    def compile(self) -> list[str]:
        self.block(tree_of(self.frame.fn).body)
        self.out.line("return")
        return self.out.lines

    def block(self, nodes: list[ast.stmt]) -> bool:
        """Compile statements. Return True if control never gets past them."""
        for place, node in enumerate(nodes):
            rest = nodes[place + 1 :]
            if self.marked:
                self.mark(node)
            if isinstance(node, ast.If):
                test = self.condition(node.test)
                if test.type == "const":
                    if self.block(node.body if test.value else node.orelse):
                        return True
                elif len(self.frames) > 1 and returns([node]):
                    # Returns in a branch of an inlined function: what follows goes into the branch.
                    self.frame.branching = True
                    self.branch(test, node.body + rest, node.orelse + rest)
                    return True
                elif self.branch(test, node.body, node.orelse):
                    return True
            elif self.statement(node):
                return True
        return False

    def mark(self, node: ast.stmt) -> None:
        """Let a statement report its line when it is executed."""
        code = self.frame.fn.__code__
        self.out.line(f"mark({(code.co_filename, code.co_firstlineno + node.lineno - 1)!r})")

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Expr():
                if not isinstance(node.value, ast.Constant):
                    self.value(node.value)
            case ast.Assign(targets=[target]):
                self.assign(target, self.value(node.value, assigned=True))
            case ast.AnnAssign(value=ast.expr() as value, target=ast.Name() as target):
                self.frame.names[target.id] = self.value(value)
            case ast.AugAssign(target=ast.Name() as target):
                symbol = SYMBOLS.get(type(node.op), "")
                name = ast.copy_location(ast.Name(target.id, ast.Load()), target)
                result = binary(self.out, symbol, self.value(name), self.value(node.value))
                self.frame.names[target.id] = result
            case ast.For(target=ast.Name(), orelse=[]):
                return self.for_loop(node)
            case ast.While(orelse=[]):
                self.while_loop(node)
            case ast.Return():
                self.finish(node)
                return True
            case ast.Assert():
                test = self.condition(node.test)
                if test.type != "const" or not test.value:
                    raise Unsupported("an assert that is not known to hold")
            case ast.Pass():
                pass
            case _:
                raise Unsupported(f"statement {type(node).__name__}")
        return False

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.frame.names[target.id] = self.tensor(value)
        elif isinstance(target, ast.Tuple) and value.type == "tuple":
            if len(target.elts) != len(value.value):
                raise Unsupported("unpacking of another length")
            for part, member in zip(target.elts, value.value, strict=True):
                if not isinstance(part, ast.Name):
                    raise Unsupported("nested unpacking")
                self.frame.names[part.id] = member
        else:
            raise Unsupported("this kind of assignment")

    def tensor(self, value: Value) -> Value:
        """An assignment makes a tensor of a Python number (Triton's interpreter does the same)."""
        if value.type == "const" and not isinstance(value.value, bool | int | float):
            return value
        return self.out.strong(value) if value.type in WEAK else value

    # Control flow

    def branch(self, test: Value, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        out, before, memo = self.out, self.frame.names, self.out.memo
        ends: list[tuple[dict[str, Value], bool]] = []
        lines = out.lines
        parts: list[list[str]] = []
        for nodes in (body, orelse):
            self.frame.names, out.memo, out.lines = dict(before), dict(memo), []
            out.depth += 1
            done = self.fallible(nodes)
            out.depth -= 1
            ends.append((self.frame.names, done))
            parts.append(out.lines)
        out.lines, out.memo = lines, memo
        live = [(names, part) for (names, done), part in zip(ends, parts, strict=True) if not done]
        self.frame.names = dict(before)
        if len(live) == 1:
            self.frame.names = live[0][0]
        elif live:
            self._merge(before, live)
        out.line(f"if {test.code}:")
        out.lines += parts[0] or ["    " * (out.depth + 1) + "pass"]
        if parts[1]:
            out.line("else:")
            out.lines += parts[1]
        return not live

    def fallible(self, nodes: list[ast.stmt]) -> bool:
        """A branch; if Triton's interpreter would fail in it, so will we: when it is taken."""
        frames, loops, depth = len(self.frames), self.frame.loops, self.out.depth
        try:
            return self.block(nodes)
        except Fails as failure:
            del self.frames[frames:]
            self.frame.loops, self.out.depth, self.out.lines = loops, depth, []
            self.out.line(f"fail({str(failure)!r})")
            return True

    def _merge(self, before: dict[str, Value], live: list[tuple[dict[str, Value], list[str]]]) -> None:
        for name in dict.fromkeys(key for names, _ in live for key in names):
            values = [names.get(name) for names, _ in live]
            known = [value for value in values if value is not None]
            if all(value is known[0] for value in values):
                self.frame.names[name] = known[0]
                continue
            variable = self.out.fresh(f"v_{name}_")
            cuts = {value.lanes for value in known if value.make is None}
            lanes = cuts.pop() if len(cuts) == 1 and any(v.tail is None for v in known) else ""
            merged: Value | None = None
            for value, (_, lines) in zip(values, live, strict=True):
                if value is not None:
                    merged = self.move(value, variable, lines, merged, lanes)
                else:  # Python's own error is for whoever reads it; a loop may only carry it along
                    lines.append("    " * (self.out.depth + 1) + f"{variable} = None")
            if merged is not None:
                self.frame.names[name] = merged

    def move(self, value: Value, variable: str, lines: list[str], like: Value | None, lanes: str = "") -> Value:
        """Append code that puts a value into a variable; its type must match the variable's other values."""
        out, saved, memo = self.out, self.out.lines, self.out.memo
        if value.type in ("const", "tuple") or (value.n and value.type == "ptr"):
            if like is None or (same_constant(value, like)):
                return value
            raise Unsupported(f"branches that leave a different {value.type}")
        out.lines, out.memo, out.depth = lines, dict(memo), out.depth + 1
        code = out.at(value, lanes)
        out.line(f"{variable} = {code}")
        out.lines, out.memo, out.depth = saved, memo, out.depth - 1
        moved = Value(value.type, variable, value.n, value.shape, element=value.element, lanes=lanes)
        if value.type == "ptr":
            moved = replace(moved, low=value.low, high=value.high, aligned=value.aligned)
        if like is None:
            return moved
        same = (like.type, like.n, like.shape, like.element) == (moved.type, moved.n, moved.shape, moved.element)
        if not same or like.code != variable:
            raise Unsupported(f"branches that leave {like.type} and {moved.type}")
        if (like.low, like.high, like.aligned) != (moved.low, moved.high, moved.aligned):
            return replace(moved, low="PAGE", high="TOP", aligned=False)
        return moved

    def finish(self, node: ast.Return) -> None:
        if len(self.frames) == 1:
            self.out.line("return")
            return
        value = self.value(node.value) if node.value is not None else const(None)
        frame = self.frame
        if frame.loops:
            raise Unsupported("a return inside a loop of an inlined function")
        if not frame.branching:
            frame.results = [value]
            return
        members = list(value.value) if value.type == "tuple" else [value]
        if not frame.results:
            frame.variables = tuple(self.out.fresh("r") for _ in members)
        if len(members) != len(frame.variables) or (value.type == "tuple" and len(members) < 2):
            raise Unsupported("returns of different lengths")
        self.out.depth -= 1  # `move` writes one level deeper
        old: list[Value | None] = [*frame.results] or [None] * len(members)
        frame.results = [
            self.move(member, variable, self.out.lines, like)
            for member, variable, like in zip(members, frame.variables, old, strict=True)
        ]
        self.out.depth += 1

    def for_loop(self, node: ast.For) -> bool:
        assert isinstance(node.target, ast.Name)
        call = node.iter
        if not isinstance(call, ast.Call):
            raise Unsupported("a loop over what is no range")
        unrolled = isinstance(call.func, ast.Attribute) and call.func.attr == "static_range"
        if not unrolled and self.callee(call.func) is not range:
            raise Unsupported("a loop over what is no range")
        options = {"num_stages", "loop_unroll_factor", "disallow_acc_multi_buffer", "flatten"}
        if any(word.arg not in options for word in call.keywords):
            raise Unsupported("an option of range")
        bounds = [self.value(argument) for argument in call.args]
        if unrolled and all(bound.type == "const" for bound in bounds):
            self.frame.unrolled += 1
            for number in range(*(bound.value for bound in bounds)):
                self.frame.names[node.target.id] = const(number)
                if self.block(node.body):
                    self.frame.unrolled -= 1
                    return True
            self.frame.unrolled -= 1
            return False
        small = all(bound.type in ("const", "w32", "int32") for bound in bounds)
        if any(b.n or b.type in ("ptr", "tuple", "fp32", "fp64", "int1") for b in bounds):
            raise Unsupported("bounds of a range")
        variable = self.out.fresh(f"v_{node.target.id}_")
        codes = ", ".join(bound.code for bound in bounds)
        counter = Value("w32" if small else "w64", variable)
        self.loop(f"for {variable} in range({codes}):", node, {node.target.id: counter})
        return False

    def while_loop(self, node: ast.While) -> None:
        self.loop("while True:", node, {})

    def loop(self, head: str, node: ast.For | ast.While, bound: dict[str, Value]) -> None:
        """Compile a loop whose variables keep their types from one iteration to the next."""
        out, names = self.out, self.frame.names
        changed = [name for name in assigned(node.body) if name not in bound]
        carried: dict[str, Value] = {}
        out.depth -= 1  # `move` writes one level deeper
        for name in changed:
            if name in names and self._is_temporary(name, node):
                del names[name]
            elif name in names:
                if names[name].type in WEAK:  # it would be weak in the first turn only
                    raise Unsupported(f"{name}: a Python number that a loop changes")
                variable = out.fresh(f"v_{name}_")
                carried[name] = self.move(names[name], variable, out.lines, None)
        out.depth += 1
        names.update(carried, **bound)
        memo, out.memo = out.memo, dict(out.memo)
        out.line(head)
        out.depth += 1
        self.frame.loops += 1
        if isinstance(node, ast.While):
            test = self.condition(node.test)
            out.line(f"if not {test.value if test.type == 'const' else test.code}: break")
        ended = self.block(node.body)
        self.frame.loops -= 1
        if not ended:
            self.next_turn(carried, changed)
        out.line("pass")
        out.depth -= 1
        out.memo = memo
        for name in [*changed, *bound]:
            if name in carried:
                self.frame.names[name] = carried[name]
            elif name in self.frame.names and (ended or name in bound):
                del self.frame.names[name]

    def _is_temporary(self, name: str, loop: ast.For | ast.While) -> bool:
        """Whether each turn of a loop assigns a name before it reads it, and nothing behind the loop reads it: then its
        type need not be that of its value before the loop."""
        if self.frame.loops or self.frame.unrolled or (isinstance(loop, ast.While) and reads(loop.test, name)):
            return False  # an outer loop's next turn may read it
        end = loop.end_lineno or 0
        behind = (one for one in ast.walk(tree_of(self.frame.fn)) if isinstance(one, ast.stmt) and one.lineno > end)
        if any(reads(statement, name) for statement in behind):
            return False
        first = next(statement for statement in loop.body if name in assigned([statement]) or reads(statement, name))
        match first:
            case ast.Assign(targets=[ast.Name()], value=value):
                return not reads(value, name)
        return False

    def next_turn(self, carried: dict[str, Value], changed: list[str]) -> None:
        """End a loop's body: move changed values to the variables that the next iteration reads."""
        out, names = self.out, self.frame.names
        moves: list[tuple[str, str]] = []
        for name in changed:
            value = names.get(name)
            if value is None:
                continue
            if name not in carried:  # first assigned in the loop: kept for the code after it
                if value.n or value.type in ("const", "tuple"):
                    del names[name]
                    continue
                variable = out.fresh(f"v_{name}_")
                out.line(f"{variable} = {value.code}")
                names[name] = replace(value, code=variable)
                continue
            like = carried[name]
            if value is like or same_constant(value, like):
                continue
            if value.type in ("const", "tuple"):
                raise Unsupported(f"{name}: a constant that a loop changes")
            if (like.type, like.n, like.shape, like.element) != (value.type, value.n, value.shape, value.element):
                raise Unsupported(f"{name}: {like.type}, after a turn of the loop {value.type}")
            if (like.low, like.high, like.aligned) != (value.low, value.high, value.aligned):
                raise Unsupported("a pointer into another tensor after a turn of a loop")
            if value.n and value.type == "ptr":
                raise Unsupported("a block of pointers that a loop changes")
            moves.append((like.code, out.at(value, "")))
        if moves:
            out.line(f"{', '.join(a for a, _ in moves)} = {', '.join(b for _, b in moves)}")
