"""The gate on a checkout of vLLM 0.33.0 that was refactored without harm, in what the adapter reads.

    python benchmarks/refactorings.py [--only SLUG,...] [--budget SECONDS] [--items EXPRESSION] [--results FILE]

Each refactoring is made in a checkout of its own, on which the gate runs as documented: with the packaged patches of
the release. A verdict is "green" (exit status 0), "does not fit" (exit status 0, and the gate says that it does not
fit), "stopped early" (exit status 0, but the machine was too slow for the budget) or "red". The exit status is 1 if one
is red: an author could do nothing about it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from checkouts import make_checkout, only, run_gate
from msgspec import Struct
from trees import Edit

from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.registry import prepare

RELEASE = "0.33.0"
SAYS = "does not fit this version of the engine"
STOPPED = "stopped early: "
MANAGERS, POOL = "vllm/v1/core/single_type_kv_cache_manager.py", "vllm/v1/core/block_pool.py"
UTILS, SCHEDULER = "vllm/v1/core/kv_cache_utils.py", "vllm/v1/core/sched/scheduler.py"
OFFLOAD = "vllm/v1/simple_kv_offload/manager.py"
Verdict = Literal["green", "does not fit", "stopped early", "red"]


class Refactoring(Struct, frozen=True):
    """A change without effect. `words` are exchanged in all of vLLM, `edits` once each; `new` files are added."""

    slug: str
    words: Mapping[str, str] = {}
    edits: tuple[Edit, ...] = ()
    new: Mapping[str, str] = {}


def renaming(slug: str, old: str, new: str) -> Refactoring:
    """Return a renaming of a word that stands for one thing."""
    return Refactoring(slug, {old: new})


LATE_FREE = "class LateFree(NamedTuple):\n    fence: int\n    blocks: list\n"
GROUP_ID = """\
def get_group_id(key: BlockHashWithGroupId) -> int:
    \"\"\"Extract the group id from a `BlockHashWithGroupId`.\"\"\"
    return int.from_bytes(key[-4:], "big", signed=False)


"""
# fmt: off
REFACTORINGS = (
    renaming("table-of-requests", "req_to_blocks", "blocks_by_request"),
    renaming("map-of-hashes", "cached_block_hash_to_block", "block_by_hash"),
    renaming("free-queue", "free_block_queue", "free_queue"),
    renaming("reference-count", "ref_cnt", "num_references"),
    renaming("tokens-of-a-key", "block_hash_num_tokens", "num_hashed_tokens"),
    renaming("list-of-free-blocks", "get_all_free_blocks", "list_free_blocks"),
    renaming("managers-of-groups", "single_type_managers", "group_managers"),
    renaming("late-frees", "deferred_frees", "pending_frees"),
    renaming("tables-by-row", "input_block_tables", "batch_block_tables"),
    renaming("rows-of-requests", "req_id_to_index", "row_of_request"),
    renaming("argument-of-a-copy", "src_col_gpu", "source_column_gpu"),
    renaming("columns-of-states", "mamba_state_idx", "running_columns"),
    renaming("evicting", "evict_blocks", "drop_cached_blocks"),
    renaming("events-of-a-step", "kv_event_queue", "pending_kv_events"),
    renaming("copy-of-blocks", "copy_kv_cache_blocks_inplace", "copy_blocks_within_caches"),
    renaming("fused-copy", "run_fused_precopy", "launch_precopy"),
    renaming("context-of-copies", "MambaSpecDecodeGPUContext", "AlignCopyContext"),
    renaming("scalar-copy", "collect_mamba_copy_meta", "gather_copy_metadata"),
    renaming("zeroer", "kv_block_zeroer", "block_zeroer"),
    renaming("published-this-step", "cached_blocks_this_step", "fresh_keys"),
    renaming("scheduled-last", "prev_step_scheduled_req_ids", "scheduled_in_last_step"),
    renaming("device-table", "get_device_tensor", "on_device"),
    renaming("lengths-of-rows", "num_blocks_per_row", "row_lengths"),
    Refactoring(
        "list-becomes-a-deque",
        edits=(
            Edit(UTILS, "        ret = []\n        if self.fake", "        ret = deque()\n        if self.fake"),
            Edit(UTILS, "\nfrom typing import ", "\nfrom collections import deque\nfrom typing import "),
        ),
    ),
    Refactoring(
        "tuple-becomes-a-named-one",
        edits=(
            Edit(SCHEDULER, ".append((self.sched_step_seq, blocks))", ".append(LateFree(self.sched_step_seq, blocks))"),
            Edit(SCHEDULER, ".append((fence_seq, blocks[::-1]))", ".append(LateFree(fence_seq, blocks[::-1]))"),
            Edit(SCHEDULER, "\nclass Scheduler(", f"\n{LATE_FREE}\n\nclass Scheduler("),
            Edit(SCHEDULER, "\nimport time\n", "\nimport time\nfrom typing import NamedTuple\n"),
        ),
    ),
    Refactoring(
        "another-order-of-the-free-list",
        edits=(Edit(POOL, ".prepend_n(blocks_to_evict_first)", ".append_n(blocks_to_evict_first)"),),
    ),
    Refactoring("renamed-helpers", {"get_block_hash": "block_hash_of_key", "get_group_id": "group_of_key"}),
    Refactoring(
        "moved-helpers",
        edits=(
            Edit(UTILS, GROUP_ID, ""),
            Edit(POOL, "    get_group_id,\n", ""),
            Edit(OFFLOAD, "    get_group_id,\n", ""),
            Edit(OFFLOAD, "\nlogger = ", "\nfrom vllm.v1.core.kv_cache_keys import get_group_id\n\nlogger = "),
            Edit(POOL, "\nlogger = ", "\nfrom vllm.v1.core.kv_cache_keys import get_group_id\n\nlogger = "),
        ),
        new={"vllm/v1/core/kv_cache_keys.py": GROUP_ID.replace("BlockHashWithGroupId)", "bytes)")},
    ),
    Refactoring(
        "dict-becomes-an-ordered-one",
        edits=(
            Edit(POOL, "dict[int, KVCacheBlock]\n        ] = {}", "dict[int, KVCacheBlock]\n        ] = OrderedDict()"),
            Edit(POOL, "\nfrom typing import ", "\nfrom collections import OrderedDict\nfrom typing import "),
        ),
    ),
    Refactoring(
        "renamed-with-neighbours",
        {"req_to_blocks": "blocks_by_request", "num_cached_block": "num_published", "_num_retired_blocks": "_retired"},
    ),
)
# fmt: on


class Ran(Struct):
    """One refactoring, and what the gate said."""

    slug: str
    verdict: Verdict
    seconds: float
    cpu: float
    outcome: str
    said: list[str] = []


def refactored(one: Refactoring, folder: Path) -> Path:
    """Return a checkout of the release with a refactoring."""
    source = cache_folder() / "vllm" / RELEASE / "tree"
    tree = make_checkout(source, "vllm", one.edits, folder)
    for name, text in one.new.items():
        (tree / name).write_text(text, encoding="utf-8")
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, one.words))})\b") if one.words else None
    met: set[str] = set()
    for path in (tree / "vllm").rglob("*.py") if pattern else ():
        text = path.read_text(encoding="utf-8")
        if found := pattern and pattern.findall(text):
            met.update(found)
            path.unlink()  # the checkout consists of hard links to the release
            path.write_text(pattern.sub(lambda word: one.words[word[1]], text), encoding="utf-8")
    if missing := one.words.keys() - met:
        raise SystemExit(f"{one.slug}: there is no {', '.join(missing)} in vLLM {RELEASE}")
    return tree


def judged(one: Refactoring, budget: float, items: str) -> Ran:
    """Run the gate on one refactoring."""
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        tree = refactored(one, Path(folder, one.slug))
        ran = run_gate(tree, "vllm@.", budget, "--hybridfuzz-fixes=builtin", *only(items))
    status, lines = ran.status, ran.text.splitlines()
    said = [line for line in lines if SAYS in line or line.startswith(("in this version: ", "warning: "))]
    said += [line for line in lines if status and line.startswith(("signature ", "FAILED", "ERROR"))]
    return Ran(one.slug, verdict_of(status, ran.text), ran.wall, ran.cpu, lines[-1].strip("= "), said)


def verdict_of(status: int, text: str) -> Verdict:
    """Return what a run of the gate says about a refactoring."""
    if status:
        return "red"
    return "does not fit" if SAYS in text else "stopped early" if STOPPED in text else "green"


def table(runs: Sequence[Ran]) -> str:
    """Return the results as a table."""
    lines = ["| refactoring | verdict | wall s | CPU s | items |", "| --- | --- | ---: | ---: | --- |"]
    lines += [f"| {ran.slug} | {ran.verdict} | {ran.seconds:.0f} | {ran.cpu:.0f} | {ran.outcome} |" for ran in runs]
    counts = Counter(ran.verdict for ran in runs)
    return "\n".join([*lines, "", ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))])


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="SLUG,...")
    parser.add_argument("--budget", type=float, default=10, metavar="SECONDS")
    parser.add_argument("--items", default="", metavar="EXPRESSION", help="as for pytest's -k (default: all)")
    parser.add_argument("--results", type=Path, help="keep results here; refactorings with one are not run again")
    arguments = parser.parse_args()
    prepare(f"vllm@{RELEASE}", print)
    kept: Path | None = arguments.results
    runs = msgspec.json.decode(kept.read_bytes(), type=list[Ran]) if kept and kept.exists() else []
    wanted = set(filter(None, arguments.only.split(",")))
    for one in REFACTORINGS:
        if one.slug in {ran.slug for ran in runs} or (wanted and one.slug not in wanted):
            continue
        runs.append(ran := judged(one, arguments.budget, arguments.items))
        print(
            f"{ran.slug}: {ran.verdict} ({ran.seconds:.0f} s, CPU {ran.cpu:.0f} s; {ran.outcome})",
            *ran.said,
            sep="\n    ",
            flush=True,
        )
        if kept:
            kept.write_bytes(msgspec.json.encode(runs))
    print(table(runs))
    return int(any(ran.verdict == "red" for ran in runs))


if __name__ == "__main__":
    sys.exit(main())
