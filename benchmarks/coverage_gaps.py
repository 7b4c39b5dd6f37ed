"""What would reach the statements that no trace reached, by the conditions around them.

    python benchmarks/coverage_gaps.py DIR TREE

DIR is the output folder of `hybridfuzz coverage`, TREE the folder that the engine was imported from. A statement
belongs to the first reason whose words occur in it, in a condition around it or in its function's name, from the inside
out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hybridfuzz.harness.measure.coverage.report import LCOV_FILE

REASONS = {
    "vllm": {
        "KV events": r"kv_event|kv_cache_events|BlockStored|BlockRemoved|publish",
        "statistics, log lines": r"metrics|log_stats|logger|stats|record_event",
        "multimodal, encoder": r"\bmm_|_mm_|mm_features|encoder|ec_connector|ec_transfer|ec_meta|embed_mismatch",
        "LoRA": r"lora",
        "prompt embeddings": r"prompt_embeds|is_token_ids",
        "sampling, structured output, pooling": r"sampling|temperature|top_[pk]|penalt|generator|logprob|bad_words"
        r"|allowed_tok|thinking|pooling|grammar|structured|nans",
        "ReplaySSM, RecoverSSM": r"replayssm|recoverssm|replay_start|decode_base|write_pos|is_flush|bc_pre_scratch",
        "kernels that need a GPU": r"flashinfer|cutedsl|aiter",
        "several GPUs for one model": r"dcp|pcp|use_pp|pipeline|world_size|other_pools|ubatch",
        "diffusion, dynamic or prefill-only speculation": r"diffusion|dynamic_sd|lookahead|stagger|extra_retained",
        "streaming input, pausing": r"stream|session|pause|resumable",
        "EAGLE, drafter groups": r"eagle|draft",
        "HiSparse, retained hits, circular buffers": r"hisparse|retain|_ring|Circular|notify_reuse",
        "states in another layout, at odd addresses": r"_copy_mamba_state_block|_memcpy_u64|state_dim_row|conv_widths",
        "several groups of states on V1": r"update_block_table|aligned_state_indices",
        "KV connectors": r"connector|kv_xfer|remote_kv|recving|external|load_kv|offload|deferred|delay_cache|defer",
    },
    "sglang": {
        "sliding windows beside states": r"swa|SWA|sliding|window_lock|window_ancestor",
        "storage behind the host, and what is fetched from it": r"storage|prefetch|_l3|revoke|hit_query|belief"
        r"|hash_value|insert_host",
        "HiCache's host as a buffer": r"buffer_|_buffer|Buffer",
        "unified memory": r"UnifiedMamba|unified_mem|mamba_gap|move_gate|compaction",
        "images, audio": r"mm_|[mM]ultimodal|image|encoder|audio|video",
        "sessions that requests name": r"session_ref|session_leaf|session_coverage|session_ancestor",
        "int8 checkpoints": r"int8",
        "several GPUs, other servers": r"dcp|pp_|disagg|rotation|shard|all_reduce|cp_|decode_to_extend|dp_|_idle",
        "sampling, structured output, embeddings": r"logprob|grammar|sampling|hidden_states|penal|top_"
        r"|temperature|routed|beam|reasoning|embeds|lora",
        "statistics, log lines, events": r"metric|log|stats|kv_event|record_|debug",
        "other kinds of speculation": r"eagle|draft|spec_info|dflash|topk",
        "caches of other packages": r"linker|external",
        "orders by routing keys, at random": r"routing_key|random",
        "other hardware, diffusion": r"npu|hip|xpu|mlx|gfx|tile|dllm",
    },
}
BROKEN = "checks that fail only if the engine is broken or configured wrongly"


def unreached(folder: Path) -> dict[str, list[int]]:
    """Return the lines of statements that were not reached, by module."""
    found: dict[str, list[int]] = {}
    module = ""
    for line in (folder / "coverage" / LCOV_FILE).read_text(encoding="utf-8").splitlines():
        if line.startswith("SF:"):
            module = line[3:]
        elif re.match(r"DA:\d+,0", line):
            found.setdefault(module, []).append(int(re.findall(r"\d+", line)[0]))
    return found


def contexts(node: ast.AST, outer: tuple[str, ...] = ()) -> Iterator[tuple[int, ast.stmt, tuple[str, ...]]]:
    """Yield (line, statement, texts from the inside out) of all statements."""
    for child in ast.iter_child_nodes(node):
        texts = outer
        if isinstance(child, ast.stmt):
            head = ast.unparse(child).splitlines()[0] if hasattr(child, "body") else ast.unparse(child)
            texts = (child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else head, *outer)
            yield child.lineno, child, texts
        yield from contexts(child, texts)


def reason(engine: str, statement: ast.stmt, texts: tuple[str, ...]) -> str:
    """Return why a statement of an engine was not reached."""
    if isinstance(statement, ast.Raise) or "Unexpected" in texts[0]:
        return BROKEN
    for text in texts:
        for name, words in REASONS[engine].items():
            if re.search(words, text, re.IGNORECASE):
                return name
    return "other"


def main() -> None:
    """Print a table: a row for each reason, a column for each module below the mark."""
    folder, tree = Path(sys.argv[1]), Path(sys.argv[2])
    counts: dict[str, Counter[str]] = {}
    for module, lines in unreached(folder).items():
        engine = module.partition("/")[0]
        known = {
            line: (statement, texts)
            for line, statement, texts in contexts(ast.parse((tree / module).read_text(encoding="utf-8")))
        }
        counts[module] = Counter(reason(engine, *known[line]) if line in known else "other" for line in lines)
    total = sum(counts.values(), Counter[str]())
    print("| would be reached by | statements | where |")
    print("| --- | ---: | --- |")
    for name, number in total.most_common():
        where = sorted(((found[name], module) for module, found in counts.items() if found[name]), reverse=True)
        print(f"| {name} | {number} | {', '.join(f'{Path(module).name} {count}' for count, module in where[:5])} |")


if __name__ == "__main__":
    main()
