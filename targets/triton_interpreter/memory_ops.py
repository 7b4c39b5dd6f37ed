"""Loads, stores and reductions: operations between a block's lanes and memory, or among lanes."""

from __future__ import annotations

from dataclasses import replace

from .emit import Emitter
from .language import NONE, _ignored, function, is_block, static, widened
from .values import NUMPY, SIZE, Unsupported, Value, const, is_float


def _mask(out: Emitter, mask: Value, pointer: Value) -> Value | None:
    """Return the mask as int1, None if it masks no lane."""
    if mask.type == "const" and (mask.value is None or mask.value is True):
        return None
    value = out.cast(out.strong(mask), "int1")
    if value.n and (value.n, value.shape) != (pointer.n, pointer.shape):
        raise Unsupported("a mask of another shape")
    return None if value.code == "True" else value


def _bounds(pointer: Value) -> str:
    return f"{pointer.low}, {pointer.high}"


def _is_inside(pointer: Value) -> str:
    """The fast check of a scalar access; an aligned pointer cannot straddle the end."""
    size = SIZE[pointer.element]
    if pointer.aligned or size == 1:
        return f"{pointer.low} <= {pointer.code} < {pointer.high}"
    return f"{pointer.low} <= {pointer.code} <= {pointer.high} - {size} and not {pointer.code} & {size - 1}"


def _slot(pointer: Value) -> str:
    size = SIZE[pointer.element]
    shift = size.bit_length() - 1
    index = f"{pointer.code} - {4096}" if not shift else f"({pointer.code} >> {shift}) - {4096 >> shift}"
    return f"scalars_{pointer.element}[{index}]"


@function
def load(out: Emitter, pointer: Value, mask: Value = NONE, other: Value = NONE, **options: Value) -> Value:
    _ignored(**options)
    if pointer.type != "ptr":
        raise Unsupported("a load from what is no pointer")
    boolean = pointer.element == "int1"  # Triton reads a byte and compares it with zero
    element = "uint8" if boolean else pointer.element
    gate = _mask(out, mask, pointer)
    rest = out.strong(const(0) if other.type == "const" and other.value is None else other, element)
    pointer = replace(pointer, element=element)
    if rest.n and rest.shape != pointer.shape:
        raise Unsupported("`other` of another shape")
    if pointer.n:
        loaded = replace(_load_block(out, pointer, gate, rest), shape=pointer.shape)
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
    if gate is None or not gate.n:
        return _load_ungated(out, pointer, gate, rest)
    lanes = gate.lanes
    if gate.whole:
        code = out.name(_read(out, pointer, lanes, lanes), "b")
    else:
        where, base, row = _offsets(out, pointer, lanes)
        gated = f"{out.at(gate, lanes)}, {out.at(rest, lanes)}, {_bounds(pointer)}"
        code = out.name(f"load{row}_masked({element!r}, {base}, {where}, {gated})", "b")
    tail = None
    if lanes and not rest.n:
        tail = lambda: rest  # noqa: E731
    elif lanes and rest.tail is not None:
        tail = rest.tail
    return Value(element, code, n, lanes=lanes, tail=tail)


def _load_ungated(out: Emitter, pointer: Value, gate: Value | None, rest: Value) -> Value:
    """A load of all lanes, or (a scalar gate) of none."""
    n, offset = pointer.n, pointer.offset
    lanes = offset.lanes if offset is not None else ""
    code = _read(out, pointer, lanes, str(n))
    if gate is not None:
        other = out.at(rest, lanes) if rest.n else f"filled({rest.type!r}, {lanes or n}, {rest.code})"
        code = f"{code} if {gate.code} else {other}"
    return Value(pointer.element, out.name(code, "b"), n, lanes=lanes)


def _read(out: Emitter, pointer: Value, lanes: str, count: str) -> str:
    if pointer.offset is None:
        return f"load_row({pointer.element!r}, {pointer.code}, {count}, {_bounds(pointer)})"
    where, base, _ = _offsets(out, pointer, lanes)
    return f"load_at({pointer.element!r}, {base}, {where}, {_bounds(pointer)})"


def _offsets(out: Emitter, pointer: Value, lanes: str) -> tuple[str, str, str]:
    """The code of the element offsets, of the address that they count from, and "".

    For elements that lie in a row: the code of their number, of their address, and "_row".
    """
    if pointer.offset is None:
        return lanes or str(pointer.n), pointer.code, "_row"
    where = out.at(pointer.offset, lanes)
    if pointer.absolute:
        return f"elements({pointer.element!r}, {where})", "0", ""
    return where, pointer.code, ""


def _ends_false(mask: Value) -> bool:
    return mask.tail is not None and mask.tail().code == "False"


@function
def store(out: Emitter, pointer: Value, value: Value, mask: Value = NONE, **options: Value) -> Value:
    _ignored(**options)
    if pointer.type != "ptr":
        raise Unsupported("a store to what is no pointer")
    if value.type == "ptr":
        raise Unsupported("a store of pointers")
    element = "uint8" if pointer.element == "int1" else pointer.element
    pointer = replace(pointer, element=element)
    gate = _mask(out, mask, pointer)
    stored = out.strong(value, element)
    if pointer.n:
        if stored.n and (stored.n, stored.shape) != (pointer.n, pointer.shape):
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
    if gate is not None and not gate.n:
        out.line(f"if {gate.code}:")
        out.depth, memo, out.memo = out.depth + 1, out.memo, dict(out.memo)
        _store_block(out, pointer, value, None)
        out.depth, out.memo = out.depth - 1, memo
        return
    lanes = gate.lanes if gate is not None else ""
    name = pointer.element
    code = out.at(value, lanes)
    where, base, row = _offsets(out, pointer, lanes)
    values = f"{name!r}, {base}, {where}, {code}"
    if gate is None or gate.whole:
        out.line(f"store{row or '_at'}({values}, {_bounds(pointer)})")
    else:
        out.line(f"store{row}_masked({values}, {out.at(gate, lanes)}, {_bounds(pointer)})")


# Reductions: of one dimension, to a scalar


def _one_axis(x: Value, axis: Value, rest: dict[str, Value]) -> None:
    if not is_block(x) or x.shape:
        raise Unsupported("a reduction of what is no block of one dimension")
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


def _extreme(out: Emitter, x: Value, axis: Value, return_indices: Value, rest: dict[str, Value], word: str) -> Value:
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
def max_(out: Emitter, input: Value, axis: Value = NONE, return_indices: Value = NONE, **rest: Value) -> Value:
    return _extreme(out, input, axis, return_indices, rest, "max")


@function
def min_(out: Emitter, input: Value, axis: Value = NONE, return_indices: Value = NONE, **rest: Value) -> Value:
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
def cumsum(out: Emitter, input: Value, axis: Value = NONE, **rest: Value) -> Value:
    _one_axis(input, axis, rest)
    x = widened(out, input)
    np_type = NUMPY[x.type]
    return Value(x.type, out.name(f"{out.at(x, '')}.cumsum().astype(np_{np_type})", "b"), x.n)
