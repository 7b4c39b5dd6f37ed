"""The configuration of a gate, as it stands in the options file (`options_file`), for all verbs or in [gate].

    target = "vllm@."              fixes = ["builtin"]
    known = "known.toml"           config = { mamba_cache_mode = "align" }
    [gate]
    budget = "60s"                 profile = "gate"
    corpus = ["tests/traces"]      seed = 0
    out = "hybridfuzz-out/gate"    strict = false
    changed_since = "origin/main"

Paths are relative to the file. Options of the command line override the file. Without `fixes` the gate on a release
applies the packaged patches of that release; `fixes = []`, or `--hybridfuzz-fixes none`, applies none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from ...targets.base.environment import cache_folder
from ...targets.base.trace import TraceError
from ..group.known.fixes import BUILTIN, CORPUS
from ..options_file import GATE, GATE_OPTIONS, read_options
from ..quoting import one_line
from ..units import UnitError, duration
from ..units import settings as parse_pairs

NO_FIXES = "none"
BUDGETS = {"gate": 60.0, "nightly": 1800.0}
"""Default budgets of the search in seconds, by profile."""
PACKAGED_CORPUS = CORPUS
MESSAGE_MAX = 500


class SettingsError(Exception):
    """A configuration that cannot be used; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, MESSAGE_MAX))


class GateFile(Struct, frozen=True):
    """What the file says for the gate."""

    target: str = ""
    budget: str | int | float = ""
    seed: int | None = None
    profile: str = ""
    corpus: tuple[str, ...] = ()
    config: dict[str, str | int | bool] = {}
    known: str = ""
    fixes: tuple[str, ...] | None = None
    out: str = ""
    strict: bool = False
    changed_since: str = ""


class GateSettings(Struct, frozen=True, kw_only=True):
    """The settings in effect. `budget` is in seconds; with `seed` None the search draws one.

    `fixes` are folders with a known.toml, or "builtin"; None for the packaged patches of the release under test. With
    `strict` an adapter that does not fit the engine is a failure. `changed_since` is a commit, "" for none.
    """

    target: str
    budget: float
    profile: str
    seed: int | None
    corpus: tuple[Path, ...]
    overrides: Mapping[str, object]
    known: Path | None
    fixes: tuple[str, ...] | None
    out: Path
    strict: bool = False
    changed_since: str = ""


def read_file(root: Path, profile: str = "") -> GateFile:
    """Read what the options file of a folder says for the gate, with a profile; defaults if there is none.

    A profile is one of the gate's own, or one that the file has. Raises SettingsError.
    """
    try:
        file = read_options(root)
        entries = file.entries(GATE, GATE_OPTIONS, file.profile_of(GATE, profile))
    except TraceError as error:
        raise SettingsError(str(error)) from None
    try:
        return msgspec.convert({name.replace("-", "_"): one.value for name, one in entries.items()}, GateFile)
    except msgspec.ValidationError as error:
        [field] = re.findall(r"`\$\.(\w+)", str(error)) or [""]
        where = entries[field.replace("_", "-")].where if field else root
        raise SettingsError(f"{where}: {error}") from None


def combine(options: Mapping[str, object], root: Path) -> GateSettings:
    """Merge the command line's options (without their prefix) over the repository's file. Raises SettingsError."""
    file = read_file(root, str(options.get("profile") or ""))
    profile = str(options.get("profile") or file.profile or "gate")
    target = str(options.get("target") or _anchored(file.target, root))
    if not target:
        raise SettingsError(
            f"--hybridfuzz: no target; add target = ... to {root / 'hybridfuzz.toml'} or use --hybridfuzz-target T"
        )
    overrides: dict[str, object] = dict(file.config)
    chosen = options.get("config")
    for text in chosen if isinstance(chosen, list) else []:
        try:
            overrides |= parse_pairs(text)
        except UnitError as error:
            raise SettingsError(f"--hybridfuzz-config {error}") from None
    seed = options.get("seed", file.seed)
    if seed is None and profile != "nightly":
        seed = 0
    known, out = options.get("known"), options.get("out")
    return GateSettings(
        target=target,
        budget=_seconds(options.get("budget") or file.budget or BUDGETS.get(profile, BUDGETS["gate"])),
        profile=profile,
        seed=seed if isinstance(seed, int) else None,
        corpus=tuple(_existing(root / folder) for folder in file.corpus),
        overrides=overrides,
        known=_existing(Path(str(known)) if known else root / file.known) if known or file.known else None,
        fixes=_fixes(options.get("fixes"), file.fixes, root),
        out=Path(str(out)) if out else root / file.out if file.out else own_folder(root) / "out",
        strict=bool(options.get("strict", file.strict)),
        changed_since=str(options.get("changed_since") or file.changed_since),
    )


def own_folder(root: Path) -> Path:
    """Return the folder in the user's cache for what a gate writes about a checkout, which stays as it is."""
    return cache_folder() / "gate" / sha256(str(root).encode()).hexdigest()[:12]


def _anchored(target: str, root: Path) -> str:
    """Return a target of the file with a relative path after @ resolved against the file's folder."""
    name, at, version = target.partition("@")
    if at and root != Path.cwd() and _is_there(root / version):
        return f"{name}@{root / version}"
    return target


def _fixes(given: object, listed: tuple[str, ...] | None, root: Path) -> tuple[str, ...] | None:
    """Return the folders of the command line, else those of the file, whose paths are relative to its folder."""
    if isinstance(given, list):
        return tuple(one for one in given if one != NO_FIXES)
    return None if listed is None else tuple(one if one == BUILTIN else str(_existing(root / one)) for one in listed)


def _seconds(value: object) -> float:
    try:
        return duration(str(value))
    except UnitError as error:
        raise SettingsError(f"budget {error}") from None


def _existing(path: Path) -> Path:
    if not _is_there(path):
        raise SettingsError(f"{path}: no such file or folder")
    return path


def _is_there(path: Path) -> bool:
    """Return True for a file or folder, False also for a name that none can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
