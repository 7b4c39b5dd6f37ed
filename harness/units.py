"""Parses and prints durations, counts and sizes. UnitError, with the right form, for text that is none."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

_DURATION = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMG]?)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_MOST = 1e15
"""Larger numbers are typing errors, and do not fit into every field."""
SEED_MIN, SEED_MAX = -(1 << 63), (1 << 64) - 1
"""State files have no other numbers (`draw.trace_files.read_json`)."""
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class UnitError(ArgumentTypeError, ValueError):
    """A text that cannot be read, and how to write it. As an ArgumentTypeError its message is what argparse prints."""

    def __init__(self, text: str, form: str) -> None:
        super().__init__(f"{text!r}: write {form}")


def duration(text: str) -> float:
    """Return seconds: 90, 90s, 5m, 1h30m, 2d."""
    match = _DURATION.fullmatch(text.strip())
    seconds = sum(float(match[unit] or 0) * factor for unit, factor in _SECONDS.items()) if match else 0.0
    if not 0 < seconds <= _MOST:
        raise UnitError(text, "90s, 5m, 1h30m or 2d")
    return seconds


def count(text: str) -> int:
    """Return a positive whole number: 500, 10k, 1.5M, 1_000_000."""
    match = _COUNT.fullmatch(text.strip().replace("_", ""))
    number = float(match[1]) * 1000 ** " kMG".index(match[2] or " ") if match else 0.0
    if not 1 <= number <= _MOST or not number.is_integer():
        raise UnitError(text, "a whole number of at least 1, such as 500, 10k or 1M")
    return int(number)


def count_or_none(text: str) -> int:
    """Return a whole number, 0 included."""
    return 0 if text.strip() == "0" else count(text)


def size(text: str) -> int:
    """Return bytes: 4GiB, 500MB, 2G."""
    match = _SIZE.fullmatch(text.strip())
    base = 1024 if match and match[3] else 1000
    number = float(match[1]) * base ** " KMGT".index(match[2].upper() or " ") if match else -1.0
    if not 0 <= number <= _MOST:
        raise UnitError(text, "500MB, 4GiB or 2G")
    return int(number)


def share(text: str) -> float:
    """Return a share as a number from 0 to 1: 30%."""
    percent = text.strip().removesuffix("%")
    with suppress(ValueError):
        if 0 <= float(percent) <= 100:
            return float(percent) / 100
    raise UnitError(text, "0% to 100%")


def chance(text: str) -> float:
    """Return a probability between 0 and 1, both excluded: 1e-4, 0.001."""
    with suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise UnitError(text, "a number between 0 and 1, such as 1e-4")


def seed(text: str) -> int:
    """Return a whole number that fits into a state file: one of at most 64 bits."""
    with suppress(ValueError):
        if SEED_MIN <= int(text) <= SEED_MAX:
            return int(text)
    raise UnitError(text, "a whole number of at most 64 bits")


class Shard(NamedTuple):
    """Share of a campaign's traces: numbers `number - 1`, `number - 1 + of`, ... of its seed. 1/1 is all of them."""

    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def trace(self, position: int) -> int:
        """Return the number of the trace at a position of this share."""
        return position * self.of + self.number - 1

    def position(self, index: int) -> int:
        """Return the position of a trace of this share."""
        return index // self.of

    def size(self, traces: int) -> int:
        """Return how many of the first `traces` numbers belong to this share."""
        return max(traces - self.number + self.of, 0) // self.of


WHOLE = Shard()
SHARDS_MAX = 1_000_000


def shard(text: str) -> Shard:
    """Return I/N, with 1 <= I <= N: 3/8."""
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) <= SHARDS_MAX):
        raise UnitError(text, "I/N, such as 1/8")
    return Shard(int(number), int(of))


def settings(text: str) -> dict[str, object]:
    """Return what key=value,key=value sets."""
    pairs: dict[str, object] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not (equals and key.strip()):
            raise UnitError(part, "KEY=VALUE,KEY=VALUE, such as async_depth=1")
        pairs[key.strip()] = value.strip()
    return pairs


def add_seconds(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add seconds by what they went into."""
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds


def to_milliseconds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return seconds by what they went into, rounded."""
    return {name: round(one, 3) for name, one in seconds.items()}


def spell(seconds: float) -> str:
    """Return seconds as text: 8 s, 2 min 05 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def listed(names: Sequence[str]) -> str:
    """Return names in a sentence: "a, b and c"."""
    return " and ".join(one for one in (", ".join(names[:-1]), *names[-1:]) if one)


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: 1 trace, 2 traces, 2 patches."""
    ending = "es" if noun.endswith(("ch", "x")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"
