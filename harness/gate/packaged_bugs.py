"""Known bugs, which do not fail a gate: those listed in known.toml, and those of a release in the packaged corpus.

A packaged trace ENGINE/RELEASE--CAUSE--SIGNATURE.json shows SIGNATURE on RELEASE of ENGINE because of CAUSE, which
docs/ENGINE.md argues. On that release the signature is known. On any other version, a checkout included, it fails.
"""

from __future__ import annotations

from collections.abc import Callable

from ...targets.base.registry import parse
from ..findings.known import Known, load_known, reason_for
from .settings import PACKAGED_CORPUS, GateSettings


def known_bugs(settings: GateSettings, version: str) -> Callable[[str], str]:
    """Return a function from a signature to the reason why it is known, "" if it is not.

    Raises TraceError if known.toml cannot be read.
    """
    known = [*shipped(settings.target, version)]
    if settings.known:
        known += load_known(settings.known)
    return lambda signature: reason_for(known, signature, settings.target)


def shipped(target: str, version: str) -> list[Known]:
    """Return the known bugs of a release, from the names of the packaged traces."""
    found = []
    for path in sorted((PACKAGED_CORPUS / parse(target).name).glob("*--*--*.json")):
        release, cause, signature = path.stem.split("--")
        if release == version:
            found.append(Known(signature=signature, reason=f"{cause} in {release}, from the packaged corpus"))
    return found
