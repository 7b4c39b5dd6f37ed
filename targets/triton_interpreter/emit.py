"""Writes the generated Python: lines, temporaries, and elementwise operations on `Value`s.

Elementwise operations keep blocks lazy or cut (see `Value`) as long as they can: a kernel's block
of 1024 lanes of which a mask lets five through costs what five lanes cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from .arithmetic import single
from .values import (
    NUMPY,
    WEAK,
    Unsupported,
    Untruncatable,
    Value,
    const,
    is_float,
    limits,
    type_of,
)

# Maps the code of the operands to the code of an operation; the flag is True for a block.
Template = Callable[[list[str], bool], str]


class Emitter:
    """The body of one generated function."""

    def __init__(self, *, cut: bool) -> None:
        self.cut = cut  # True if blocks may be cut
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.memo: dict[object, Value] = {}  # of this scope: code that has a name already

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str = "t") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def name(self, code: str, prefix: str = "t") -> str:
        """A temporary that holds the value of `code`."""
        name = self.fresh(prefix)
        self.line(f"{name} = {code}")
        return name

    # Scalars

    def strong(self, value: Value, type_: str = "") -> Value:
        """A scalar of type `type_`, or for a weak one without it: of the type Triton gives it."""
        if value.type == "const":
            return self._strong_const(value.value, type_ or type_of(value.value))
        if value.type in ("w32", "w64"):
            if not type_:
                if value.type == "w64":
                    raise Unsupported("a 64-bit loop variable that becomes a tensor")
                return replace(value, type="int32")
            code = value.code
            if is_float(type_):
                return Value(type_, self.name(f"single({code})" if type_ == "fp32" else code))
            if type_ != "int64" and (value.type, type_) != ("w32", "int32"):
                if type_ == "int1":
                    raise Unsupported("a loop variable that meets int1")
                code = self.name(f"fit({type_!r}, {code})")
            return Value(type_, code)
        return self.cast(value, type_) if type_ else value

    def _strong_const(self, number: object, type_: str) -> Value:
        if not isinstance(number, bool | int | float):
            raise Unsupported(f"{number!r} as a number")
        if is_float(type_):
            rounded = single(number) if type_ == "fp32" else float(number)
            code = repr(rounded).replace("inf", "INF").replace("nan", "NAN")
            return Value(type_, code)
        if isinstance(number, float) and number:
            raise Unsupported("a fraction as an integer")
        if type_ == "int1":
            return Value(type_, str(bool(number)))
        low, high = limits(type_)
        if not low <= int(number) <= high:
            raise Unsupported(f"{number} out of range for {type_}")
        return Value(type_, f"({int(number)})" if number < 0 else str(int(number)))

    def wrapped(self, type_: str, code: str) -> str:
        """The code's integer in two's complement (almost always it fits already)."""
        low, high = limits(type_)
        raw = self.fresh()
        fits = f"{low} <= ({raw} := {code}) <= {high}"
        return self.name(f"{raw} if {fits} else wrap({type_!r}, {raw})")

    # Conversions

    def cast(self, value: Value, type_: str) -> Value:
        """Convert numbers as `.to(type_)` does."""
        source = value.type
        if source in WEAK:
            return self.strong(value, type_)
        if source == type_:
            return value
        if source == "ptr" or type_ == "ptr":
            raise Unsupported(f"cast of {source} to {type_}")

        def template(codes: list[str], block: bool) -> str:
            (code,) = codes
            if block:
                return f"({code} != 0)" if type_ == "int1" else f"{code}.astype(np_{NUMPY[type_]})"
            if type_ == "int1":
                return f"({code} != 0)"
            if is_float(source) or is_float(type_):
                if (source, type_) == ("fp32", "fp64"):
                    return code
                return f"convert({code}, {source!r}, {type_!r})"
            if source == "int1":
                return f"int({code})"
            (low, high), (least, most) = limits(source), limits(type_)
            return code if least <= low and high <= most else f"wrap({type_!r}, {code})"

        result = self.elementwise(template, [value], type_)
        if value.start is not None and value.type == "int32" and type_ == "int64":
            return replace(result, start=self.cast(value.start, type_))
        return result

    # Blocks

    def at(self, value: Value, lanes: str) -> str:
        """The code of the first `lanes` lanes ("": of all)."""
        if not value.n:
            return value.code
        key = ("at", id(value), lanes)
        if key not in self.memo:
            # The memo holds the value too: while it lives, no other object gets its id.
            self.memo[key] = replace(value, code=self._at(value, lanes), value=value)
        return self.memo[key].code

    def _at(self, value: Value, lanes: str) -> str:
        if value.make is not None:
            return self.name(value.make(lanes), "b")
        if value.lanes == lanes:
            if value.whole:
                return self.name(f"filled('int1', {lanes}, True)", "b")
            return value.code
        if not value.lanes:
            return f"{value.code}[:{lanes}]"
        if value.tail is None or lanes:
            raise Untruncatable
        part = self.at(value, value.lanes)
        return self.name(f"extended({part}, {value.n}, {value.tail().code})", "b")

    def full(self, value: Value) -> Value:
        """The same block with all lanes computed."""
        return replace(value, code=self.at(value, ""), make=None, start=None, lanes="", tail=None, whole=False)

    def shaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The same lanes as a block of another shape."""
        if value.type == "ptr":
            return replace(value, shape=shape, offset=self.shaped(value.offset or self.arange(0, value.n), shape))
        return replace(self.full(value), shape=shape)

    def broadcast(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Two operands, blocks of several dimensions repeated along those of length 1."""
        if not (a.n and b.n) or a.shape == b.shape:
            return a, b
        if len(a.shape) != len(b.shape):
            raise Unsupported("blocks of different numbers of dimensions")
        shape = tuple(map(max, a.shape, b.shape))
        return self._repeated(a, shape), self._repeated(b, shape)

    def _repeated(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.shape == shape:
            return value
        if any(own not in (1, size) for own, size in zip(value.shape, shape, strict=True)):
            raise Unsupported("blocks of different lengths")
        larger = replace(value, n=math.prod(shape), shape=shape)
        if value.type == "ptr":
            assert value.offset is not None
            return replace(larger, offset=self._repeated(value.offset, shape))
        code = self.name(f"repeated({self.at(value, '')}, {value.shape}, {shape})", "b")
        return replace(larger, code=code, make=None)

    def elementwise(self, template: Template, operands: list[Value], type_: str) -> Value:
        """Apply an operation to scalars and blocks that have their common type already."""
        blocks = [operand for operand in operands if operand.n]
        if not blocks:
            return Value(type_, self.name(template([o.code for o in operands], False)))
        n = blocks[0].n
        shape = blocks[0].shape
        if any((block.n, block.shape) != (n, shape) for block in blocks):
            raise Unsupported("blocks of different lengths")

        def make(lanes: str) -> str:
            return template([self.at(operand, lanes) for operand in operands], True)

        if all(block.make is not None for block in blocks):
            return Value(type_, n=n, shape=shape, make=make)
        cuts = {block.lanes for block in blocks if block.make is None}
        lanes = cuts.pop() if len(cuts) == 1 else ""
        if cuts and any(block.lanes and block.tail is None for block in blocks):
            lanes = max(cuts)  # next to full blocks; blocks with other cuts will not fit
        code = self.name(make(lanes), "b")
        tail = None
        if lanes and all(not o.n or o.tail is not None for o in operands):

            def tail() -> Value:
                ends = [o.tail() if o.tail is not None else o for o in operands]
                return self.elementwise(template, ends, type_)

        return Value(type_, code, n, shape, lanes=lanes, tail=tail)

    def arange(self, start: int, n: int) -> Value:
        return self.indices(Value("int32", str(start)), n, "int32")

    def indices(self, start: Value, n: int, type_: str) -> Value:
        """start + arange(n); that it does not wrap is checked, for the cut relies on it."""
        base = f"arange_{type_}_{n}"

        def make(lanes: str) -> str:
            part = f"{base}[:{lanes}]" if lanes else base
            return part if start.code == "0" else f"({part} + {start.code})"

        high = limits(type_)[1] - n
        if type_ == "int32" and not start.code.isdigit():
            self.line(f"if {start.code} > {high}: overflow({start.code})")
        return Value(type_, n=n, make=make, start=replace(start, type=type_))

    def prefix(self, count: str, n: int) -> Value:
        """Return the mask of the first `count` lanes, all false if it is negative."""
        key = ("prefix", count, n)
        if key not in self.memo:
            lanes = self.name(f"{n} if {count} > {n} else {count} if {count} > 0 else 0", "k")
            false = Value("int1", "False")
            self.memo[key] = Value("int1", n=n, lanes=lanes, tail=lambda: false, whole=True)
        return self.memo[key]

    def where_true(self, value: Value) -> Value:
        """Return a scalar as a condition."""
        if value.type == "const":
            return const(bool(value.value))
        if value.n or value.type in ("ptr", "tuple"):
            raise Unsupported("a block as a condition")
        return value
