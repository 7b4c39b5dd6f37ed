"""The life cycle of one request, in device time.

    waiting --admit(hit)--> running --advance--> running ... --> finished
                 ^             |
                 +---preempt---+        (recomputation: the next admission starts from its own hit length)

A **session** is a request of several turns. When a turn ends it is parked instead of finished:

    running --end of the turn--> parked --resume(more prompt)--> waiting --admit(kept)--> running

When a client aborts a turn and keeps its session, the session is parked as it was before that turn: what was said in it
is no part of the next one.

The caches of a parked session stay with it: the next turn starts from the `kept` tokens that it still has, without a
hit. The turn's prompt is everything that the client has seen, then the new part. A parked session may lose its caches
(it is then admitted like any request), and it may be truncated; it ends when it is closed.

An **answer** ends with its last token: the `max_new_tokens`-th, which an engine foresees, or the first that is the
request's stop token, which it does not. An engine that plans ahead may then have steps of the request in flight. They
still run, with correct input, but what they sample counts for nothing: it is not delivered, not published, not part of
the next turn. A session's next turn starts from the tokens kept, whatever such a step did to its caches.

With **min_tokens** a stop token among the first so many tokens does not end the answer: the engine must not sample it,
and the model's next choice stands there instead (`Truth.stop_tokens`). The rest of the answer follows from that. Where
a grammar allows nothing but a stop token, it ends the answer all the same.

An engine cannot foresee a **stop string** either; it is the text of a stop token, perhaps behind
some of the answer's tokens before that, and ends the answer where all of it is there. Its tokens are delivered.
With **reasoning** before structured output the grammar holds behind the token that ends the reasoning, and not before.
A request whose **grammar does not compile** gets nothing but an error: no token, and no other end.

A request with **prompt log-probabilities** needs each token of its prompt computed: it starts from nothing, without a
hit or a load, each time that it is admitted before its first new token. Later an engine may do either.

`settled` is the number of tokens whose content is in memory: prefix hit at admission, then plus what each
executed step computed, minus rejected drafts. The rule that everything else follows from:

    the next step of a request starts at position `settled`, and every read of its caches finds exactly the
    content of `settled` tokens (temporal state, convolution window, attention slots 0 .. settled - 1)
"""

from __future__ import annotations

from collections.abc import Sequence

from .batch import stops_of_copy, truth_of_copy
from .draft_trees import longest_path
from .tokens import Truth


class Life:
    """The state of one request."""

    __slots__ = (
        "aborted",
        "answer_length",
        "before",
        "behind",
        "delivered",
        "grammar_fails",
        "keeps_session",
        "load_breaks_off",
        "logprobs_from",
        "max_new_tokens",
        "name",
        "parked",
        "prompt_logprobs",
        "resumed",
        "session",
        "settled",
        "settled_before",
        "speculated",
        "stops",
        "structured",
        "truth",
    )

    def __init__(
        self,
        name: str,
        path: Sequence[tuple[str, int]],
        max_new_tokens: int,
        session: bool = False,
        stop_at: int = 0,
        prompt_logprobs: bool = False,
        structured: int = 0,
        grammar_fails: bool = False,
        min_tokens: int = 0,
        string_before: int = 0,
        reasoning: int = 0,
        logprobs_from: int = 0,
    ) -> None:
        """`stop_at`, `min_tokens`, `string_before` and `reasoning` are places in the answer (`Truth.stop_tokens`)."""
        self.name = name
        self.session = session
        self.prompt_logprobs = prompt_logprobs
        self.logprobs_from = logprobs_from
        """With `prompt_logprobs`, how many tokens of the prompt it may read from a cache."""
        self.structured = structured
        """Steps for which its grammar is compiled, and 1; 0: its answer is free."""
        self.grammar_fails = grammar_fails
        """True if its grammar does not compile: it ends with an error."""
        self.parked = False
        """True between two turns of a session."""
        self.before = Truth(())
        """What the client of a session had before its last turn."""
        self.settled_before = 0
        """How many of its tokens were in memory then."""
        self.truth = Truth(path)
        stops = self.truth.stop_tokens(stop_at, min_tokens, string_before, structured > 0, reasoning)
        self._answer(max_new_tokens, stops, string_before > 0)
        self.settled = 0
        self.delivered = 0
        self.behind = 0
        """Tokens that the engine kept past the end of the answer, which the front end found."""
        self.resumed = False
        """True from an admission until its first executed step."""
        self.speculated = False
        """True if the last executed step verified drafts."""
        self.load_breaks_off = False
        """True if a load for the request breaks off: an engine may end it with an error."""
        self.aborted = False
        """True once its client aborted it; an engine may need another step to release it."""
        self.keeps_session = False
        """True if only a turn was aborted: the session goes on without it."""

    def _answer(self, max_new_tokens: int, stops: tuple[int, ...], is_string: bool = False) -> None:
        """Set where the answer to the prompt ends."""
        self.max_new_tokens, self.stops = max_new_tokens, stops[-1:] if is_string else stops
        self.answer_length = self.truth.answer_length(max_new_tokens, stops, is_string)
        """New tokens that the client gets."""

    @property
    def total_length(self) -> int:
        """Prompt and all tokens of the answer."""
        return self.truth.prompt_length + self.answer_length

    @property
    def foreseen_length(self) -> int:
        """Prompt and the most tokens that the answer may have: what an engine plans for."""
        return self.truth.prompt_length + self.max_new_tokens

    @property
    def known(self) -> int:
        """Tokens whose ids the engine knows: the prompt and what it has delivered."""
        return self.truth.prompt_length + self.delivered

    @property
    def needs_its_prompt(self) -> bool:
        """True if it must compute each token of its prompt from `logprobs_from` on: none may come from a cache."""
        return self.prompt_logprobs and not self.delivered

    def ends_before(self, sampled: int) -> bool:
        """Return True if a token sampled at position `sampled` need not be the model's: the answer has ended before it,
        or was aborted, and nobody advances its grammar any more; or its grammar does not compile, so that its client
        gets an error, whichever tokens an engine still holds back. Without a grammar such a token counts for nothing,
        but is right."""
        return self.grammar_fails or (self.structured > 0 and (self.aborted or sampled >= self.total_length))

    def admit(self, start: int) -> None:
        """Admit the request, for the first time, after a preemption or for its next turn, with `start` tokens in
        memory: those of a prefix hit, or those that its session kept."""
        assert 0 <= start < self.total_length
        self.settled = start
        self.resumed = True
        self.speculated = False

    def __copy__(self) -> Life:
        """Return a life with the same values. (The default takes no class that is compiled.)"""
        life = Life(self.name, (), self.max_new_tokens, self.session)
        life.prompt_logprobs, life.structured = self.prompt_logprobs, self.structured
        life.logprobs_from = self.logprobs_from
        life.parked, life.truth, life.settled, life.delivered = self.parked, self.truth, self.settled, self.delivered
        life.resumed, life.speculated, life.aborted = self.resumed, self.speculated, self.aborted
        life.load_breaks_off, life.grammar_fails = self.load_breaks_off, self.grammar_fails
        life.stops, life.answer_length, life.behind = self.stops, self.answer_length, self.behind
        life.before, life.keeps_session = self.before, self.keeps_session
        life.settled_before = self.settled_before
        return life

    def compute_instead(self, tokens: Sequence[int]) -> None:
        """Take other tokens in place of its prompt, if its client gets nothing: an engine may end it so."""
        if self.aborted or self.grammar_fails:
            self.truth = self.truth.instead(tokens)
            self._answer(self.max_new_tokens, ())

    def park(self) -> None:
        """End the turn of a session."""
        assert self.session and not self.parked
        self.parked = True

    def park_without_turn(self) -> None:
        """End an aborted turn of a session that goes on: restore what its client had before it."""
        self.park()
        self.aborted = self.keeps_session = False
        self.truth, self.delivered = self.before, 0
        self.settled = self.settled_before

    def resume(
        self,
        path: Sequence[tuple[str, int]],
        max_new_tokens: int,
        dropped: int = 0,
        stop_at: int = 0,
        structured: int = 0,
        min_tokens: int = 0,
        string_before: int = 0,
        reasoning: int = 0,
    ) -> None:
        """Start the next turn; its prompt is what the client knows, less the last `dropped` tokens, then `path`. The
        grammar of its answer, if any, begins anew."""
        assert self.parked
        self.structured, self.grammar_fails = structured, False
        self.before = self.truth.continued(self.known, ())
        kept = self.known - dropped
        self.truth = self.truth.continued(kept, path)
        self.settled = self.settled_before = min(self.settled, kept)
        stops = self.truth.stop_tokens(stop_at, min_tokens, string_before, structured > 0, reasoning)
        self._answer(max_new_tokens, stops, string_before > 0)
        self.delivered = 0
        self.parked = False

    def truncate(self, length: int) -> None:
        """Remove the tokens of a parked session from `length` on; at most the rest is still in memory."""
        assert self.parked
        assert 0 < length < self.known
        self.truth = self.truth.continued(length, ())
        self.delivered = 0
        self.settled = min(self.settled, length)

    def fork(self, name: str) -> Life:
        """Return a copy of a parked session."""
        assert self.parked
        life = Life(name, (), self.max_new_tokens, session=True)
        life.truth, life.delivered, life.settled, life.parked = self.truth, self.delivered, self.settled, True
        return life

    def copy_of(self, source: Life, rank: int) -> None:
        """Take over the tokens and the progress of `source`, and as its copy of rank `rank` (`reference.batch`) replace
        the token that it sampled last."""
        self.truth, self.settled = source.truth, source.settled
        self.delivered, self.resumed, self.speculated = source.delivered, source.resumed, source.speculated
        self.truth = truth_of_copy(source.truth, self.known, rank)
        self._answer(source.max_new_tokens, stops_of_copy(self.truth, self.known, source.stops))

    def crop(self, tokens: int) -> None:
        """Forget the last `tokens` computed tokens."""
        assert tokens < self.settled
        self.settled -= tokens

    def reset(self) -> None:
        """Forget all computed tokens."""
        self.settled = 0

    def sampled_truth(self, end: int, drafts: Sequence[int], parents: Sequence[int] = ()) -> list[int]:
        """Return the tokens that a step must sample whose last known token is at `end - 1` and that verifies
        `drafts`: a chain, or a tree with these parents."""
        tokens, behind = self.truth.tokens, end + len(drafts)
        if behind >= len(tokens):
            self.truth.reach(behind + 1)
        return tokens[end : end + len(longest_path(drafts, parents, tokens[end:behind])) + 1]

    def advance(self, count: int, num_drafts: int, num_sampled: int) -> None:
        """Count an executed step with `count` input tokens, `num_drafts` of them drafts."""
        assert 0 <= num_drafts <= count
        assert num_sampled <= num_drafts + 1
        self.settled += count - num_drafts + max(num_sampled - 1, 0)
        self.resumed = False
        self.speculated = num_drafts > 0
