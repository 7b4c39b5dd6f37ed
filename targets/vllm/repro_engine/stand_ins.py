"""Stand-ins of a script for what the adapter takes from traces and from the harness.

(This file is inlined into reproducers, behind `MODEL_CONFIG`; nothing imports it.)
"""

import atexit
import gc
import json
import os  # noqa: F401  for the environment
import shutil
import sys
import tempfile
from collections.abc import Mapping
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

from ....reference import layout
from ....reference.tokens import FIRST_TOKEN, VOCABULARY, mix

MODEL = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, MODEL, ignore_errors=True)
atexit.register(gc.unfreeze)  # otherwise Triton reports leaks behind the last line of output
(MODEL / "config.json").write_text(json.dumps(MODEL_CONFIG), encoding="utf-8")  # noqa: F821

put = setattr  # a script knows the attributes of the release that it was written for by their names


def old_name(owner, name):
    """Return the name of an attribute."""
    return name


def interpret():
    """Mend Triton's own interpreter, in which kernels run (TRITON_INTERPRET is set): it makes integers of a truth value
    that it spreads over a block, which no load or store takes as a mask. The kernel of structured output does that."""
    from triton.runtime.interpreter import InterpreterBuilder

    spread = InterpreterBuilder.create_splat

    def create_splat(builder, *given):
        handle = spread(builder, *given)
        if any(getattr(one, "data", None) is not None and one.data.dtype == bool for one in given):
            handle.data = handle.data.astype(bool)
        return handle

    InterpreterBuilder.create_splat = create_splat


def install():
    """Do nothing: nobody reads here what vLLM copies."""


def activate(recorder):
    """Do nothing, as `install`."""


WRONG_TOKEN = 0
"""A token that follows no prefix."""
_DISAGREED = set()


def combine(first, second):
    """Return what both stand for, or a number for "different things": two layers disagree, or two parts of one."""
    if first != second:
        first = mix(first, second)
        _DISAGREED.add(first)
    return first


def next_token(tag):
    """Return the token that the model samples behind a prefix: the wrong one where its layers disagree about it."""
    return WRONG_TOKEN if tag in _DISAGREED else (tag >> 17) % (VOCABULARY - FIRST_TOKEN) + FIRST_TOKEN


def kv_connector():
    """Return the module of the KV connector: this one."""
    return sys.modules[__name__]


def has_connectors():
    """Return True if this script has a KV connector."""
    return "begin_worker" in globals()


class Config(NamedTuple):
    """Sizes of an engine; names follow vLLM. `options` are further switches."""

    num_blocks: int
    groups: tuple[Any, ...]
    mamba_cache_mode: str = "align"
    enable_prefix_caching: bool = True
    num_speculative_tokens: int = 0
    eagle_block_drop: bool = False
    conv_width: int = 4
    max_model_len: int = 96
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 48
    long_prefill_token_threshold: int = 0
    async_depth: int = 0
    graph_sizes: tuple[int, ...] = (1, 2, 4, 8)
    policy: str = "fcfs"
    options: Mapping[str, str] = {}

    def layout_groups(self):
        """Return the groups."""
        return self.groups

    @property
    def hash_block_size(self):
        """Tokens per hash: the largest unit that divides every block size."""
        return gcd(*(group.block_size for group in self.groups))

    def smallest_pool(self):
        """Return the blocks with which a request of `max_model_len` tokens can always finish."""
        k, ahead = self.num_speculative_tokens, self.async_depth
        longest = self.max_model_len + (k + 1) * (ahead + 1)
        return layout.smallest_pool(self.groups, self.mamba_cache_mode, longest, k, ahead)


class Arrive(NamedTuple):
    """A request, or the first turn of a session."""

    name: str
    prompt: tuple[Any, ...]
    max_new_tokens: int
    priority: int = 0
    session: bool = False
    stop_at: int = 0
    prompt_logprobs: bool = False
    structured: int = 0
    bad_grammar: int = 0
    min_tokens: int = 0
    reasoning: int = 0


class Resume(NamedTuple):
    """The next turn of a session."""

    name: str
    prompt: tuple[Any, ...]
    max_new_tokens: int
    stop_at: int = 0
    structured: int = 0
    min_tokens: int = 0
    reasoning: int = 0


class Step(NamedTuple):
    """One step of the engine."""

    budget: int = 0
    drafts: int = 0
    right: int = 0
    per_request: Mapping[str, tuple[int, int]] = {}
    pad_to: int = 0


class Preempt(NamedTuple):
    """A request is preempted."""

    name: str


class Abort(NamedTuple):
    """A client aborts."""

    name: str
    together: tuple[str, ...] = ()


class DummyRun(NamedTuple):
    """Another data-parallel rank has `rows` rows while this one is idle."""

    rows: int
    uniform_decode: bool = True


class ResetPrefixCache(NamedTuple):
    """The prefix cache is reset."""

    preempt_running: bool = False


class ResetEncoderCache(NamedTuple):
    """The encoder cache is reset."""


class Evict(NamedTuple):
    """Free blocks lose their keys."""

    blocks: int


class ExternalLoad(NamedTuple):
    """A KV connector has the first tokens of a request."""

    name: str
    length: int
    states: bool = True
    breaks_off: bool = False
    delay: int = 0
