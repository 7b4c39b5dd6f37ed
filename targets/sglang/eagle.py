"""Speculation with a draft model (EAGLE, MTP): SGLang's worker around a stand-in for the draft model.

`EAGLEWorkerV2` and `EagleDraftWorker` are SGLang's own, without their constructors, which would load models: what is
drafted and verified, the commit of states, and the relay of the last token, of the first draft and of the draft model's
hidden state to the next step (`FutureMap`, `EagleDraftInput`).

The stand-in for the draft model guesses from what a real one gets: the target's hidden state at a position, which is a
tag here, and the token behind it. So a relay that mixes up rows loses drafts, and one that loses the last token changes
the answer. How many drafts are right is the trace's choice: the others are replaced by SGLang's map from the draft
model's vocabulary to the target's (`hot_token_id`). S6 objects when a draft that should be right is not.

Keys and values of the draft model are left out: a wrong one costs speed, no answer depends on it.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative import eagle_worker_common
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_utils import default_tree_mask_mode, eagle_prepare_for_verify
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2

from ...reference.tokens import VOCABULARY, mix, other_token
from ..base.shadow import POISON, sample
from . import draft_trees
from .compat import scheduler_api
from .compat.engine import SglangEngine
from .device import Device
from .sampling import PEAK, Coins, first_is_right
from .speculation import TargetModel, Wanted
from .stubs import OFF

SURE, UNSURE = 0.95, 0.05
"""Probability of all guesses of the draft model together, behind what it takes for right and behind all else; nearly,
since later ones get a little less."""


class TokenMap:
    """Maps the draft model's tokens to the target's: those behind the right ones of each row become wrong."""

    def __init__(self) -> None:
        self.right: list[int] = []
        self._step = 0

    def begin(self, right: list[int]) -> None:
        """Begin to draft. `right`: the right drafts of each row."""
        self.right, self._step = right, 0

    def __getitem__(self, tokens: Any) -> Any:
        step, self._step = self._step, self._step + 1
        each = tokens.numel() // max(len(self.right), 1)
        rights = [right for right in self.right for _ in range(each)]
        rows = zip(tokens.flatten().tolist(), rights, strict=True)
        chosen = [token if step < right else other_token(token) for token, right in rows]
        return torch.tensor(chosen, dtype=torch.int64).reshape(tokens.shape)


class Proposals:
    """Which guesses of the draft model are right where a draft is drawn from its proposal, which has no token map.

    The first draft of a verification is made in the step before.
    """

    def __init__(self) -> None:
        self.right: list[int] = []
        self._step = 1

    def begin(self, right: list[int]) -> None:
        """Begin to draft. `right`: the right drafts of each row."""
        self.right, self._step = right, 1

    def logits(self, tags: list[int], is_first: bool) -> torch.Tensor:
        """Return logits behind each tag: its model's own token, or another one."""
        if is_first:
            right = [first_is_right(tag) for tag in tags]
        else:
            right = [self._step < count for count in self.right]
            self._step += 1
        guesses = [sample(tag) for tag in tags]
        chosen = [guess if sure else other_token(guess) for guess, sure in zip(guesses, right, strict=True)]
        return torch.nn.functional.one_hot(torch.tensor(chosen, dtype=torch.int64), VOCABULARY).float() * PEAK


class DraftModel:
    """Guesses the next token from the hidden state at a position and the token behind it.

    With a breadth above 1 it has several guesses. Which of them is the model's own token follows from the tag. It is
    sure of them behind a token that it takes for right itself, so that SGLang's choice among all has the right path.
    """

    def __init__(self, wanted: Wanted, breadth: int, proposals: Proposals | None) -> None:
        self.wanted, self.breadth, self.proposals = wanted, breadth, proposals

    def forward(self, batch: Any) -> Any:
        """Return logits and hidden states: of a prefill behind each prompt, else behind each token."""
        counts = batch.extend_seq_lens_cpu or [1] * batch.batch_size
        keys = [self.wanted.truths[name.removesuffix(".")].key for name in batch.rids]
        keys = [key for key, count in zip(keys, counts, strict=True) for _ in range(count)]
        hidden, tokens = batch.spec_info.hidden_states[:, 0].tolist(), batch.input_ids.tolist()
        branches = len(tokens) // max(len(keys), 1)  # of a tree, in a step behind the first
        keys = [key for key in keys for _ in range(branches)]
        sure = [token == sample(tag) for tag, token in zip(hidden, tokens, strict=True)]
        tags = [
            POISON if tag == POISON else mix(tag, token + key)
            for tag, token, key in zip(hidden, tokens, keys, strict=True)
        ]
        if batch.forward_mode.is_extend():
            ends = torch.tensor(counts).cumsum(0) - 1
            tags, sure = [tags[end] for end in ends.tolist()], [sure[end] for end in ends.tolist()]
        if self.proposals is not None:
            logits = self.proposals.logits(tags, not batch.forward_mode.is_decode())
        elif self.breadth == 1:
            guesses = torch.tensor([sample(tag) for tag in tags], dtype=torch.int64)
            logits = torch.nn.functional.one_hot(guesses, VOCABULARY).float()
        else:
            logits = _branching(tags, sure, self.breadth)
        states = torch.tensor(tags, dtype=torch.int64)[:, None]
        return SimpleNamespace(logits_output=LogitsProcessorOutput(next_token_logits=logits, hidden_states=states))


def handed_over(tag: int, token: int, key: int, breadth: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what a prefill server's draft model leaves behind a prompt: the probabilities of its guesses of the token
    behind the answer's first one, the guesses, and its hidden state. `tag`: the target's behind the prompt.
    """
    behind = mix(tag, token + key)
    if breadth == 1:
        logits = torch.nn.functional.one_hot(torch.tensor([sample(behind)]), VOCABULARY).float()
    else:
        logits = _branching([behind], [token == sample(tag)], breadth)
    likely, guesses = torch.topk(torch.softmax(logits, dim=-1)[0], breadth)
    return likely, guesses, torch.tensor([behind], dtype=torch.int64)


def _branching(tags: list[int], sure: list[bool], breadth: int) -> torch.Tensor:
    """Return logits of a draft model that has `breadth` guesses behind each tag, nearly equally likely."""
    likely = torch.empty((len(tags), VOCABULARY))
    for row, tag in enumerate(tags):
        guesses = [sample(tag)]
        while len(guesses) < breadth:
            guesses.append(other_token(guesses[-1]))
        turn = mix(tag, breadth) % breadth
        both = SURE if sure[row] else UNSURE
        likely[row], share = (1 - both) / VOCABULARY, both / breadth
        for place, guess in enumerate(guesses[turn:] + guesses[:turn]):
            likely[row, guess] = share * (1 - 0.05 * place)
    return likely.log()


class NoPool:
    """The pool of the draft model's keys and values, which are left out."""

    def move_kv_cache(self, targets: Any, sources: Any) -> None:
        """Do nothing: pages of branches begin with a copy of the prefix's last keys and values."""


class Drafter(EagleDraftWorker):
    """SGLang's draft worker without its constructor."""

    def __init__(self, engine: SglangEngine, target: TargetModel, runner: Any) -> None:
        sizes = engine.sizes
        self.device, self.topk, self.server_args = "cpu", sizes.breadth, engine.arguments
        self.speculative_num_steps, self.speculative_num_draft_tokens = sizes.draft_steps, sizes.drafts
        self.speculative_algorithm = runner.spec_algorithm
        self.parallel_layout = SimpleNamespace(tp_group=None)
        self.target_worker, self.draft_runner = target, runner
        self.draft_worker = SimpleNamespace(model_runner=runner)
        self.req_to_token_pool, self.token_to_kv_pool_allocator = engine.rows, engine.allocator
        self.index_share_for_mtp_iteration = self.seed_dsa_topk_from_draft_extend = False
        self.tree_mask_mode = default_tree_mask_mode()
        self.plan_stream, self.plan_stream_ctx = None, nullcontext()
        self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = None
        self.draft_extend_attn_backend = None
        self.draft_attn_backend = SimpleNamespace(
            attn_backends=[OFF] * self.speculative_num_steps, init_forward_metadata=lambda batch: None
        )
        self.hot_token_id = None if sizes.proposes else TokenMap()
        self._rebuild_topk1_chain_buffers()


class EagleWorker(EAGLEWorkerV2):
    """SGLang's worker without its constructor."""

    def __init__(self, engine: SglangEngine, device: Device, scheduler: Any) -> None:
        sizes = engine.sizes
        eagle_worker_common.eagle_prepare_for_verify = _as_launched
        self.wanted = Wanted()
        self._target_worker = target = TargetModel(engine, device, scheduler, self.wanted)
        common = scheduler_api.model_runner(engine, scheduler.spec_algorithm)
        vars(target.model_runner).update(vars(common) | vars(target.model_runner))
        common.token_to_kv_pool = NoPool()
        self.sizes, self.proposals = sizes, Proposals() if sizes.proposes else None
        model = DraftModel(self.wanted, sizes.breadth, self.proposals)
        common.forward, common.is_draft_worker = model.forward, True
        self._draft_worker = Drafter(engine, target, common)
        self.guesses: Any = self.proposals or self._draft_worker.hot_token_id
        self.req_to_token_pool, self.token_to_kv_pool_allocator = engine.rows, engine.allocator
        self.topk, self.page_size, self.device = sizes.breadth, sizes.page, "cpu"
        self.speculative_num_steps = sizes.draft_steps
        self.speculative_num_draft_tokens = self.draft_token_num = sizes.drafts
        self.speculative_algorithm = scheduler.spec_algorithm
        self.adaptive_controller, self.enable_dp_spec_prefill_coordination = None, False
        self.plan_stream, self.plan_stream_ctx = None, nullcontext()

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> GenerationBatchResult:
        """Launch a batch. Drafts are made at once: the forward before, from which they follow, was waited for."""
        batch = copy.copy(batch)
        staged, guessed, proposals, coins = batch, list[int](), list[draft_trees.Proposal](), list[Coins]()
        if batch.forward_mode.is_decode_or_idle():
            guessed = [
                self._right(request, length)
                for request, length in zip(batch.reqs, batch.seq_lens.tolist(), strict=True)
            ]
            self.guesses.begin(guessed)
            if batch.spec_info is None:
                batch.spec_info = self._idle_input()
            batch.spec_info = self._draft_worker.draft(batch)
            proposals = draft_trees.drafted(batch.spec_info, len(guessed))
            coins = self.wanted.coins(self.sizes, batch, proposals)
            staged = copy.copy(batch)
            prepared = eagle_prepare_for_verify(staged.spec_info, self.req_to_token_pool, staged, self._target_worker)
            batch.launched = vars(staged), prepared
        forward = partial(super().forward_batch_generation, batch, on_publish, grammar_barrier)
        trees = proposals if self.topk > 1 else ()
        return self._target_worker.launch(staged, EagleDraftInput(), forward, guessed, trees, coins)

    def _right(self, request: Any, length: int) -> int:
        """Return how many drafts of a request will be right, of which `length` tokens are computed."""
        right = min(self.wanted.right_of(request.client_name), self.speculative_num_steps)
        if request.client_name in self.wanted.stale:
            self.wanted.stale.remove(request.client_name)
            return 0
        if self.proposals is None:
            return right
        truth = self.wanted.truths[request.client_name]
        return max(right, 1) if first_is_right(truth.tag(length + 1)) else 0

    def _idle_input(self) -> EagleDraftInput:
        """Return the draft model's input for a batch without rows, as `EAGLEWorkerV2` makes it."""
        mode = CaptureHiddenMode.LAST
        return EagleDraftInput.create_idle_input("cpu", 1, torch.int64, self.topk, mode, VOCABULARY)


def _as_launched(verify: Any, rows: Any, batch: Any, target: Any) -> Any:
    """Return what `eagle_prepare_for_verify` prepared at the launch: the tables that it reads have changed since."""
    staged, prepared = batch.launched
    vars(batch).update(staged)
    return prepared
