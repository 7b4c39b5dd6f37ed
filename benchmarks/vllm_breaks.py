"""Proof that the vLLM target can see: vLLM 0.33.0 with one line broken at a time, until an oracle says so.

    python benchmarks/vllm_breaks.py [--only SLUG,...] [--results FILE]

Each break runs on random traces of a fixed seed. The release has bugs of its own, so a violation counts only if the
unbroken release does not fail on the very same trace just there and then. Writes docs/vllm-breaks.md.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hybridfuzz.harness.messages import Fuzz
from hybridfuzz.harness.supervisor import Worker
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.registry import prepare

TARGET = "vllm@0.33.0"
SEED = 11
STEPS_MAX = 6000
SECONDS_MAX = 120.0
PAGE = Path(__file__).parents[1] / "docs" / "vllm-breaks.md"


@dataclass(frozen=True)
class Break:
    """One broken line. `config` makes it reachable; `why` explains one that nothing sees."""

    slug: str
    file: str
    config: dict[str, str]
    what: str
    old: str
    new: str
    why: str = ""


V1, V2 = {"runner": "v1"}, {"runner": "v2"}
ALIGN, ASYNC, EAGLE = {"mamba_cache_mode": "align"}, {"async_depth": "1"}, {"eagle_block_drop": "true"}
SPEC, NO_SPEC = {"num_speculative_tokens": "2"}, {"num_speculative_tokens": "0"}
SPARSE = {"retention": "default"}
SCHEDULER, MANAGER = "v1/core/sched/scheduler.py", "v1/core/kv_cache_manager.py"
GROUPS, COORDINATOR = "v1/core/single_type_kv_cache_manager.py", "v1/core/kv_cache_coordinator.py"
POOL, GDN = "v1/core/block_pool.py", "v1/attention/backends/gdn_attn.py"
TABLES_V1, TABLES_V2 = "v1/worker/block_table.py", "v1/worker/gpu/block_table.py"
RUNNER_V1 = "v1/worker/gpu_model_runner.py"
BATCH_V1, STATE_V2 = "v1/worker/gpu_input_batch.py", "v1/worker/gpu/model_states/mamba_hybrid.py"
MAMBA, UTILS = "v1/worker/mamba_utils.py", "v1/worker/utils.py"

# fmt: off
BREAKS = (
    Break("stale-output-not-marked", SCHEDULER, V2 | ASYNC,
          "results in flight when a request is preempted count for its next life",
          "        )\n        request.num_stale_output_tokens = request.num_in_flight_tokens",
          "        )\n        request.num_stale_output_tokens = 0"),
    Break("commit-in-flight", SCHEDULER, V2 | ASYNC | SPEC | ALIGN,
          "tokens of the step in flight are published as if computed",
          "num_computed_tokens - request.num_in_flight_tokens,\n                    )",
          "num_computed_tokens,\n                    )"),
    Break("chunk-past-boundary", SCHEDULER, ALIGN,
          "a chunk that starts inside a block runs past the boundary whose state is published",
          "if start % block_size != 0 and not use_internal", "if start % block_size == 0 and not use_internal"),
    Break("preempted-not-reported", SCHEDULER, V2, "the worker is not told of a preemption and keeps the row",
          "        self.reset_preempted_req_ids.add(request.request_id)\n", ""),
    Break("stop-without-rollback", SCHEDULER, SPEC | ALIGN, "accepted drafts behind the last token count as computed",
          "request.num_computed_tokens -= len(new_token_ids) - num_new", "pass",
          "Harmless: trimmed tokens are accepted drafts, so the last token's state exists; one more block is found."),
    Break("same-step-hit", GROUPS, ALIGN, "a state that this step will write may be hit in this very step",
          "self.cached_blocks_this_step.add(block.block_hash)", "pass"),
    Break("same-step-never-ends", GROUPS, ALIGN, "what was published once may not be hit, and who hits it waits",
          "self.cached_blocks_this_step.clear()", "pass"),
    Break("skipped-off-by-one", GROUPS, ALIGN, "at a block boundary the state to continue from is given back",
          "        return num_computed_tokens - 1\n\n    def cache_blocks(",
          "        return num_computed_tokens\n\n    def cache_blocks("),
    Break("in-flight-not-subtracted", MANAGER, V2 | ASYNC | SPEC | ALIGN,
          "states are given back as if all drafts in flight were accepted",
          "max(0, total_computed_tokens - request.num_in_flight_tokens),", "total_computed_tokens,"),
    Break("evictable-not-counted", GROUPS, ALIGN, "the admission check forgets that hits leave the free queue",
          "return num_new_blocks + num_evictable_computed_blocks", "return num_new_blocks"),
    Break("hits-not-truncated", COORDINATOR, ALIGN, "attention keeps hit blocks behind the common hit length",
          "del blks[num_blocks:]", "pass"),
    Break("last-duplicate-lost", POOL, ALIGN, "of two equal blocks one is evicted, and the other cannot be found",
          "            if len(blocks) > 0:\n", "            if len(blocks) > 1:\n"),
    Break("dummy-tables-stale", TABLES_V2, V2, "a dummy run uses the tables of the last real step",
          "block_table[:num_rows].zero_()", "pass"),
    Break("dummy-slots-first-group", TABLES_V2, V2, "a dummy run has real slots in all groups but the first",
          "self.slot_mappings.fill_(PAD_SLOT_ID)", "self.slot_mappings[0].fill_(PAD_SLOT_ID)"),
    Break("swap-without-counts", TABLES_V1, V1, "two rows change places, their lengths do not",
          "self.num_blocks_per_row[src_tgt] = self.num_blocks_per_row[tgt_src]", "pass"),
    Break("condense-without-accepted", BATCH_V1, V1 | SPEC, "a row moves, its count of accepted drafts does not",
          "self.num_accepted_tokens_cpu[empty_index] = self.num_accepted_tokens_cpu[\n                last_req_index",
          "self.num_accepted_tokens_cpu[empty_index] = self.num_accepted_tokens_cpu[\n                empty_index"),
    Break("zero-draft-row", RUNNER_V1, V1 | SPEC, "a decode without drafts ignores what was accepted before",
          "(num_decode_draft_tokens < 0) & zero_draft", "(num_decode_draft_tokens < -1) & zero_draft"),
    Break("accepted-after-copy", MAMBA, V1 | SPEC | ALIGN, "after the copy to the next block the accepted count stays",
          "input_batch.num_accepted_tokens_cpu[i] = 1", "pass"),
    Break("accepted-of-last-owner", STATE_V2, V2 | SPEC | ALIGN, "a slot keeps the accepted count of its last owner",
          "self.num_accepted_tokens_gpu[req_index].fill_(1)", "pass"),
    Break("first-boundary-not-reset", MAMBA, V2 | SPEC | ALIGN, "crossing the first boundary keeps the accepted count",
          "should_reset = (state_idx >= 0)", "should_reset = (state_idx > 0)"),
    Break("seed-off-by-one", STATE_V2, V2 | ALIGN, "after a hit the state is looked for one column too far",
          "(new_req_data.num_computed_tokens - 1) // mamba", "new_req_data.num_computed_tokens // mamba"),
    Break("conv-not-shifted", MAMBA, SPEC | ALIGN, "the window is copied without the shift of the accepted drafts",
          "src_addr = src_block_addr + token_bias.to(tl.int64) * token_bytes", "src_addr = src_block_addr"),
    Break("boundary-not-saved", MAMBA, SPEC | ALIGN, "the state at a boundary is not saved when drafts ran past it",
          "needs_copy = aligned_new_computed >= num_", "needs_copy = aligned_new_computed > num_"),
    Break("initial-state-offset", GDN, NO_SPEC, "prefills get the initial-state flags of the decodes before them",
          "_has_initial_state = has_initial_state[num_decodes:]", "_has_initial_state = has_initial_state"),
    Break("padded-tail-as-prefill", STATE_V2, V2 | SPEC | ALIGN,
          "a prompt's last token, padded with placeholder drafts, runs in the prefill kernel",
          "is_prefilling_np = is_prefilling_np & ~input_batch.prefill_runs_as_decode_np", "pass"),
    Break("resumed-before-drained", SCHEDULER, V2 | ASYNC, "a preempted request resumes with results still in flight",
          "if request.num_stale_output_tokens and not request", "if request.num_stale_output_tokens and request"),
    Break("retired-count-kept", GROUPS, ALIGN, "a preempted request's count of retired states outlives its blocks",
          "self._num_retired_blocks.pop(request_id, None)", "pass"),
    Break("row-of-last-owner", BATCH_V1, V1 | SPEC, "a row keeps the accepted count of its last owner",
          "self.num_accepted_tokens_cpu[req_index] = 1", "pass"),
    Break("hit-one-block-short", GROUPS, ALIGN, "the last full block of states is never looked up",
          "max_num_blocks = max_length // block_size\n        # Search from right to left",
          "max_num_blocks = max_length // block_size - 1\n        # Search from right to left"),
    Break("state-never-retired", GROUPS, ALIGN, "one state after another is skipped when states are given back",
          "_num_retired_blocks[request_id] = last_block\n", "_num_retired_blocks[request_id] = last_block + 1\n",
          "Costs memory only: under async scheduling states stay until the request ends; nothing bounds that."),
    Break("wrong-boundary-kept", GROUPS, ALIGN | SPARSE, "the state where a resent prompt resumes is not published",
          "boundary_block = aligned // block_size - 1", "boundary_block = aligned // block_size",
          "Only changes what can be hit: M8 compares with what is published, not with what retention promises."),
    Break("eagle-no-drop", GROUPS, V2 | SPEC | ALIGN | EAGLE, "with EAGLE the last matching block is not dropped",
          "            hit_length -= min(alignment_tokens, block_size)", "            pass",
          "Unreachable: hashes that look ahead replace the drop unless disable_lookahead_block_hashes is set."),
    Break("row-not-cleared", BATCH_V1, V1, "a request that ended leaves its block ids in the row",
          "self.block_table.clear_row(req_index)", "pass",
          "V1's eager dummy run builds no attention metadata; only a full graph (or force_attention) reads such rows."),
    Break("vacated-row-stale", TABLES_V1, V1, "a row that moved leaves its block ids behind",
          "        block_table_np[src, :num_blocks] = 0\n", "",
          "As for row-not-cleared: only the rows of a dummy run or of graph padding would read it."),
    Break("graph-padding-kept", GDN, V2, "padding rows of a decode graph keep the state indices of an earlier batch",
          "            non_spec_state_indices_tensor[num_decodes:].fill_(NULL_BLOCK_ID)\n", "",
          "Unreachable: the target runs eagerly; the builder stages padded rows only for full decode graphs."),
)
# fmt: on


class Result(msgspec.Struct, frozen=True):
    """What happened to one break: `signature` is empty if nothing was seen; `known` violations are of the release."""

    slug: str
    steps: int
    traces: int
    known: int
    seconds: float
    signature: str = ""
    message: str = ""


def edited(tree: Path, one: Break) -> str:
    """The broken file's text."""
    text = (tree / "vllm" / one.file).read_text(encoding="utf-8")
    found = text.count(one.old)
    if found != 1:
        raise SystemExit(f"{one.slug}: the old text occurs {found} times in {one.file}, not once: {one.old!r}")
    return text.replace(one.old, one.new)


def overlay(tree: Path, copy: Path, inside: Path) -> None:
    """`copy` looks like `tree`: links, except on the way to the file `inside`, which is left out."""
    copy.mkdir()
    first, *rest = inside.parts
    for entry in tree.iterdir():
        if entry.name != first:
            (copy / entry.name).symlink_to(entry)
    if rest:
        overlay(tree / first, copy / first, Path(*rest))


def broken_launch(launch: Launch, one: Break, folder: Path) -> Launch:
    """How to start a worker on a tree with this break, made in `folder`."""
    ours, _, tree = launch.env["PYTHONPATH"].rpartition(":")
    text = edited(Path(tree), one)
    inside = Path("vllm") / one.file
    overlay(Path(tree), folder, inside)
    (folder / inside).write_text(text, encoding="utf-8")
    # Byte code is linked as well: nothing new may be written there.
    env = {**launch.env, "PYTHONPATH": f"{ours}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Launch(launch.python, env, f"{launch.version}, {one.slug}")


def hunt(one: Break, worker: Worker, reference: Worker) -> Result:
    """Random traces until something is seen that the unbroken release does not show there, or the limits are met."""
    start, steps, traces, known = time.monotonic(), 0, 0, 0
    for ran in worker.fuzz(Fuzz(SEED, 0, 100_000, dict(one.config))):
        steps, traces = steps + ran.outcome.steps, traces + 1
        violation, seconds = ran.outcome.violation, time.monotonic() - start
        if violation and ran.trace:
            seen = reference.run(ran.trace).violation
            if seen is None or (seen.signature != violation.signature and seen.event > violation.event):
                return Result(one.slug, steps, traces, known, seconds, violation.signature, violation.message)
            known += 1
        if steps >= STEPS_MAX or seconds >= SECONDS_MAX:
            break
    return Result(one.slug, steps, traces, known, time.monotonic() - start)


def hunt_all(wanted: Sequence[Break], launch: Launch, reference: Worker) -> Iterator[Result]:
    """One after another; the next worker imports its engine meanwhile."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:

        def start(one: Break) -> Worker:
            worker = Worker(TARGET, broken_launch(launch, one, Path(folder) / one.slug))
            worker.start()
            return worker

        coming = [pool.submit(start, one) for one in wanted[:1]]
        for index, one in enumerate(wanted):
            with coming.pop().result() as worker:
                coming += [pool.submit(start, later) for later in wanted[index + 1 : index + 2]]
                yield hunt(one, worker, reference)


def cell(text: str) -> str:
    """Text for a cell of a Markdown table; files are named from the package on."""
    return re.sub(r"\S+/(?=vllm/)", "", " ".join(text.split())).replace("|", "\\|")


def page(results: dict[str, Result]) -> str:
    """docs/vllm-breaks.md."""
    done = [(one, results[one.slug]) for one in BREAKS if one.slug in results]
    caught = [(one, result) for one, result in done if result.signature]
    lines = [
        "# vLLM 0.33.0, broken on purpose",
        "",
        f"{len(caught)} of {len(done)} one-line breaks are caught. `python benchmarks/vllm_breaks.py` makes each",
        f"and fuzzes (seed {SEED}) until an oracle says so, for {STEPS_MAX:,} steps or {SECONDS_MAX:.0f} s at most.",
        "A violation counts only if the unbroken release does not fail on the very same trace at or before that event;",
        "steps and traces include those that showed only a bug of the release itself.",
        "",
        "| break | file | what | caught by | steps | traces | message |",
        "| --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for one, result in caught:
        lines.append(
            f"| `{one.slug}` | `{one.file}` | {cell(one.what)} | {result.signature} | {result.steps:,} "
            f"| {result.traces} | {cell(result.message)} |"
        )
    lines += ["", "## Not caught, and why", ""]
    for one, result in done:
        if not result.signature:
            lines.append(f"- `{one.slug}` (`{one.file}`; {result.steps:,} steps, {result.traces} traces): {one.what}.")
            lines.append(f"  {one.why or 'Not explained yet.'}")
    return "\n".join(lines) + "\n"


def chosen(slugs: str, results: dict[str, Result]) -> Sequence[Break]:
    """The breaks to run: those named, else all that have no result yet, the doubtful ones last."""
    if not slugs:
        return sorted((one for one in BREAKS if one.slug not in results), key=lambda one: bool(one.why))
    known = {one.slug: one for one in BREAKS}
    if unknown := [slug for slug in slugs.split(",") if slug not in known]:
        raise SystemExit(f"unknown breaks: {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[slug] for slug in slugs.split(",")]


def main() -> None:
    """Run the breaks, one after another, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="SLUG,...", help="only these breaks; the page stays as it is")
    parser.add_argument("--results", type=Path, help="keep results in this file; without --only, skip what is in it")
    arguments = parser.parse_args()
    kept: Path | None = arguments.results
    saved = msgspec.json.decode(kept.read_bytes(), type=list[Result]) if kept and kept.exists() else []
    results = {result.slug: result for result in saved}
    launch = prepare(TARGET, print)
    wanted = chosen(arguments.only, results)
    for one in wanted:
        edited(Path(launch.env["PYTHONPATH"].rpartition(":")[2]), one)
    with Worker(TARGET, launch) as reference:
        if wanted:
            reference.start()
        for result in hunt_all(wanted, launch, reference):
            results[result.slug] = result
            seen = f"{result.signature or 'NOT CAUGHT':40} {result.message}"
            figures = f"{result.steps:6} {result.traces:5} {result.known:5} {result.seconds:6.0f} s"
            print(f"{result.slug:26} {figures}  {seen}", flush=True)
            if kept:
                kept.write_bytes(msgspec.json.encode(list(results.values())))
    if not arguments.only:
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
