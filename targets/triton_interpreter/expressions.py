"""Expressions of a kernel: names, attributes, calls (jitted functions are inlined)."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from . import memory_ops
from .emit import Emitter
from .language import FUNCTIONS, METHODS
from .operators import SYMBOLS, binary, unary
from .values import WEAK, Fails, Unsupported, Value, const

assert memory_ops  # fills FUNCTIONS
MODULES = (tl, tl.core, tl.math, tl.standard)
BUILTINS = {"range": range, "len": len, "tuple": tuple, "float": float, "int": int}
MAX_DEPTH = 30


@dataclass
class Frame:
    """A function being compiled: the kernel, or one inlined into it."""

    fn: Any
    names: dict[str, Value]
    results: list[Value] = field(default_factory=list)
    variables: tuple[str, ...] = ()  # of the result, once returns are in branches
    branching: bool = False
    loops: int = 0
    unrolled: int = 0  # loops around the statement of which each turn is compiled by itself


def tree_of(fn: Any, cache: dict[Any, ast.FunctionDef] = {}) -> ast.FunctionDef:  # noqa: B006
    if fn not in cache:
        try:
            source = textwrap.dedent(inspect.getsource(fn))
        except (OSError, TypeError) as error:
            raise Unsupported(f"no source: {error}") from error
        node = ast.parse(source).body[0]
        if not isinstance(node, ast.FunctionDef):
            raise Unsupported("a kernel that is no function")
        cache[fn] = node
    return cache[fn]


@dataclass(frozen=True)
class Native:
    """A function of triton.language that we have our own code for."""

    name: str


def unwrap(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def assigned(nodes: list[ast.stmt]) -> list[str]:
    """The names that statements assign, in order, each once."""
    found = (n for node in nodes for n in ast.walk(node))
    return list(dict.fromkeys(n.id for n in found if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)))


def reads(node: ast.AST, name: str) -> bool:
    """Whether a statement or an expression reads a name; `name += 1` does."""
    return any(
        (isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
        or (isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name) and n.target.id == name)
        for n in ast.walk(node)
    )


def returns(nodes: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for node in nodes for n in ast.walk(node))


class Expressions:
    """Gives the `Value` of an expression, and writes the code that computes it."""

    out: Emitter
    frames: list[Frame]

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def block(self, nodes: list[ast.stmt]) -> bool:
        raise NotImplementedError

    def move(self, value: Value, variable: str, lines: list[str], like: Value | None, lanes: str = "") -> Value:
        raise NotImplementedError

    def condition(self, node: ast.expr) -> Value:
        return self.out.where_true(self.value(node))

    def value(self, node: ast.expr, *, assigned: bool = False) -> Value:
        match node:
            case ast.Constant(value=value):
                return const(value)
            case ast.Name(id=name):
                return self.lookup(name)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return Value("tuple", value=[self.value(element) for element in elements])
            case ast.Attribute():
                return self.attribute(node)
            case ast.BinOp(left=left, op=op, right=right):
                if type(op) not in SYMBOLS:
                    raise Unsupported(f"operator {type(op).__name__}")
                return binary(self.out, SYMBOLS[type(op)], self.value(left), self.value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return unary(self.out, op, self.value(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compare(op, self.value(left), self.value(right))
            case ast.BoolOp():
                return self.bool_op(node)
            case ast.IfExp():
                return self.if_expression(node, assigned=assigned)
            case ast.Call():
                return self.call(node)
            case ast.Subscript(value=base, slice=ast.Constant(value=int() as place)):
                whole = self.value(base)
                if whole.type == "tuple":
                    member: Value = whole.value[place]
                    return member
            case ast.Subscript(value=base, slice=index):
                return self.indexed(self.value(base), index.elts if isinstance(index, ast.Tuple) else [index])
        raise Unsupported(f"expression {ast.unparse(node)[:60]}")

    def indexed(self, block: Value, places: list[ast.expr]) -> Value:
        """A block with further dimensions of length 1, each where the index has None."""
        sizes, shape = list(block.shape or [block.n]), []
        for place in places:
            match place:
                case ast.Constant(value=None):
                    shape.append(1)
                case ast.Slice(lower=None, upper=None, step=None) if sizes:
                    shape.append(sizes.pop(0))
                case _:
                    raise Unsupported("an index that is neither : nor None")
        if sizes or not block.n:
            raise Unsupported("an index of another number of dimensions")
        return self.out.shaped(block, tuple(shape))

    def lookup(self, name: str) -> Value:
        if name in self.frame.names:
            return self.frame.names[name]
        scope = self.frame.fn.__globals__
        if name in scope:
            found = unwrap(scope[name])
        elif name in BUILTINS:
            found = BUILTINS[name]
        else:
            raise Unsupported(f"name {name}")
        closure = inspect.getclosurevars
        if self.frame.fn.__closure__ and name in closure(self.frame.fn).nonlocals:
            found = unwrap(closure(self.frame.fn).nonlocals[name])
        return const(found)

    def attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        if base.type == "const":
            return const(self.static_attribute(base.value, node.attr))
        if node.attr == "dtype" and base.type not in WEAK and base.type != "tuple":
            if base.type == "ptr":
                return const(tl.pointer_type(named_dtype(base.element)))
            return const(named_dtype(base.type))
        if node.attr == "shape" and base.type not in WEAK:
            return Value("tuple", value=[const(size) for size in base.shape or [base.n] if size])
        raise Unsupported(f"attribute {node.attr}")

    def static_attribute(self, base: Any, name: str) -> Any:
        if any(base is module for module in MODULES):
            if name in FUNCTIONS:
                return Native(name)
            if name in ("range", "static_range"):
                return range
        if not isinstance(base, ModuleType | tl.dtype | type(triton)) or not hasattr(base, name):
            raise Unsupported(f"attribute {name}")
        return unwrap(getattr(base, name))

    def compare(self, op: ast.cmpop, a: Value, b: Value) -> Value:
        if isinstance(op, ast.Is | ast.IsNot):
            same = a.type == b.type == "const" and a.value is b.value
            if None not in (a.value if a.type == "const" else 0, b.value if b.type == "const" else 0):
                raise Unsupported("`is` without None")
            return const(same is isinstance(op, ast.Is))
        if type(op) not in SYMBOLS:
            raise Unsupported(f"comparison {type(op).__name__}")
        return binary(self.out, SYMBOLS[type(op)], a, b)

    def bool_op(self, node: ast.BoolOp) -> Value:
        """`a and b` gives a or b themselves: of scalars that are both int1, that is the `&`."""
        is_and = isinstance(node.op, ast.And)
        first = self.out.where_true(self.value(node.values[0]))
        for following in node.values[1:]:
            if first.type == "const":
                if bool(first.value) is not is_and:
                    return first
                first = self.out.where_true(self.value(following))
                continue
            if first.type != "int1":
                raise Unsupported("`and` or `or` of what is not int1")
            first = self.short_circuit(first, following, is_and=is_and)
        return first

    def short_circuit(self, first: Value, node: ast.expr, *, is_and: bool) -> Value:
        out = self.out
        variable = out.name(first.code, "c")
        out.line(f"if {'' if is_and else 'not '}{variable}:")
        out.depth += 1
        memo, out.memo = out.memo, dict(out.memo)
        second = out.where_true(self.value(node))
        if second.type == "const" and isinstance(second.value, bool):
            second = out.strong(second)
        if second.type != "int1":
            raise Unsupported("`and` or `or` of what is not int1")
        out.line(f"{variable} = {second.code}")
        out.depth -= 1
        out.memo = memo
        return Value("int1", variable)

    def if_expression(self, node: ast.IfExp, *, assigned: bool) -> Value:
        test = self.condition(node.test)
        if test.type == "const":
            return self.value(node.body if test.value else node.orelse)
        out, memo = self.out, self.out.memo
        variable, merged = out.fresh("v"), None
        for head, arm in ((f"if {test.code}:", node.body), ("else:", node.orelse)):
            out.line(head)
            out.memo, out.depth = dict(memo), out.depth + 1
            value = self.value(arm)
            if value.type in WEAK:
                if not assigned:  # its type would be weak in one arm only
                    raise Unsupported("a Python number in a conditional expression")
                value = out.strong(value)
            out.depth -= 1
            merged = self.move(value, variable, out.lines, merged)
        out.memo = memo
        assert merged is not None
        return merged

    # Calls

    def callee(self, node: ast.expr) -> Any:
        return self.value(node).value

    def call(self, node: ast.Call) -> Value:
        arguments = [self.value(argument) for argument in node.args]
        words: dict[str, Value] = {}
        for word in node.keywords:
            if word.arg is None:
                raise Unsupported("**arguments")
            words[word.arg] = self.value(word.value)
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value)
            if base.type != "const":
                if node.func.attr not in METHODS:
                    raise Unsupported(f"method {node.func.attr}")
                found = getattr(tl, node.func.attr, None)
                if node.func.attr in FUNCTIONS:
                    found = Native(node.func.attr)
                return self.invoke(found, [base, *arguments], words)
        return self.invoke(self.callee(node.func), arguments, words)

    def invoke(self, found: Any, arguments: list[Value], words: dict[str, Value]) -> Value:
        if isinstance(found, Native):
            try:
                return FUNCTIONS[found.name](self.out, *arguments, **words)
            except TypeError as error:
                raise Unsupported(f"tl.{found.name}: {error}") from error
        if isinstance(found, InterpretedFunction):
            return self.inline(found, arguments, words)
        if (
            (
                (inspect.ismethod(found) and isinstance(found.__self__, tl.dtype))
                or found
                in (
                    tl.pointer_type,
                    len,
                    float,
                    int,
                )
            )
            and all(argument.type == "const" for argument in arguments)
            and not words
        ):
            return const(found(*(argument.value for argument in arguments)))
        if getattr(found, "__module__", "") == "triton.language.extra.libdevice":
            raise Fails(f"libdevice.{found.__name__} has no implementation on a CPU")
        raise Unsupported(f"call of {getattr(found, '__name__', found)}")

    def inline(self, jitted: Any, arguments: list[Value], words: dict[str, Value]) -> Value:
        if len(self.frames) > MAX_DEPTH:
            raise Unsupported("recursion")
        signature = inspect.signature(jitted.fn)
        try:
            bound = signature.bind(*arguments, **words)
        except TypeError as error:
            raise Unsupported(f"call of {jitted.fn.__name__}: {error}") from error
        names = {
            name: const(unwrap(parameter.default))
            for name, parameter in signature.parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        names.update(bound.arguments)
        self.frames.append(Frame(jitted.fn, names))
        self.block(tree_of(jitted.fn).body)
        frame = self.frames.pop()
        if not frame.results:
            return const(None)
        if len(frame.results) == 1:
            return frame.results[0]
        return Value("tuple", value=frame.results)


def named_dtype(name: str) -> Any:
    return getattr(tl, {"fp32": "float32", "fp64": "float64"}.get(name, name))
