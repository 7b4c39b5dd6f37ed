"""Runs a sample of a certificate again: the states and failures that it names must be there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Trace
from ..draw.trace_files import load_trace
from ..judge.outcome import Outcome
from .certificate import Certificate
from .expand import Expand, Expanded, Parent
from .scope import Alphabet


class Worker(Protocol):
    """A worker as a check uses it."""

    def expand(self, request: Expand) -> Expanded | Outcome:
        """Continue traces."""

    def run(self, trace: Trace) -> Outcome:
        """Run one trace."""


def check(certificate: Certificate, folder: Path, capabilities: Capabilities, worker: Worker) -> Iterator[str]:
    """Yield a line for each state that is another one now, and for each failure that does not fail so."""
    alphabets = [Alphabet(certificate.scope, config, capabilities) for config in certificate.scope.configuration]
    for number, sample in enumerate(certificate.sample, 1):
        config = certificate.scope.configuration[sample.configuration]
        context = alphabets[sample.configuration].context(sample.events)
        answer = worker.expand(Expand((Parent(config, sample.events, (), context, ()),)))
        seen = answer.grown[0].fingerprint if isinstance(answer, Expanded) else 0
        if seen != sample.fingerprint:
            yield f"sample {number}: state {seen:016x}, certified was {sample.fingerprint:016x}"
    for failing in certificate.failures:
        violation = worker.run(load_trace(folder / failing.file)).violation
        seen_signature = violation.signature if violation else "clean"
        if seen_signature != failing.signature:
            yield f"{failing.file}: {seen_signature}, certified was {failing.signature}"
