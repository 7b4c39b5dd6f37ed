"""A KV connector of the trace's choosing, behind vLLM's own connector API (`KVConnectorBase_V1` with `SupportsHMA`).

vLLM decides when a load is looked up, allocated, started, awaited, retried and given up, and when blocks are saved or
freed; the trace decides which tokens are stored (`ExternalLoad`), how long a load takes and whether it breaks off.

    lookup   as much as the store holds after the local hit; with a delay of 2 or more vLLM must ask again first
    load     while the request waits, for `delay` + 1 steps: half of the pages as early as possible, before the forwards
             in flight, half as late as possible, when the end of the load is reported
    failure  reported for the request as a whole: for several KV cache groups vLLM refuses block ids; a second load is
             offered after an odd delay only
    save     `store`, `sync`: published attention blocks and handed-off boundary states of prompts
    send     `transfer`: published attention blocks of a prompt when its request ends; its blocks are held until then

`store` and `transfer` load asynchronously, as all connectors of 0.33 do for hybrid models by default. `sync` is `store`
with `OffloadingConnector`'s option `sync_load_budget_bytes`: as many tokens as the budget of a step allows
(`sync_load_tokens`) are loaded before the forward of the step that admits their request, whole; further loads of the
step are asynchronous. vLLM has no way to report that a synchronous load failed where there are several KV cache groups,
so a load that the trace breaks off is asynchronous, too.

`store` is a best-effort cache (as OffloadingConnector), `transfer` hands content over (as NixlConnector): there vLLM
drops the output in flight of a preempted request, and a load may complete a local hit of full attention alone. It
brings the blocks without a key (`get_unhashed_block_ids_all_groups`), of local attention and of a drafter's also those
inside the hit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorTransferResults

from ....reference.prefix_cache import Key
from ....reference.tokens import EMPTY, Truth, chain
from ...base.external import computed_elsewhere, keys_to_load, longest_load, whole_blocks
from ...base.observe import Content, Loaded, PlannedRow, Record, SlotContent
from ...base.protocol import EngineError
from ...base.trace import Config, ExternalLoad
from ..options import has_files, offloads, offloads_simply, options_of, sync_load_tokens
from ..pool_reader import Pool, is_unlabelled
from ..shadow.recorder import Recorder
from .no_store import NullStore

Work = TypeVar("Work")
SEND_STEPS = 2
"""Steps that pass before the blocks of an ended request are sent."""


class Load(NamedTuple):
    """The load of one request, planned in `step`: (key, column, block) of each page. With `is_sync` it is over before
    the forward of that step."""

    name: str
    step: int
    pages: tuple[tuple[Key, int, int], ...]
    delay: int
    breaks_off: bool
    is_sync: bool


class Save(NamedTuple):
    """A block whose content is saved after the step's forward."""

    key: Key
    block: int


@dataclasses.dataclass
class Transfers(KVConnectorMetadata):
    """What the worker does in one step. Plain data, which may be pickled."""

    loads: list[Load] = dataclasses.field(default_factory=list)
    saves: list[Save] = dataclasses.field(default_factory=list)
    sends: dict[str, list[Save]] = dataclasses.field(default_factory=dict)


class Copies(Protocol):
    """What a real model's caches hold, beside the tags: copies of blocks, of a kind that only this class knows."""

    def read(self, group: int, block: int) -> Any:
        """Return a copy of a block of all layers of a group."""

    def write(self, group: int, index: int, block: int, copy: Any) -> None:
        """Write what layer `index` of the group has in a copy to a block."""

    def computed_elsewhere(self, key: Key, truth: Truth, length: int) -> Any:
        """Return a copy as another engine has it that computed the first `length` tokens: of the block with a key."""


class TagsAlone:
    """There is no real model: tags are all that the caches hold."""

    def read(self, group: int, block: int) -> None:
        """Return nothing."""

    def write(self, group: int, index: int, block: int, copy: None) -> None:
        """Write nothing."""

    def computed_elsewhere(self, key: Key, truth: Truth, length: int) -> None:
        """Return nothing."""


class Store(NullStore):
    """The content outside the pool, shared by both sides of the connector, and what the trace specifies about loads."""

    is_connected = True
    copies: Copies = TagsAlone()

    def __init__(self, config: Config, recorder: Recorder, truths: Mapping[str, Truth]) -> None:
        super().__init__()
        self.truths = truths
        """Of the requests, by name: what their token ids stand for."""
        self.kind = options_of(config).connector
        self.sync_tokens = sync_load_tokens(config)
        """Tokens that are loaded before the forward of one step, at most."""
        self.recorder = recorder
        self.caching = config.enable_prefix_caching
        self.copied: dict[Key, Any] = {}
        """Copies of the same blocks (`copies`)."""
        self.breaking: set[str] = set()
        """Requests whose next load breaks off."""
        self.withdrawn: set[str] = set()
        """Requests for which nothing is offered any more."""
        self.sending: set[str] = set()
        """Requests that ended and whose blocks are not sent yet."""
        self.waiting: dict[str, Load] = {}
        """Loads whose end vLLM does not know yet, or whose request was not computed since."""
        self._held: dict[Load, list[tuple[tuple[Content, ...], Any]]] = {}
        """Content of the loads under way: what is stored may be forgotten meanwhile."""

    def announce(self, event: ExternalLoad, tokens: Sequence[int]) -> None:
        """Store the first tokens of a request, as computed by another engine."""
        unit = whole_blocks(self.layout)
        contents = self.contents(event.name, tokens)[: event.length]
        for key, content in computed_elsewhere(self.layout, contents, event.states, unit):
            if key not in self.pages:
                self.pages[key] = (content,) * self.layout.groups[key.group].layers
                self.copied[key] = self.copies.computed_elsewhere(key, self.truths[event.name], len(contents))
        super().announce(event, tokens)
        if event.breaks_off:
            self.breaking.add(event.name)

    def contents(self, name: str, tokens: Sequence[int]) -> Sequence[int]:
        """Return the content of all tokens of a request."""
        return self.truths[name].contents(0, tokens)

    def matching(self, tags: Sequence[int]) -> Collection[Key]:
        """Return the keys that a request with these tags can use. The last slot of a drafter's block depends on the
        token after the block, which is compared here, as vLLM's lookahead hashes would."""
        shifts = [group.shift for group in self.layout.groups]
        if not any(shifts):
            return self.pages.keys()
        return {key for key, pages in self.pages.items() if _follows(pages[0], tags[key.depth :], shifts[key.group])}

    def plan(self, load: Load, local: int, total: int) -> None:
        """Add a load that extends a local hit of `local` tokens to `total`."""
        self.breaking.discard(load.name)
        self._held[load] = [(self.pages[key], self.copied[key]) for key, _, _ in load.pages]
        if load.is_sync:
            self.joined[load.name] = total - local
            return
        self.waiting[load.name] = load
        self.started.append(PlannedRow(load.name, total, 0, 0, True, local, external=total - local))

    def early(self) -> Sequence[Record]:
        """Load half of the pages of the loads that were planned just now, before the forwards in flight."""
        return [record for row in self.started for record in self._write(self.waiting[row.name], 0)]

    def ends_wait(self, name: str) -> bool:
        """Note that a request is computed. Return True if it waited for a load until now."""
        return self.waiting.pop(name, None) is not None

    def late(self, load: Load) -> None:
        """Load the other half, unless the load broke off."""
        if not load.breaks_off:
            self._load(load, 1)
        del self._held[load]

    def whole(self, load: Load) -> None:
        """Load all pages."""
        self._load(load, 0)
        self.late(load)

    def _load(self, load: Load, first: int) -> None:
        for record in self._write(load, first):
            self.recorder.note(record)

    def _write(self, load: Load, first: int) -> Iterator[Loaded]:
        """Write every second page from `first` on, and yield the record of each layer."""
        pages_of = zip(load.pages, self._held[load], strict=True)
        for (key, column, block), (pages, copy) in [*pages_of][first::2]:
            for index, content in enumerate(pages):
                self.layers[key.group, index].write(block, content)
                self.copies.write(key.group, index, block, copy)
                where = (load.step, load.name, key.group, index, column, block)
                if isinstance(content, SlotContent):
                    yield Loaded(*where, slots=len(content.tags))
                else:
                    yield Loaded(*where, temporal=content.temporal is not None, conv=bool(content.window))

    def save(self, save: Save) -> None:
        """Copy a block's pages out of the pool."""
        layers = range(self.layout.groups[save.key.group].layers)
        if save.key not in self.pages:
            self.pages[save.key] = tuple(self.layers[save.key.group, index].read(save.block) for index in layers)
            self.copied[save.key] = self.copies.read(save.key.group, save.block)

    def clear(self) -> None:
        """Forget everything that is stored."""
        self.pages.clear()
        self.copied.clear()


def _follows(page: Content, tags: Sequence[int], shift: int) -> bool:
    """Return True if the last slots of a page hold the tags behind `tags[0]`, which is that of the page's key."""
    if not shift or not isinstance(page, SlotContent):
        return True
    return list(page.tags[-shift:]) == list(tags[1 : shift + 1])


class TraceConnector(KVConnectorBase_V1, SupportsHMA):
    """Both sides of the connector; vLLM makes one instance for the scheduler and one for the worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.store: Store = vllm_config.kv_transfer_config.kv_connector_extra_config["store"]
        self.pool: Pool
        self.next = Transfers()
        """What the next metadata tell the worker."""
        self.requests: dict[str, Any] = {}
        self.asked: dict[str, int] = {}
        """Request -> step of the first lookup."""
        self.local: dict[str, int] = {}
        """Request -> tokens of the local hit that vLLM passed in the last lookup."""
        self.reserved: dict[str, int] = {}
        """Requests whose lookup of this step reserved a part of the budget of synchronous loads -> tokens."""
        self.loads: list[tuple[int, Load]] = []
        self.sends: list[tuple[int, tuple[str, list[Save]]]] = []
        """Work of the worker that is under way, with the steps left."""

    @property
    def requires_kv_delivery(self) -> bool:
        """True if the output in flight of a preempted request must be dropped."""
        return self.store.kind == "transfer"

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """True if a load may complete a local hit of attention alone."""
        return self.store.kind == "transfer"

    # The scheduler's side.

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Keep the manager's pool: it knows which blocks are published."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self.pool = Pool(kv_cache_manager)

    def on_new_request(self, request: Any) -> None:
        """Keep a request."""
        self.requests[request.request_id] = request

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the tokens that can be loaded after the local hit, None to be asked again, and whether the request
        waits for them."""
        store, name = self.store, request.request_id
        if not store.caching or not store.pages or name in store.withdrawn:
            return 0, False
        if self.asked.setdefault(name, store.step) + store.delays.get(name, 0) // 2 > store.step:
            return None, False
        self.local[name] = num_computed_tokens
        tags = self._tags(request)
        found = longest_load(store.layout, store.matching(tags), tags, num_computed_tokens, request.num_tokens)
        return found, found > 0 and not self._reserve(name, found)

    def _reserve(self, name: str, tokens: int) -> bool:
        """Return True if a load is synchronous: it fits in what is left of the step's budget."""
        self.reserved.pop(name, None)
        within = sum(self.reserved.values()) + tokens <= self.store.sync_tokens
        if self.store.kind != "sync" or not within or name in self.store.breaking:
            return False
        self.reserved[name] = tokens
        return True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the load of a request."""
        store, name = self.store, request.request_id
        if not num_external_tokens:
            return
        local, tables = self.local[name], blocks.get_block_ids()
        total, is_sync = local + num_external_tokens, name in self.reserved
        pages = [
            (key, column, tables[index][column])
            for index, group in enumerate(store.layout.groups)
            for key in keys_to_load(store.layout, index, self._tags(request), local, total)
            for column in [key.depth // group.block_size - 1]
            if is_sync or is_unlabelled(blocks, index, column)  # blocks of a synchronous load have keys
        ]
        delay, breaks_off = store.delay(name), name in store.breaking
        load = Load(name, store.step, tuple(pages), delay, breaks_off, is_sync)
        store.plan(load, local, total)
        self.next.loads.append(load)

    def build_connector_meta(self, scheduler_output: Any) -> Transfers:
        """Return what the worker does in this step."""
        self.reserved = {}
        if self.store.kind != "transfer" and self.store.caching:
            state = scheduler_output.kv_connector_block_state
            for name in scheduler_output.num_scheduled_tokens:
                if request := self.requests.get(name):
                    self.next.saves += self._published(request)
            for name, offers in state.boundary_state_offloads.items():
                self.next.saves += self._states(name, offers)
        done, self.next = self.next, Transfers()
        return done

    def update_connector_output(self, connector_output: Any) -> None:
        """Note the ends of loads and sends."""
        for name in connector_output.failed_recving:
            self.store.waiting.pop(name, None)
            self.asked.pop(name, None)
            if self.store.delays.get(name, 0) % 2 == 0:
                self.store.withdrawn.add(name)
        self.store.sending -= connector_output.finished_sending or set()

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        """Hold the blocks of a request until they are sent. vLLM promises to call this exactly once for a request."""
        store, name = self.store, request.request_id
        if self.requests.pop(name, None) is None:
            raise EngineError(f"a KV connector is told once more that {name} has finished")
        waited = store.waiting.pop(name, None)
        if store.kind == "transfer" and any(block_ids) and not waited:
            store.sending.add(name)
            self.next.sends[name] = self._published(request) if store.caching else []
        return name in store.sending, None

    def has_pending_block_frees(self) -> bool:
        """Return True if blocks will be freed soon without a preemption."""
        return bool(self.store.sending)

    def reset_cache(self) -> bool:
        """Forget everything that is stored."""
        self.store.clear()
        return True

    def _tags(self, request: Any) -> Sequence[int]:
        return EMPTY, *chain(EMPTY, tuple(self.store.contents(request.request_id, request.all_token_ids)))

    def _published(self, request: Any) -> list[Save]:
        """Return the published attention blocks of a request that are not stored yet."""
        tags, found = self._tags(request), list[Save]()
        for index, group in enumerate(self.store.layout.groups):
            if group.kind != "attention":
                continue
            for column, block, covered in self.pool.labelled(index, request.request_id):
                depth = (column + 1) * group.block_size
                if covered != depth or depth > request.num_prompt_tokens:
                    continue
                key = Key(index, depth, tags[depth])
                if key not in self.store.pages:
                    found.append(Save(key, block))
        return found

    def _states(self, name: str, offers: Sequence[tuple[int, int, int]]) -> list[Save]:
        """Return the states that the scheduler hands off; behind the prompt no attention block is saved."""
        request = self.requests.get(name)
        if request is None:
            return []
        tags = self._tags(request)
        return [
            Save(Key(group, depth, tags[depth]), block)
            for group, block, depth in offers
            if block and depth <= request.num_prompt_tokens and not depth % self.store.layout.groups[group].block_size
        ]

    # The worker's side.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load what the step's forward reads; begin the loads that requests wait for, and the sends."""
        metadata: Transfers = self._get_connector_metadata()
        for load in metadata.loads:
            if load.is_sync:
                self.store.whole(load)
        self.loads += [(load.delay, load) for load in metadata.loads if not load.is_sync]
        self.sends += [(SEND_STEPS, send) for send in metadata.sends.items()]

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are not layer by layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: saves are not layer by layer."""

    def wait_for_save(self) -> None:
        """Save what this step computed."""
        metadata: Transfers = self._get_connector_metadata()
        for save in metadata.saves:
            self.store.save(save)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Report the loads and sends that end in this step."""
        results = KVConnectorTransferResults()
        for load in _ended(self.loads):
            self.store.late(load)
            results.finished_recving.add(load.name)
            if load.breaks_off:
                results.failed_recving.add(load.name)
        for name, saves in _ended(self.sends):
            for save in saves:
                self.store.save(save)
            results.finished_sending.add(name)
        return results


def _ended(under_way: list[tuple[int, Work]]) -> list[Work]:
    """Let one step pass; remove and return the work that it ends."""
    ended = [work for left, work in under_way if left == 1]
    under_way[:] = [(left - 1, work) for left, work in under_way if left > 1]
    return ended


def connect(vllm_config: Any, config: Config, recorder: Recorder, truths: Mapping[str, Truth]) -> Any:
    """Add the connector of a trace, if it has one, to vLLM's configuration; return its store. `truths` are those of the
    requests."""
    from vllm.config import KVTransferConfig

    if options_of(config).connector == "none":
        return NullStore()
    if offloads(config):
        from .offloading import OffloadedStore, connect_own

        if not has_files(config):
            return connect_own(vllm_config, config, OffloadedStore(config, recorder))
        from .file_tier import TieredStore

        return connect_own(vllm_config, config, TieredStore(config, recorder))
    if offloads_simply(config):
        from .simple_cpu import SimpleStore, connect_simply

        return connect_simply(vllm_config, config, SimpleStore(config, recorder))
    store = Store(config, recorder, truths)
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector=TraceConnector.__name__,
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_connector_extra_config={"store": store},
        kv_load_failure_policy=options_of(config).load_failure,
    )
    return store


def begin_worker(vllm_config: Any, kv_cache_config: Any) -> Any:
    """Make the worker's side, as a worker does before it allocates caches, and return it, None without a connector.
    vLLM keeps one in each process: that of an earlier engine is dropped."""
    kv_transfer_state.ensure_kv_transfer_shutdown()
    kv_transfer_state.ensure_kv_transfer_initialized(vllm_config, kv_cache_config)
    return kv_transfer_state._KV_CONNECTOR_AGENT


def activate(worker_side: Any) -> None:
    """Make the worker's side of an engine (None: of none) that of this process."""
    kv_transfer_state._KV_CONNECTOR_AGENT = worker_side
