"""The transformers target's capabilities. Importable without transformers: it is imported when a factory is made."""

from __future__ import annotations

from ..base.protocol import Capabilities, Target
from ..base.releases import cannot_import
from ..base.stock import Setting
from ..base.trace import Config
from . import kit_limits
from .families import FAMILIES
from .features import Features, find

EVENTS = frozenset({"arrive", "step", "abort", "resume", "fork", "select", "reorder", "repeat", "crop", "reset"})
DRAFTS = 3
OPTIONS = {
    "family": tuple(FAMILIES),
    "cache": ("own", "own", "static"),
    "client": ("generate", "loop"),
    "chunks": ("any", "wide", "whole"),
    "forward": ("model", "tags"),
    "reuse": ("no", "yes"),
    "record": ("no", "no", "yes"),
    "offload": ("no", "no", "no", "no", "yes"),
    "wait": ("0", "2", "4"),
}
"""Switches of a trace.

family   the model
cache    the model's own cache, or a `StaticCache`
client   `generate` passes positions, a loop written by hand does not
chunks   prompts are fed in chunks of any size; in any, but of several columns where a row still is padding; or at once,
         and what comes later token by token
forward  tags and the real model, or tags alone
reuse    a batch that has ended leaves its cache, emptied in place, to the next one of the same size
record   the cache records past states, so that it can be cropped
offload  the cache keeps attention on the host between forwards (`offloading=True`); devices are simulated
wait     steps that the client waits for further requests before it begins a batch: larger batches
"""


STOCK = (
    Setting("a cache that the client keeps for another batch", {"reuse": "no"}, is_rare=True),
    Setting("offload_layers, a cache kept on the host", {"offload": "no"}, is_rare=True),
    Setting("a prompt that is fed in chunks", {"chunks": "whole"}),
    Setting(
        "calls that edit a cache between forwards",
        events=frozenset({"select", "reorder", "repeat", "crop", "reset", "fork"}),
    ),
    Setting("a further turn on the same cache", events=frozenset({"resume"})),
    Setting("cache.activate_past_recording()", {"record": "no", "num_speculative_tokens": "0"}),
    Setting("cache_implementation=static", {"cache": "own"}),
)
"""What `generate` does where nothing is set. The forms of the forward and the wait for a batch are the harness's."""


class TransformersFactory:
    """Opens clients of the transformers that can be imported in this process."""

    def __init__(self, name: str, family: str = "") -> None:
        from .model import Models

        self.name = name
        self.models = Models()
        self.features = find()
        self.capabilities = capabilities(family, self.features)

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        return refusal(config, self.features)

    def open(self, config: Config) -> Target:
        """Build a client for one trace."""
        from .target import TransformersTarget

        return TransformersTarget(config, self.models, self.features)


NEWEST = Features()


def capabilities(family: str = "", features: Features = NEWEST) -> Capabilities:
    """Return the capabilities of a release, with a family for all traces or with all families."""
    options = dict(OPTIONS)
    if family:
        options["family"] = (family,)
    if not features.tags:
        options |= {"forward": ("model",), "offload": ("no",)}
    if not features.records:
        options["record"] = ("no",)
    return Capabilities(
        events=EVENTS,
        modes=("none",),
        observes=frozenset({"leftovers", "real_model"} | ({"accesses", "caches"} if features.tags else set())),
        block_sizes=((4, 1), (8, 1)),
        group_counts=((1, 1),),
        max_speculative_tokens=DRAFTS if features.records else 0,
        speculative_modes=("none",),
        options=options,
        features=frozenset({"chunks", "min-tokens", "stop-tokens"}),
        lacks=frozenset({"preemption", "zeroing"}),
        engine=("transformers",),
        stock=STOCK,
        traces_per_second=2.0,
    )


def refusal(config: Config, features: Features = NEWEST) -> str:
    """Return "", or the reason why a configuration is not supported by a release."""
    return kit_limits.refusal("shadow", kit_limits.Case(config, features))


def variants() -> dict[str, str]:
    """Return the variants: one for each family."""
    return {slug: f"the {family.model_type} family alone" for slug, family in FAMILIES.items()}


def make_factory(variant: str) -> TransformersFactory:
    """Return the factory, in a process of the engine's environment. Imports transformers: ten seconds."""
    try:
        import transformers

        del transformers
        name = f"transformers:{variant}" if variant else "transformers"
        return TransformersFactory(name, variant)
    except ImportError as error:
        raise cannot_import("transformers", "transformers@5.23.0", error) from error
