"""The life cycle of one request, in device time.

    waiting --admit(hit)--> running --advance--> running ... --> finished
                 ^             |
                 +---preempt---+        (recomputation: the next admission starts from its own hit length)

`settled` is the number of tokens whose content is in memory: prefix hit at admission, then plus what each
executed step computed, minus rejected drafts. The rule that everything else follows from:

    the next step of a request starts at position `settled`, and every read of its caches finds exactly the
    content of `settled` tokens (temporal state, convolution window, attention slots 0 .. settled - 1)
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Truth


class Life:
    """What is true of one request."""

    __slots__ = ("aborted", "delivered", "max_new_tokens", "name", "resumed", "settled", "speculated", "truth")

    def __init__(self, name: str, path: Sequence[tuple[str, int]], max_new_tokens: int) -> None:
        self.name = name
        self.truth = Truth(path)
        self.max_new_tokens = max_new_tokens
        self.settled = 0
        self.delivered = 0
        self.resumed = False
        """True from an admission until its first executed step."""
        self.speculated = False
        """True if the last executed step verified drafts."""
        self.aborted = False
        """True once its client gave it up; an engine may still need a step to let go of it."""

    @property
    def total_length(self) -> int:
        """Prompt and all new tokens."""
        return self.truth.prompt_length + self.max_new_tokens

    @property
    def known(self) -> int:
        """Tokens whose ids the engine knows: the prompt and what it has delivered."""
        return self.truth.prompt_length + self.delivered

    def admit(self, hit: int) -> None:
        """Scheduled for the first time, or again after a preemption, from a prefix hit of `hit` tokens."""
        assert 0 <= hit < self.total_length
        self.settled = hit
        self.resumed = True
        self.speculated = False

    def sampled_truth(self, end: int, drafts: Sequence[int]) -> list[int]:
        """Tokens that a step must sample when its last known token is at `end - 1` and it verifies `drafts`."""
        accepted = 0
        self.truth.reach(end + len(drafts) + 1)
        while accepted < len(drafts) and drafts[accepted] == self.truth.tokens[end + accepted]:
            accepted += 1
        return self.truth.tokens[end : end + accepted + 1]

    def advance(self, count: int, num_drafts: int, num_sampled: int) -> None:
        """A step with `count` input tokens, `num_drafts` of them drafts, was executed."""
        assert 0 <= num_drafts <= count
        assert num_sampled <= num_drafts + 1
        self.settled += count - num_drafts + max(num_sampled - 1, 0)
        self.resumed = False
        self.speculated = num_drafts > 0
