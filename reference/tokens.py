"""Tokens, tags and the tiny language model: the expected content of every prefix.

A **tag** is a 63-bit digest of "exactly these tokens, in this order". It stands for the content of memory:

    recurrent (temporal) state after p tokens     tag(tokens[:p])
    attention slot of position p                  tag(tokens[:p + 1])
    convolution window after p tokens             the tags of the last `width - 1` prefixes

so that one wrong block id anywhere shows as a wrong tag, and the wrong tag names the prefix it belongs to.
The next token is a function of the tag. A trace therefore needs no token lists, and the output of a
request is known in advance whatever the batching, caching, preemption and speculation.

Everything here is integer arithmetic written out: the same on every machine and Python version.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

MASK = (1 << 63) - 1
VOCABULARY = 128
"""Number of token ids; 0 and 1 are never produced, engines use them for padding and unknown."""
_FIRST_TOKEN = 2
EMPTY = 0x2545F4914F6CDD1D
"""Tag of the empty prefix. Not 0, so that zeroed memory never looks like a legitimate state."""
NO_INPUT = 0
"""Convolution input before the first token, and zeroed memory."""
CONTINUATION = "~"
"""Document name that stands for the model's own continuation of the path so far (multi-turn prompts)."""


def mix(tag: int, token: int) -> int:
    """Return the tag of a prefix extended by one token. Not commutative, and never `NO_INPUT` in practice."""
    mixed = ((tag ^ ((token + 1) * 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) & MASK
    return ((mixed ^ (mixed >> 31)) * 0x94D049BB133111EB) & MASK


@lru_cache(maxsize=1 << 16)
def chain(tag: int, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tags after each of `tokens`, starting from `tag`; as long as `tokens`.

    Cached because every layer of a correct engine walks the same chain in the same step.
    """
    tags = []
    for token in tokens:
        tag = mix(tag, token)
        tags.append(tag)
    return tuple(tags)


def next_token(tag: int) -> int:
    """Return the language model's greedy token after the prefix with this tag."""
    return (tag >> 17) % (VOCABULARY - _FIRST_TOKEN) + _FIRST_TOKEN


def other_token(token: int) -> int:
    """Return a legal token that differs from `token`, for a wrong draft."""
    return (token - _FIRST_TOKEN + 1) % (VOCABULARY - _FIRST_TOKEN) + _FIRST_TOKEN


def draft_tokens(tag: int, count: int, right: int) -> list[int]:
    """Return `count` drafts after a prefix with `tag`; the first `right` of them are the model's own tokens."""
    drafts = []
    for index in range(count):
        token = next_token(tag)
        drafts.append(token if index < right else other_token(token))
        tag = mix(tag, drafts[-1])
    return drafts


@lru_cache(maxsize=1 << 16)
def document_token(document: str, index: int) -> int:
    """Return token `index` of the named document, an endless fixed stream."""
    return next_token(mix(mix(EMPTY, zlib.crc32(document.encode())), index))


@lru_cache(maxsize=1 << 10)
def document_tokens(document: str, length: int) -> tuple[int, ...]:
    """Return the first `length` tokens of the named document."""
    return tuple([document_token(document, index) for index in range(length)])


class Truth:
    """Tokens and tags of one request, grown on demand by the language model.

    `tokens[i]` is the token at position i, `tags[p]` the tag after p tokens, so `len(tags) == len(tokens) + 1`.
    """

    __slots__ = ("prompt_length", "tags", "tokens")

    def __init__(self, path: Iterable[tuple[str, int]]) -> None:
        """`path` is a walk down the prefix tree: (document, number of its tokens) after one another."""
        self.tokens: list[int] = []
        self.tags: list[int] = [EMPTY]
        self._walk(path)

    def _walk(self, path: Iterable[tuple[str, int]]) -> None:
        for document, length in path:
            if document == CONTINUATION:
                self.reach(len(self.tokens) + length)
            else:
                self._extend(document_tokens(document, length))
        self.prompt_length = len(self.tokens)

    @classmethod
    def after(cls, tokens: Iterable[int], path: Iterable[tuple[str, int]]) -> Truth:
        """Return the truth of a prompt that begins with `tokens`, followed by `path`."""
        truth = cls(())
        truth._extend(tuple(tokens))
        truth._walk(path)
        return truth

    def continued(self, length: int, path: Iterable[tuple[str, int]]) -> Truth:
        """Return another truth, whose prompt is the first `length` tokens of this one, then `path`."""
        self.reach(length)
        return Truth.after(self.tokens[:length], path)

    def branched(self, length: int, token: int) -> Truth:
        """Return another truth of the same prompt: the first `length` tokens of this one, `token`, and then the model's
        own continuation."""
        truth = Truth.after((*self.tokens[:length], token), ())
        truth.prompt_length = self.prompt_length
        return truth

    def _extend(self, tokens: tuple[int, ...]) -> None:
        self.tags += chain(self.tags[-1], tokens)
        self.tokens += tokens

    def reach(self, length: int) -> None:
        """Extend `tokens` to at least `length` tokens."""
        tokens, tags = self.tokens, self.tags
        tag = tags[-1]
        for _ in range(length - len(tokens)):
            token = next_token(tag)
            tag = mix(tag, token)
            tokens.append(token)
            tags.append(tag)

    def tag(self, depth: int) -> int:
        """Return the tag after exactly `depth` tokens."""
        if depth >= len(self.tags):
            self.reach(depth)
        return self.tags[depth]

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the tags that attention slots for positions start..stop-1 must hold."""
        if stop >= len(self.tags):
            self.reach(stop)
        return self.tags[start + 1 : stop + 1]

    def window(self, depth: int, width: int) -> tuple[int, ...]:
        """Return the window of a convolution of `width` taps after `depth` tokens: `width - 1` entries."""
        if depth >= len(self.tags):
            self.reach(depth)
        if depth < width:
            return window_of(self.tags[1 : depth + 1], width)
        return tuple(self.tags[depth - width + 2 : depth + 1])


def window_of(inputs: Sequence[int], width: int) -> tuple[int, ...]:
    """Return the last `width - 1` of `inputs`, padded with `NO_INPUT` on the left."""
    last = tuple(inputs[-(width - 1) :])
    return (NO_INPUT,) * (width - 1 - len(last)) + last
