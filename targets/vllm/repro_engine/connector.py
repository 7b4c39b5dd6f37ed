"""KV connector with a store that the script fills, called through vLLM's connector API.

vLLM looks a request up, allocates, waits, retries and gives up as with any connector. Loads are asynchronous, except
for `engine.sync_load_tokens` tokens in each step, which are loaded before its forward. A loaded state is written when
its load ends. Attention content is not written, because the script checks states only. Nothing is saved.
(This file is inlined into reproducers that need it, between `config` and `engine`; nothing imports it.)
"""

from math import lcm

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorTransferResults


class Loads(KVConnectorMetadata):
    """Loads that the worker begins in a step: (request, tokens, last block of each group, steps, True if it fails).
    A load of 0 steps ends before the forward."""

    def __init__(self, loads):
        self.loads = loads


class Connector(KVConnectorBase_V1, SupportsHMA):
    """Both sides of the connector; vLLM makes one instance for the scheduler and one for the worker."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.engine = vllm_config.kv_transfer_config.kv_connector_extra_config["engine"]
        self.sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
        self.next, self.asked, self.local, self.withdrawn, self.under_way = [], {}, {}, set(), []
        self.sync = {}

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """Return (tokens to load behind the local hit, True to load asynchronously); tokens None: ask again later."""
        name, unit = request.request_id, lcm(*self.sizes)
        delay = self.engine.load_delays.get(name, 0)
        if name in self.withdrawn or not self.engine.stored:
            return 0, False
        if self.asked.setdefault(name, self.engine.steps) + delay // 2 > self.engine.steps:
            return None, False
        self.local[name] = num_computed_tokens
        tokens, most = list(request.all_token_ids), (request.num_tokens - 1) // unit * unit
        ends = [len(known) // unit * unit for known in self.engine.stored if known == tokens[: len(known)]]
        found = max((end for end in ends if num_computed_tokens < end <= most), default=num_computed_tokens)
        loaded = found - num_computed_tokens
        self.sync.pop(name, None)
        if name not in self.engine.failing and loaded + sum(self.sync.values()) <= self.engine.sync_load_tokens:
            self.sync[name] = loaded
        return loaded, loaded > 0 and name not in self.sync

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        """Plan a request's load."""
        if not num_external_tokens:
            return
        name, engine = request.request_id, self.engine
        total = self.local[name] + num_external_tokens
        last = [table[total // size - 1] for table, size in zip(blocks.get_block_ids(), self.sizes, strict=True)]
        fails = name in engine.failing
        engine.failing.discard(name)
        steps = 0 if name in self.sync else engine.load_delays.get(name, 0) + 1
        self.next.append((name, total, last, steps, fails))

    def build_connector_meta(self, scheduler_output):
        """Return the loads that the worker begins in this step."""
        done, self.next, self.sync = Loads(self.next), [], {}
        return done

    def update_connector_output(self, connector_output):
        """Let vLLM retry a failed load if its delay is odd; otherwise offer it no more."""
        for name in connector_output.failed_recving:
            self.asked.pop(name, None)
            if self.engine.load_delays.get(name, 0) % 2 == 0:
                self.withdrawn.add(name)

    def request_finished_all_groups(self, request, block_ids):
        """Return False: blocks are freed at once."""
        return False, None

    def start_load_kv(self, forward_context, **_):
        """Begin the loads that were planned for this step; end those that its forward reads."""
        for name, total, blocks, steps, fails in self._get_connector_metadata().loads:
            if steps:
                self.under_way.append([steps, name, total, blocks, fails])
            else:
                self.engine.write_states(name, total, blocks)

    def get_transfer_results(self, finished_req_ids):
        """Report the loads that end in this step, and write their states."""
        results = KVConnectorTransferResults()
        for load in self.under_way:
            load[0] -= 1
        for _, name, total, blocks, fails in [load for load in self.under_way if not load[0]]:
            results.finished_recving.add(name)
            if fails:
                results.failed_recving.add(name)
            else:
                self.engine.write_states(name, total, blocks)
        self.under_way = [load for load in self.under_way if load[0]]
        return results

    def wait_for_layer_load(self, layer_name):
        """Do nothing: loads are not layer by layer."""

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **_):
        """Do nothing: nothing is saved."""

    def wait_for_save(self):
        """Do nothing: nothing is saved."""

    def reset_cache(self):
        """Forget everything that is stored."""
        self.engine.stored.clear()
        return True


def connect(engine, config, policy):
    """Set the connector in vLLM's configuration."""
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="Connector", kv_connector_module_path=__name__, kv_role="kv_both",
        kv_connector_extra_config={"engine": engine}, kv_load_failure_policy=policy,
    )  # fmt: skip


def begin_worker(config, kv_cache_config):
    """Create the worker's side, as a worker does before it allocates caches."""
    kv_transfer_state.ensure_kv_transfer_initialized(config, kv_cache_config)
