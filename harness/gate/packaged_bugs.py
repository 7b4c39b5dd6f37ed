"""Known bugs, which do not fail a gate: those listed in known.toml, and those of a release in the packaged corpus.

A packaged trace ENGINE/RELEASE--CAUSE--SIGNATURE.json shows SIGNATURE on RELEASE of ENGINE because of CAUSE, which
docs/ENGINE.md argues. On that release the signature is known, unless the gate runs with a fix of the cause. On any
other version, a checkout included, it fails.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection

from ...targets.base.launch import Launch
from ...targets.base.registry import parse
from ..findings.fixes import Fixes, apply_fixes, read_fixes
from ..findings.known import Known, load_known, reason_for
from .settings import PACKAGED_CORPUS, GateSettings


def fixes_for(settings: GateSettings, launch: Launch) -> Fixes:
    """Return the known bugs that the settings name, with their patches applied.

    Raises TraceError or TargetError for a file that cannot be used.
    """
    known = [*(load_known(settings.known) if settings.known else ())]
    known += [entry for where in settings.fixes for entry in read_fixes(where, settings.target)]
    return apply_fixes(launch, known, settings.target, datetime.date.today())


def known_bugs(target: str, fixes: Fixes) -> Callable[[str], str]:
    """Return a function from a signature to the reason why it is known, "" if it is not."""
    fixed = {trace for entry in fixes.in_effect for trace in entry.traces}
    known = [*shipped(target, fixes.unpatched.version, fixed), *fixes.acknowledged]
    return lambda signature: reason_for(known, signature, target)


def shipped(target: str, version: str, fixed: Collection[str] = ()) -> list[Known]:
    """Return the known bugs of a release, from the names of the packaged traces; without those of fixed causes."""
    found = []
    for path in sorted((PACKAGED_CORPUS / parse(target).name).glob("*--*--*.json")):
        release, cause, signature = path.stem.split("--")
        if release == version and path.name not in fixed:
            found.append(Known(signature=signature, reason=f"{cause} in {release}, from the packaged corpus"))
    return found
