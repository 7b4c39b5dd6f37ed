"""The llama.cpp target's capabilities. Importable without llama.cpp: it is loaded when a factory is made."""

from __future__ import annotations

from ..base.protocol import Capabilities, Target
from ..base.releases import cannot_import
from ..base.stock import Setting
from ..base.trace import Config
from ..sequences.client_events import EVENTS
from . import kit_limits
from .families import FAMILIES

SERVER = "server"
"""The variant that drives the server."""
DRAFTS = 3
OPTIONS = {
    "family": tuple(FAMILIES),
    "planes": ("0", "0", "3", "1"),
    "kv": ("split", "split", "unified"),
    "ubatch": ("64", "16", "4"),
    "idle": ("kept", "kept", "saved", "moved", "copies"),
    "logits": ("last", "all"),
}
"""Switches of a trace.

family   the model
planes   snapshots of the recurrent state that a context keeps for each sequence, so that the newest tokens can be
         removed (`n_rs_seq`); families and builds that cannot have none
kv       attention cells of each sequence by itself, or of all together (`kv_unified`)
ubatch   most tokens that are computed at once (`n_ubatch`): a larger batch is split
idle     a parked session keeps its sequence, or its state is saved and restored into another one, of the same context
         or (moved) of another one; or (copies) it keeps its sequence, and a copy of it is saved at once; the copy of
         a running row is also restored at once
logits   asked for the last token of a prompt and for drafts, or for all tokens
"""


SERVER_OPTIONS = {
    "family": tuple(FAMILIES),
    "slots": ("4", "4", "2", "1"),
    "kv": ("unified", "unified", "split"),
    "ubatch": ("512", "512", "16", "4"),
    "checkpoints": ("32", "32", "2", "0"),
    "spacing": ("8192", "8192", "8", "1"),
    "ram": ("8192", "8192", "0"),
    "similarity": ("0.1", "0.1", "0"),
    "ahead": ("0", "1", "4", "12"),
    "idle": ("kept", "kept", "saved"),
    "draft": ("none", "none", "ngram", "model", "mtp"),
    "arrivals": ("together", "together", "apart", "queued"),
}
"""Switches of a trace on the server.

family       the model
slots        requests that are served at once (`--parallel`)
kv, ubatch   as of the library
checkpoints  most context checkpoints of a slot (`--ctx-checkpoints`)
spacing      least tokens between two of them (`--checkpoint-min-step`)
ram          MiB of the prompt cache, into which the state of an idle slot is saved (`--cache-ram`)
similarity   share of a prompt that a slot must have to be taken for it (`--slot-prompt-similarity`)
ahead        tokens that a request gets beyond the one that its client goes on with
idle         a parked session's slot is left to the server, or saved to a file and restored (`--slot-save-path`)
draft        drafts behind the tokens of a request (`--spec-type`): none, what followed the newest token before, or
             those of a second model, whose weights are a little different, or (mtp) of a block of the model itself
arrivals     the requests of a step arrive together, or each while the one before it is computed. Then each names its
             slot (`id_slot`), and the clients of aborted requests leave while others are computed. A slot that is named
             is free (apart), or may be busy, and the request waits there (queued)
"""
SERVER_STOCK = (
    Setting("--spec-type", {"draft": "none"}),
    Setting("id_slot", {"arrivals": "together"}, is_rare=True),
    Setting("--slot-save-path", {"idle": "kept"}, is_rare=True),
    Setting("--slot-prompt-similarity", {"similarity": "0.1"}, is_rare=True),
    Setting("--checkpoint-min-step", {"spacing": "8192"}, is_rare=True),
    Setting("--ctx-checkpoints", {"checkpoints": "32"}),
    Setting("--cache-ram", {"ram": "8192"}),
    Setting("--ubatch-size", {"ubatch": "512"}),
    Setting("--no-kv-unified", {"kv": "unified"}),
    Setting("--parallel", {"slots": "4"}),
)
"""`llama-server -m MODEL`, build 11549: the defaults of `common_params`, and four slots with unified cells. Its clients
do not name slots."""


class LlamaCppFactory:
    """Opens contexts of the library that this process finds."""

    def __init__(self, name: str, family: str = "") -> None:
        from .library import Library, find_library
        from .model import Models

        self.name = name
        self.models = Models(Library(find_library()))
        self.capabilities = capabilities(family, has_planes=self.models.library.has_planes)

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        return kit_limits.refusal("library", config)

    def open(self, config: Config) -> Target:
        """Build a client for one trace."""
        from .target import LlamaCppTarget

        return LlamaCppTarget(config, self.models.get(config.options["family"]))


class ServerFactory:
    """Starts servers of the wheel that this process finds."""

    def __init__(self) -> None:
        from .library import Library, find_library
        from .model import Models

        self.name = f"llamacpp:{SERVER}"
        self.models = Models(Library(find_library()), spelled=True)
        self.capabilities = server_capabilities()

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported."""
        return kit_limits.refusal("server", config)

    def open(self, config: Config) -> Target:
        """Start a server for one trace."""
        from .server_target import ServerTarget

        return ServerTarget(config, self.models.get(config.options["family"]))


def server_capabilities() -> Capabilities:
    """Return the capabilities of the server: what its clients get."""
    return Capabilities(
        events=EVENTS - {"shift"},
        modes=("none",),
        observes=frozenset({"real_model"}),
        block_sizes=((8, 1), (16, 1)),
        group_counts=((1, 1),),
        options=SERVER_OPTIONS,
        features=frozenset({"chunks", "overlaps"}),
        features_with={"arrivals": dict.fromkeys(("apart", "queued"), frozenset({"overlaps"}))},
        lacks=frozenset({"zeroing", "drafts-past-end"}),
        engine=("xllamacpp",),
        stock=SERVER_STOCK,
        has_server=True,
        traces_per_second=2.0,
    )


def capabilities(family: str = "", *, has_planes: bool = True) -> Capabilities:
    """Return the capabilities of a build, with a family for all traces or with all families."""
    options = dict(OPTIONS)
    if family:
        options["family"] = (family,)
    if not has_planes:
        options["planes"] = ("0",)
    return Capabilities(
        events=EVENTS,
        modes=("none",),
        observes=frozenset({"caches", "leftovers", "real_model"}),
        block_sizes=((8, 1), (16, 1)),
        group_counts=((1, 1),),
        max_speculative_tokens=DRAFTS,
        speculative_modes=("none",),
        variable_drafts=True,
        options=options,
        features=frozenset({"chunks"}),
        lacks=frozenset({"zeroing", "drafts-past-end"}),
        engine=("xllamacpp",),
        traces_per_second=8.0,
    )


def variants() -> dict[str, str]:
    """Return the variants: one for each family, and the server."""
    families = {slug: f"the {family.arch} family alone" for slug, family in FAMILIES.items()}
    return families | {SERVER: "llama.cpp's server: slots, prompt cache, context checkpoints"}


def make_factory(variant: str) -> LlamaCppFactory | ServerFactory:
    """Return the factory, in a process of the engine's environment."""
    try:
        if variant == SERVER:
            return ServerFactory()
        return LlamaCppFactory(f"llamacpp:{variant}" if variant else "llamacpp", variant)
    except ImportError as error:
        raise cannot_import("llama.cpp", "llamacpp@2026.10.11549", error) from error
