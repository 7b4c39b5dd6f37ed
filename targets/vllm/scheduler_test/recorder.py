"""Writes down what a script asks of its scheduler, as lines of a test. Runs in the engine's process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.scheduler import Scheduler

from .calls import OTHER, SCHEDULE, SIZES, UPDATE, answers, tell
from .source import NoSource, source

SAMPLING = ("max_tokens", "min_tokens", "stop_token_ids", "prompt_logprobs")
"""Sampling parameters that a scheduler reads."""
PLAIN_CALLS = ("finish_requests", "reset_prefix_cache", "reset_encoder_cache", "set_pause_state")
"""Calls that are written down as they are made."""


class Recorder:
    """The calls of one scheduler, as lines of a test with the answers to them.

    calls   [kind, step, lines, answers] of each
    matched  (request, its local hit) -> the answers of a KV connector that was asked what it has
    held    requests whose blocks the connector held when they ended
    raised  the exception in which the last one ended, "" for none
    reason  why there can be no test, "" if there can be one
    """

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.imports: set[tuple[str, str]] = set()
        self.raised = self.reason = ""
        self.scheduler: Any = None
        self.steps: dict[int, tuple[str, Any]] = {}  # with the plan itself: an id may be used again
        self.matched: dict[tuple[str, int], list[Any]] = {}
        self.held: set[str] = set()
        self._depth, self._budget = 0, -1

    def watch(self) -> None:
        """Watch every scheduler that this process makes."""
        written: dict[tuple[type, str], Callable[..., Sequence[str]]] = {
            (Scheduler, "add_request"): self._add,
            (Scheduler, "schedule"): self._schedule,
            (Scheduler, "update_from_output"): self._update,
            (Scheduler, "update_draft_token_ids"): self._drafts,
            (Scheduler, "_preempt_request"): self._preempt,
            (BlockPool, "evict_blocks"): self._evict,
            **{(Scheduler, name): functools.partial(self._plain, name) for name in PLAIN_CALLS},
        }
        for (owner, name), write in written.items():
            setattr(owner, name, self._watched(getattr(owner, name), name, write))

    def _watched(self, run: Callable[..., Any], name: str, write: Callable[..., Sequence[str]]) -> Callable[..., Any]:
        @functools.wraps(run)
        def call(owner: Any, *given: Any, **named: Any) -> Any:
            if self._depth or self.reason:
                return run(owner, *given, **named)
            if isinstance(owner, Scheduler) and self.scheduler is not owner:
                self.scheduler = owner
                self._watch_connector(owner.connector)
            try:
                lines = write(*given, **named)
            except NoSource as error:
                self.reason = str(error)
                return run(owner, *given, **named)
            kind = {"schedule": SCHEDULE, "update_from_output": UPDATE}.get(name, OTHER)
            step = f"step{len(self.steps)}" if kind == SCHEDULE else ""
            self.calls.append([kind, step, list(lines), []])
            self._depth += 1
            try:
                result = run(owner, *given, **named)
            except Exception as error:
                self.raised = type(error).__name__
                raise
            finally:
                self._depth -= 1
            if kind == SCHEDULE:
                self.steps[id(result)] = step, result
            names = {"scheduler": self.scheduler, step or "step": result, "outputs": result}
            self.calls[-1][3] = list(answers(kind, step, names, self.imports))
            return result

        return call

    def _watch_connector(self, connector: Any) -> None:
        """Watch what a KV connector answers to a scheduler."""
        if connector is None:
            return
        if type(connector).get_num_new_matched_tokens.__module__.startswith("vllm."):
            self.reason = "a KV connector of vLLM's own takes part"
            return
        matched, finished = connector.get_num_new_matched_tokens, connector.request_finished_all_groups

        def get_num_new_matched_tokens(request: Any, num_computed_tokens: int) -> Any:
            answer = matched(request, num_computed_tokens)
            self.matched.setdefault((request.request_id, num_computed_tokens), []).append(answer)
            return answer

        def request_finished_all_groups(request: Any, block_ids: Any) -> Any:
            answer = finished(request, block_ids)
            self.held |= {request.request_id} if answer[0] else set()
            return answer

        connector.get_num_new_matched_tokens = get_num_new_matched_tokens
        connector.request_finished_all_groups = request_finished_all_groups

    def source(self, value: Any) -> str:
        """Return a value as source."""
        return source(value, self.imports)

    def _add(self, request: Any) -> Sequence[str]:
        if request.structured_output_request is not None:
            raise NoSource("its requests have structured output")
        asked, usual = request.sampling_params, SamplingParams()
        chosen = [f"{name}={self.source(getattr(asked, name))}" for name in SAMPLING
                  if name == "max_tokens" or getattr(asked, name) != getattr(usual, name)]  # fmt: skip
        given = {name: getattr(request, name, None) for name in ("priority", "resumable", "lora_request", "cache_salt")}
        # What an encoder would be given does not matter to a scheduler.
        given["mm_features"] = [dataclasses.replace(one, data=None) for one in request.mm_features]
        more = [f"{name}={self.source(value)}" for name, value in given.items() if value]
        if self.scheduler.policy.value == "priority":
            more.append(f"arrival_time={self.source(request.arrival_time)}")
        name, prompt = self.source(request.request_id), self.source(list(request.prompt_token_ids))
        arguments = ", ".join([name, prompt, f"SamplingParams({', '.join(chosen)})", *more])
        return [f"scheduler.add_request(create_request({arguments}))"]

    def _schedule(self) -> Sequence[str]:
        scheduler = self.scheduler
        budget, known = scheduler.max_num_scheduled_tokens, self._budget
        if known < 0:
            known = scheduler.scheduler_config.max_num_batched_tokens
        self._budget = budget
        set_budget = [f"scheduler.max_num_scheduled_tokens = {budget}"] if budget != known else []
        return [*set_budget, f"step{len(self.steps)} = scheduler.schedule()"]

    def _update(self, plan: Any, output: Any) -> Sequence[str]:
        transfers = output.kv_connector_output
        more = f", kv_connector_output={self.source(transfers)}" if transfers and not transfers.is_empty() else ""
        sampled = dict(zip(output.req_ids, map(list, output.sampled_token_ids), strict=True))
        return [f"outputs = update(scheduler, {self.steps[id(plan)][0]}, {self.source(sampled)}{more})"]

    def _drafts(self, drafts: Any) -> Sequence[str]:
        return [f"scheduler.update_draft_token_ids({self.source(drafts)})"]

    def _preempt(self, request: Any, timestamp: float, **named: Any) -> Sequence[str]:
        more = "".join(f", {name}={self.source(value)}" for name, value in named.items())
        return [f"preempt(scheduler, {self.source(request.request_id)}{more})"]

    def _evict(self, blocks: Any) -> Sequence[str]:
        return [f"scheduler.kv_cache_manager.block_pool.evict_blocks({self.source(blocks)})"]

    def _plain(self, name: str, *given: Any, **named: Any) -> Sequence[str]:
        arguments = [*map(self.source, given), *(f"{key}={self.source(value)}" for key, value in named.items())]
        return [f"scheduler.{name}({', '.join(arguments)})"]

    def opening(self) -> Iterator[tuple[str, str]]:
        """Yield (name, source) of what the scheduler was made of."""
        scheduler = self.scheduler
        if connector := scheduler.connector:
            yield "load_failure", self.source(scheduler.vllm_config.kv_transfer_config.kv_load_failure_policy)
            yield "matched", self.source({key: _without_repeats(one) for key, one in self.matched.items()})
            yield "held", self.source(self.held)
            for name in ("requires_kv_delivery", "supports_divergent_local_hybrid_hits"):
                yield name, self.source(getattr(connector, name))
        self.imports.add((type(scheduler).__module__, type(scheduler).__name__))
        yield "class", type(scheduler).__name__
        yield "groups", self.source(list(scheduler.kv_cache_config.kv_cache_groups))
        for name in SIZES:
            if (value := getattr(scheduler.kv_cache_config, name, None)) is not None:
                yield name, self.source(value)
        if tokens := scheduler.max_num_encoder_input_tokens:
            yield "encoder_tokens", self.source(tokens)
        if scheduler.lora_config:
            yield "adapters", self.source(scheduler.lora_config.max_loras)
        yield "block_size", self.source(scheduler.block_size)
        yield "hash_unit", self.source(scheduler.hash_block_size)

    def told(self) -> dict[str, Any]:
        """Return all that a test is made of."""
        opening: dict[str, str] = {}
        try:
            opening = dict(self.opening())
        except NoSource as error:
            self.reason = self.reason or str(error)
        return {
            "reason": self.reason,
            "opening": opening,
            "calls": self.calls,
            "raised": self.raised,
            "imports": sorted(self.imports),
        }


def _without_repeats(answers: Sequence[Any]) -> Sequence[Any]:
    """Return answers of which the last one is given again and again, without its repetitions."""
    last = next((number for number in range(len(answers) - 1, 0, -1) if answers[number - 1] != answers[number]), 0)
    return list(answers[: last + 1])


def record(reproduce: Callable[[], None]) -> None:
    """Run a script and tell what it asked of its scheduler, however it ends."""
    recorder = Recorder()
    recorder.watch()
    with suppress(Exception):  # its end is the failure that the test is about
        reproduce()
    tell(recorder.told())
