"""Loads, stores and reductions: where a block's lanes meet memory or each other."""

from __future__ import annotations

from dataclasses import replace

from .emit import Emitter
from .language import NONE, _ignored, function, is_block, static, widened
from .operators import binary
from .values import NUMPY, SIZE, Unsupported, Untruncatable, Value, const, is_float, is_signed


def _mask(out: Emitter, mask: Value, n: int) -> Value | None:
    """None where every lane is let through."""
    if mask.type == "const" and (mask.value is None or mask.value is True):
        return None
    value = out.cast(out.strong(mask), "int1")
    if value.n not in (0, n):
        raise Unsupported("a mask of another shape")
    if n and not value.n and out.cut:
        return out.prefix(out.name(f"{n} if {value.code} else 0"), n)
    if n and not value.n:
        return Value("int1", n=n, make=lambda k: f"filled('int1', {k or n}, {value.code})")
    return None if value.code == "True" else value


def _bounds(pointer: Value) -> str:
    return f"{pointer.low}, {pointer.high}"


def _is_inside(pointer: Value) -> str:
    """The fast check of a scalar access; an aligned pointer cannot straddle the end."""
    size = SIZE[pointer.element]
    if pointer.aligned or size == 1:
        return f"{pointer.low} <= {pointer.code} < {pointer.high}"
    return (
        f"{pointer.low} <= {pointer.code} <= {pointer.high} - {size} "
        f"and not {pointer.code} & {size - 1}"
    )


def _slot(pointer: Value) -> str:
    size = SIZE[pointer.element]
    shift = size.bit_length() - 1
    index = f"{pointer.code} - {4096}" if not shift else f"({pointer.code} >> {shift}) - {4096 >> shift}"
    return f"scalars_{pointer.element}[{index}]"


@function
def load(
    out: Emitter, pointer: Value, mask: Value = NONE, other: Value = NONE, **options: Value
) -> Value:
    _ignored(**options)
    if pointer.type != "ptr":
        raise Unsupported("a load from what is no pointer")
    boolean = pointer.element == "int1"  # Triton reads a byte and compares it with zero
    element = "uint8" if boolean else pointer.element
    gate = _mask(out, mask, pointer.n)
    rest = out.strong(const(0) if other.type == "const" and other.value is None else other, element)
    pointer = replace(pointer, element=element)
    if pointer.n:
        loaded = _load_block(out, pointer, gate, rest)
    else:
        if rest.n:
            raise Unsupported("a block as `other` of a scalar load")
        pointer = replace(pointer, code=_named(out, pointer.code))
        slow = f"load_slow({element!r}, {pointer.code}, {pointer.low})"
        code = f"{_slot(pointer)} if {_is_inside(pointer)} else {slow}"
        loaded = Value(element, out.name(f"({code}) if {gate.code} else {rest.code}" if gate else code))
    return out.cast(loaded, "int1") if boolean else loaded


def _named(out: Emitter, code: str) -> str:
    return code if code.isidentifier() else out.name(code, "a")


def _load_block(out: Emitter, pointer: Value, gate: Value | None, rest: Value) -> Value:
    n, element = pointer.n, pointer.element
    if gate is not None and gate.lanes and not _ends_false(gate):
        gate = out.full(gate)
    lanes = gate.lanes if gate is not None else ""
    if gate is None or gate.whole:
        code = out.name(_read(out, pointer, lanes, lanes or str(n)), "b")
    else:
        where, base = _offsets(out, pointer, lanes)
        mask = out.at(gate, lanes)
        other = out.at(rest, lanes)
        call = f"load_masked({element!r}, {base}, {where}, {mask}, {other}, {_bounds(pointer)})"
        code = out.name(call, "b")
    tail = None
    if lanes and not rest.n:
        tail = lambda: rest  # noqa: E731
    elif lanes and rest.tail is not None:
        tail = rest.tail
    return Value(element, code, n, lanes=lanes, tail=tail)


def _read(out: Emitter, pointer: Value, lanes: str, count: str) -> str:
    if pointer.offset is None:
        return f"load_row({pointer.element!r}, {pointer.code}, {count}, {_bounds(pointer)})"
    where, base = _offsets(out, pointer, lanes)
    return f"load_at({pointer.element!r}, {base}, {where}, {_bounds(pointer)})"


def _offsets(out: Emitter, pointer: Value, lanes: str) -> tuple[str, str]:
    """The code of the element offsets, and of the address that they count from."""
    if pointer.offset is None:
        part = f"arange_int64_{pointer.n}"
        return (f"{part}[:{lanes}]" if lanes else part), pointer.code
    where = out.at(pointer.offset, lanes)
    return (f"elements({pointer.element!r}, {where})", "0") if pointer.absolute else (where, pointer.code)


def _ends_false(mask: Value) -> bool:
    return mask.tail is not None and mask.tail().code == "False"


@function
def store(
    out: Emitter, pointer: Value, value: Value, mask: Value = NONE, **options: Value
) -> Value:
    _ignored(**options)
    if pointer.type != "ptr":
        raise Unsupported("a store to what is no pointer")
    if value.type == "ptr":
        raise Unsupported("a store of pointers")
    element = "uint8" if pointer.element == "int1" else pointer.element
    pointer = replace(pointer, element=element)
    gate = _mask(out, mask, pointer.n)
    stored = out.strong(value, element)
    if pointer.n:
        if stored.n not in (0, pointer.n):
            raise Unsupported("a store of another shape")
        _store_block(out, pointer, stored, gate)
        return NONE
    if stored.n:
        raise Unsupported("a block stored to a scalar pointer")
    pointer = replace(pointer, code=_named(out, pointer.code))
    slow = f"store_slow({element!r}, {pointer.code}, {stored.code}, {pointer.low})"
    if gate:
        out.line(f"if not {gate.code}: pass")
    out.line(f"{'elif' if gate else 'if'} {_is_inside(pointer)}: {_slot(pointer)} = {stored.code}")
    out.line(f"else: {slow}")
    return NONE


def _store_block(out: Emitter, pointer: Value, value: Value, gate: Value | None) -> None:
    if gate is not None and gate.lanes and not _ends_false(gate):
        gate = out.full(gate)
    lanes = gate.lanes if gate is not None else ""
    name = pointer.element
    code = out.at(value, lanes)
    if gate is None or gate.whole:
        if pointer.offset is None:
            count = lanes or str(pointer.n)
            out.line(f"store_row({name!r}, {pointer.code}, {count}, {code}, {_bounds(pointer)})")
            return
        where, base = _offsets(out, pointer, lanes)
        out.line(f"store_at({name!r}, {base}, {where}, {code}, {_bounds(pointer)})")
        return
    where, base = _offsets(out, pointer, lanes)
    gated = out.at(gate, lanes)
    out.line(f"store_masked({name!r}, {base}, {where}, {code}, {gated}, {_bounds(pointer)})")


# Reductions: of one dimension, to a scalar


def _one_axis(x: Value, axis: Value, rest: dict[str, Value]) -> None:
    if not is_block(x):
        raise Unsupported("a reduction of what is no block")
    if static(axis, "an axis") not in (None, 0) or any(static(v, k) for k, v in rest.items()):
        raise Unsupported("an option of a reduction")


def _cut_with_tail(x: Value, tail: str) -> bool:
    return bool(x.lanes) and x.tail is not None and x.tail().code == tail


@function
def sum_(out: Emitter, input: Value, axis: Value = NONE, **rest: Value) -> Value:
    _one_axis(input, axis, rest)
    x = widened(out, input)
    if is_float(x.type):  # the order of additions depends on the number of lanes
        return Value(x.type, out.name(f"float({out.at(x, '')}.sum())"))
    part = out.at(x, x.lanes if _cut_with_tail(x, "0") else "")
    return Value(x.type, out.wrapped(x.type, f"int({part}.sum())"))


def _place_and_value(out: Emitter, x: Value, word: str) -> tuple[Value, Value]:
    """The extreme value and its first place."""
    if not is_float(x.type):
        code = out.at(x, "")
        kind = "bool" if x.type == "int1" else "int"
        return (
            Value(x.type, out.name(f"{kind}({code}.{word}())")),
            Value("int32", out.name(f"int({code}.arg{word}())")),
        )
    prefix, code = "float", ""
    if word == "max" and _cut_with_tail(x, "-INF"):
        prefix, code = "cut", out.at(x, x.lanes)
    code = code or out.at(x, "")
    return (
        Value(x.type, out.name(f"{prefix}_{word}({code})")),
        Value("int32", out.name(f"{prefix}_arg{word}({code})")),
    )


def _extreme(
    out: Emitter, x: Value, axis: Value, return_indices: Value, rest: dict[str, Value], word: str
) -> Value:
    rest.pop("return_indices_tie_break_left", None)  # the interpreter's is always the left one
    _one_axis(x, axis, rest)
    if static(return_indices, "an option"):
        return Value("tuple", value=_place_and_value(out, x, word))
    if not is_float(x.type) and SIZE[x.type] < 4:
        x = out.cast(x, "int32")
    if not is_float(x.type):
        return Value(x.type, out.name(f"int({out.at(x, '')}.{word}())"))
    if word == "max" and _cut_with_tail(x, "-INF"):
        return Value(x.type, out.name(f"cut_max({out.at(x, x.lanes)})"))
    return Value(x.type, out.name(f"float_{word}({out.at(x, '')})"))


@function
def max_(
    out: Emitter, input: Value, axis: Value = NONE, return_indices: Value = NONE, **rest: Value
) -> Value:
    return _extreme(out, input, axis, return_indices, rest, "max")


@function
def min_(
    out: Emitter, input: Value, axis: Value = NONE, return_indices: Value = NONE, **rest: Value
) -> Value:
    return _extreme(out, input, axis, return_indices, rest, "min")


@function
def argmax(out: Emitter, input: Value, axis: Value, **rest: Value) -> Value:
    rest.pop("tie_break_left", None)
    _one_axis(input, axis, rest)
    return _place_and_value(out, input, "max")[1]


@function
def argmin(out: Emitter, input: Value, axis: Value, **rest: Value) -> Value:
    rest.pop("tie_break_left", None)
    _one_axis(input, axis, rest)
    return _place_and_value(out, input, "min")[1]


@function
def cumsum(out: Emitter, input: Value, axis: Value = const(0), **rest: Value) -> Value:
    _one_axis(input, axis, rest)
    x = widened(out, input)
    np_type = NUMPY[x.type]
    return Value(x.type, out.name(f"{out.at(x, '')}.cumsum().astype(np_{np_type})", "b"), x.n)
