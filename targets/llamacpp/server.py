"""Requests to llama.cpp's own HTTP server: slots, prompt cache, context checkpoints, saved slots, drafts.

Scripts copy this file's definitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from shutil import copyfile
from time import monotonic
from typing import Any, NamedTuple, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from ..base.protocol import EngineError
from .families import VOCABULARY
from .server_start import SLOT
from .server_stream import Streams

END = 2
"""The token that ends a text (`</s>` of the vocabulary)."""
SECONDS = 60
"""A request that takes longer has stalled."""
ALONE = {
    "slots": "1",
    "kv": "unified",
    "ubatch": "512",
    "checkpoints": "0",
    "spacing": "8192",
    "ram": "0",
    "similarity": "0.1",
}
"""Switches of a server that keeps nothing for a later request."""


class Answer(NamedTuple):
    """What a client gets: tokens, log-probabilities [tokens, vocabulary] from which each was chosen, and for which of
    them the server gives any: not for tokens of a batch with drafts."""

    tokens: tuple[int, ...]
    logprobs: Any
    known: tuple[bool, ...]


class Refused(Exception):
    """The server refuses a request or does not answer it. The message says which."""


class Running(Protocol):
    """A server that was started, in this process or in one of its own."""

    address: str

    def lost(self) -> None:
        """Do what is due if the server's process died: a request got no answer."""

    def close(self) -> None:
        """Stop the server."""


class Server:
    """A server of one model, and the clients' account of where it computed what: by number of a client."""

    def __init__(self, running: Running, folder: Path, options: Mapping[str, str]) -> None:
        """`folder`: that of the slots that are saved."""
        self._running = running
        self.folder = folder
        self.count = int(options["slots"])
        self.drafts = options.get("draft", "none") != "none"
        self.arrivals = options.get("arrivals", "together")
        self.arrived = self.cancelled = 0
        """Of the newest requests: how many were sent, or cancelled, before the answers to others (`Streams`)."""
        self.slots: dict[int, int] = {}
        """Client -> the slot that computed its newest answer."""

    def ask(
        self, prompts: Mapping[int, Sequence[int]], count: int, leaving: Sequence[tuple[int, Sequence[int]]] = ()
    ) -> list[Answer]:
        """Return what clients get for prompts, `count` tokens each.

        They arrive at the same time, or each while the one before it is computed, in a slot of its client's. Then the
        clients and prompts of `leaving` arrive before them, and are gone before their answer.
        """
        try:
            if self.arrivals == "together":
                answers = self._together(prompts, count)
            else:
                answers = self._apart(prompts, count, leaving)
        except Refused as error:
            raise EngineError(str(error)) from error
        if len(answers) != len(prompts):
            raise EngineError(f"the server answers {len(answers)} of {len(prompts)} prompts")
        self.slots |= {client: answer["id_slot"] for client, answer in zip(prompts, answers, strict=True)}
        return [_answer(answer, self.drafts) for answer in answers]

    def _together(self, prompts: Mapping[int, Sequence[int]], count: int) -> Sequence[Mapping[str, Any]]:
        found = self._post("completion", _request([[*prompt] for prompt in prompts.values()], count))
        return sorted(found if isinstance(found, list) else [found], key=lambda answer: int(answer["index"]))

    def _apart(
        self, prompts: Mapping[int, Sequence[int]], count: int, leaving: Sequence[tuple[int, Sequence[int]]]
    ) -> Sequence[Mapping[str, Any]]:
        queued = self.arrivals == "queued"
        streams, left = Streams(self._running.address, SECONDS, queued), []
        named = [client % self.count for client in prompts]
        try:
            for client, prompt in leaving:
                slot = client % self.count
                if queued or (slot not in named and slot not in streams.queues):
                    request = _request([*prompt], SLOT - len(prompt) - 1) | {"n_probs": 0}
                    left.append(streams.send(request, slot))
            for slot, prompt in zip(named, prompts.values(), strict=True):
                streams.send(_request([*prompt], count), slot)
            streams.leave(left)
            answers = [*streams.answers()]
            self._wait_idle()
            return answers
        except (OSError, ValueError) as error:
            self._running.lost()
            raise Refused(f"the server does not answer requests that are sent apart: {error}") from error
        finally:
            streams.close()
            self.arrived, self.cancelled = streams.arrived, streams.cancelled

    def _wait_idle(self) -> None:
        """Wait until no slot computes: those whose client left have to stop soon, too."""
        end = monotonic() + SECONDS
        while any(slot["is_processing"] for slot in self._ask("slots")):
            if monotonic() > end:
                raise Refused("the server still computes for a client that left")

    def save(self, name: str, client: int) -> None:
        """Save a client's slot to a file, whatever it holds by now."""
        self._act(self.slots[client], "save", {"filename": name})

    def restore(self, name: str, client: int) -> None:
        """Restore a file into a slot of a client's, in place of what that holds, and delete it."""
        self.slots[client] = client % self.count
        self._act(self.slots[client], "restore", {"filename": name})
        self.forget(name)

    def erase(self, client: int) -> None:
        """Erase a client's slot."""
        self._act(self.slots[client], "erase", {})

    def erase_all(self) -> None:
        """Erase all slots that computed something."""
        for slot in sorted({*self.slots.values()}):
            self._act(slot, "erase", {})

    def copy(self, source: int, target: int) -> None:
        """Let a client go on from where another one is."""
        self.slots[target] = self.slots[source]

    def copy_saved(self, name: str, parent: str) -> None:
        """Copy a file under another name."""
        copyfile(self.folder / parent, self.folder / name)

    def forget(self, name: str) -> None:
        """Delete a file."""
        (self.folder / name).unlink()

    def close(self) -> None:
        """Stop the server."""
        self._running.close()

    def _act(self, slot: int, action: str, content: Mapping[str, Any]) -> None:
        try:
            self._post(f"slots/{slot}?action={action}", content)
        except Refused as error:
            raise EngineError(str(error)) from error

    def _post(self, path: str, content: Mapping[str, Any]) -> Any:
        return self._ask(path, json.dumps(content).encode())

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        sent = Request(f"{self._running.address}/{path}", body, {"Content-Type": "application/json"})
        try:
            with urlopen(sent, timeout=SECONDS) as response:
                return json.load(response)
        except HTTPError as error:
            answer = json.loads(error.read())["error"]["message"]
            raise Refused(f"the server refuses {path}: {answer}") from error
        except (OSError, HTTPException) as error:
            self._running.lost()
            raise Refused(f"the server does not do {path}: {error}") from error


def nearest(expected: Any, token: int) -> Any:
    """Return the log-probabilities [vocabulary] next to the expected ones from which this token would be chosen: never
    the end of a text, which a request with `ignore_eos` does not get."""
    found, best = expected.copy(), int(np.delete(expected, END).argmax())
    best += best >= END
    found[[token, best]] = (expected[token] + expected[best]) / 2
    return found


def completed(answer: Answer, expected: Any) -> Any:
    """Return an answer's log-probabilities [tokens, vocabulary]; where the server gave a token alone, those next to the
    expected ones that explain it."""
    rows = zip(answer.tokens, answer.logprobs, answer.known, expected, strict=True)
    return np.array([found if known else nearest(right, token) for token, found, known, right in rows])


def _request(prompt: Sequence[Any], count: int) -> dict[str, Any]:
    """Return a request for `count` tokens, with the probabilities of the whole vocabulary; of one prompt or several."""
    return {
        "prompt": prompt,
        "n_predict": count,
        "n_probs": VOCABULARY,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
        "return_tokens": True,
    }


def _answer(found: Mapping[str, Any], drafts: bool) -> Answer:
    tokens, places = found["tokens"], found["completion_probabilities"]
    logprobs = np.full((len(places), VOCABULARY), np.nan, np.float32)
    for row, place in zip(logprobs, places, strict=True):
        for one in place["top_logprobs"]:
            row[one["id"]] = one["logprob"]
    known = [bool(place["top_logprobs"]) for place in places]
    if len(tokens) != len(places) or not all(known[: 1 if drafts else None]) or not places:
        raise EngineError(f"the server gives {len(tokens)} tokens, and probabilities of {sum(known)}")
    return Answer(tuple(tokens), logprobs, tuple(known))
