"""One-line breaks of transformers' cache, masks and models: which are caught, by which oracle, after how many steps.

    python benchmarks/transformers_breaks.py [RELEASE] > benchmarks/transformers_breaks.md

Each break replaces one line of one function in a running worker, and takes it back afterwards. A violation counts only
if the same trace is silent without the break.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

SEED, STEPS_MAX, SECONDS_MAX = 11, 2000, 90.0
SOUND = {"chunks": "wide", "record": "no", "client": "generate", "offload": "no", "wait": "4"}


class Break(NamedTuple):
    """`old` becomes `new` in `function` ("Class.method" or a function) of a module of transformers."""

    name: str
    module: str
    function: str
    old: str
    new: str
    family: str
    options: dict[str, object] = {}  # noqa: RUF012


CACHE, MASKS = "cache_utils", "masking_utils"
NEXT, BAMBA, LFM2 = (
    "models.qwen3_next.modeling_qwen3_next",
    "models.bamba.modeling_bamba",
    "models.lfm2.modeling_lfm2",
)
MINIMAX, GRANITE = "models.minimax.modeling_minimax", "models.granitemoehybrid.modeling_granitemoehybrid"
RECORDING: dict[str, object] = {"record": "yes"}
DRAFTS: dict[str, object] = {"num_speculative_tokens": 3, "cache": "own"}
STATIC: dict[str, object] = {"cache": "static"}
BREAKS = (
    Break("values-in-front", CACHE, "DynamicLayer.update", "torch.cat([self.values, value_states], dim=-2)",
          "torch.cat([value_states, self.values], dim=-2)", "qwen3-next"),
    Break("slots-cropped-one-short", CACHE, "DynamicLayer.crop", "self.keys[..., : -abs(tokens_to_remove), :]",
          "self.keys[..., : (-abs(tokens_to_remove) + 1) or None, :]", "lfm2", RECORDING),
    Break("crop-of-drafts-ignored", CACHE, "DynamicLayer.crop", "tokens_to_remove == 0 or not self.is_initialized",
          "tokens_to_remove == -1 or not self.is_initialized", "lfm2", DRAFTS),
    Break("mask-offset", CACHE, "DynamicLayer.get_mask_sizes", "kv_offset = 0", "kv_offset = 1", "qwen3-next"),
    Break("values-not-reordered", CACHE, "CacheLayerMixin.reorder_cache",
          "self.values = self.values.index_select(0, beam_idx.to(self.values.device))", "pass", "granite-hybrid"),
    Break("states-not-reordered", CACHE, "LinearAttentionCacheLayerMixin.reorder_cache",
          "self.recurrent_states[i].index_select(0, beam_idx.to(self.device))", "self.recurrent_states[i]", "mamba2"),
    Break("windows-not-reordered", CACHE, "LinearAttentionCacheLayerMixin.reorder_cache",
          "self.conv_states[i].index_select(0, beam_idx.to(self.device))", "self.conv_states[i]", "lfm2"),
    Break("first-inputs-kept", CACHE, "LinearAttentionLayer.update_conv_state",
          "full_conv_states[..., -self.conv_kernel_size[state_idx] :]",
          "full_conv_states[..., : self.conv_kernel_size[state_idx]]", "lfm2"),
    Break("window-padded-behind", CACHE, "LinearAttentionLayer.update_conv_state", "(padding_length, 0)",
          "(0, padding_length)", "bamba"),
    Break("window-forgotten", CACHE, "LinearAttentionLayer.update_conv_state",
          "self.has_previous_state[state_idx] = True", "self.has_previous_state[state_idx] = False", "qwen3-5"),
    Break("states-added-up", CACHE, "LinearAttentionLayer.update_recurrent_state",
          "self.recurrent_states[state_idx].copy_(recurrent_states)",
          "self.recurrent_states[state_idx].add_(recurrent_states)", "olmo-hybrid"),
    Break("window-cropped-one-short", CACHE, "LinearAttentionCacheLayerMixin.crop",
          "-tokens_to_remove - self.conv_kernel_size[i] : -tokens_to_remove",
          "-tokens_to_remove - self.conv_kernel_size[i] : (-tokens_to_remove + 1) or None", "lfm2", DRAFTS),
    Break("recording-stops", CACHE, "LinearAttentionLayer.update_conv_state",
          "self.conv_states[state_idx] = full_conv_states",
          "self.conv_states[state_idx] = full_conv_states[..., -self.conv_kernel_size[state_idx] :]", "lfm2", DRAFTS),
    Break("static-from-zero", CACHE, "StaticLayer.update",
          "torch.arange(kv_length, device=self.device) + self.cumulative_length",
          "torch.arange(kv_length, device=self.device)", "qwen3-next", STATIC),
    Break("static-length-of-one", CACHE, "StaticLayer.update", "self.cumulative_length.add_(kv_length)",
          "self.cumulative_length.add_(1)", "bamba", STATIC),
    Break("static-length-not-reset", CACHE, "CacheLayerMixin.reset", "self.cumulative_length.zero_()", "pass",
          "jamba", {**STATIC, "chunks": "whole", "reuse": "yes"}),
    Break("state-zeroed-only", CACHE, "LinearAttentionCacheLayerMixin.reset", "self.has_previous_state[i] = False",
          "pass", "granite-hybrid", {"reuse": "yes"}),
    Break("mask-of-the-first-columns", MASKS, "create_recurrent_attention_mask",
          "attention_mask[:, -inputs_embeds.shape[1] :]", "attention_mask[:, : inputs_embeds.shape[1]]", "mamba2"),
    Break("mask-skipped", MASKS, "create_recurrent_attention_mask", "torch.all(attention_mask == 1)",
          "torch.any(attention_mask == 1)", "qwen3-next"),
    Break("one-token-ahead", MASKS, "causal_mask_function", "kv_idx <= q_idx", "kv_idx <= q_idx + 1", "granite-hybrid"),
    Break("chunk-without-state", NEXT, "Qwen3NextGatedDeltaNet.forward",
          "if recurrent_state is not None and seq_len == 1:",
          "recurrent_state = recurrent_state if seq_len == 1 else None\n    if recurrent_state is not None:",
          "qwen3-next"),
    Break("outputs-of-old-inputs", NEXT, "Qwen3NextGatedDeltaNet.forward", "mixed_qkv[:, :, -seq_len:]",
          "mixed_qkv[:, :, :seq_len]", "qwen3-next"),
    Break("padding-counts", NEXT, "Qwen3NextGatedDeltaNet.forward",
          "hidden_states = apply_mask_to_padding_states(hidden_states, attention_mask)", "pass", "qwen3-next"),
    Break("state-not-stored", NEXT, "Qwen3NextGatedDeltaNet.forward",
          "cache_params.update_recurrent_state(last_recurrent_state, self.layer_idx)", "pass", "qwen3-next"),
    Break("scan-without-state", BAMBA, "BambaMixer.forward", "initial_states=recurrent_state", "initial_states=None",
          "bamba"),
    Break("scan-forgets-state", GRANITE, "GraniteMoeHybridMambaLayer.forward", "initial_states=recurrent_state",
          "initial_states=None", "granite-hybrid"),
    Break("step-while-recording", LFM2, "Lfm2ShortConv.forward",
          " and not past_key_values.is_recording_past(self.layer_idx)", "", "lfm2", RECORDING),
    Break("conv-padding-counts", LFM2, "Lfm2ShortConv.forward",
          "hidden_states = apply_mask_to_padding_states(hidden_states, attention_mask)", "pass", "lfm2"),
    Break("no-decay", MINIMAX, "MiniMaxLightningAttention.forward", "ratio * attn_weights_inter", "attn_weights_inter",
          "minimax", {"reuse": "no"}),
    Break("decay-of-a-whole-block", MINIMAX, "MiniMaxLightningAttention.forward",
          "torch.exp(-self.slope_rate * current_block_size)", "torch.exp(-self.slope_rate * self.block_size)",
          "minimax", {"reuse": "no"}),
)  # fmt: skip


@contextmanager
def broken(one: Break) -> Iterator[None]:
    """Replace the line of a break for the body."""
    module = import_module(f"transformers.{one.module}")
    *holders, name = one.function.split(".")
    holder: Any = getattr(module, holders[0]) if holders else module
    before = holder.__dict__[name]
    source = textwrap.dedent(inspect.getsource(before))
    assert source.count(one.old) == 1, f"{one.name}: {one.old!r} is {source.count(one.old)} times in {one.function}"
    source = source.replace(one.old, one.new)
    if holders:
        source = source.replace("super()", f"super({holders[0]}, self)")
    found: dict[str, Any] = {}
    exec(compile(source, module.__file__ or one.module, "exec"), module.__dict__, found)
    setattr(holder, name, found[name])
    users = [user for user in list(sys.modules.values()) if getattr(user, name, None) is before and not holders]
    for user in users:
        setattr(user, name, found[name])
    try:
        yield
    finally:
        for user in [holder, *users]:
            setattr(user, name, before)


def inside() -> None:
    """Make each break in this process, which can import transformers, and print the table."""
    from hybridfuzz.harness.draw.grammar import draw_trace
    from hybridfuzz.harness.judge.run import run_trace
    from hybridfuzz.targets.transformers.factory import make_factory

    wanted = set(sys.argv[2:])
    factories: dict[str, Any] = {}
    rows, caught = [], 0
    chosen = [one for one in BREAKS if not wanted or one.name in wanted]
    for one in chosen:
        factory = factories.setdefault(one.family, make_factory(one.family))
        overrides = {**SOUND, **one.options}
        began, steps, index, row = (
            time.monotonic(),
            0,
            0,
            f"| `{one.name}` | `{one.module}` | {one.family} | not caught |",
        )
        while steps < STEPS_MAX and time.monotonic() - began < SECONDS_MAX:
            trace = draw_trace(factory.capabilities, SEED, index, overrides, factory.supports)
            index += 1
            with broken(one):
                outcome = run_trace(factory, trace)
            steps += outcome.steps
            violation = outcome.violation
            if violation is None or run_trace(factory, trace).violation is not None:
                continue
            caught += 1
            row = f"| `{one.name}` | `{one.module}` | {one.family} | {violation.signature} |"
            break
        rows.append(f"{row} {steps} | {index} |")
        print(rows[-1], file=sys.stderr, flush=True)
    print(f"{caught} of {len(chosen)} one-line breaks are caught (seed {SEED}; at most {STEPS_MAX} steps or "
          f"{SECONDS_MAX:.0f} s for each).\n")  # fmt: skip
    print("| break | file | family | caught by | steps | traces |\n| --- | --- | --- | --- | ---: | ---: |")
    print("\n".join(rows))


def main() -> None:
    """Start `inside` in the environment of a release."""
    from hybridfuzz.targets.base.registry import prepare

    launch = prepare(f"transformers@{(sys.argv[1:] or ['5.23.0'])[0]}", lambda line: print(line, file=sys.stderr))
    command = [launch.python, __file__, "--inside", *sys.argv[2:]]
    sys.exit(subprocess.run(command, env={**os.environ, **launch.env}, check=False).returncode)


if __name__ == "__main__":
    inside() if "--inside" in sys.argv else main()
