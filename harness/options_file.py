"""hybridfuzz.toml, or [tool.hybridfuzz] in pyproject.toml: options of all verbs and of the gate, with profiles.

    target = "vllm@."           # for every verb that has the option, and for the gate
    fixes = ["builtin"]

    [fuzz]                      # for one verb; [gate] for the gate
    jobs = 4

    [profiles.nightly]          # with --profile nightly, before the rest; profile = "nightly" makes it the default
    time = "8h"

    [profiles.nightly.fuzz]
    seed = 7

Keys are the options' long names. The command line wins over a profile, a profile over the rest, and a verb's table over
keys for all verbs. A key that no verb has is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from ..targets.base.trace import TraceError
from .draw.trace_files import read_toml
from .quoting import one_line
from .suggestions import did_you_mean

FILES = ("hybridfuzz.toml", "pyproject.toml")
BYTES_MAX = 1 << 20
GATE = "gate"
GATE_PROFILES = ("gate", "nightly")
"""Those that the gate has without a file."""
PROFILE = "profile"
PROFILES = "profiles"
TEXT_MAX = 300
OF_ONE_VERB = ("out",)
"""What a verb writes to would be overwritten by the others."""
GATE_OPTIONS = frozenset(
    ("budget", "changed-since", "config", "corpus", "fixes", "known", "out", "profile", "seed", "strict", "target")
)
"""Also those that a command has under another meaning: the gate reads its own."""
VERBS = (
    "bisect", "cache", "completion", "confirm", "coverage", "doctor", "explore", "fuzz", "known", "merge", "mutants",
    "new-target", "reduce", "replay", "report", "repro", "targets", "verify-fix",
)  # fmt: skip
OPTIONS = frozenset((
    "against", "all", "bad", "changed-since", "check", "check-merges", "cluster", "compare", "config", "coverage",
    "device", "disturbances", "dp", "dry-run", "engine", "events", "expires", "explain", "fail-under", "first", "fixed",
    "fixes", "forms", "fresh", "good", "hours", "id", "jobs", "json", "junit", "kind", "known", "memory", "names",
    "neighbours", "no-canary", "no-explain", "no-reduce", "only", "out", "own-trace", "patch", "port", "reason",
    "reduce", "sarif", "scope", "seed", "seeds", "shard", "signature", "source", "states", "steps", "target", "time",
    "timeout", "traces", "triage-share", "until-met", "until-risk", "unused-for", "versions", "without", "workload",
    "write-docs",
))  # fmt: skip
"""Of all commands, without importing them; `tests/harness/test_options_file.py` compares."""


class Entry(NamedTuple):
    """A value, and where it stands: "hybridfuzz.toml: [profiles.nightly] time"."""

    value: object
    where: str


class OptionsFile:
    """The file of a folder."""

    def __init__(self, name: str, table: Mapping[str, object]) -> None:
        self._name = name
        self._table: Mapping[str, object] = {key: value for key, value in table.items() if key != PROFILES}
        self.profiles = self._tables(table.get(PROFILES, {}), PROFILES)
        """Table of each profile."""

    def profile_of(self, verb: str, asked: str) -> str:
        """Return the profile for a verb: `asked` for on the command line, else the one that the file asks for, else "".

        Raises TraceError for an unknown profile. Other verbs accept those that the gate has without a file, where the
        file names one, and take nothing from it.
        """
        own = self._table.get(verb)
        where, table = (verb, own) if isinstance(own, dict) and PROFILE in own else ("", self._table)
        if isinstance(table.get(PROFILE), dict):  # [profile.NAME]
            raise TraceError(f"{self._where(where, PROFILE)} is a table: profiles stand in [{PROFILES}.NAME]")
        profile = asked or str(table.get(PROFILE, ""))
        known = [*(() if asked and verb != GATE else GATE_PROFILES), *self.profiles]
        if profile and profile not in known:
            option = "--hybridfuzz-profile" if verb == GATE else "--profile"
            said = f"{option} {profile}" if asked else f"{self._where(where, PROFILE)} = {profile!r}"
            there = f"there are {', '.join(dict.fromkeys(known))}" if known else f"{self._name} here has none"
            raise TraceError(f"{one_line(said, TEXT_MAX)}: no such profile{did_you_mean(profile, known)} ({there})")
        return profile

    def entries(self, verb: str, own: Set[str], profile: str = "") -> dict[str, Entry]:
        """Return the values for the options of a verb, of which it has `own`. Raises TraceError for an unknown key."""
        layers = [("", self._table)]
        layers += [(f"{PROFILES}.{name}", table) for name, table in self.profiles.items()]
        found: dict[str, Entry] = {}
        for where, layer in layers:
            is_asked = where in ("", f"{PROFILES}.{profile}")
            for entry in self._layer(where, layer, verb, own):
                if is_asked:
                    found |= entry
        return found

    def _layer(self, where: str, layer: Mapping[str, object], verb: str, own: Set[str]) -> Iterator[dict[str, Entry]]:
        """Yield what stands in a table for all verbs, then in that for the verb."""
        tables = {key: one for key, one in layer.items() if key in (*VERBS, GATE) and isinstance(one, dict)}
        rest = {key: value for key, value in layer.items() if key not in tables}
        yield from self._own(where, rest, own, everywhere=True)
        for key, table in tables.items():
            inside = f"{where}.{key}" if where else key
            names = own if key == verb else GATE_OPTIONS if key == GATE else OPTIONS
            checked = list(self._own(inside, table, names, everywhere=False))
            if key == verb:
                yield from checked

    def _own(
        self, where: str, table: Mapping[str, object], own: Set[str], *, everywhere: bool
    ) -> Iterator[dict[str, Entry]]:
        """Yield the options that a verb has in a table for it alone, or for all verbs (`everywhere`)."""
        for key, value in table.items():
            name = key.replace("_", "-")
            if name == PROFILE and where.startswith(PROFILES):
                raise TraceError(f"{self._where(where, key)}: a profile does not choose one")
            if everywhere and name in OF_ONE_VERB:
                raise TraceError(
                    f"{self._where(where, key)}: it differs from verb to verb: write it in [fuzz], [gate], ..."
                )
            if name in own:
                yield {name: Entry(value, self._where(where, key))}
            elif not everywhere or name not in OPTIONS | GATE_OPTIONS:
                others = sorted(own | (OPTIONS | GATE_OPTIONS | {*VERBS, GATE, PROFILES} if everywhere else set()))
                raise TraceError(f"{self._where(where, key)}: there is no such option{did_you_mean(name, others)}")

    def _tables(self, value: object, where: str) -> dict[str, Mapping[str, object]]:
        if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
            raise TraceError(f"{self._where('', where)}: expected a table")
        return value

    def _where(self, table: str, key: str) -> str:
        return one_line(f"{self._name}: {f'[{table}] ' if table else ''}{key}", TEXT_MAX)


def read_options(folder: Path) -> OptionsFile:
    """Return the options file of a folder, an empty one where none is. Raises TraceError if it cannot be used."""
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        table: object = read_toml(path, BYTES_MAX, "options")
        for part in ("tool", "hybridfuzz") if name == "pyproject.toml" else ():
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict):
            return OptionsFile(name, table)
    return OptionsFile(FILES[0], {})


def profile_entries(folder: Path, verb: str, own: Set[str], profile: str) -> dict[str, Entry]:
    """Return the values of a folder's file for a verb and a profile, "" for the one that the file asks for.

    Raises TraceError for a file that cannot be used, and for a `profile` that is not there.
    """
    file = read_options(folder)
    return file.entries(verb, own, file.profile_of(verb, profile))


def make_defaults(command: argparse.ArgumentParser, entries: Mapping[str, Entry]) -> dict[str, list[object]]:
    """Make entries the defaults of a command's options. Raises TraceError for a value that an option does not take.

    Returns, by destination, the values of options that may be given several times: argparse would add to a default.
    """
    repeated: dict[str, list[object]] = {}
    for name, entry in entries.items():
        action = command._option_string_actions[f"--{name}"]  # there is no public way to them
        try:
            if isinstance(action, argparse._AppendAction):
                repeated[action.dest] = [_converted(action, text) for text in _texts(entry.value)]
            elif action.nargs == 0:
                if not isinstance(entry.value, bool):
                    raise ValueError("expected true or false")
                command.set_defaults(**{action.dest: entry.value is not _negates(action, name)})
            else:
                command.set_defaults(**{action.dest: _converted(action, _text(entry.value))})
        except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
            raise TraceError(f"{entry.where}: {one_line(str(error), TEXT_MAX)}") from None
    return repeated


def own_options(command: argparse.ArgumentParser) -> frozenset[str]:
    """Return the long names of a command's options, without those that are not for a file."""
    names = {text.removeprefix("--") for text in command._option_string_actions if text.startswith("--")}
    return frozenset(names - {"help", "profile"})


def _negates(action: argparse.Action, name: str) -> bool:
    """Return True for the form of a switch that turns off what another form of it turns on."""
    return isinstance(action, argparse.BooleanOptionalAction) and name.startswith("no-")


def _converted(action: argparse.Action, text: str) -> object:
    value = action.type(text) if callable(action.type) else text
    if action.choices is not None and value not in action.choices:
        known = [str(choice) for choice in action.choices]
        raise ValueError(f"{text!r}: choose from {', '.join(known)}{did_you_mean(text, known)}")
    return value


def _texts(value: object) -> list[str]:
    """Return the values of an option that may be given several times: of a list, or of a table for KEY=VALUE."""
    if isinstance(value, dict):
        return [",".join(f"{key}={_text(one)}" for key, one in value.items())] if value else []
    return [_text(one) for one in value] if isinstance(value, list) else [_text(value)]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise TypeError(f"expected a text or a number, not {value!r}")
    return str(value)
