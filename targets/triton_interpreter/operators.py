"""Python's operators as Triton defines them: promotion, wrap-around, C division, pointers."""

from __future__ import annotations

import ast
import operator
from dataclasses import replace
from typing import Any, cast

from .emit import Emitter, Template
from .values import (
    BITS,
    SIZE,
    WEAK,
    Unsupported,
    Value,
    common_type,
    const,
    is_float,
    is_signed,
    limits,
)

SYMBOLS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
PYTHON: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def binary(out: Emitter, symbol: str, a: Value, b: Value) -> Value:
    if a.type in WEAK and b.type in WEAK:
        return _python(out, symbol, a, b)
    if "tuple" in (a.type, b.type):
        raise Unsupported("arithmetic on a tuple")
    a, b = out.broadcast(a, b)
    if a.type == "ptr" or b.type == "ptr":
        return _pointer(out, symbol, a, b)
    if symbol in COMPARISONS:
        return _compare(out, symbol, a, b)
    type_ = common_type(a, b, division=symbol in "//%")
    if symbol == "/" and not is_float(type_):
        type_ = "fp32"
        a, b = (out.cast(x, type_) for x in (a, b))
    start = _shifted_start(out, symbol, a, b, type_)
    if start is not None:
        return out.indices(start, a.n or b.n, type_)
    a, b = out.strong(a, type_), out.strong(b, type_)
    if type_ == "int1":
        return _logical(out, symbol, a, b)
    if symbol in ("<<", ">>"):
        _check_shift(b, type_)
    if is_float(type_):
        return out.elementwise(_float_template(symbol, type_), [a, b], type_)
    return out.elementwise(_int_template(out, symbol, type_), [a, b], type_)


def _python(out: Emitter, symbol: str, a: Value, b: Value) -> Value:
    """Two weak operands: plain Python arithmetic, as in Triton's interpreter."""
    if a.type == b.type == "const":
        return const(PYTHON[symbol](a.value, b.value))
    if symbol == "/" or any(isinstance(x.value, float) for x in (a, b)):
        raise Unsupported("a loop variable in float arithmetic")
    code = out.name(f"{a.code} {symbol} {b.code}")
    return Value("int1" if symbol in COMPARISONS else "w64", code)


def _shifted_start(out: Emitter, symbol: str, a: Value, b: Value, type_: str) -> Value | None:
    """start + arange(n) plus or minus a scalar is such a block again."""
    if symbol == "-" and not b.n and a.start is not None:
        start, other = a.start, b
    elif symbol == "+" and (a.start is None) != (b.start is None) and not (a.n and b.n):
        start, other = (a.start, b) if a.start is not None else (cast(Value, b.start), a)
    else:
        return None
    if type_ not in ("int32", "int64", "uint64"):
        return None
    other = out.strong(other, type_)
    if symbol == "+" and start.code == "0":
        return other
    return Value(type_, out.wrapped(type_, f"{start.code} {symbol} {other.code}"))


def _logical(out: Emitter, symbol: str, a: Value, b: Value) -> Value:
    """Operations on int1."""
    if symbol not in "&|^":
        raise Unsupported(f"int1 {symbol} int1")
    if symbol == "&":
        for one, other in ((a, b), (b, a)):
            if one.code == "True":
                return other
            if one.whole and not (other.n and other.lanes not in ("", one.lanes)):
                if not other.n:
                    return _gated(out, one, other)
                return replace(one, whole=other.whole, code=out.at(other, one.lanes))
    result = out.elementwise(lambda c, _: f"({c[0]} {symbol} {c[1]})", [a, b], "int1")
    if symbol == "&" and result.lanes and _ends_false(a, b):
        false = Value("int1", "False")
        return replace(result, tail=lambda: false)
    return result


def _gated(out: Emitter, mask: Value, scalar: Value) -> Value:
    """Combine a mask of leading lanes with a scalar: no lane if the scalar is false."""
    return out.prefix(out.name(f"{mask.lanes} if {scalar.code} else 0"), mask.n)


def _ends_false(*masks: Value) -> bool:
    return any(m.tail is not None and m.tail().code == "False" for m in masks)


def _check_shift(amount: Value, type_: str) -> None:
    most = int(amount.code) if amount.code.isdigit() else amount.below - 1
    if not 0 <= most < BITS[type_]:
        raise Unsupported("a shift by what is not known to be less than the width")


def _float_template(symbol: str, type_: str) -> Template:
    def template(codes: list[str], block: bool) -> str:
        a, b = codes
        if block:
            return f"({a} {symbol} {b})"
        if symbol == "/":
            return f"divide_float({type_!r}, {a}, {b})"
        return f"single({a} {symbol} {b})" if type_ == "fp32" else f"({a} {symbol} {b})"

    if symbol not in "+-*/":
        raise Unsupported(f"float {symbol}")
    return template


def _int_template(out: Emitter, symbol: str, type_: str) -> Template:
    def template(codes: list[str], block: bool) -> str:
        a, b = codes
        if symbol in ("//", "%"):
            if block:
                return f"divide_block({a}, {b})" if symbol == "//" else f"fmod({a}, {b})"
            if b.isdigit() and int(b) and a.isidentifier():  # the usual case, without a call
                call = f"divide_int({a}, {b})" if symbol == "//" else f"modulo_int({a}, {b})"
                return f"({a} {symbol} {b} if {a} >= 0 else {call})"
            name = "divide_int" if symbol == "//" else "modulo_int"
            # The smallest number divided by -1 wraps.
            return f"wrap({type_!r}, {name}({a}, {b}))" if is_signed(type_) else f"{name}({a}, {b})"
        if block or symbol in "&|^" or symbol == ">>":
            return f"({a} {symbol} {b})"
        return out.wrapped(type_, f"{a} {symbol} {b}")

    return template


def _compare(out: Emitter, symbol: str, a: Value, b: Value) -> Value:
    type_ = common_type(a, b)
    if out.cut and symbol in MIRROR and (a.start is None) != (b.start is None):
        indices, bound, sign = (a, b, symbol) if a.start is not None else (b, a, MIRROR[symbol])
        signed = bound.type in WEAK or is_signed(bound.type)
        if sign in ("<", "<=") and not bound.n and signed and not is_float(type_):
            return _leading(out, indices, out.strong(bound, type_), sign)
    a, b = out.strong(a, type_), out.strong(b, type_)
    return out.elementwise(lambda c, _: f"({c[0]} {symbol} {c[1]})", [a, b], "int1")


def _leading(out: Emitter, indices: Value, bound: Value, symbol: str) -> Value:
    assert indices.start is not None
    more = " + 1" if symbol == "<=" else ""
    key = ("leading", indices.start.code, bound.code + more, indices.n)
    if key not in out.memo:
        start = indices.start.code
        count = bound.code + more if start == "0" else out.name(f"{bound.code}{more} - {start}")
        out.memo[key] = out.prefix(out.name(count) if more and start == "0" else count, indices.n)
    return out.memo[key]


def _pointer(out: Emitter, symbol: str, a: Value, b: Value) -> Value:
    if symbol == "+" and b.type == "ptr":
        a, b = b, a
    if symbol not in "+-" or a.type != "ptr" or b.type in ("ptr", "tuple") or (a.absolute and symbol == "-"):
        raise Unsupported(f"{symbol} on a pointer")
    if b.type in WEAK:
        # A Python number next to a pointer: its own type. Only what int64 holds can be an offset.
        if b.type == "const" and not (isinstance(b.value, int) and abs(b.value) < 2**62):
            raise Unsupported("a pointer offset")
    elif is_float(b.type) or b.type in ("uint64", "int1"):
        raise Unsupported(f"a pointer offset of type {b.type}")
    if a.absolute:
        assert a.offset is not None
        distance = binary(out, "*", out.cast(b, a.offset.type), const(SIZE[a.element]))
        return replace(a, offset=binary(out, "+", a.offset, distance))
    if not b.n:
        size = SIZE[a.element]
        step = b.code if size == 1 else f"{size} * {b.code}"
        return replace(a, code=a.code if b.code == "0" else out.name(f"{a.code} {symbol} {step}"))
    if symbol == "-":
        raise Unsupported("arithmetic on a block of pointers")
    if a.n:
        own = a.offset or out.arange(0, a.n)
        return replace(a, offset=binary(out, "+", out.cast(own, "int64"), out.cast(b, "int64")))
    if b.start is not None:
        size = SIZE[a.element]
        step = b.start.code if size == 1 else f"{size} * {b.start.code}"
        code = a.code if b.start.code == "0" else out.name(f"{a.code} + {step}")
        return replace(a, code=code, n=b.n)
    return replace(a, n=b.n, shape=b.shape, offset=b)


def unary(out: Emitter, node: ast.unaryop, value: Value) -> Value:
    if value.type in WEAK and not isinstance(node, ast.Not):
        if value.type != "const":
            if isinstance(node, ast.USub):
                return Value("w64", out.name(f"-{value.code}"))
            raise Unsupported("a unary operator on a loop variable")
        number = value.value
        if isinstance(node, ast.Invert):
            return const(~number)
        return const(-number if isinstance(node, ast.USub) else +number)
    if isinstance(node, ast.Not):
        known = out.where_true(value)
        if known.type == "const":
            return const(not known.value)
        return Value("int1", out.name(f"not {known.code}"))
    if isinstance(node, ast.Invert) and not is_float(value.type) and value.type != "ptr":
        return _invert(out, value)
    if isinstance(node, ast.USub) and value.type not in ("ptr", "int1", "tuple"):
        if is_float(value.type):
            return out.elementwise(lambda c, _: f"(-{c[0]})", [value], value.type)
        return binary(out, "-", Value(value.type, "0"), value)
    raise Unsupported(f"unary {type(node).__name__} on {value.type}")


def _invert(out: Emitter, value: Value) -> Value:
    def template(codes: list[str], block: bool) -> str:
        if block or is_signed(value.type):
            return f"(~{codes[0]})"
        if value.type == "int1":
            return f"(not {codes[0]})"
        return f"({codes[0]} ^ {limits(value.type)[1]})"

    return out.elementwise(template, [value], value.type)
