"""A long campaign on released vLLM in which every violation must be explained.

    python benchmarks/vllm_campaign.py --target vllm@0.33.0 --steps 50000 --seed 1 -o out

A violation ends its trace, the campaign goes on. Each violating trace is then run on copies of the same release in
which one cause named in docs/explanation/vllm.md is fixed: the copy on which it stays silent names the cause. A trace
that no fix silences is *unexplained*; it is saved, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hybridfuzz.harness.traces.files import save_trace
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.targets.base.registry import parse, prepare
from hybridfuzz.targets.base.trace import Trace
from trees import Edit, edited_tree

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
V1_RUNNER = "vllm/v1/worker/gpu_model_runner.py"

ONE_TOKEN_PROMPT = (
    Edit(
        SCHEDULER,
        "and (scheduled_running_reqs or num_computed_tokens > 0)",
        "and num_computed_tokens > 0",
    ),
)
UNSCHEDULED_ROW = (
    Edit(
        V1_RUNNER,
        "        for req_id in unscheduled_req_ids:\n            self.input_batch.remove_request(req_id)\n",
        "        kept = self.__dict__.setdefault('accepted_when_unscheduled', {})\n"
        "        for req_id in unscheduled_req_ids:\n"
        "            row = self.input_batch.req_id_to_index[req_id]\n"
        "            kept[req_id] = int(self.input_batch.num_accepted_tokens_cpu[row])\n"
        "            self.input_batch.remove_request(req_id)\n"
        "        for req_id in scheduler_output.preempted_req_ids or ():\n"
        "            kept.pop(req_id, None)\n",
    ),
    Edit(
        V1_RUNNER,
        "        for request in reqs_to_add:\n            self.input_batch.add_request(request)\n",
        "        back = self.__dict__['accepted_when_back'] = {}\n"
        "        for request in reqs_to_add:\n"
        "            self.input_batch.add_request(request)\n"
        "            row = self.input_batch.req_id_to_index[request.req_id]\n"
        "            accepted = kept.pop(request.req_id, 1)\n"
        "            if request.req_id not in resumed_req_ids:\n"
        "                self.input_batch.num_accepted_tokens_cpu[row] = accepted\n"
        "                back[request.req_id] = accepted\n",
    ),
    Edit(
        V1_RUNNER,
        "            self.num_accepted_tokens.np.fill(1)\n            self.num_accepted_tokens.gpu.fill_(1)\n",
        "            self.num_accepted_tokens.np.fill(1)\n"
        "            self.num_accepted_tokens.gpu.fill_(1)\n"
        "            for req_id, accepted in self.__dict__.get('accepted_when_back', {}).items():\n"
        "                self.num_accepted_tokens.gpu[self.input_batch.req_id_to_index[req_id]] = accepted\n",
    ),
)
PUBLISHED_THEN_PREEMPTED = (
    Edit(
        SCHEDULER,
        "                            req_to_new_blocks.pop(preempted_req_id)\n",
        "                            req_to_new_blocks.pop(preempted_req_id)\n"
        "                            for one in self.kv_cache_manager.coordinator.single_type_managers:\n"
        "                                first = preempted_req.num_computed_tokens // one.block_size\n"
        "                                for block in one.req_to_blocks[preempted_req_id][first:]:\n"
        "                                    if not block.is_null:\n"
        "                                        one.block_pool._maybe_evict_cached_block(block)\n",
    ),
)
# A batch of which a row is no decode, all of them 1 + k tokens long, is no uniform decode.
PROMPT_AS_DECODE = (
    Edit(
        V1_RUNNER,
        "                num_encoder_reqs=len(scheduler_output.scheduled_encoder_inputs),\n",
        "                num_encoder_reqs=len(scheduler_output.scheduled_encoder_inputs),\n"
        "                force_uniform_decode=None\n"
        "                if all(\n"
        "                    self.input_batch.num_computed_tokens_cpu[row] > 0\n"
        "                    and len(scheduler_output.scheduled_spec_decode_tokens.get(req_id, ()))\n"
        "                    == self.uniform_decode_query_len - 1\n"
        "                    for row, req_id in enumerate(req_ids)\n"
        "                )\n"
        "                else False,\n",
    ),
)
# The metadata that a dummy run stages for a replay must not depend on the requests that were in its rows last.
DUMMY_RUN_AS_PROMPT = (
    Edit(V1_RUNNER, "        is_prefilling[num_reqs:] = False\n",
         "        is_prefilling[0 if for_cudagraph_capture else num_reqs :] = False\n"),
)  # fmt: skip
# Mamba 2 only. Rows that decode come first, whatever their length; a state inside a chunk has a block of its own in
# every chunk that leaves one; output tokens that a resumed request computes again are its prompt.
PROMPT_BEFORE_DECODE = (
    Edit(
        "vllm/v1/worker/gpu/model_runner.py",
        "            num_tokens_per_req, draft_tokens, self.decode_query_len\n        )\n",
        "            num_tokens_per_req, draft_tokens, self.decode_query_len\n        )\n"
        "        slots, states = self.req_states.req_id_to_index, self.req_states\n"
        "        req_ids.sort(\n"
        "            key=lambda r: bool(\n"
        "                states.num_computed_prefill_tokens[slots[r]] < states.prefill_len.np[slots[r]]\n"
        "            )\n"
        "        )\n",
    ),
)
INNER_STATE_WITHOUT_BLOCK = (
    Edit("vllm/v1/core/single_type_kv_cache_manager.py", "            and query_end >= prefill_end\n", ""),
)
REPLAYED_AS_DRAFTS = (
    Edit(
        "vllm/v1/worker/gpu_input_batch.py",
        "        self._req_ids: list[str | None] = []\n",
        "        self._req_ids: list[str | None] = []\n"
        "        # Where a request's prefill ends: behind its prompt, and behind output\n"
        "        # tokens that are computed again after a preemption.\n"
        "        self.prefill_end: dict[str, int] = {}\n",
    ),
    Edit(
        "vllm/v1/worker/gpu_input_batch.py",
        "        self.num_prompt_tokens[req_index] = num_prompt_tokens\n",
        "        self.num_prompt_tokens[req_index] = num_prompt_tokens\n"
        "        self.prefill_end[req_id] = max(num_prompt_tokens, request.num_tokens - 1)\n",
    ),
    Edit(
        "vllm/v1/worker/gpu_input_batch.py",
        "        self._req_ids[req_index] = None\n        self.req_output_token_ids[req_index] = None\n"
        "        self.spec_token_ids[req_index].clear()\n",
        "        self._req_ids[req_index] = None\n        self.req_output_token_ids[req_index] = None\n"
        "        self.spec_token_ids[req_index].clear()\n"
        "        del self.prefill_end[req_id]\n",
    ),
    Edit(
        V1_RUNNER,
        "        is_prefilling = num_computed_tokens_cpu < num_prompt_tokens_cpu\n",
        "        is_prefilling = num_computed_tokens_cpu < num_prompt_tokens_cpu\n"
        "        for row, req_id in enumerate(self.input_batch.req_ids[:num_reqs]):\n"
        "            prefill_end = self.input_batch.prefill_end[req_id]\n"
        "            is_prefilling[row] = bool(num_computed_tokens_cpu[row] < prefill_end)\n",
    ),
    Edit(
        "vllm/v1/attention/backends/utils.py",
        "    num_prompt_tokens_np = input_batch.num_prompt_tokens[:num_reqs]\n",
        "    prefill_end_np = np.array(\n        [input_batch.prefill_end[id] for id in input_batch.req_ids]\n    )\n",
    ),
    Edit(
        "vllm/v1/attention/backends/utils.py",
        "    done_prefilling = num_computed_tokens_np >= num_prompt_tokens_np\n",
        "    done_prefilling = num_computed_tokens_np >= prefill_end_np\n",
    ),
)
# Counts arrive in the order of the rows of their step and move with the rows: no row is looked up by its former place.
ACCEPTED_PERMUTED_TWICE = (
    Edit(
        V1_RUNNER,
        "            if self.use_async_scheduling and prev_req_id_to_index:\n"
        "                prev_idx = self.prev_positions.np[:num_reqs]\n",
        "            if False:\n                prev_idx = self.prev_positions.np[:num_reqs]\n",
    ),
)
# 0.28.0, asynchronous scheduling in mode align: prefill leaves null blocks between states, and the search for states to
# give back ends at the first.
STATES_BEHIND_A_GAP = (
    Edit(
        "vllm/v1/core/single_type_kv_cache_manager.py",
        "                break\n            freed.append(blocks[i])\n",
        "                continue\n            freed.append(blocks[i])\n",
    ),
)
FIXES = {
    "one-token-prompt": ONE_TOKEN_PROMPT,
    "unscheduled-row": UNSCHEDULED_ROW,
    "published-then-preempted": PUBLISHED_THEN_PREEMPTED,
    "prompt-as-decode": PROMPT_AS_DECODE,
    "dummy-run-as-prompt": DUMMY_RUN_AS_PROMPT,
    "prompt-before-decode": PROMPT_BEFORE_DECODE,
    "inner-state-without-block": INNER_STATE_WITHOUT_BLOCK,
    "replayed-as-drafts": REPLAYED_AS_DRAFTS,
    "accepted-permuted-twice": ACCEPTED_PERMUTED_TWICE,
    "states-behind-a-gap": STATES_BEHIND_A_GAP,
}


class Suspects:
    """Fixed copies of one release, each with a worker that is started when it is first needed."""

    def __init__(self, source: Path, folder: Path, later: Path | None) -> None:
        self.specs: dict[str, str] = {}
        self.workers: dict[str, WorkerClient] = {}
        everything: list[Edit] = []
        for name, edits in FIXES.items():
            try:
                self.specs[name] = f"vllm@{edited_tree(source, list(edits), folder / name)}"
                everything += edits
            except (ValueError, FileNotFoundError) as error:
                print(f"fix {name} does not apply to this release: {error}", file=sys.stderr)
        if later:
            edits = [edit for one in FIXES.values() for edit in one]
            self.specs["silent on the later release"] = f"vllm@{edited_tree(later, edits, folder / 'later')}"
        if len(everything) > 1:
            self.specs["all fixes together"] = f"vllm@{edited_tree(source, everything, folder / 'all')}"

    def explain(self, trace: Trace) -> str:
        """The first suspect on which the trace is silent, or ""."""
        for name, spec in self.specs.items():
            if name not in self.workers:
                self.workers[name] = WorkerClient(spec, prepare(spec, print), trace_seconds=300)
                self.workers[name].start()
            if self.workers[name].run(trace).violation is None:
                return name
        return ""

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.__exit__()


def overrides_of(text: str) -> dict[str, object]:
    """`key=value,...` as a mapping."""
    return dict(pair.split("=", 1) for pair in text.split(",")) if text else {}


def unpacked(spec: str) -> Path:
    """Return the tree of a release, or of a folder. (Workers import a folder by links, which must not be edited.)"""
    given = Path(parse(spec).version)
    return given if given.is_dir() else Path(prepare(spec, print).env["PYTHONPATH"].split(":")[-1])


def campaign(arguments: argparse.Namespace, suspects: Suspects, out: Path) -> dict[str, object]:
    """Run until the steps are done; returns what was counted."""
    launch = prepare(arguments.target, print)
    steps, traces, index = 0, 0, 0
    causes: Counter[str] = Counter()
    configurations: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    started = time.monotonic()
    with WorkerClient(arguments.target, launch, trace_seconds=300) as worker:
        worker.start()
        while steps < arguments.steps:
            for ran in worker.fuzz(Fuzz(arguments.seed, index, 25, overrides_of(arguments.config))):
                steps, traces, index = steps + ran.outcome.steps, traces + 1, ran.index + 1
                reached.update(ran.outcome.reached)
                violation = ran.outcome.violation
                if violation is None:
                    continue
                trace = ran.trace or worker.draw(arguments.seed, ran.index, overrides_of(arguments.config))
                cause = suspects.explain(trace)
                print(f"trace {ran.index}: {violation.signature}: {cause or 'UNEXPLAINED'}", flush=True)
                causes[f"{violation.signature}: {cause or 'UNEXPLAINED'}"] += 1
                configurations[f"{trace.config.options.get('runner')}/{cause}"] += 1
                if not cause:
                    save_trace(trace, out / f"unexplained-{violation.signature}-{ran.index}.json")
                    print(f"UNEXPLAINED trace {ran.index}: {violation.message}", flush=True)
            seconds = time.monotonic() - started
            print(f"{steps} steps, {traces} traces, {seconds:.0f} s, {sum(causes.values())} violations", flush=True)
    return {
        "target": arguments.target, "seed": arguments.seed, "config": arguments.config, "steps": steps,
        "traces": traces, "seconds": round(time.monotonic() - started), "violations": dict(causes),
        "by runner": dict(configurations), "reached": dict(reached),
    }  # fmt: skip


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="", help="key=value,... as for `hybridfuzz fuzz`")
    parser.add_argument("--later", default="", help="a later release, its causes fixed, as a further suspect")
    parser.add_argument("-o", dest="out", type=Path, default=Path("reports/out/vllm-campaign"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    source = unpacked(arguments.target)
    later = unpacked(arguments.later) if arguments.later else None
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        suspects = Suspects(source, Path(folder), later)
        try:
            result = campaign(arguments, suspects, arguments.out)
        finally:
            suspects.close()
    (arguments.out / "campaign.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(any("UNEXPLAINED" in cause for cause in result["violations"]))  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
