"""llama.cpp's own HTTP server, in this process, on a free port of loopback: slots, prompt cache, context checkpoints.

xllamacpp starts it as `llama-server` does. Its cache is float32 and it has one thread, as `context` has.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.protocol import EngineError, TargetError
from ..base.trace import Config
from .families import VOCABULARY
from .library import F32, FLASH_OFF

SLOT = 256
"""Tokens of a slot's context."""
SECONDS = 60
"""A request that takes longer has stalled."""


class Answer(NamedTuple):
    """What a client gets: tokens, and log-probabilities [tokens, vocabulary] from which each was chosen."""

    tokens: tuple[int, ...]
    logprobs: Any


class Server:
    """A server of one model."""

    def __init__(self, path: Path, config: Config) -> None:
        try:
            binding = import_module("xllamacpp.xllamacpp")
        except ImportError as error:
            raise TargetError(
                "llamacpp:server needs a wheel of xllamacpp: use llamacpp:server@2026.10.11549"
            ) from error
        params = _params(binding.CommonParams(), config.options)
        params.model.path = str(path)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        self._server = binding.Server(params)
        self._url = f"{self._server.listening_address}/completion"

    def ask(self, prompts: Sequence[Sequence[int]], count: int) -> list[Answer]:
        """Return what so many clients get for prompts that arrive at the same time: `count` tokens each."""
        request = {
            "prompt": [list(prompt) for prompt in prompts],
            "n_predict": count,
            "n_probs": VOCABULARY,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
            "return_tokens": True,
        }
        sent = urllib.request.Request(self._url, json.dumps(request).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(sent, timeout=SECONDS) as response:
                found = json.load(response)
        except OSError as error:
            raise EngineError(f"the server does not answer {len(prompts)} prompts: {error}") from error
        answers = sorted(found if isinstance(found, list) else [found], key=lambda answer: int(answer["index"]))
        if len(answers) != len(prompts):
            raise EngineError(f"the server answers {len(answers)} of {len(prompts)} prompts")
        return [_answer(answer) for answer in answers]

    def close(self) -> None:
        """Stop the server."""
        del self._server


def _params(params: Any, options: Mapping[str, str]) -> Any:
    """Set the parameters of a server. TargetError for one that this build does not have."""
    for name, value in {
        "n_parallel": int(options["slots"]),
        "n_ctx": int(options["slots"]) * SLOT,
        "kv_unified": options["kv"] == "unified",
        "n_ubatch": int(options["ubatch"]),
        "n_ctx_checkpoints": int(options["checkpoints"]),
        "checkpoint_min_step": int(options["spacing"]),
        "cache_ram_mib": int(options["ram"]),
        "slot_prompt_similarity": float(options["similarity"]),
        "cache_type_k": F32,
        "cache_type_v": F32,
        "flash_attn_type": FLASH_OFF,
        "warmup": False,
        "port": 0,
        "verbosity": -1,
    }.items():
        if not hasattr(params, name):
            raise TargetError(f"llamacpp:server: the server of this build has no parameter {name}")
        setattr(params, name, value)
    return params


def _answer(found: dict[str, Any]) -> Answer:
    places = found["completion_probabilities"]
    logprobs = np.full((len(places), VOCABULARY), np.nan, np.float32)
    for row, place in zip(logprobs, places, strict=True):
        for one in place["top_logprobs"]:
            row[one["id"]] = one["logprob"]
    if len(found["tokens"]) != len(places) or not places:
        raise EngineError(f"the server gives {len(found['tokens'])} tokens, and probabilities of {len(places)}")
    return Answer(tuple(found["tokens"]), logprobs)
