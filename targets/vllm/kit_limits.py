"""What the three kits of the vLLM target cannot do, and why: one table. Importable without vLLM.

    shadow  vLLM's scheduler and runner around shadow layers (`shadow_kit`): exact tags, on a CPU
    real    the same around vLLM's own models and kernels (`gpu`)
    script  a file that needs vLLM and torch only (`repro`)

Values of the trace stand in a reason as `{options.NAME}` and `{config.NAME}`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from ...reference.layout import Mode
from ..base.kits import Limit, Row, first_reason, in_words
from ..base.repro import Failure
from ..base.trace import Config, Group, Turn, has_stop_string
from .models import (
    ADAPTED,
    MIXERS,
    NO_DRAFTS,
    STATE_KIND,
    WINDOWED,
    WITH_EAGLE,
    WITH_IMAGES,
    has_layers,
    layer_kinds,
    mixer,
)
from .options import (
    PLAIN,
    Options,
    drafts_on_device,
    has_files,
    has_peer,
    is_v2,
    offloads,
    offloads_simply,
    ring_entries,
    varies_sampling,
)
from .release import Release

Kit = Literal["shadow", "real", "script"]
_NO_FAILURE = Failure("", "", "", (), 0)
_DEFAULTS = {"runner": PLAIN.runner, "mixer": PLAIN.mixer}
"""Options whose default a release may lack; the others fall back to the first of its values."""
CONV_WIDTHS = (4,)
REAL_MODES: tuple[Mode, ...] = ("align", "none")
TOKENS, HANG, ENDLESS, LEAK, HIT, ROOM = "tokens", "hang", "endless", "leak", "hit", "room"
LATE, CRASH = "late", "crash"
"""What a script shows: a client receives wrong tokens, nothing runs while clients wait, requests run without an end,
memory is not given back, a prefix that is cached is computed again, a request is admitted without room for it, one
goes on after its abort, vLLM raises."""
SHOWN: Mapping[tuple[str, str], str] = {
    **{(f"M{number}", ""): TOKENS for number in range(2, 7)},
    **{(f"S{number}", ""): TOKENS for number in range(1, 9)},
    ("M8", "stall"): HANG,
    ("M8", "drain"): ENDLESS,
    ("M8", "hit"): HIT,
    ("M8", "aborted"): LATE,
    ("M7", "blocks"): ROOM,
    ("M1", ""): LEAK,
    ("M9", ""): LEAK,
    ("M9", "peak"): "",  # given back in the end: a client sees nothing of it
    ("CRASH", ""): CRASH,
}
"""Oracle and field ("" for every other field) of the violations -> how a script shows them, "" if it cannot."""


RANKS_MAX = 8


class Case(NamedTuple):
    """What is asked of a kit.

    release   the vLLM that runs it (shadow)
    drivable  option -> the values that the release is driven with (shadow)
    device    where it runs (real)
    gpus      how many GPUs there are (real); a machine that is not asked has enough
    failure   what has to be shown (script)
    """

    config: Config
    options: Options
    release: Release = Release()
    drivable: Mapping[str, Sequence[str]] = {}
    device: str = ""
    gpus: int = RANKS_MAX
    failure: Failure = _NO_FAILURE

    @property
    def drafts(self) -> int:
        """The most drafts of a step."""
        return self.config.num_speculative_tokens

    def of_kind(self, kind: str) -> list[Group]:
        """Return the groups of a kind."""
        return [group for group in self.config.groups if group.kind == kind]

    @property
    def drafting(self) -> list[Group]:
        """The groups of the drafter."""
        return [group for group in self.config.groups if group.draft]

    @property
    def local(self) -> list[Group]:
        """The groups of local attention."""
        return [group for group in self.config.groups if group.window or group.chunk]

    @property
    def sizes(self) -> set[int]:
        """The block sizes."""
        return {group.block_size for group in self.config.groups}

    @property
    def state_size(self) -> int:
        """The largest block of states."""
        return max(group.block_size for group in self.of_kind("mamba"))

    def lacks_blocks(self, more: int) -> bool:
        """Return True if the pool is smaller than the smallest one and `more` blocks."""
        return self.config.num_blocks < self.config.smallest_pool() + more


def _both(feature: str, refuses: Callable[[Case], object], reason: str) -> Iterator[Row[Case]]:
    """Yield a row for shadow layers, and one for real models."""
    for kit in ("shadow", "real"):
        yield Row(kit, feature, refuses, reason)


def _undriven() -> Iterator[Row[Case]]:
    """Yield a row for each option: a release may lack some of its values."""
    for name in Options.__struct_fields__:

        def is_undriven(case: Case, name: str = name) -> bool:
            values = case.drivable.get(name, ())
            return bool(values) and case.config.options.get(name, _DEFAULTS.get(name, values[0])) not in values

        yield Row("shadow", name, is_undriven, f"{name}={{options.{name}}} is not driven on this release")


def _is_too_small_for_a_block(name: str) -> Callable[[Case], bool]:
    def is_too_small(case: Case) -> bool:
        aligns = case.config.mamba_cache_mode == "align" and name in case.release.limits_of_a_block
        return aligns and 0 < getattr(case.config, name) < max(case.sizes)

    return is_too_small


def _shares_a_group(case: Case) -> bool:
    """Return True if the drafter's layer has the shape of others: vLLM forms groups as large as the smallest number of
    layers of any shape."""
    shapes = Counter(
        (group.kind, group.kind == "attention" and group.block_size, group.window, group.chunk)
        for group in case.config.groups
    )
    return {group.layers for group in case.config.groups} != {1} or min(shapes.values()) > 1


def _kinds(case: Case) -> bool:
    return {group.kind for group in case.config.groups} != {"mamba", "attention"}


def _inner(case: Case) -> int:
    """Return the states of Mamba 2 that chunks may leave inside."""
    return len(case.of_kind("mamba")) * (case.options.mixer == "mamba2")


def _drafts_ahead_plainly(case: Case) -> bool:
    """Return True if the V2 runner schedules ahead of drafts without EAGLE's rules."""
    ahead = case.config.async_depth > 0 and case.drafts > 0 and is_v2(case.config)
    return ahead and not case.config.eagle_block_drop and not case.drafting


ROWS: tuple[Row[Case], ...] = (
    # ---- Shadow layers. Groups of local attention.
    *_both("groups", _kinds, "it needs groups of both kinds, mamba and attention"),
    Row("shadow", "local attention", lambda c: c.local and not c.release.local_groups,
        "this release has no groups of local attention beside full attention and states"),
    *_both("local attention", lambda c: c.local and not any(group not in c.local for group in c.of_kind("attention")),
        "local attention needs a group of full attention beside it"),
    Row("shadow", "local attention",
        lambda c: any(max(one.block_size for one in c.of_kind("attention")) % group.block_size for group in c.local),
        "the largest attention block must be a multiple of the others"),
    *_both("local attention", lambda c: c.local and c.lacks_blocks(len(c.local)),
        "a window that begins inside a block needs one more block: raise num_blocks"),
    Row("shadow", "chunked-local attention",
        lambda c: any(group.chunk for group in c.local) and c.options.graphs != "none",
        "vLLM captures no graphs with chunked-local attention"),
    Row("shadow", "chunked-local attention",
        lambda c: any(group.chunk for group in c.local)
        and c.drafts and (c.config.eagle_block_drop or c.options.runner != "v1"),
        "vLLM refuses chunked-local attention with EAGLE's rules"),
    Row("shadow", "chunked-local attention", lambda c: any(group.chunk for group in c.local) and len(c.sizes) > 1,
        "vLLM refuses chunked-local attention with unequal block sizes"),
    # Block sizes and the unit of keys.
    Row("shadow", "prefix_match_unit",
        lambda c: 0 < c.options.prefix_match_unit < c.config.conv_width - 1 and c.options.mixer == "mamba2",
        "a chunk of a Mamba 2 layer may leave a state after prefix_match_unit tokens, whose window it must hold"),
    Row("shadow", "block sizes", lambda c: len(c.sizes) > 1 and not c.release.partial_hits,
        "this release gives all groups blocks of one size"),
    Row("shadow", "block sizes", lambda c: c.config.mamba_cache_mode != "none" and c.drafts >= c.state_size,
        "a step must not cross two boundaries of states by its drafts: lower num_speculative_tokens"),
    # The drafter's own group.
    Row("shadow", "the drafter's group", lambda c: c.drafting and not c.release.draft_groups,
        "the drafter of this release has no group of its own here"),
    *_both("the drafter's group",
        lambda c: c.drafting and (len(c.drafting) > 1 or not c.drafts or not is_v2(c.config)),
        "the V2 runner has one drafter with a group, if there are drafts"),
    Row("shadow", "the drafter's group", lambda c: c.drafting and c.options.graphs != "none",
        "the drafter's own graphs are not driven"),
    *_both("the drafter's group", lambda c: any(group.window or group.chunk for group in c.drafting),
        "the drafter attends to everything"),
    *_both("the drafter's group",
        lambda c: c.drafting and not any(not group.draft for group in c.of_kind("attention")),
        "the model needs attention of its own"),
    *_both("the drafter's group", lambda c: c.drafting and _shares_a_group(c),
        "vLLM would put the drafter's layer into a group of the model's"),
    # What the release has.
    Row("shadow", "conv_width", lambda c: c.config.conv_width not in CONV_WIDTHS,
        f"conv_width must be {CONV_WIDTHS[0]}"),
    Row("shadow", "mamba_cache_mode",
        lambda c: c.drafts and c.config.mamba_cache_mode not in c.release.speculative_modes,
        "this release does not speculate with mamba_cache_mode={config.mamba_cache_mode}"),
    Row("shadow", "mamba_cache_mode", lambda c: c.config.mamba_cache_mode not in c.release.modes,
        "mamba_cache_mode={config.mamba_cache_mode} is not supported"),
    *_undriven(),
    *(
        Row("shadow", name, _is_too_small_for_a_block(name),
            f"this release wants {name} to be at least a block in mode align")
        for name in ("long_prefill_token_threshold", "max_num_batched_tokens")
    ),
    Row("shadow", "data_parallel", lambda c: has_peer(c.config) and not c.release.coordinates,
        "this release's coordination of data-parallel ranks is not driven"),
    Row("shadow", "async_depth",
        lambda c: c.config.async_depth and c.config.enable_prefix_caching and not c.release.caches_asynchronously,
        "this release does not schedule ahead with a prefix cache"),
    Row("shadow", "async_depth", lambda c: drafts_on_device(c.config) and not c.release.device_drafts,
        "the V1 runner of this release does not schedule ahead of its drafts"),
    Row("shadow", "async_depth", lambda c: _drafts_ahead_plainly(c) and not c.release.v2_drafts_ahead,
        "the V2 runner of this release does not schedule ahead of drafts without EAGLE's rules"),
    # Combinations.
    Row("shadow", "eagle_block_drop",
        lambda c: c.config.eagle_block_drop and c.options.runner == "v1" and not c.release.lookahead_hashes,
        "the V1 runner of this release would load a real drafter for eagle_block_drop"),
    Row("shadow", "mixer", lambda c: c.options.mixer in c.release.plain_mixers and c.drafts,
        "mixer={options.mixer} does not speculate in this release"),
    Row("shadow", "mode all",
        lambda c: c.config.mamba_cache_mode == "all" and c.options.mixer not in ("mamba1", "mamba2"),
        "mode all needs mixer=mamba1 or mamba2"),
    Row("shadow", "mode all", lambda c: c.config.mamba_cache_mode == "all" and c.drafts and is_v2(c.config),
        "in mode all the mixer asserts columns of verifications, which the V2 runner does not pass"),
    Row("shadow", "mode all",
        lambda c: c.config.mamba_cache_mode == "all" and c.release.aligns_tables and c.options.graphs != "none",
        "graphs in mode all need blocks of 128 tokens in this release"),
    Row("shadow", "mode all",
        lambda c: c.config.mamba_cache_mode == "all" and any(group.block_size % 8 for group in c.of_kind("mamba")),
        "the convolution's kernel needs blocks of a multiple of 8 tokens in mode all"),
    Row("shadow", "graphs",
        lambda c: c.release.state_per_seat and c.options.graphs != "none"
        and c.config.max_num_seqs > c.config.num_blocks,
        "with graphs the pool needs a block for each request: raise num_blocks or lower max_num_seqs"),
    Row("shadow", "num_blocks", lambda c: c.options.mixer == "mamba2" and c.lacks_blocks(_inner(c)),
        "a chunk of a Mamba 2 layer may need one more block for a state: raise num_blocks"),
    # ---- Shadow layers and real models.
    *_both("connector=offloading", lambda c: offloads(c.config) and not c.config.enable_prefix_caching,
        "vLLM refuses it without prefix caching, where a hybrid model's blocks have no common hashes"),
    *_both("connector=simple_cpu", lambda c: offloads_simply(c.config) and not c.config.enable_prefix_caching,
        "without prefix caching it turns itself off: use connector=none"),
    *_both("block sizes", lambda c: any(size % c.state_size for size in c.sizes),
        "the planner makes attention blocks as large as the blocks of states, or a multiple"),
    *_both("prefix_match_unit",
        lambda c: c.options.prefix_match_unit and c.config.hash_block_size % c.options.prefix_match_unit,
        "every block size must be a multiple of prefix_match_unit"),
    *_both("prefix_match_unit",
        lambda c: c.options.prefix_match_unit and c.lacks_blocks(_inner(c) + len(c.config.groups)),
        "a hit inside a block may need one more block for each group: raise num_blocks"),
    *_both("pipeline", lambda c: c.options.pipeline != "none" and not c.config.async_depth,
        "pipeline stages are driven with steps in flight"),
    *_both("pipeline", lambda c: c.options.pipeline == "sync" and c.drafts,
        "pipeline stages without asynchronous scheduling are driven without drafts"),
    Row("real", "pipeline", lambda c: c.options.pipeline == "async" and c.drafts,
        "pipeline stages are driven with drafts with shadow layers only"),
    *_both("pipeline", lambda c: c.options.pipeline == "async" and not is_v2(c.config),
        "vLLM refuses asynchronous scheduling of pipeline stages on the V1 runner"),
    *_both("async_depth", lambda c: c.config.async_depth > 1 and c.options.pipeline != "async",
        "vLLM has two steps in flight beside pipeline stages with asynchronous scheduling: pipeline=async"),
    Row("shadow", "sampling",
        lambda c: varies_sampling(c.config) and is_v2(c.config) and not c.release.slot_sampling,
        "the V2 runner of this release keeps sampling parameters otherwise: use sampling=greedy"),
    Row("real", "sampling", lambda c: varies_sampling(c.config) and (is_v2(c.config) or c.drafts > 0),
        "sampling parameters move with rows on the V1 runner without drafts: use sampling=greedy"),
    *_both("replay", lambda c: c.options.replay and not ring_entries(c.config),
        "ReplaySSM needs mixer=mamba2 on the V1 runner, without drafts, connectors and mode all"),
    *_both("metadata",
        lambda c: c.options.metadata == "shared" and not (c.options.mixer == "gdn" and is_v2(c.config)),
        "only GDN layers on the V2 runner share metadata"),
    # ---- Real models.
    Row("real", "block sizes", lambda c: any(size % 16 for size in c.sizes),
        "its attention kernel takes block sizes that are multiples of 16"),
    Row("real", "conv_width", lambda c: c.config.conv_width not in CONV_WIDTHS,
        f"its convolution has {CONV_WIDTHS[0]} taps"),
    Row("real", "mamba_cache_mode", lambda c: c.config.mamba_cache_mode not in REAL_MODES,
        "its models have no mamba_cache_mode={config.mamba_cache_mode}"),
    Row("real", "eagle_block_drop", lambda c: c.config.eagle_block_drop and c.options.mixer not in WITH_EAGLE,
        "vLLM has no MTP head for the model with mixer={options.mixer}"),
    Row("real", "graphs", lambda c: c.device != "cuda" and c.options.graphs == "piecewise",
        "piecewise graphs need a GPU"),
    Row("real", "ranks", lambda c: not 1 <= c.options.ranks <= RANKS_MAX,
        f"ranks={{options.ranks}}: 1 to {RANKS_MAX} are possible"),
    Row("real", "ranks", lambda c: c.device == "cuda" and c.options.ranks > c.gpus,
        "ranks={options.ranks} needs a GPU for each data-parallel rank: this machine shows fewer"),
    Row("real", "inputs", lambda c: c.options.inputs == "images" and c.options.mixer not in WITH_IMAGES,
        "images are driven with Qwen3.5: mixer=gdn"),
    Row("real", "inputs", lambda c: c.options.inputs == "images" and c.local,
        "Nemotron-H alone has windows beside full attention, and is driven without images"),
    Row("real", "inputs", lambda c: c.options.inputs == "adapters" and mixer(c.config) not in ADAPTED,
        "adapters are driven with Qwen3-Next and Granite 4 only (no windows, no EAGLE's rules beside mamba2)"),
    Row("real", "inputs", lambda c: c.options.inputs != PLAIN.inputs and c.options.graphs == "piecewise",
        "piecewise graphs are not driven with {options.inputs}"),
    Row("real", "inputs", lambda c: c.options.inputs != PLAIN.inputs and c.options.ranks > 1,
        "the requests of other ranks have no {options.inputs}"),
    Row("real", "the drafter's group", lambda c: c.drafting and c.options.mixer not in WITH_EAGLE,
        "vLLM has no MTP head for the model with mixer={options.mixer}"),
    Row("real", "the drafter's group", lambda c: c.drafting and c.local,
        "Nemotron-H's head asks for the window of a layer that the model lacks"),
    Row("real", "the drafter's group", lambda c: c.drafting and c.options.graphs == "piecewise",
        "the head's forwards are eager, beside full graphs of the model only"),
    Row("real", "the drafter's group", lambda c: c.drafting and c.options.connector != PLAIN.connector,
        "the pages of other engines are computed without the head"),
    Row("real", "the drafter's group", lambda c: c.drafting and c.options.ranks > 1,
        "ranks in processes of their own are not driven with a head"),
    Row("real", "the drafter's group", lambda c: c.drafting and c.options.inputs == "adapters",
        "the head is not driven with adapters"),
    Row("real", "chunked-local attention", lambda c: any(group.chunk for group in c.local),
        "no hybrid model has chunked-local attention"),
    Row("real", "local attention", lambda c: c.local and c.options.mixer not in WINDOWED,
        "Nemotron-H alone has windows beside full attention: mixer=mamba2 or nemotron_h"),
    Row("real", "local attention", lambda c: len({group.block_size for group in c.of_kind("attention")}) > 1,
        "blocks of a window, and of an MTP head, are as large as those of full attention"),
    Row("real", "local attention", lambda c: c.local and c.options.connector != PLAIN.connector,
        "windows are not driven with connectors"),
    Row("real", "mixer", lambda c: c.options.mixer == "linear",
        "no real model: in Bailing 2.5 plain linear attention has latent attention (MLA) beside it, not driven"),
    Row("real", "mixer", lambda c: c.options.mixer not in MIXERS,
        "there is no real model with mixer={options.mixer}"),
    Row("real", "mixer", lambda c: not has_layers(c.options.mixer, layer_kinds(c.config)),
        "Jamba's layers have a period: as many state layers before each attention layer"),
    Row("real", "mixer", lambda c: c.options.mixer in NO_DRAFTS and c.drafts,
        "mixer={options.mixer} is not driven with speculation on real models"),
    Row("real", "num_blocks",
        lambda c: STATE_KIND.get(c.options.mixer, c.options.mixer) == "mamba2"
        and c.lacks_blocks(len(c.of_kind("mamba"))),
        "a chunk of a Mamba 2 layer may keep one state more: raise num_blocks"),
    Row("real", "dtype",
        lambda c: c.options.mixer not in ("gdn", "short_conv") and c.options.dtype == "bfloat16"
        and max(c.sizes) < 32,
        "a page of 16 bfloat16 keys and values is smaller than a state"),
    Row("real", "connector=offloading", lambda c: offloads(c.config) and c.options.prefix_match_unit,
        "hits inside blocks beside loads of whole blocks are driven with shadow layers only"),
    Row("real", "connector=simple_cpu", lambda c: offloads_simply(c.config),
        "SimpleCPUOffloadConnector is driven with shadow layers only"),
    Row("real", "tier", lambda c: has_files(c.config),
        "a file tier is driven with shadow layers only: use tier=none"),
    # ---- Scripts.
    Row("script", "requests", lambda c: any(isinstance(one, Turn) and has_stop_string(one) for one in c.failure.events),
        "a stop string, which the front end finds"),
    Row("script", "assertions", lambda c: not shown(c.failure), "{failure.oracle} ({failure.field}) on vLLM yet"),
)  # fmt: skip


def shown(failure: Failure) -> str:
    """Return how a script shows a failure, "" if it cannot."""
    return SHOWN.get((failure.oracle, failure.field), SHOWN.get((failure.oracle, ""), ""))


def refusal(kit: Kit, case: Case) -> str:
    """Return "", or the reason why a kit cannot run a case."""
    return first_reason(ROWS, kit, case, config=case.config, options=case.options, failure=case.failure)


def limits() -> list[Limit]:
    """Return the table in words."""
    return in_words(ROWS, "config", "options", "failure")
