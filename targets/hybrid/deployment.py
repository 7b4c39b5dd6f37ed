"""The built-in engine's part of a report. It has no server: the settings of the trace are its configuration."""

from __future__ import annotations

from ..base.deployment import Deployment
from ..base.trace import Trace


def deployment(variant: str, trace: Trace, version: str, device: str = "") -> Deployment:
    """Return the description of the built-in engine, or of one of its mutants."""
    del trace, version
    mutant = (f"the mutant {variant}: one known bug put back in",) if variant else ()
    layers = "tiny layers with real kernels" if device else "layers that keep an exact digest of the tokens so far"
    return Deployment(
        title="hybrid (built into hybridfuzz)",
        own=("all of it: scheduler, cache manager, block tables, worker", *mutant),
        replaced=(f"the model: {layers}; the next token is a function of that digest",),
        packages=("torch", "numpy") if device else (),
    )
