"""Which violations do not fail a gate: those in known.toml, and those that the packaged corpus knows in this release.

corpus/ENGINE/RELEASE--CAUSE--SIGNATURE.json says that RELEASE of ENGINE shows SIGNATURE. On that
release it is no news. On any other version, a checkout above all, it is a regression.
"""

from __future__ import annotations

from collections.abc import Callable

from ...targets.base.registry import parse
from ..findings.known import Known, load_known, reason_for
from .settings import PACKAGED_CORPUS, GateSettings


def known_bugs(settings: GateSettings, version: str) -> Callable[[str], str]:
    """Signature -> why it is no news, "" if it is. TraceError if known.toml cannot be used."""
    known = [*shipped(settings.target, version)]
    if settings.known:
        known += load_known(settings.known)
    return lambda signature: reason_for(known, signature, settings.target)


def shipped(target: str, version: str) -> list[Known]:
    """What the packaged corpus says about this release."""
    found = []
    for path in sorted((PACKAGED_CORPUS / parse(target).name).glob("*--*--*.json")):
        release, cause, signature = path.stem.split("--")
        if release == version:
            found.append(Known(signature, f"{cause} in {release}, from the packaged corpus"))
    return found
