"""One-line breaks of vLLM that only real kernels, graphs or dtypes can show: which oracle finds each, and when.

    python benchmarks/gpu_breaks.py --device cuda --tree TREE --seconds 60 --jobs 16 -o breaks.json

Each break is made in a copy of TREE in which the known causes are fixed, and meets random traces in a process of its
own (`gpu_engines.py --until-violation`). The arguments of the kernels, which a CPU sees, stay right. With `--kernels`
the broken kernel is driven by itself (`gpu_kernels.py`), "steps" are cases.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from trees import Edit, edited_tree

MAMBA = "vllm/model_executor/layers/mamba/ops"
FLA = "vllm/third_party/flash_linear_attention/ops"
CONV, SSU, PASSING = f"{MAMBA}/causal_conv1d.py", f"{MAMBA}/mamba_ssm.py", f"{MAMBA}/ssd_state_passing.py"
GATED, DELTA = f"{FLA}/fused_sigmoid_gating.py", f"{FLA}/chunk_delta_h.py"
ATTENTION = "vllm/v1/attention/ops/triton_unified_attention.py"
STORE = "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py"
COPIES, ZEROS = "vllm/v1/worker/mamba_utils.py", "vllm/v1/worker/utils.py"


@dataclass(frozen=True)
class Break:
    """One edit, and the configuration whose traces reach it."""

    name: str
    config: str
    file: str
    old: str
    new: str


BREAKS = (
    Break(
        "conv update reads its window one token late",
        "mixer=mamba2,num_speculative_tokens=3,graphs=none",
        CONV,
        "tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64) - 1",
        "tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64)",
    ),
    Break(
        "conv update drops the newest input",
        "mixer=gdn,num_speculative_tokens=0,graphs=none",
        CONV,
        "    mask = (idx_tokens < state_len)[:, None] & (idx_feats < dim)[None, :]\n"
        "    tl.store(conv_state_ptrs_target, new_conv_state, mask)",
        "    mask = (idx_tokens < state_len - 1)[:, None] & (idx_feats < dim)[None, :]\n"
        "    tl.store(conv_state_ptrs_target, new_conv_state, mask)",
    ),
    Break(
        "conv update takes every row's window from a fixed stride",
        "mixer=mamba2,num_speculative_tokens=0,graphs=decode",
        CONV,
        "conv_state_indices_ptr + idx_seq * stride_state_indices\n    ).to(tl.int64)\n\n    if HAS_NULL_BLOCK:",
        "conv_state_indices_ptr + idx_seq // 2 * 2 * stride_state_indices\n"
        "    ).to(tl.int64)\n"
        "\n"
        "    if HAS_NULL_BLOCK:",
    ),
    Break(
        "selective update stores a draft's state one place early",
        "mixer=mamba2,num_speculative_tokens=3",
        SSU,
        "dst_idx_ptr = dst_state_batch_indices_ptr + i_t * stride",
        "dst_idx_ptr = dst_state_batch_indices_ptr + tl.maximum(i_t - 1, 0) * stride",
    ),
    Break(
        "selective update rounds the stored state to bfloat16",
        "mixer=mamba2,num_speculative_tokens=0",
        SSU,
        "            state = state.to(dst_state_ptrs.dtype.element_ty)",
        "            state = state.to(tl.bfloat16).to(dst_state_ptrs.dtype.element_ty)",
    ),
    Break(
        "selective update ignores the count of accepted tokens",
        "mixer=mamba2,num_speculative_tokens=2",
        SSU,
        "init_token_idx = tl.maximum(num_accepted - 1, 0)",
        "init_token_idx = tl.minimum(num_accepted - 1, 0)",
    ),
    Break(
        "SSD stores all final states in the first slot",
        "mixer=mamba2,graphs=none",
        PASSING,
        "tl.load(final_state_indices_ptr + pid_b * stride_final_state_indices)",
        "tl.load(final_state_indices_ptr + pid_b * 0)",
    ),
    Break(
        "SSD starts each prompt from the first one's state",
        "mixer=mamba2,graphs=none",
        PASSING,
        "+ pid_b * stride_initstates_batch",
        "+ pid_b * 0 * stride_initstates_batch",
    ),
    Break(
        "gated delta update reads the first state after a verification",
        "mixer=gdn,num_speculative_tokens=3",
        GATED,
        "i_t = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1",
        "i_t = tl.load(num_accepted_tokens + i_n).to(tl.int64) * 0",
    ),
    Break(
        "gated delta update rounds the stored state to bfloat16",
        "mixer=gdn,num_speculative_tokens=1",
        GATED,
        "                p_ht = ht + final_state_idx * stride_final_state_token\n"
        "                p_ht = p_ht + i_hv * V * K + o_v[:, None] * K + o_k[None, :]\n"
        "                tl.store(p_ht, b_h.to(p_ht.dtype.element_ty), mask=mask_h)",
        "                p_ht = ht + final_state_idx * stride_final_state_token\n"
        "                p_ht = p_ht + i_hv * V * K + o_v[:, None] * K + o_k[None, :]\n"
        "                tl.store(p_ht, b_h.to(tl.bfloat16).to(p_ht.dtype.element_ty), mask=mask_h)",
    ),
    Break(
        "chunked gated delta stores every head's state as the first head's",
        "mixer=gdn,graphs=none",
        DELTA,
        "        ht = ht + i_nh * V * K",
        "        ht = ht + i_nh // 2 * 2 * V * K",
    ),
    Break(
        "attention reads the first row's block table",
        "mixer=mamba2,graphs=decode",
        ATTENTION,
        "block_table_offset = seq_idx * block_table_stride",
        "block_table_offset = seq_idx * 0 * block_table_stride",
    ),
    Break(
        "attention stores at the next slot of the page",
        "mixer=gdn,graphs=none",
        STORE,
        "            + block_offset * page_stride\n",
        "            + (block_offset + 1) % block_size * page_stride\n",
    ),
    Break(
        "align copies move half of a temporal state",
        "mixer=mamba2,mamba_cache_mode=align",
        COPIES,
        "        body_u64 = body_bytes // 8\n",
        "        body_u64 = body_bytes // 16\n",
    ),
    Break(
        "align copies ignore the accepted column",
        "mixer=gdn,num_speculative_tokens=3,mamba_cache_mode=align",
        COPIES,
        "tl.load(block_table_base + src_col + token_bias)",
        "tl.load(block_table_base + src_col + token_bias * 0)",
    ),
    Break(
        "zeroing clears the first chunk of a page",
        "mixer=gdn,graphs=none",
        ZEROS,
        "    if chunk_offset >= page_size_el:\n        return",
        "    if chunk_offset >= page_size_el // 2:\n        return",
    ),
)


DRIVEN = {
    CONV: "causal_conv1d_update",
    SSU: "selective_state_update",
    PASSING: "mamba_chunk_scan",
    GATED: "fused_sigmoid_gating",
    DELTA: "chunk_gated_delta",
    ATTENTION: "unified_attention",
    STORE: "reshape_and_cache",
    COPIES: "precopy_mamba",
}
"""The kernel of `gpu_kernels.py` that a break is in, by its file."""


def broken_tree(fixed: Path, one: Break, into: Path) -> Path:
    """The fixed tree with one break."""
    return edited_tree(fixed, [Edit(one.file, one.old, one.new)], into)


def main() -> int:
    """Run all breaks, so many at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "interpreter"))
    parser.add_argument("--tree", type=Path, required=True, help="an unpacked vLLM wheel with the known causes fixed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--kernels", action="store_true", help="meet the kernels by themselves (gpu_kernels.py)")
    parser.add_argument("--only", default="", help="words of which one is in a break's name")
    parser.add_argument("-o", dest="out", type=Path, default=Path("gpu-breaks.json"))
    options = parser.parse_args()
    chosen = [one for one in BREAKS if not options.only or any(word in one.name for word in options.only.split(","))]
    chosen = [one for one in chosen if not options.kernels or one.file in DRIVEN]
    folder = Path(tempfile.mkdtemp(prefix="gpu-breaks-"))
    waiting, running, found = list(enumerate(chosen)), {}, {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            number, one = waiting.pop(0)
            tree, out = broken_tree(options.tree, one, folder / f"tree-{number}"), folder / f"{number}.json"
            driver, more = "gpu_engines.py", ["--config", one.config, "--until-violation"]
            if options.kernels:
                driver, more = "gpu_kernels.py", ["--only", DRIVEN[one.file], "--until-wrong"]
            command = [
                sys.executable, str(Path(__file__).with_name(driver)), "--device", options.device, "--tree", str(tree),
                "--seconds", str(options.seconds), "--seed", str(options.seed), *more, "-o", str(out),
            ]  # fmt: skip
            log = (folder / f"{number}.log").open("w")
            running[number] = one, subprocess.Popen(command, stdout=log, stderr=log), out
        for number, (one, process, out) in list(running.items()):
            if process.poll() is None:
                continue
            del running[number]
            result = json.loads(out.read_text())["result"] if out.exists() else {}
            log_tail = "" if result else (folder / f"{number}.log").read_text(errors="replace")[-600:]
            if options.kernels:
                wrong = result.get("wrong", {})
                result = {"violations": wrong, "steps": sum(result.get("cases", {}).values()), "messages": wrong}
            found[one.name] = {
                "config": one.config, "by": list(result.get("violations", {})), "traces": result.get("traces"),
                "steps": result.get("steps"), "message": next(iter(result.get("messages", {}).values()), log_tail),
            }  # fmt: skip
            print(json.dumps({one.name: found[one.name]}), flush=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
        time.sleep(0.2)
    print(f"{sum(bool(one['by']) for one in found.values())} of {len(found)} breaks found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
