"""Known bugs, which do not fail a gate, and the patches behind which it runs.

Patches first: with a known bug fixed every failure is another bug, whatever its symptom. On a release that
hybridfuzz has patches for, the gate applies them unless its settings say otherwise. What has no patch in effect is
acknowledged:

* an entry of known.toml with a condition: by the evidence of the failing trace (`group.known.conditions`);
* an entry with signatures alone: by the signature, which hides every other bug with the same one;
* a packaged trace ENGINE/RELEASE--CAUSE--SIGNATURE.json whose cause docs/explanation/ENGINE.md argues: likewise, on
  that release only. On any other version, a checkout included, it fails.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from pathlib import Path

from ...targets.base.launch import Launch
from ...targets.base.registry import parse
from ..group.known.fixes import BUILTIN, KNOWN_FILE, Fixes, apply_fixes, asked_fixes, read_fixes
from ..group.known.known_toml import Known, load_known
from .settings import PACKAGED_CORPUS, GateSettings


def fixes_for(settings: GateSettings, launch: Launch) -> Fixes:
    """Return the known bugs that the settings name, with their patches applied.

    Raises TraceError or TargetError for a file that cannot be used.
    """
    known = [*(load_known(settings.known) if settings.known else ())]
    if settings.fixes is None:
        known += packaged_fixes(settings.target, launch.version)
    today = datetime.date.today()
    known += asked_fixes(settings.fixes or (), settings.target, launch.version, today)
    return apply_fixes(launch, known, settings.target, today)


def fixes_words(settings: GateSettings, fixes: Fixes) -> list[str]:
    """Return what `--fixes` of other commands takes for the patches that are in effect here."""
    folders = {Path(entry.folder) for entry in fixes.in_effect}

    def folder(where: str) -> Path:
        path = PACKAGED_CORPUS / parse(settings.target).name if where == BUILTIN else Path(where)
        return path if path.is_dir() else path.parent

    named = [str(settings.known)] if settings.known else []
    return [where for where in dict.fromkeys([*named, *(settings.fixes or ()), BUILTIN]) if folder(where) in folders]


def packaged_fixes(target: str, version: str) -> list[Known]:
    """Return the packaged known bugs with a patch for exactly this release: none for a checkout."""
    if not (PACKAGED_CORPUS / parse(target).name / KNOWN_FILE).exists():
        return []
    return [entry for entry in read_fixes(BUILTIN, target) if entry.patch and version in entry.releases]


def acknowledged(target: str, fixes: Fixes) -> list[Known]:
    """Return the known bugs without a patch in effect."""
    fixed = {trace for entry in fixes.in_effect for trace in entry.traces}
    return [*shipped(target, fixes.unpatched.version, fixed), *fixes.acknowledged]


def shipped(target: str, version: str, fixed: Collection[str] = ()) -> list[Known]:
    """Return the known bugs of a release, from the names of the packaged traces; without those of fixed causes."""
    found = []
    for path in sorted((PACKAGED_CORPUS / parse(target).name).glob("*--*--*.json")):
        release, cause, signature = path.stem.split("--")
        if release == version and path.name not in fixed:
            found.append(Known(signature=signature, reason=f"{cause} in {release}, from the packaged corpus"))
    return found
