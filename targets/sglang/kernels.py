"""Speculation's index and sampling kernels on a CPU: arguments and results as SGLang's, in plain Torch.

The verify and commit code around them is SGLang's own. The kernels that scatter states have a CPU version in SGLang
itself (`HybridLinearAttnBackend._scatter_speculative_state_with_mask`), which is used instead. Greedy acceptance: from
the root, a child is accepted if it is the token that the model samples after its parent. Sampling from the target's
probabilities alone is written anew (`tree_speculative_sampling_target_only`), as are FlashInfer's filters for `top_k`
and `top_p`. Rejection sampling and block verification are SGLang's own kernel, in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..base.protocol import EngineError
from .sampling import Coins


def replace_kernels() -> None:
    """Replace the kernels of SGLang's speculation; may be called repeatedly."""
    from sglang.kernels.ops.mamba import mamba_state_scatter_triton
    from sglang.kernels.ops.speculative import cache_locs
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
    from sglang.srt.managers import overlap_utils
    from sglang.srt.mem_cache import allocation
    from sglang.srt.speculative import eagle_utils, eagle_worker_common, eagle_worker_v2, ngram_worker, spec_utils

    scatter = HybridLinearAttnBackend._scatter_speculative_state_with_mask
    standins: dict[Any, tuple[Callable[..., Any], ...]] = {
        allocation: (assign_req_to_token_pool_func,),
        cache_locs: (assign_extend_cache_locs_func,),
        eagle_utils: (
            verify_tree_greedy_func,
            build_tree_kernel_efficient_func,
            tree_speculative_sampling_target_only,
            top_k_renorm_prob,
            top_p_renorm_prob,
        ),
        eagle_worker_v2: (fast_sample,),
        eagle_worker_common: (assign_draft_cache_locs_contiguous_func, fill_bonus_tokens_func),
        overlap_utils: (gather_spec_extras,),
        ngram_worker: (assign_extend_cache_locs_func, reconstruct_indices_from_tree_mask_func),
        spec_utils: (fill_front_out_cache_loc_func, fill_accept_out_cache_loc_func, fast_sample),
    }
    for module, functions in standins.items():
        for function in functions:
            assert hasattr(module, function.__name__), f"{module.__name__} has no {function.__name__}"
            setattr(module, function.__name__, function)
    # Compiled for any size of a batch; here each trace would wait for it.
    select = spec_utils._select_top_k_tokens_later
    spec_utils._select_top_k_tokens_later = getattr(select, "_torchdynamo_orig_callable", select)
    mamba_state_scatter_triton.fused_mamba_state_scatter_with_mask = scatter
    mamba_state_scatter_triton.fused_conv_window_scatter_with_mask = scatter


def throw(coins: Sequence[Coins]) -> None:
    """Let the next verification have these coins, in place of random ones (`_verify_coins`)."""
    from sglang.srt.speculative import eagle_utils

    eagle_utils._verify_coins = partial(_thrown, coins)


def _thrown(coins: Sequence[Coins], **more: Any) -> tuple[Any, Any]:
    return torch.tensor([row.accepting for row in coins]), torch.tensor([row.final for row in coins])


def fast_sample(probs: Any, num_samples: int = 1, **seeds: Any) -> Any:
    """Draw a token of each row of a proposal: of all that may be drawn, the most likely one."""
    assert num_samples == 1, "one draft behind each token"
    return probs.max(dim=-1, keepdim=True)


def top_k_renorm_prob(probs: Any, top_ks: Any) -> Any:
    """Return the probabilities of the `top_ks` most likely tokens of each row, 0 for others."""
    ranked = probs.sort(dim=-1, descending=True).values
    least = ranked.gather(1, (top_ks.long().clamp(max=probs.shape[1]) - 1)[:, None])
    kept = torch.where(probs >= least, probs, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def top_p_renorm_prob(probs: Any, top_ps: Any) -> Any:
    """Return the probabilities of the fewest most likely tokens of each row that sum up to `top_ps`, 0 for others."""
    ranked = probs.sort(dim=-1, descending=True).values
    counts = ((ranked.cumsum(dim=-1) - ranked) < top_ps[:, None]).sum(dim=-1, keepdim=True)
    kept = torch.where(probs >= ranked.gather(1, counts - 1), probs, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def tree_speculative_sampling_target_only(
    predicts: Any, accept_index: Any, accept_token_num: Any, candidates: Any, retrive_index: Any,
    retrive_next_token: Any, retrive_next_sibling: Any, uniform_samples: Any, uniform_samples_for_final_sampling: Any,
    target_probs: Any, draft_probs: Any, threshold_single: float, threshold_acc: float, deterministic: bool,
) -> None:  # fmt: skip
    """Accept drafts from each root: of a token's children the first at which the sum of their probabilities reaches the
    coin of the parent. Behind the last accepted one a token is drawn from what the rejected children leave."""
    for row in range(candidates.shape[0]):
        index, accepted, node = retrive_index[row].tolist(), 0, 0
        accept_index[row, 0] = index[0]
        while accepted + 1 < accept_index.shape[1]:
            child, total = int(retrive_next_token[row, node]), 0.0
            while child != -1:
                token = int(candidates[row, child])
                share = float(target_probs[row, node, token])
                total += share
                if float(uniform_samples[row, node]) <= total / threshold_acc or share >= threshold_single:
                    break
                draft_probs[row, node, token] = target_probs[row, node, token]
                child = int(retrive_next_sibling[row, child])
            if child == -1:
                break
            predicts[index[node]] = candidates[row, child]
            node, accepted = child, accepted + 1
            accept_index[row, accepted] = index[child]
        left = target_probs[row, node]
        if accepted + 1 < accept_index.shape[1]:
            left = (left - draft_probs[row, node]).clamp(min=0)
        sums = left.double().cumsum(0)
        above = sums > float(uniform_samples_for_final_sampling[row]) * sums[-1]
        predicts[index[node]] = int(above.int().argmax()) if above.any() else len(sums) - 1
        accept_token_num[row] = accepted


class OutOfBounds(EngineError):
    """A kernel accesses memory outside of its arguments."""


def _columns(kernel: str, table: Any, row: int, first: int, last: int) -> Any:
    """Return columns first..last of a row. Torch would accept a negative index and truncate a long slice."""
    rows, width = table.shape
    if not (0 <= row < rows and 0 <= first <= last <= width):
        raise OutOfBounds(f"kernel {kernel}: row {row}, columns {first} to {last} of a table of {rows} x {width}")
    return table[row, first:last]


def assign_req_to_token_pool_func(rows: Any, table: Any, start: Any, end: Any, locations: Any, size: int) -> None:
    """Fill columns start..end of each request's row with the next of `locations`."""
    taken = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        columns = _columns("assign_req_to_token_pool", table, row, first, last)
        columns.copy_(locations[taken : taken + last - first])
        taken += last - first


def assign_extend_cache_locs_func(
    req_pool_indices: Any, req_to_token: Any, start_offset: Any, end_offset: Any, **sizes: Any
) -> Any:
    """Gather the locations of tokens start..end of each request, one request after the other."""
    spans = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    name = "assign_extend_cache_locs"
    return torch.cat([_columns(name, req_to_token, row, first, last).to(torch.int64) for row, first, last in spans])


def assign_draft_cache_locs_contiguous_func(
    rows: Any, table: Any, lengths: Any, locations: Any, topk: int, count: int, **sizes: Any
) -> None:
    """Fill the locations of the `topk * count` tokens behind each request."""
    name, width = "assign_draft_cache_locs", topk * count
    spans = zip(rows.tolist(), lengths.tolist(), strict=True)
    locations.copy_(torch.cat([_columns(name, table, row, first, first + width) for row, first in spans]))


def build_tree_kernel_efficient_func(
    parents: Any, scores: Any, lengths: Any, mask: Any, positions: Any, index: Any, next_token: Any,
    next_sibling: Any, topk: int, steps: int, count: int, mode: Any,
) -> None:  # fmt: skip
    """Fill position, index, links and, but for a chain, the whole mask of every draft.

    `scores` has the places of the drafts in all that was proposed, `topk` behind each one that was followed; `parents`
    the places of those, ROOT first.
    """
    batch = len(lengths)
    index.copy_(torch.arange(batch * count).reshape(batch, count))
    if topk == 1:
        positions.copy_((lengths[:, None] + torch.arange(count)).flatten())
        next_token.copy_(torch.arange(1, count + 1).expand(batch, count))
        next_token[:, -1] = next_sibling[...] = -1
        return
    assert mode == 0, "a mask of all tokens"
    first = 0
    for row, length in enumerate(lengths.tolist()):
        chosen, followed = scores[row].tolist(), parents[row].tolist()
        lines = mask[first : first + count * (length + count)].reshape(count, length + count)
        first += lines.numel()
        lines[:, length:] = torch.eye(count, dtype=torch.bool)
        positions[row * count] = length
        places = [place // topk for place in chosen[: count - 1]]
        behind = list(enumerate([chosen.index(followed[place]) + 1 if place else 0 for place in places], start=1))
        for token, parent in behind:
            lines[token, length:] |= lines[parent, length:]
            positions[row * count + token] = length + int(lines[token, length:].sum()) - 1
        for token, parent in reversed(behind):
            next_sibling[row, token] = next_token[row, parent]
            next_token[row, parent] = token


def fill_bonus_tokens_func(tokens: Any, counts: Any, bonus: Any, stride: int, batch: int) -> None:
    """Copy the last accepted token of each request."""
    places, flat = torch.arange(batch) * stride + counts - 1, tokens.flatten()
    if batch and not 0 <= int(places.min()) <= int(places.max()) < len(flat):
        raise OutOfBounds(f"kernel fill_bonus_tokens: token {int(places.max())} of {len(flat)}")
    bonus.copy_(flat[places])


def gather_spec_extras(indices: Any, *buffers: Any) -> tuple[Any, ...]:
    """Gather rows of all buffers, the last of which may be None."""
    return tuple(None if buffer is None else buffer[indices] for buffer in buffers)


def reconstruct_indices_from_tree_mask_func(
    mask: Any, lengths: Any, positions: Any, index: Any, next_token: Any, next_sibling: Any, batch: int, count: int
) -> None:
    """Fill position, index and links of every draft; the links by SGLang's host version."""
    from sglang.srt.speculative.ngram_worker import _derive_tree_links

    depths = mask.reshape(batch, count, count).sum(-1) - 1
    positions.copy_((depths + lengths[:, None]).flatten())
    index.copy_(torch.arange(batch * count).reshape(batch, count))
    children, siblings = _derive_tree_links(mask.numpy(), batch, count)
    next_token.copy_(children)
    next_sibling.copy_(siblings)


def verify_tree_greedy_func(
    predicts: Any, accept_index: Any, accept_token_num: Any, candidates: Any, retrieve_index: Any,
    retrieve_next_token: Any, retrieve_next_sibling: Any, target_predict: Any, topk: int = -1,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Accept drafts from each root as long as a child is the token that the model samples."""
    said = target_predict.flatten()
    for row in range(candidates.shape[0]):
        index, accepted, node = retrieve_index[row].tolist(), 0, 0
        accept_index[row, 0] = index[0]
        while accepted + 1 < accept_index.shape[1]:
            child = int(retrieve_next_token[row, node])
            while child != -1 and candidates[row, child] != said[index[node]]:
                child = int(retrieve_next_sibling[row, child])
            if child == -1:
                break
            predicts[index[node]] = said[index[node]]
            node, accepted = child, accepted + 1
            accept_index[row, accepted] = index[child]
        predicts[index[node]] = said[index[node]]
        accept_token_num[row] = accepted
    return predicts, accept_index, accept_token_num


def fill_front_out_cache_loc_func(counts: Any, locations: Any, front: Any) -> None:
    """Copy the first `counts[i]` locations of each request, one request after the other."""
    window = locations.view(counts.numel(), -1)
    name = "fill_front_out_cache_loc"
    packed = torch.cat([_columns(name, window, row, 0, count) for row, count in enumerate(counts.tolist())])
    front[: packed.numel()] = packed


def fill_accept_out_cache_loc_func(accept_index: Any, locations: Any, accepted: Any, size: int) -> None:
    """Pack the locations of accepted drafts."""
    chosen = accept_index.flatten()
    packed = locations[chosen[chosen >= 0].long()]
    accepted[: packed.numel()] = packed
