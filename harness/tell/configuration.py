"""Puts the configuration of a trace into one line of words, for a reader who decides whether it is theirs."""

from __future__ import annotations

from collections.abc import Iterator

from ...targets.base.deployment import Deployment
from ...targets.base.trace import Trace
from ..units import plural


def configuration_words(trace: Trace, deployment: Deployment) -> str:
    """Return implementation, model, cache mode, drafts and what a server has to be told, in one line."""
    return ", ".join(_words(trace, deployment))


def _words(trace: Trace, deployment: Deployment) -> Iterator[str]:
    config = trace.config
    for one in deployment.implementations:
        if all(config.options.get(name) == value for name, value in one.options.items()):
            yield one.title + (" (the default)" if one.default else " (not the default)")
    if deployment.model:
        yield deployment.model
    if any(group.kind == "mamba" for group in config.groups):
        yield f"cache mode {config.mamba_cache_mode}"
    elif not config.enable_prefix_caching:
        yield "no prefix cache"
    drafts = config.num_speculative_tokens
    yield (plural(drafts, "draft") + " per step") if drafts else "no drafts"
    if config.async_depth:
        yield "asynchronous scheduling"
    if config.policy != "fcfs":
        yield f"{config.policy} scheduling"
    if deployment.unusual:
        yield f"off by default: {' '.join(deployment.unusual)}"
