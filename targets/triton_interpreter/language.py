"""The functions of `triton.language` that kernels may call, each as code that does the same.

Names that are not in `FUNCTIONS` or `METHODS` are unknown to the compiler; a jitted function of Triton's
own library (tl.cdiv, tl.rand, ...) that is not here is compiled from its source like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .emit import Emitter, Template
from .operators import binary
from .values import BITS, NUMPY, SIZE, WEAK, Unsupported, Value, const, is_float, is_signed

Function = Callable[..., Value]
NONE = const(None)
FUNCTIONS: dict[str, Function] = {}
METHODS = {"to", "cast", "cdiv", "sum", "max", "min", "argmax", "argmin", "cumsum", "reshape"}


def function(implementation: Function) -> Function:
    FUNCTIONS[implementation.__name__.rstrip("_")] = implementation
    return implementation


def static(value: Value, what: str) -> Any:
    if value.type != "const":
        raise Unsupported(f"{what} that is not known at compile time")
    return value.value


def dtype_name(value: Any) -> str:
    """Return the compiler's type of a tl.dtype; "ptr" for a pointer type."""
    name = str(getattr(value, "name", value))
    if hasattr(value, "element_ty"):
        return "ptr"
    if name not in SIZE:
        raise Unsupported(f"type {name}")
    return name


def _ignored(**options: Value) -> None:
    """Hints that change no result."""
    known = {"cache_modifier", "eviction_policy", "volatile"}
    if set(options) - known:
        raise Unsupported(f"option {sorted(set(options) - known)}")


@function
def program_id(out: Emitter, axis: Value) -> Value:
    return Value("int32", f"pid{int(static(axis, 'an axis'))}")


@function
def num_programs(out: Emitter, axis: Value) -> Value:
    return Value("int32", f"grid{int(static(axis, 'an axis'))}")


@function
def arange(out: Emitter, start: Value, end: Value) -> Value:
    low, high = static(start, "arange"), static(end, "arange")
    n = high - low
    if not (0 <= low < high < 2**31 and n & (n - 1) == 0):
        raise Unsupported(f"arange({low}, {high})")
    return replace(out.arange(low, n), below=high if high <= BITS["uint64"] else 0)


@function
def reshape(out: Emitter, input: Value, *shape: Value) -> Value:
    sizes = tuple(static(size, "a shape") for size in shape)
    if not is_block(input) or math.prod(sizes) != input.n:
        raise Unsupported("a shape of another size")
    return out.shaped(input, sizes if len(sizes) > 1 else ())


@function
def full(out: Emitter, shape: Value, value: Value, dtype: Value) -> Value:
    sizes = [static(size, "a shape") for size in shape.value]
    type_ = dtype_name(static(dtype, "a type"))
    if len(sizes) > 1 or value.n:
        raise Unsupported("a block of two dimensions")
    scalar = out.strong(value, type_)
    return spread(out, scalar, sizes[0]) if sizes else scalar


def spread(out: Emitter, scalar: Value, n: int) -> Value:
    """A block that is the same scalar in every lane."""

    def make(lanes: str) -> str:
        return f"filled({scalar.type!r}, {lanes or n}, {scalar.code})"

    return Value(scalar.type, n=n, make=make)


@function
def zeros(out: Emitter, shape: Value, dtype: Value) -> Value:
    return full(out, shape, const(0), dtype)


@function
def cast(out: Emitter, input: Value, dtype: Value, bitcast: Value = NONE, **rest: Value) -> Value:
    if rest:
        raise Unsupported("cast with a rounding mode")
    target = static(dtype, "a type")
    type_ = dtype_name(target)
    value = out.strong(input)
    if type_ == "ptr":
        return _to_pointer(out, value, dtype_name(target.element_ty))
    if value.type == "ptr":
        if type_ != "int64" or value.n:
            raise Unsupported("a pointer as a number")
        return Value("int64", value.code)
    if bitcast.type == "const" and bitcast.value and value.type != type_:
        floats = is_float(value.type) or is_float(type_)
        if BITS[value.type] != BITS[type_] or floats or "int1" in (value.type, type_):
            raise Unsupported(f"bitcast of {value.type} to {type_}")
    return out.cast(value, type_)


to = cast
FUNCTIONS["to"] = cast


def _to_pointer(out: Emitter, value: Value, element: str) -> Value:
    if value.type == "ptr":
        if value.n:
            raise Unsupported("cast of a block of pointers")
        return replace(value, element=element, aligned=SIZE[element] == 1)
    if value.type not in ("int64", "uint64"):
        raise Unsupported(f"a pointer from {value.type}")
    pointer = Value("ptr", value.code, element=element, low="PAGE", high="TOP")
    if not value.n:
        return pointer
    if value.start is not None and SIZE[element] == 1:
        return replace(pointer, code=value.start.code, n=value.n)
    return replace(pointer, code="0", n=value.n, shape=value.shape, offset=value, absolute=True)


@function
def where(out: Emitter, condition: Value, x: Value, y: Value) -> Value:
    cond = out.cast(out.strong(condition), "int1")
    if "ptr" in (x.type, y.type):
        raise Unsupported("where on pointers")
    type_, x, y = _common(out, x, y)

    def template(codes: list[str], block: bool) -> str:
        c, a, b = codes
        if not block or (not cond.n and x.n and y.n):
            return f"({a} if {c} else {b})"
        a, b = (v if value.n else f"np_{NUMPY[type_]}({v})" for v, value in ((a, x), (b, y)))
        return f"where({c}, {a}, {b})"

    if cond.code in ("True", "False") and not (x.shape or y.shape):
        chosen, n = (x if cond.code == "True" else y), x.n or y.n
        return chosen if chosen.n == n else spread(out, chosen, n)
    result = out.elementwise(template, [cond, x, y], type_)
    if result.lanes and cond.tail is not None and cond.tail().code == "False":
        ends = y.tail if y.n else lambda: y
        return replace(result, tail=ends)
    return result


def _common(out: Emitter, x: Value, y: Value) -> tuple[str, Value, Value]:
    from .values import common_type

    type_ = common_type(x, y)
    return type_, out.strong(x, type_), out.strong(y, type_)


def _extreme(out: Emitter, x: Value, y: Value, symbol: str, rest: dict[str, Value]) -> Value:
    if rest:
        raise Unsupported("an option of minimum or maximum")
    word = "minimum" if symbol == "<" else "maximum"
    if x.type == y.type == "const":  # both become tensors here, unlike in an operator
        x = out.strong(x)
    type_, x, y = _common(out, x, y)
    if type_ == "int1":
        raise Unsupported(f"{word} of int1")
    word = word if not is_float(type_) else word[0] + "_f" + word[1:3]

    def template(codes: list[str], block: bool) -> str:
        a, b = codes
        if is_float(type_):
            name = "fmin" if symbol == "<" else "fmax"
            return f"{name}({a}, {b})" if block else f"apply({name}, {type_!r}, {a}, {b})"
        return f"{word}({a}, {b})" if block else f"({a} if {a} {symbol} {b} else {b})"

    return out.elementwise(template, [x, y], type_)


@function
def minimum(out: Emitter, x: Value, y: Value, **rest: Value) -> Value:
    return _extreme(out, x, y, "<", rest)


@function
def maximum(out: Emitter, x: Value, y: Value, **rest: Value) -> Value:
    return _extreme(out, x, y, ">", rest)


def _float_function(name: str) -> Function:
    def call(out: Emitter, x: Value) -> Value:
        value = out.strong(x)
        if not is_float(value.type):
            raise Unsupported(f"{name} of {value.type}")

        def template(codes: list[str], block: bool) -> str:
            return f"{name}({codes[0]})" if block else f"apply({name}, {value.type!r}, {codes[0]})"

        return out.elementwise(template, [value], value.type)

    return call


FUNCTIONS.update({name: _float_function(name) for name in ("exp", "log", "floor", "ceil")})


@function
def umulhi(out: Emitter, x: Value, y: Value) -> Value:
    type_, x, y = _common(out, x, y)
    if type_ != "uint32":
        raise Unsupported(f"umulhi of {type_}")
    template: Template = lambda c, block: (  # noqa: E731
        f"high_product({c[0]}, {c[1]})" if block else f"({c[0]} * {c[1]} >> 32)"
    )
    return out.elementwise(template, [x, y], type_)


def _plain(symbol: str) -> Function:
    def call(out: Emitter, input: Value, other: Value, sanitize_overflow: Value = NONE) -> Value:
        return binary(out, symbol, out.strong(input), other)

    return call


FUNCTIONS.update({"add": _plain("+"), "sub": _plain("-"), "mul": _plain("*")})


@function
def to_tensor(out: Emitter, x: Value) -> Value:
    return out.strong(x)


@function
def static_assert(out: Emitter, cond: Value, msg: Value = NONE) -> Value:
    if not static(cond, "static_assert"):
        raise Unsupported("a static_assert that fails")
    return NONE


@function
def debug_barrier(out: Emitter) -> Value:
    return NONE


@function
def device_assert(out: Emitter, *_: Value, **__: Value) -> Value:
    return NONE  # Triton's interpreter checks it only in debug mode


@function
def multiple_of(out: Emitter, x: Value, *_: Value) -> Value:
    return x


FUNCTIONS.update(dict.fromkeys(("max_contiguous", "max_constancy"), multiple_of))


@function
def constexpr(out: Emitter, value: Value) -> Value:
    return const(static(value, "a constexpr"))


def is_block(value: Value) -> bool:
    return value.n > 0 and value.type not in WEAK and value.type != "ptr"


def widened(out: Emitter, x: Value) -> Value:
    """Reductions compute small integers in 32 bits."""
    if is_float(x.type) or BITS[x.type] >= 32:
        return x
    return out.cast(x, "int32" if is_signed(x.type) else "uint32")
