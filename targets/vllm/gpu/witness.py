"""Writes witness scripts: vLLM's public API only, with its own block sizes, drafter, kernels and graphs.

The model is Granite 4 (Mamba 2). A script serves a trace's requests and then each of them alone in a plain engine (V2,
eager, no speculation), prints both token lists and exits with 1 if they differ beyond rounding. The API offers no way
to choose drafts, budgets, chunks, preemption or dummy runs: a trace with those has no witness.
"""

from __future__ import annotations

import ast
from importlib.resources import files
from typing import Any

from ....reference.tokens import Truth
from ...base.protocol import TargetError
from ...base.trace import Arrive, Step, Trace
from ..models import dtype, layer_kinds, model_fields
from ..options import has_graphs, is_v2

NEW_TOKENS = 12
"""Tokens of each answer at least: one wrong state shows sooner or later."""


ROWS = 8
"""`max_num_seqs` of the engine under test."""


def write_witness(trace: Trace) -> str:
    """The script's text. TargetError where the public API cannot do what the trace does."""
    config = trace.config
    plan: list[tuple[int, str, list[int], int]] = []
    step = 0
    for event in trace.events:
        if isinstance(event, Arrive):
            truth = Truth(event.prompt)
            # A request that others join has to run until they have come.
            count = max(event.max_new_tokens, NEW_TOKENS) + len(trace.events)
            plan.append((step, event.name, list(truth.tokens[: truth.prompt_length]), count))
        elif isinstance(event, Step) and not (event.budget or event.chunks or event.drafts or event.per_request):
            step += 1
        else:
            raise TargetError(f"no witness script: the public API cannot do what event {event} does")
    if config.policy != "fcfs" or config.async_depth or config.mamba_cache_mode == "none":
        raise TargetError("no witness script: it has mode align, FCFS and synchronous scheduling only")
    if config.options.get("mixer") == "gdn":
        raise TargetError("no witness script: Qwen3-Next without experts needs a patch; try mixer=mamba2")
    k = config.num_speculative_tokens
    budget = max(config.max_num_batched_tokens, ROWS * (k + 1))
    engine: dict[str, Any] = {
        "attention_backend": "TRITON_ATTN", "enable_prefix_caching": True, "max_num_batched_tokens": budget,
    }  # fmt: skip
    if k:
        engine["speculative_config"] = {
            "method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
        }  # fmt: skip
    if has_graphs(config):
        sizes = [(1 + k) * rows for rows in (1, 2, 4, 8)]
        engine["compilation_config"] = {
            "mode": 0, "custom_ops": ["none"], "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes,
        }  # fmt: skip
    else:
        engine["enforce_eager"] = True
    constants = {
        "MODEL": model_fields("mamba2", layer_kinds(config)),
        "DTYPE": dtype(config),
        "RUNNER": "1" if is_v2(config) else "0",
        "ENGINE": engine,
        "PLAN": plan,
    }
    template = (files(__package__) / "witness_template.py").read_text(encoding="utf-8")
    imports, _, rest = template.partition("\nUNSURE")
    lines = "\n".join(f"{name} = {value!r}" for name, value in constants.items())
    about = f'"""{trace.origin}\n\nNeeds vLLM and one GPU. Exit status: 1 where the defect is, 0 where it is not."""\n'
    script = f"{about}\n{imports}\n{lines}\nUNSURE{rest}"
    ast.parse(script)
    return script
