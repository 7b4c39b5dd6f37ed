"""Speculation: SGLang's workers verify the trace's chain of drafts and commit the accepted ones.

`NGRAMWorker` needs no draft model, so all of it is SGLang's: staging, acceptance, the commit of the states after the
last accepted draft and of snapshots on the track grid, the relay to the next step (`FutureMap`). Replaced are the
corpus that proposes, the target model, and kernels (kernels.py). The worker with a draft model is in eagle.py.

A batch is prepared, and reads the tables that it shares with the scheduler, when it is launched. The rest runs when
SGLang waits for it: for the new lengths when the next verification is launched, or for the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from ...reference.draft_trees import ROOT, path_to
from ...reference.tokens import Truth
from ..base.observe import OutOfRange, StateWrite
from . import draft_trees, kernels
from .compat import parts, scheduler_api
from .compat.engine import STATES, SglangEngine
from .compat.sizes import Sizes
from .device import Device, KernelLaunch, penalized, ranked
from .sampling import Coins, Sampling, Verified, coins_for, more_likely

RESULTS = ("logits_output", "next_token_ids", "accept_lens", "new_seq_lens", "next_draft_input", "can_run_cuda_graph")


class Wanted:
    """The drafts that the trace asks for in a step."""

    def __init__(self) -> None:
        self.count = self.right = 0
        """Drafts of each request, and how many of the first ones are right."""
        self.per_request: Mapping[str, tuple[int, int]] = {}
        self.truths: dict[str, Truth] = {}
        """Of every request."""
        self.chances: dict[str, Sampling] = {}
        """Temperature, `top_k` and `top_p` that the client of each request asks for."""
        self.stale: set[str] = set()
        """Requests whose next draft follows from another token than their last one."""

    def right_of(self, name: str) -> int:
        """Return how many of a request's first drafts are right."""
        return min(self.per_request.get(name, (self.count, self.right)))

    def coins(self, sizes: Sizes, batch: Any, proposals: Sequence[draft_trees.Proposal]) -> list[Coins]:
        """Return the coins of a verification, by row; none with `sampled=no`."""
        if sizes.sampled == "no":
            return []
        found = []
        for request, length, proposal in zip(batch.reqs, batch.seq_lens.tolist(), proposals, strict=True):
            truth = self.truths[request.client_name]
            # A chain has its padding at its end, or behind its first token: as kernels, or as the corpus has it.
            fillers = 0 if sizes.breadth > 1 else proposal.fillers
            chain = Verified(truth.tag(length + 1), truth.key, proposal.tokens, proposal.parents, fillers)
            found.append(coins_for(sizes.sampled, chain, self.chances[request.client_name]))
        return found


class Corpus:
    """Proposes the trace's drafts, in place of a corpus of n-grams."""

    def __init__(self, drafts: int, breadth: int, is_short: bool, wanted: Wanted) -> None:
        self.drafts, self.breadth, self.is_short = drafts, breadth, is_short
        self.wanted = wanted
        self.proposals: list[draft_trees.Proposal] = []
        """What was proposed last, by request."""
        self.lengths: list[int] = []
        """Tokens of each request of the batch that have been computed; one more is known."""

    def batch_get(self, names: list[str], contexts: list[list[int]], totals: list[int]) -> tuple[Any, Any]:
        """Return, per request, its last token and the drafts after it, and the attention mask between them."""
        tokens: list[int] = []
        self.proposals = []
        for marked, context, length in zip(names, contexts, self.lengths, strict=True):
            name = marked.removesuffix(".")
            truth = self.wanted.truths[name]
            right, count = self.wanted.right_of(name), self.drafts - 1
            if self.has_trees:
                # Where chance decides, a draft of a chain that may be tried in two places must be wrong in both.
                is_wrong = self.breadth == 1 and self.wanted.chances[name].temperature > 0
                padding = ("wrong" if is_wrong else "any") if self.is_short else ""
                proposal = draft_trees.grow(truth, length + 1, count, self.breadth, right, padding)
            else:
                proposal = draft_trees.Proposal(truth.drafts(length + 1, count, right), tuple(range(ROOT, count - 1)))
            self.proposals.append(proposal)
            tokens += [context[-1], *proposal.tokens]
        masks = [draft_trees.mask(proposal.parents) for proposal in self.proposals]
        return np.array(tokens, dtype=np.int64), np.concatenate([mask.flatten() for mask in masks])

    @property
    def has_trees(self) -> bool:
        """True if several drafts may follow the same token."""
        return self.breadth > 1 or self.is_short

    def synchronize(self) -> None:
        """Do nothing: the corpus works synchronously."""

    def batch_put(self, contexts: list[list[int]]) -> None:
        """Do nothing: the corpus does not learn."""

    def erase_match_state(self, names: list[str]) -> None:
        """Do nothing: the corpus keeps no state."""


class Commit(HybridLinearAttnBackend):
    """SGLang's backend without its constructor, for the commit of accepted states; records its writes."""

    def __init__(self, engine: SglangEngine) -> None:
        self.linear_attn_backend = parts.make_backend(engine.rows, engine.sizes)
        self.full_attn_backend = SimpleNamespace(verify_mask=None)
        self.states, self.memory = engine.states, engine.memory
        self.layers = engine.sizes.state_layers
        self.launch: KernelLaunch

    def update_mamba_state_after_mtp_verify(
        self, last_correct_step_indices: Any, mamba_track_indices: Any, mamba_steps_to_track: Any, **more: Any
    ) -> None:
        """Copy accepted states to the working slots, and those on the track grid to slots for snapshots."""
        steps, tracks, tracked = last_correct_step_indices, mamba_track_indices, mamba_steps_to_track
        super().update_mamba_state_after_mtp_verify(steps, tracks, tracked, **more)
        # Those of padding rows come last.
        working = self.linear_attn_backend.forward_metadata.mamba_cache_indices.tolist()[: len(steps)]
        for index, (place, step) in enumerate(zip(working, steps.tolist(), strict=True)):
            row = self.launch.rows[index]
            [slot] = [row.slot] if place == row.place else self.memory.slots_at([place])
            self._report(index, slot, place, step)
        if tracks is not None:
            slots = tracks.tolist()
            for index, (slot, place) in enumerate(zip(slots, self.memory.places_of(slots), strict=True)):
                step = int(tracked[index])
                if step >= 0 and place >= 0:
                    self._report(index, slot, place, step)

    def _report(self, index: int, slot: int, place: int, step: int) -> None:
        row, size = self.launch.rows[index], self.states.temporal.shape[1]
        if not 0 <= place < size:
            self.launch.accesses.append(OutOfRange(index, STATES, "slot", place, size))
            return
        column = row.slots.index(slot) if slot in row.slots else -1
        for layer in range(self.layers):
            temporal = int(self.states.temporal[layer, place])
            window = tuple(self.states.window[layer, place].tolist())
            path = path_to(step - 1, row.tree.parents) if row.tree and step else range(step)
            depth = row.prefix + len(path) + 1
            self.launch.accesses.append(StateWrite(index, STATES, layer, column, slot, depth, temporal, window))


class TargetModel:
    """The target model of a worker: its batches are launched at once, and run when SGLang waits for them."""

    def __init__(self, engine: SglangEngine, device: Device, scheduler: Any, wanted: Wanted) -> None:
        kernels.replace_kernels()
        self.device, self.scheduler, self.wanted = device, scheduler, wanted
        self.overlap, self.width = engine.sizes.overlap, engine.sizes.drafts
        self.commit = Commit(engine)
        self.model_runner = scheduler_api.Seen(
            attn_backend=self.commit,
            req_to_token_pool=engine.rows,
            model_config=parts.hybrid_model_config(),
        )

    def launch(
        self,
        staged: Any,
        promised: Any,
        forward: Callable[[], Any],
        guessed: Sequence[int] = (),
        trees: Sequence[draft_trees.Proposal] = (),
        coins: Sequence[Coins] = (),
    ) -> GenerationBatchResult:
        """Launch a batch as it is staged.

        promised  placeholders for the inputs of the next verification, which the relay fills in
        forward   runs the batch by SGLang's own code
        guessed   how many drafts of each row a stand-in for a draft model guesses right
        trees     of drafts, by row; none for chains
        coins     with which a verification samples, by row; none with `sampled=no`
        """
        result = GenerationBatchResult(next_draft_input=promised)
        launch = self.device.prepare(
            staged, lambda launch: self.scheduler.launch_batch_sample_if_needed(result, staged)
        )
        launch.coins = coins
        for index, count in enumerate(guessed):
            launch.rows[index] = launch.rows[index]._replace(guessed=count)
        verify = scheduler_api.verify_batch(staged) if staged.forward_mode.is_target_verify() else None
        metadata = launch.metadata or (verify and self.commit.linear_attn_backend._forward_metadata(verify))
        if verify and trees:
            self._note_trees(launch, staged.spec_info, metadata, trees)
        result.delay_sample_func = partial(self._run, result, launch, metadata, forward)
        masked = scheduler_api.has_grammar(staged)
        if masked and staged.forward_mode.is_extend() and verify is None:
            scheduler_api.note_grammars(staged.sampling_info, staged)
            staged.sampling_info.update_regex_vocab_mask()
        # The host waits for the step before a verification that a draft model has made, to advance grammars.
        waits = masked and verify is not None and staged.spec_algorithm.supports_grammar_overlap()
        if not self.overlap or waits:
            self.device.pending.remove(launch)
            result.delay_sample_func()
            result.delay_sample_func = None
        return result

    def _note_trees(
        self, launch: KernelLaunch, spec_info: Any, metadata: Any, trees: Sequence[draft_trees.Proposal]
    ) -> None:
        """Note what kernels read of the trees of a verification."""
        rows = launch.rows[: len(trees)]
        seen = draft_trees.seen_by_attention(spec_info, [row.prefix for row in rows], trees)
        links = draft_trees.linked(metadata, len(rows))
        for index, row in enumerate(rows):
            launch.rows[index] = row._replace(tree=seen[index], links=links[index])

    def _run(self, result: Any, launch: KernelLaunch, metadata: Any, forward: Callable[[], Any]) -> Any:
        """Run forward, acceptance and commit."""
        self.commit.launch = launch
        self.commit.linear_attn_backend.forward_metadata = metadata
        kernels.throw(launch.coins)
        done = forward()
        for name in RESULTS:
            setattr(result, name, getattr(done, name))
        result.speculative_num_draft_tokens = self.width
        tokens, width = done.next_token_ids.tolist(), self.width
        sampled = [(tokens[index],) if row.samples else () for index, row in enumerate(launch.rows)]
        if metadata is not None:
            counts = done.accept_lens.tolist()
            sampled = [tuple(tokens[index * width : index * width + count]) for index, count in enumerate(counts)]
            sampled += [()] * (len(launch.rows) - len(counts))
        self.device.conclude(launch, sampled)
        return result

    def _logits(self, launch: KernelLaunch, said: Sequence[tuple[int, ...]]) -> Any:
        """Return the logits behind every draft. `said` are the model's own tokens there, by row."""
        tokens = [token for row in said for token in row]
        decoys = self.device.decoys(launch)[: len(said)]
        logits = ranked(tokens, [decoy for row in decoys for decoy in row])
        if launch.coins:
            rows = zip(launch.rows, launch.hidden, strict=True)
            places = [(tag, self.wanted.chances[row.name]) for row, tags in rows if row.name for tag in tags]
            likely = zip(tokens, places, strict=True)
            others = torch.tensor([more_likely(token, tag, chance) for token, (tag, chance) in likely])[:, None]
            own = torch.tensor(tokens)[:, None]
            first, second = logits.gather(1, others), logits.gather(1, own)
            logits.scatter_(1, others, second).scatter_(1, own, first)
        return logits

    def forward_batch_generation(self, batch: Any = None, is_verify: bool = False, **more: Any) -> Any:
        """Return the model's logits after every draft, or the token after every prompt."""
        launch = self.commit.launch
        rows = sum(row.name is not None for row in launch.rows)
        said = self.device.compute(launch)[:rows]
        logits = self._logits(launch, said) if is_verify else None
        decoys = self.device.decoys(launch)[:rows]
        if not is_verify and (decoys or scheduler_api.is_penalized(batch)):
            said = penalized(said, batch.sampling_info, decoys)
        last = torch.tensor([tokens[-1] for tokens in said], dtype=torch.int64)
        hidden = torch.tensor([tag for tags in launch.hidden[:rows] for tag in tags], dtype=torch.int64)
        scored = {} if is_verify else scheduler_api.logprobs(batch)
        output = LogitsProcessorOutput(next_token_logits=logits, hidden_states=hidden[:, None], **scored)
        return GenerationBatchResult(logits_output=output, next_token_ids=last, can_run_cuda_graph=False)


class Worker(NGRAMWorker):
    """SGLang's worker without its constructor, which would load a corpus."""

    def __init__(self, engine: SglangEngine, device: Device, scheduler: Any) -> None:
        sizes = engine.sizes
        self.sizes, self.enable_overlap = sizes, sizes.overlap
        self.wanted = Wanted()
        self._target_worker = TargetModel(engine, device, scheduler, self.wanted)
        self.model_runner = self._target_worker.model_runner
        self.req_to_token_pool, self.token_to_kv_pool_allocator = engine.rows, engine.allocator
        self.draft_token_num = self.speculative_num_draft_tokens = sizes.drafts
        self.page_size, self.max_trie_depth, self.topk = sizes.page, 1, sizes.breadth
        self.device, self.max_batch_size = "cpu", sizes.rows
        self.adaptive_controller = self.grammar_tree_host = None
        self._prev_decode_rids: set[str] = set()
        self.ngram_corpus = Corpus(sizes.drafts, sizes.breadth, sizes.short, self.wanted)
        self._init_preallocated_tensors()

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None
    ) -> GenerationBatchResult:
        """Launch a batch. Its mode says later that it is staged."""
        self.ngram_corpus.lengths = batch.seq_lens.tolist()
        self._prepare_for_speculative_decoding(batch)
        pinned = copy.copy(batch)
        nothing = torch.zeros(len(batch.reqs), dtype=torch.int64)
        promised = NgramVerifyInput(
            draft_token_num=self.draft_token_num, new_seq_lens=nothing, accept_tokens=nothing, accept_lens=nothing
        )
        forward = partial(super().forward_batch_generation, pinned, on_publish)
        proposals = self.ngram_corpus.proposals if pinned.forward_mode.is_target_verify() else []
        coins = self.wanted.coins(self.sizes, pinned, proposals) if proposals else ()
        trees = proposals if self.ngram_corpus.has_trees else ()
        return self._target_worker.launch(pinned, promised, forward, trees=trees, coins=coins)
