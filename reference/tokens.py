"""Tokens, tags and the tiny language model: the expected content of every prefix.

A **tag** is a 63-bit digest of "exactly these tokens, in this order". It stands for the content of memory:

    recurrent (temporal) state after p tokens     tag(tokens[:p])
    attention slot of position p                  tag(tokens[:p + 1])
    convolution window after p tokens             the tags of the last `width - 1` prefixes

so that one wrong block id anywhere shows as a wrong tag, and the wrong tag names the prefix it belongs to.
The next token is a function of the tag. A trace therefore needs no token lists, and the output of a
request is known in advance whatever the batching, caching, preemption and speculation.

Content does not always follow from token ids alone. A document whose name begins with one of `KINDS` has tokens that
others have, too, and content of its own:

    image.NAME    images of up to `IMAGE_TOKENS` tokens, which are all `PLACEHOLDER`
    adapter.NAME  at the beginning of a prompt: the tokens of document `SHARED`, computed with a LoRA adapter, as are
                  all tokens after them
    salt.NAME     the same, but the content only counts as different: caches of different salts must not be shared

Tags are made of **contents**: a token id, or a larger number for a token of one of these kinds.

Everything here is integer arithmetic written out: the same on every machine and Python version.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

MASK = (1 << 63) - 1
VOCABULARY = 128
"""Number of token ids; 0 and 1 are never produced, engines use them for padding and unknown."""
FIRST_TOKEN = 2
EMPTY = 0x2545F4914F6CDD1D
"""Tag of the empty prefix. Not 0, so that zeroed memory never looks like a legitimate state."""
NO_INPUT = 0
"""Convolution input before the first token, and zeroed memory."""
PLACEHOLDER = 1
"""The token that an engine sees at each position of an image."""
IMAGE_TOKENS = 7
SHARED = "a"
KINDS = ("image", "adapter", "salt")
CONTINUATION = "~"
"""Document name that stands for the model's own continuation of the path so far (multi-turn prompts)."""
PromptPath = Iterable[tuple[str | tuple[int, ...], int]]


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


def first_difference(expected: Sequence[int], observed: Sequence[int]) -> int:
    """Return the index of the first unequal element, or the shorter length."""
    for index, (wanted, seen) in enumerate(zip(expected, observed, strict=False)):
        if wanted != seen:
            return index
    return min(len(expected), len(observed))


def next_token(tag: int) -> int:
    """Return the language model's greedy token after the prefix with this tag."""
    return (tag >> 17) % (VOCABULARY - FIRST_TOKEN) + FIRST_TOKEN


def other_token(token: int) -> int:
    """Return a legal token that differs from `token`, for a wrong draft."""
    return (token - FIRST_TOKEN + 1) % (VOCABULARY - FIRST_TOKEN) + FIRST_TOKEN


def obeys(place: int, tag: int, token: int) -> bool:
    """Return True if a grammar allows `token` at a place of the answer, behind a prefix with `tag` (`structured`)."""
    return place % 2 == 1 or (token ^ tag >> 5) % 2 == 0


def first_choice(token: int, withheld: Sequence[int], place: int | None = None, tag: int = 0) -> int:
    """Return what the model samples instead of `token`, its first choice, where it may not sample those in `withheld`.
    Its second choice is `other_token` of the first, its third that of the second, and so on. With `place`, that of the
    answer, a grammar must allow it, too."""
    while token in withheld or (place is not None and not obeys(place, tag, token)):
        token = other_token(token)
    return token


def draft_tokens(tag: int, count: int, right: int, key: int = 0) -> list[int]:
    """Return `count` drafts after a prefix with `tag`; the first `right` of them are the model's own tokens.

    `key` is that of the request (`Truth.key`).
    """
    drafts = []
    for index in range(count):
        token = next_token(tag)
        drafts.append(token if index < right else other_token(token))
        tag = mix(tag, drafts[-1] + key)
    return drafts


@lru_cache(maxsize=1 << 16)
def document_token(document: str, index: int) -> int:
    """Return token `index` of the named document, an endless fixed stream."""
    return next_token(mix(mix(EMPTY, zlib.crc32(document.encode())), index))


@lru_cache(maxsize=1 << 10)
def document_tokens(document: str, length: int) -> tuple[int, ...]:
    """Return the first `length` tokens of the named document."""
    return tuple([document_token(document, index) for index in range(length)])


def kind_of(document: str) -> str:
    """Return the one of `KINDS` that a document is of, "" for plain text."""
    kind = document.partition(".")[0]
    return kind if kind in KINDS and kind != document else ""


def plain_name(document: str) -> str:
    """Return the name of a document as one of plain text."""
    return document.partition(".")[2] if kind_of(document) else document


def key_of(name: str) -> int:
    """Return what an image, an adapter or a salt adds to the content of a token, 0 for ""."""
    return (1 + zlib.crc32(name.encode())) * VOCABULARY if name else 0


class Image(NamedTuple):
    """An image in a prompt: positions start..stop-1."""

    start: int
    stop: int
    name: str
    """Names images of the same content."""

    def contents(self, key: int) -> tuple[int, ...]:
        """Return the content of its tokens for a request with a key."""
        own = key + key_of(self.name)  # other images have other contents, though there are few tokens
        return tuple([token + own for token in document_tokens(self.name, self.stop - self.start)])


class Truth:
    """Tokens and tags of one request, grown on demand by the language model.

    `tokens[i]` is the token at position i, `tags[p]` the tag after p tokens, so `len(tags) == len(tokens) + 1`.
    `images` are in the order of the prompt; `adapter` and `salt` are document names, "" for none; `key` is what both
    add to the content of every token. Before position `free_from` the model may not sample a token of `withheld`. With
    `has_grammar` it samples what a grammar allows (`structured`) from position `grammar_from` on, and at `closes_at`,
    if that is not 0, its first choice in any case: the grammar is complete there, and allows that alone. Behind that it
    is over. With `reasons_until`, a token, the answer first has reasoning: up to the first such token, which is a part
    of it, no grammar restricts what the model samples. As long as `tokens` have no such token `grammar_from` is -1.
    """

    __slots__ = (
        "adapter", "closes_at", "free_from", "grammar_from", "has_grammar", "images", "key", "prompt_length",
        "reasons_until", "salt", "tags", "tokens", "withheld",
    )  # fmt: skip

    def __init__(self, path: PromptPath) -> None:
        """`path` is a walk down the prefix tree: (document, number of its tokens) after one another. A document of
        plain text may be given as its tokens."""
        self.tokens: list[int] = []
        self.tags: list[int] = [EMPTY]
        self.images: list[Image] = []
        self.adapter = self.salt = ""
        self.key = 0
        self.withheld: tuple[int, ...] = ()
        self.free_from = self.closes_at = self.reasons_until = 0
        self.grammar_from = -1
        self.has_grammar = False
        self._walk(path)

    def _walk(self, path: PromptPath) -> None:
        for document, length in path:
            if isinstance(document, tuple):
                self._extend(document[:length])
                continue
            kind = kind_of(document)
            if document == CONTINUATION:
                self.reach(len(self.tokens) + length)
            elif kind == "image":
                for first in range(0, length, IMAGE_TOKENS):
                    size = min(IMAGE_TOKENS, length - first)
                    self._show(f"{document}.{first}-{size}", size)
            elif kind and not self.tokens:
                if kind == "adapter":
                    self.adapter = document
                else:
                    self.salt = document
                self.key = key_of(document)
                self._extend(document_tokens(SHARED, length))
            else:
                self._extend(document_tokens(document, length))
        self.prompt_length = len(self.tokens)

    def _show(self, name: str, length: int) -> None:
        first = len(self.tokens)
        image = Image(first, first + length, name)
        self.images.append(image)
        self.tags += chain(self.tags[-1], image.contents(self.key))
        self.tokens += (PLACEHOLDER,) * length

    @property
    def is_plain(self) -> bool:
        """True if contents are token ids."""
        return not self.key and not self.images

    def contents(self, first: int, tokens: Sequence[int], key: int | None = None) -> list[int]:
        """Return the content of tokens that an engine has from position `first` on, with the key of another adapter if
        the engine applies that."""
        own = self.key if key is None else key
        found = [token + own for token in tokens] if own else list(tokens)
        for image in self.images:
            if image.start < first + len(found) and first < image.stop:
                shown = image.contents(own)
                for position in range(max(image.start, first), min(image.stop, first + len(found))):
                    if tokens[position - first] == PLACEHOLDER:
                        found[position - first] = shown[position - image.start]
        return found

    @classmethod
    def after(cls, tokens: Iterable[int], path: PromptPath) -> Truth:
        """Return the truth of a prompt that begins with `tokens`, followed by `path`."""
        before = tuple(tokens)
        return cls(((before, len(before)), *path))

    def continued(self, length: int, path: PromptPath) -> Truth:
        """Return another truth, whose prompt is the first `length` tokens of this one, then `path`."""
        truth = self._beginning(length)
        truth._walk(path)
        return truth

    def _beginning(self, length: int) -> Truth:
        self.reach(length)
        truth = Truth(())
        truth.tokens, truth.tags = self.tokens[:length], self.tags[: length + 1]
        truth.adapter, truth.salt, truth.key = self.adapter, self.salt, self.key
        truth.images = [image for image in self.images if image.stop <= length]
        return truth

    def instead(self, tokens: Sequence[int]) -> Truth:
        """Return the truth of a prompt of `tokens` with the adapter, the salt and the withheld tokens of this one."""
        truth = self.continued(0, ((tuple(tokens), len(tokens)),))
        truth._withhold(self.withheld, max(self.free_from - self.prompt_length, 0))
        return truth

    def branched(self, length: int, token: int) -> Truth:
        """Return another truth of the same prompt: the first `length` tokens of this one, `token`, and then the model's
        own continuation."""
        truth = self._beginning(length)
        truth._extend((token,))
        truth.prompt_length = self.prompt_length
        truth.withheld, truth.free_from = self.withheld, self.free_from
        truth.has_grammar, truth.closes_at = self.has_grammar, self.closes_at
        truth.reasons_until = self.reasons_until
        truth._find_grammar()
        return truth

    def _extend(self, tokens: tuple[int, ...]) -> None:
        self.tags += chain(self.tags[-1], tuple([token + self.key for token in tokens]) if self.key else tokens)
        self.tokens += tokens

    def reach(self, length: int) -> None:
        """Extend `tokens` to at least `length` tokens."""
        tokens, tags, key = self.tokens, self.tags, self.key
        tag, end = tags[-1], self.reasons_until if self.grammar_from < 0 else 0
        for position in range(len(tokens), length):
            is_bound = self.has_grammar or position < self.free_from
            token = self._choice(position, self.withheld) if is_bound else next_token(tag)
            tag = mix(tag, token + key)
            tokens.append(token)
            tags.append(tag)
            if token == end:
                self.grammar_from, end = position + 1, 0

    def _choice(self, position: int, withheld: Sequence[int]) -> int:
        """Return what the model samples at a position: its first choice that is allowed, and not withheld there."""
        tag = self.tags[position]
        token = next_token(tag)
        is_bound = self.is_bound(position)
        if is_bound and position == self.closes_at:
            return token
        place = position - self.grammar_from if is_bound else None
        return first_choice(token, withheld if position < self.free_from else (), place, tag)

    def stop_tokens(
        self, stop_at: int, min_tokens: int = 0, before: int = 0, has_grammar: bool = False, reasoning: int = 0
    ) -> tuple[int, ...]:
        """Return the stop tokens of the answer, and from now on answer without them before `min_tokens`. With `before`
        return a stop string instead: the token at `stop_at`, behind as many as that of the answer.

        They are what the model samples at the places `stop_at` and `min_tokens` of its answer, 1 for the first, 0 for
        none. At `min_tokens` and wherever else a stop token comes too early, the answer has the model's next choice.
        A grammar is complete at `stop_at`, and nothing else may stand there: where that is a stop token, the answer
        ends before `min_tokens`. (It is none where tokens that are withheld before it lead to another answer.)
        The token that the model would sample at the place `reasoning` of an answer without all that ends the reasoning
        before the part for which a grammar holds; 0 for an answer without reasoning. A grammar is over from the
        beginning if it would be complete before the end of the reasoning.
        """
        if has_grammar or self.has_grammar:
            self.has_grammar, self.closes_at, self.reasons_until = False, 0, 0
            self.withheld, self.free_from = (), 0
            self._answer_anew()
            if has_grammar and reasoning:
                self.reach(self.prompt_length + reasoning)
                self.reasons_until = self.tokens[self.prompt_length + reasoning - 1]
            self.has_grammar = has_grammar
            self._answer_anew()
        if has_grammar and stop_at:
            self.closes_at = self.prompt_length + stop_at - 1
        stops: tuple[int, ...] = ()
        if before:
            self.reach(self.prompt_length + stop_at)
            return tuple(self.tokens[self.prompt_length + max(stop_at - 1 - before, 0) : self.prompt_length + stop_at])
        for place in sorted({stop_at, min_tokens} - {0}):
            self._withhold(stops, min_tokens)
            self.reach(self.prompt_length + place)
            stops = (*stops, self.tokens[self.prompt_length + place - 1])
        self._withhold(stops, min_tokens)
        return stops

    def restrict(self, closes: int, reasons_until: int = 0) -> None:
        """Let a grammar restrict the answer from its first token on, or behind the first that is `reasons_until`. Token
        `closes` of the answer completes it, 0 for never."""
        self.has_grammar, self.closes_at = True, self.prompt_length + closes - 1 if closes else 0
        self.reasons_until = reasons_until
        self._answer_anew()

    def _withhold(self, tokens: tuple[int, ...], places: int) -> None:
        """Answer anew, without `tokens` in the first places."""
        if places:
            self.withheld, self.free_from = tokens, self.prompt_length + places
            self._answer_anew()

    def _answer_anew(self) -> None:
        del self.tokens[self.prompt_length :], self.tags[self.prompt_length + 1 :]
        self._find_grammar()

    def _find_grammar(self) -> None:
        """Set where the grammar begins to hold, as far as the tokens say."""
        first, answer = self.prompt_length, self.tokens[self.prompt_length :]
        if self.reasons_until:
            first = first + answer.index(self.reasons_until) + 1 if self.reasons_until in answer else -1
        self.grammar_from = first

    def holds_back(self, position: int) -> bool:
        """Return True if the model would have sampled a stop token at a position, and may not."""
        self.reach(position + 1)
        return position < self.free_from and self.tokens[position] != self._choice(position, ())

    def first(self, position: int) -> int:
        """Return the model's first choice at a position, whatever it may sample there."""
        return next_token(self.tag(position))

    def is_bound(self, position: int) -> bool:
        """Return True if a grammar says what may stand at a position: it begins behind the reasoning, and is over
        behind the place where it closes."""
        begins = self.has_grammar and 0 <= self.grammar_from <= position
        return begins and (not self.closes_at or position <= self.closes_at)

    def is_masked(self, position: int) -> bool:
        """Return True if a grammar forbids the model's first choice at a position."""
        if position == self.closes_at or not self.is_bound(position):
            return False
        return not obeys(position - self.grammar_from, self.tag(position), self.first(position))

    def drafts(self, known: int, count: int, right: int) -> list[int]:
        """Return `count` drafts behind the first `known` tokens. The first `right` are what the drafter takes for the
        answer: the model's first choices or, with a grammar and behind an odd number of tokens, what the grammar leaves
        of them. (A drafter that is a model knows no grammar; one that repeats earlier text follows it.)"""
        if not self.has_grammar or known % 2 == 0:
            return draft_tokens(self.tag(known), count, right, self.key)
        self.reach(known + right)
        drafts = self.tokens[known : known + min(right, count)]
        return drafts + draft_tokens(self.tag(known + len(drafts)), count - len(drafts), 0, self.key)

    def answer_length(self, most: int, stops: Sequence[int], is_string: bool = False) -> int:
        """Return the number of tokens in an answer of at most `most`: its first stop token is its last. With
        `is_string` it ends where it first has all of `stops` in a row."""
        if not stops:
            return most
        self.reach(self.prompt_length + most)
        answer = self.tokens[self.prompt_length : self.prompt_length + most]
        if is_string:
            ends = range(len(stops), most + 1)
            return next((end for end in ends if answer[end - len(stops) : end] == list(stops)), most)
        return next((length for length, token in enumerate(answer, 1) if token in stops), most)

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
