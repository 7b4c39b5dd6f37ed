"""Differences between SGLang's releases in scheduler, requests and batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from inspect import signature
from random import Random
from types import SimpleNamespace
from typing import Any
from weakref import ref

from ....reference.tokens import VOCABULARY
from ..sampling import GREEDY, Sampling
from ..stubs import OFF
from . import old_releases
from .sizes import Sizes, storage_request

FIRST_CHARACTER = 0x4E00
"""Text of token 0: from here on each character is a letter."""
ABSENT = frozenset(
    {
        "dllm_config",
        "prefill_delayer",
        "min_free_slots_delayer",
        "dynamic_chunk_sizer",
        "truncation_align_size",
        "_pending_chunked_abort_req",
        "hisparse_coordinator",
        "decode_offload_manager",
        "rust_server",
        "scripted_scheduler_hook",
        "mm_receiver",
        "lora_drainer",
        "draft_worker",
        "metrics_collector",
        "forward_sleep_time",
        "_confidence_budget_prepare",
    }
)
"""Attributes of the scheduler that are tested with `is None`."""


def speculates() -> bool:
    """Return True if the n-gram worker verifies and commits states as speculation.py needs it (0.5.23)."""
    from sglang.srt.managers.scheduler import Scheduler

    # Older workers cannot be imported without an accelerator.
    if not hasattr(Scheduler, "_forward_isolation") or find_spec("sglang.srt.speculative.ngram_worker") is None:
        return False
    from sglang.srt.speculative import ngram_worker, spec_utils

    staging = hasattr(ngram_worker, "reconstruct_indices_from_tree_mask_func")
    return staging and hasattr(spec_utils, "_verify_commit_step_indices")


def captures() -> bool:
    """Return True if decode graphs have a registry of their buffers, which runs without an accelerator (0.5.23)."""
    from sglang.srt.managers.scheduler import Scheduler

    place = "sglang.srt.model_executor.cuda_graph_buffer_registry"
    return hasattr(Scheduler, "_forward_isolation") and find_spec(place) is not None


def is_driven_fully() -> bool:
    """Return True for a release on which every option is driven (0.5.23).

    0.5.17 to 0.5.20 have most of these features in another form, and are driven without them.
    """
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

    has_budget = find_spec("sglang.srt.mem_cache.prefill_budget") is not None
    return has_budget and hasattr(Scheduler, "_forward_isolation") and hasattr(ScheduleBatch, "mix_with_running")


def limit_rows(rows: int) -> None:
    """Set the most running requests: an argument of the server up to 0.5.15, later part of its context."""
    from sglang.srt import server_args

    try:
        from sglang.srt.runtime_context import get_context
    except ImportError:
        get_context = None
    context = get_context and get_context()
    if hasattr(context, "override"):
        context.override("stand-in", pp_max_micro_batch_size=rows)
    else:
        server_args.get_global_server_args().pp_max_micro_batch_size = rows


def only_rank() -> Any:
    """Return a context in which this process is the only rank of its server, by whose name a storage keeps pages."""
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().override(tp_rank=0, pp_rank=0, attn_dcp_rank=0)


def be_alone() -> None:
    """Make this process the only member of its group, to which nothing that was sampled is sent."""
    from sglang.srt.runtime_context import get_parallel

    group = SimpleNamespace(world_size=1, cpu_group=None)
    get_parallel().override_permanently(tp_group=group, tp_rank=0, attn_tp_rank=0)


def be_first_rank() -> None:
    """Make this process the first rank of its server, which logs errors of grammars."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if hasattr(parallel, "override_permanently"):
        parallel.override_permanently(tp_rank=0)
    else:  # up to 0.5.19
        parallel._overrides["tp_rank"] = 0


def call(make: Any, **keywords: Any) -> Any:
    """Call a function without the keyword arguments that a release does not have."""
    known = signature(make).parameters
    return make(**{name: value for name, value in keywords.items() if name in known})


class _Pass:
    """The data-parallel adapter of a single rank, and the manager of n-gram embeddings: batches pass through."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.peers_run = False
        """True if another rank has work: a rank without work takes part with an idle batch."""

    def maybe_prepare_mlp_sync_batch(self, batch: Any, need_sync: Any = None) -> Any:
        if batch is not None or not self.peers_run:
            return batch
        from sglang.srt.managers.scheduler_components.dp_attn import SchedulerDPAttnAdapter

        return SchedulerDPAttnAdapter.get_idle_batch(self.scheduler)

    def maybe_convert_decode_to_extend(self, batch: Any) -> Any:
        return batch

    def prepare_for_forward(self, batch: Any, chunked_req: Any = None) -> Any:
        return batch


def complete(scheduler: Any, sizes: Sizes) -> None:
    """Set attributes that only some releases have or that the scheduler's own methods build."""
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    scheduler.disaggregation_mode = DisaggregationMode.NULL
    if sizes.disaggregation != "no":
        scheduler.disaggregation_mode = DisaggregationMode(sizes.disaggregation)
    scheduler.spec_algorithm = SpeculativeAlgorithm.from_string(sizes.drafter.upper() if sizes.drafts else None)
    scheduler.dp_attn_adapter = scheduler.ngram_embedding_manager = _Pass(scheduler)
    scheduler.prefill_decode_interval = sizes.prefill_interval
    scheduler._prefill_decode_interval_remaining = scheduler.prefill_decode_interval_min_bs = 0
    scheduler.priority_scheduling_preemption_threshold = 0
    scheduler.enable_priority_scheduling = sizes.priorities
    scheduler.is_mixed_chunk = sizes.mixed
    scheduler.is_hybrid_swa = sizes.sliding > 0
    scheduler.abort_on_priority_when_disabled = False
    scheduler.schedule_low_priority_values_first = True
    scheduler.enable_hierarchical_cache = sizes.hicache != "no"
    scheduler.enable_hicache_storage = sizes.storage != "no"
    scheduler.max_queued_requests = None
    scheduler._engine_paused, scheduler._pause_started_at = False, None
    scheduler.ps = _OnlyRank()  # 0.5.17 to 0.5.20: without it aborts look for requests in other stages
    old_releases.settle(scheduler)
    # Up to 0.5.20 aborts go there directly, later through `send_abort_output`.
    sender = SimpleNamespace(send_output=scheduler.send_abort_output)
    scheduler.ipc_channels = SimpleNamespace(send_to_tokenizer=sender)
    if sizes.order == "random":
        seed_order()
    if is_driven_fully() or speculates():  # for every trace, so that none sees what another one needed
        be_alone()
    if sizes.delay != "no":
        _delay(scheduler, sizes)
    scheduler.init_schedule_policy()
    if hasattr(type(scheduler), "init_batch_result_processor"):
        scheduler.init_batch_result_processor()


def _delay(scheduler: Any, sizes: Sizes) -> None:
    """Let prompts be held back as the server's configuration says; time passes with forwards."""
    from sglang.srt.managers import min_free_slots_delayer, prefill_delayer
    from sglang.srt.runtime_context import get_schedule

    running = ref(scheduler)  # these stand-ins outlive the trace

    def now() -> float:
        scheduler = running()
        return scheduler.forward_ct / 1000 if scheduler is not None else 0.0

    prefill_delayer.all_gather_single = lambda gathered, own, group: gathered.copy_(own)
    prefill_delayer.time = SimpleNamespace(perf_counter=now)
    begin = vars(prefill_delayer).setdefault("_Unstamped", prefill_delayer._State)
    prefill_delayer._State = lambda: begin(start_time=now())
    most = min_free_slots_delayer.resolve_min_free_slots(get_schedule().min_free_slots_delay, sizes.rows)
    if most is not None:
        scheduler.min_free_slots_delayer = min_free_slots_delayer.MinFreeSlotsDelayer(most)


def seed_order() -> None:
    """Let the random order of waiting requests be the same in each run of a trace: any is one of a server's."""
    from sglang.srt.managers import schedule_policy

    schedule_policy.random = Random(0)


def pauses() -> bool:
    """Return True if a server can be paused with what it runs retracted (0.5.23; older ones were not run with it)."""
    return is_driven_fully()


def pause(scheduler: Any) -> None:
    """Pause generation: what is in flight is processed, and all requests that run are retracted."""
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    scheduler.pause_generation(PauseGenerationReqInput(mode="retract"))


def go_on(scheduler: Any) -> None:
    """Continue after a pause."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput

    scheduler.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))


def process_result(scheduler: Any, batch: Any, result: Any) -> None:
    """Process a result, as `Scheduler.process_batch_result` without its metrics."""
    processor = scheduler.batch_result_processor or scheduler  # itself, up to 0.5.12
    if batch.forward_mode.is_decode():
        processor.process_batch_result_decode(batch, result)
    elif batch.forward_mode.is_extend():
        processor.process_batch_result_prefill(batch, result)
    elif batch.forward_mode.is_idle():
        processor.process_batch_result_idle(batch, result)
    flush = getattr(scheduler.tree_cache, "flush_pending_backups", None)
    if flush:
        flush()
    scheduler._maybe_clear_mm_inputs(batch)


def finishing(scheduler: Any, batch: Any) -> list[Any]:
    """Return the rows that the token in flight ends, if the release (0.5.22) leaves them out of the next decode."""
    asks = getattr(type(scheduler), "_reqs_finishing_inflight", None)
    rows: list[Any] = asks(scheduler, batch) if asks else []
    return rows


def release_arguments(scheduler: Any) -> tuple[Any, ...]:
    """Return the arguments of `ScheduleBatch.release_req` besides an index and a count."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    wants = "server_args" in signature(ScheduleBatch.release_req).parameters
    return (scheduler.server_args,) if wants else ()


def client_tokens(request: Any) -> Any:
    """Return the output tokens that a client may see."""
    return getattr(request, "output_ids_through_stop", request.output_ids)


class Words:
    """A tokenizer for stop strings: each token is one character, which no other token has."""

    bos_token_id = eos_token_id = None
    additional_stop_token_ids = None

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens."""
        return "".join(map(word, tokens))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of a text."""
        return [ord(character) - FIRST_CHARACTER for character in text]


def word(token: int) -> str:
    """Return the text of a token."""
    return chr(FIRST_CHARACTER + token)


def finds_strings() -> bool:
    """Return True if the scheduler itself finds the token of a verified step with which a stop string ends (0.5.23)."""
    from sglang.srt.managers.schedule_batch import Req

    return hasattr(Req, "_locate_str_stop_finished_len")


def make_sampling(
    max_new_tokens: int,
    stops: tuple[int, ...] = (),
    endless: bool = False,
    is_string: bool = False,
    min_tokens: int = 0,
    chance: Sampling | None = None,
    shape: Any = None,
) -> Any:
    """Return sampling until `max_new_tokens` or a stop token, which must not come before `min_tokens`.

    `endless`: without a stop token the server counts on the full length. `is_string`: they are given as one stop
    string. `shape`: what the client asks for that changes logits (`logit_shapes.Shape`), None for nothing.
    """
    from sglang.srt.sampling.sampling_params import SamplingParams

    chance = chance or GREEDY
    sampling = SamplingParams(
        temperature=chance.temperature,
        top_k=chance.top_k,
        top_p=chance.top_p,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min(min_tokens, max_new_tokens),
        stop_token_ids=None if is_string else list(stops) or None,
        stop=["".join(map(word, stops))] if is_string and stops else None,
        ignore_eos=endless and not stops,
        **({"logit_bias": shape.logit_bias, "custom_params": shape.parameters} if shape else {}),
    )
    sampling.normalize(tokenizer_for(sampling))
    return sampling


def tokenizer_for(sampling: Any) -> Words | None:
    """Return the tokenizer of a request, None for one that needs none."""
    return Words() if sampling.stop_strs or has_least_tokens() else None


def has_least_tokens() -> bool:
    """Return True if answers may have a minimum number of tokens (0.5.23): earlier releases were not run with it."""
    return finds_strings()


def penalties(batch: Any, overlap: bool, shapes: bool) -> Any:
    """Return what the scheduler gives the forward of a batch to change logits by, None for nothing. `shapes`: requests
    shape logits."""
    info = batch.sampling_info
    is_changed = has_least_tokens() and (info.penalizer_orchestrator.is_required or has_grammar(batch))
    if not is_changed and not (shapes and batch.reqs):
        return None
    given = info.copy_for_forward() if overlap else info
    note_grammars(given, batch)
    return given


def change_logits(logits: Any, info: Any) -> None:
    """Change logits by all that a batch asks for, as `ModelRunner.sample` does before tokens are chosen."""
    from sglang.srt.layers.sampler import Sampler

    info.apply_logits_bias(logits)
    Sampler._preprocess_logits(OFF, logits, info)


def has_grammar(batch: Any) -> bool:
    """Return True if the answer of a row has a grammar."""
    return bool(getattr(batch, "has_grammar", False))


def note_grammars(info: Any, batch: Any) -> None:
    """Note the grammars of a batch for its forward, as `ForwardBatch.init_new` does."""
    info.grammars = [request.grammar for request in batch.reqs] if has_grammar(batch) else None


def is_penalized(batch: Any) -> bool:
    """Return True if the forward of a batch changes logits by what was accumulated or masked for it."""
    info = batch.sampling_info
    return has_least_tokens() and (info.acc_additive_penalties is not None or info.grammar_mask is not None)


def is_error(request: Any) -> bool:
    """Return True if the client of an ended request gets an error; an abort of its own is none."""
    return getattr(request.finished_reason, "status_code", None) is not None


def instead(request: Any) -> tuple[int, ...]:
    """Return what the scheduler computes in place of the prompt of a request that it ends: no prompt begins so."""
    tokens = tuple(request.origin_input_ids)
    return tokens if tokens == (0,) else ()


def make_request(
    name: str,
    tokens: list[int],
    sampling: Any,
    keys: Mapping[str, str] | None = None,
    scored_from: int | None = None,
    reasons: bool = False,
    processor: str | None = None,
) -> Any:
    """Return a request as the tokenizer would pass it. `keys` are its adapter and its salt, "" for none. `scored_from`:
    where the log-probabilities of its prompt begin that its client wants (`logprob_start_len`), None if it wants none.
    `reasons`: its answer begins with reasoning. `processor` of its logits (`custom_logit_processor`), None for none.

    The mark after the name distinguishes r1 from r10, since aborts match requests by prefix.
    """
    from sglang.srt.managers.schedule_batch import Req

    request = Req(
        rid=f"{name}.",
        origin_input_text="",
        origin_input_ids=old_releases.token_list(tokens),
        sampling_params=sampling,
        vocab_size=VOCABULARY,
        **{field: value for field, value in (keys or {}).items() if value},
        **({} if scored_from is None else {"return_logprob": True}),
        **({"require_reasoning": True} if reasons else {}),
        **({} if processor is None else {"custom_logit_processor": processor}),
    )
    request.logprob_start_len = -1 if scored_from is None else scored_from  # as the scheduler sets it
    if tokenizer := tokenizer_for(sampling):
        request.tokenizer = tokenizer  # as `Scheduler.handle_generate_request` gives its own to each request
    request.client_name = name
    return request


def make_result(tokens: Any, done: Any, batch: Any) -> Any:
    """Return the result of a batch's forward; `tokens` are complete once `done` has been waited for."""
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.utils import GenerationBatchResult

    logits = LogitsProcessorOutput(next_token_logits=None, **logprobs(batch))
    result = GenerationBatchResult(logits_output=logits, next_token_ids=tokens, copy_done=done)
    if batch.return_logprob:  # as `Scheduler.run_batch` notes them
        result.extend_input_len_per_req = list(batch.extend_lens) if batch.forward_mode.is_extend() else None
        result.extend_logprob_start_len_per_req = batch.extend_logprob_start_lens
    return result


def logprobs(batch: Any) -> dict[str, Any]:
    """Return the log-probabilities that a forward computes, {} if no client wants any.

    In place of a logarithm each has the id of the token that it is of, as SGLang's batch names them, so that it can be
    seen where it goes (`scored_tokens`). Those of sampled tokens are 0.
    """
    import torch

    if not batch.return_logprob:
        return {}
    found = {"next_token_logprobs": torch.zeros(len(batch.reqs))}
    if batch.forward_mode.is_extend():
        found["input_token_logprobs"] = batch.extend_input_logprob_token_ids.float()
    return found


def scored_tokens(request: Any) -> list[int] | None:
    """Return the tokens whose log-probabilities a client gets as those of its prompt. The first of those that it wants
    has none: SGLang has None in its place.

    None if it gets none, or none yet; nor can they be told of a prompt with images, whose placeholders are no tokens.
    """
    if not getattr(request, "return_logprob", False) or request.multimodal_inputs is not None:
        return None
    values = request.logprob.input_token_logprobs_val
    return None if values is None else [int(value) for value in values[1:]]


def abort_message(name: str) -> Any:
    """Return the message of a client that aborts a request."""
    from sglang.srt.managers.io_struct import AbortReq

    return AbortReq(rid=f"{name}.")


def deferred(batch: Any) -> tuple[Any, Any, Any]:
    """Return the slots to clear, and sources and destinations of copies, before the forward."""
    names = ("mamba_clear_indices", "mamba_cow_src_indices", "mamba_cow_dst_indices")
    clears, sources, destinations = (getattr(batch, name, None) for name in names)
    return clears, sources, destinations


def copy_states(rows: Any, sources: Any, destinations: Any) -> None:
    """Copy the states of a batch's pairs, as the model runner does."""
    checkpoints = getattr(rows, "mamba_ckpt_pool", None)
    if checkpoints is not None:
        checkpoints.load_to_active(rows.mamba_pool, sources, destinations)
        return
    copy = getattr(rows, "copy_mamba_state", None) or rows.mamba_pool.copy_from
    copy(sources, destinations)


def allocators(allocator: Any) -> tuple[Any, Any]:
    """Return the allocators of pages of attention, and of layers with a sliding window or None."""
    return getattr(allocator, "full_attn_allocator", allocator), getattr(allocator, "swa_attn_allocator", None)


def free_pages(allocator: Any) -> list[int]:
    """Return the free pages of an allocator of pages."""
    pages: list[int] = allocator.free_pages.tolist()
    staged = getattr(allocator, "staged_pages", None)
    for waiting in (*(staged or ()), getattr(allocator, "release_pages", None)):
        if waiting is not None:
            pages += waiting.tolist()
    return pages


def flush(scheduler: Any) -> None:
    """Flush the cache, as Scheduler.flush_cache, whose own test of idleness needs parts that are switched off."""
    scheduler.last_batch = None
    scheduler.tree_cache.reset()
    scheduler.req_to_token_pool.clear()
    old_releases.set_zero_aside(scheduler.req_to_token_pool.mamba_pool)
    scheduler.token_to_kv_pool_allocator.clear()


def switch_storage(scheduler: Any, sizes: Sizes) -> None:
    """Detach the storage of a server that is idle, or attach it again, as a client's call does.

    A client to which SGLang refuses the change from write_back, until the cache is flushed, attaches it with the policy
    that there is. Raises RuntimeError if SGLang refuses anything else.
    """
    from sglang.srt.managers import io_struct

    with only_rank():
        if scheduler.enable_hicache_storage:
            answer = scheduler.detach_hicache_storage_wrapped(io_struct.DetachHiCacheStorageReqInput())
        else:
            asked = io_struct.AttachHiCacheStorageReqInput(**storage_request(sizes))
            answer = scheduler.attach_hicache_storage_wrapped(asked)
            if "Flush the cache before changing the write policy" in answer.message:
                asked.hicache_write_policy = None
                answer = scheduler.attach_hicache_storage_wrapped(asked)
    if not answer.success:
        raise RuntimeError(answer.message)


class _OnlyRank:
    """The ranks and sizes of a server's parallel groups: this process is the only one in each."""

    def __getattr__(self, name: str) -> int:
        return 1 if name.endswith("_size") else 0


class Seen(SimpleNamespace):
    """A namespace whose missing attributes are None."""

    def __getattr__(self, name: str) -> None:
        return None


def _seen(batch: Any, **more: Any) -> Seen:
    """Return the fields of a `ForwardBatch` that the linear-attention backend reads of every batch, and more."""
    return Seen(
        batch_size=len(batch.reqs),
        forward_mode=batch.forward_mode,
        logical_forward_mode=batch.forward_mode,
        req_pool_indices=batch.req_pool_indices.clone(),
        **more,
    )


def verify_batch(batch: Any) -> Any:
    """Return the fields of a `ForwardBatch` that the linear-attention backend reads before it verifies drafts."""
    return _seen(batch, input_ids=batch.input_ids, spec_info=batch.spec_info)


def model_runner(engine: Any, algorithm: Any) -> Any:
    """Return the attributes of a `ModelRunner` that a `ForwardBatch` is made with."""
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator

    translator = KVIndexTranslator(
        req_to_token=engine.rows.req_to_token,
        token_to_kv_pool_allocator=engine.allocator,
        token_to_kv_pool=engine.kv,
        page_size=engine.sizes.page,
        device="cpu",
    )
    return Seen(
        device="cpu",
        model_config=Seen(
            hf_config=Seen(architectures=["Qwen3NextForCausalLMMTP"]), model_is_mrope=False, spec_hidden_size=1
        ),
        kv_index_translator=translator,
        prefill_attention_backend_str="torch_native",
        ngram_embedding_manager=OFF,
        attn_backend=OFF,
        spec_algorithm=algorithm,
        is_draft_worker=False,
    )


def graph_batch(batch: Any, width: int) -> Any:
    """Return the fields of a `ForwardBatch` that the runner of decode graphs reads; `width` tokens in each row."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

    return Seen(
        batch_size=len(batch.reqs),
        forward_mode=batch.forward_mode,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        needs_forward_metadata_init=lambda: True,
        req_pool_indices=batch.req_pool_indices,
        seq_lens=batch.seq_lens,
        seq_lens_cpu=batch.seq_lens_cpu,
        out_cache_loc=batch.out_cache_loc[: len(batch.reqs) * width],
        mamba_track_indices=batch.mamba_track_indices,
        mamba_track_mask=batch.mamba_track_mask,
        spec_info=batch.spec_info,
    )


def backend_batch(batch: Any) -> Any:
    """Return the fields of a `ForwardBatch` that planning reads, for an extend batch."""
    from types import MethodType

    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    lengths = torch.tensor(batch.extend_lens)
    seen = _seen(
        batch,
        mamba_track_indices=_clone(batch.mamba_track_indices),
        mamba_track_mask=_clone(batch.mamba_track_mask),
        mamba_track_seqlens=_clone(batch.mamba_track_seqlens),
        mamba_track_seqlens_cpu=getattr(batch, "mamba_track_seqlens_cpu", None),
        mamba_prefill_track_mask_cpu=getattr(batch, "mamba_prefill_track_mask_cpu", None),
        seq_lens=batch.seq_lens,
        extend_num_tokens=sum(batch.extend_lens),
        extend_seq_lens=lengths,
        extend_seq_lens_cpu=list(batch.extend_lens),
        extend_prefix_lens=torch.tensor(batch.prefix_lens),
        extend_prefix_lens_cpu=list(batch.prefix_lens),
        extend_start_loc=torch.cumsum(lengths, 0) - lengths,
        tbo_parent_token_range=None,
    )
    if hasattr(ForwardBatch, "mamba_track_aligned_lens"):
        seen.mamba_track_aligned_lens = MethodType(ForwardBatch.mamba_track_aligned_lens, seen)
    return seen


def decode_batch(batch: Any) -> Any:
    """Return the fields of a `ForwardBatch` that the backend reads, for a batch of decodes."""
    return _seen(
        batch,
        seq_lens_cpu=batch.seq_lens_cpu,
        mamba_track_indices=_clone(batch.mamba_track_indices),
        mamba_track_mask=_clone(batch.mamba_track_mask),
    )


def _clone(tensor: Any) -> Any:
    """Return a copy of a tensor, None for none."""
    return None if tensor is None else tensor.clone()


def waits(scheduler: Any, batch: Any) -> bool:
    """Return True if the previous batch must be processed before this one is launched."""
    asks = getattr(type(scheduler), "is_disable_overlap_for_batch", None)
    if asks is None:
        return False
    asks = scheduler.is_disable_overlap_for_batch
    known = {"last_batch": scheduler.last_batch} if "last_batch" in signature(asks).parameters else {}
    answer: bool = asks(batch, **known)
    return answer


def plan(scheduler: Any) -> Any:
    """Return the next batch, None if there is none. Up to 0.5.19 the running batch changes in place."""
    if "running_batch" not in signature(scheduler.get_next_batch_to_run).parameters:
        return old_releases.note_lengths(scheduler.get_next_batch_to_run())
    made = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
    scheduler.running_batch = made.running_batch
    return made.batch_to_run
