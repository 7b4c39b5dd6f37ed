"""What clients of an OpenAI-compatible server send for the events of a trace (`deployment.Client`).

The model of a server gives other answers than that of a trace. Token ids are therefore any that share what the prompts
of the trace share; what a prompt quotes of an answer, and a stop token, is taken from an answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from keyword import iskeyword

from ...reference.batch import original_name
from ...reference.tokens import CONTINUATION, kind_of
from .trace import Abort, Arrive, Event, Prompt, Resume, Turn, has_stop_string

_HEAD = '''\
import asyncio
import zlib

from openai import AsyncOpenAI

URL = "http://localhost:{port}"
client = AsyncOpenAI(base_url=f"{{URL}}/v1", api_key="-")


def tokens(document, length):
    """Return token ids: any will do, if prompts share what they share here."""
    return [1000 + zlib.crc32(f"{{document}} {{index}}".encode()) % 9000 for index in range(length)]

'''
COMPLETIONS = f"""{_HEAD.format(port=8000)}
def send(prompt, max_tokens, **more):
    body = {{"ignore_eos": True, "return_token_ids": True, **more}}
    return asyncio.create_task(
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, extra_body=body)
    )
"""
"""Requests to /v1/completions. `MODEL` is what the serve command names."""
ANSWER_OF_COMPLETION = """
def answer(completion):
    return completion.choices[0].token_ids
"""
"""Returns the tokens of a response."""
GENERATE = f"""{_HEAD.format(port=30000)}
def send(prompt, max_tokens, **more):
    sampling = {{"max_new_tokens": max_tokens, "temperature": 0}}
    own = ("n", "temperature", "top_k", "top_p", "min_new_tokens", "stop", "stop_token_ids", "regex")
    sampling |= {{name: more.pop(name) for name in own if name in more}}
    # With ignore_eos SGLang ignores stop tokens, too.
    sampling["ignore_eos"] = not any("stop" in name for name in sampling)
    body = {{"input_ids": prompt, "sampling_params": sampling, **more}}
    return asyncio.create_task(client.post(f"{{URL}}/generate", cast_to=object, body=body))
"""
"""Requests to SGLang's /generate: its /v1/completions hands no session on."""
ANSWER_OF_GENERATE = """
def answer(generated):
    return generated["output_ids"]
"""
"""Returns the tokens of a response."""
Fields = Callable[[Turn, int], Mapping[str, object] | None]
"""Returns the fields of a request besides its prompt and length, for a number of samples; None for a request that no
endpoint takes."""
Others = Callable[[Event], Iterable[str]]
"""Returns the lines of an event that is no request, or that come before one."""


def variable(name: str) -> str:
    """Return the name of a request as one of Python, which the script does not have for something else."""
    plain = re.sub(r"\W", "_", name)
    return plain if re.fullmatch(r"r\w*", plain) and not iskeyword(plain) else f"r_{plain}"


def stops_of(events: Sequence[Event]) -> dict[str, str]:
    """Return what `STOP` has to hold for a request that ends by a stop token or a stop string, by its variable."""
    found = {}
    for event in events:
        if isinstance(event, Turn) and event.stop_at and original_name(event.name) == event.name:
            last = event.stop_at
            which = f"tokens {last - event.string_before} to {last}" if event.string_before else f"token {last}"
            what = f"the text of {which}" if has_stop_string(event) else which
            found[_stop_name(event)] = f"{what} of its answer, as the same request without it shows"
    return found


def _stop_name(event: Turn) -> str:
    return f"{variable(event.name)}, next turn" if isinstance(event, Resume) else variable(event.name)


def calls_of(events: Sequence[Event], fields: Fields, others: Others) -> Iterator[tuple[int, list[str]]]:
    """Yield the index of each event that clients cause, and its lines. Samples of one prompt are one request."""
    names = Counter(original_name(event.name) for event in events if isinstance(event, Arrive))
    sent: dict[str, Turn] = {}
    for index, event in enumerate(events):
        lines = list(others(event))
        if isinstance(event, Turn) and original_name(event.name) == event.name:
            chosen = fields(event, names[event.name])
            if chosen is not None:
                lines += _request(event, chosen, sent)
            sent.setdefault(event.name, event)
        elif isinstance(event, Abort) and original_name(event.name) == event.name and not lines:
            lines = [f"{variable(event.name)}.cancel()  # its client leaves"] if event.name in sent else []
        if lines:
            yield index, lines


def _request(event: Turn, fields: Mapping[str, object], sent: Mapping[str, Turn]) -> Iterator[str]:
    """Yield the lines of a request."""
    name = variable(event.name)
    given = "".join(f", {key}={value!r}" for key, value in fields.items())
    if isinstance(event, Resume):
        yield f"await {name}  # the next turn of its session"
    if event.stop_at:
        field = "stop" if has_stop_string(event) else "stop_token_ids"
        given += f", {field}=[STOP[{_stop_name(event)!r}]]"
    yield f"{name} = send({prompt_of(event.prompt, sent)}, {event.max_new_tokens}{given})"


def prompt_of(prompt: Prompt, sent: Mapping[str, Turn]) -> str:
    """Return the expression of a prompt's token ids. `sent`: earlier requests by name."""
    parts = []
    for index, (document, length) in enumerate(prompt):
        if document == CONTINUATION:
            whose = _quoted(prompt[:index], sent)
            parts.append(f"answer(await {variable(whose)})[:{length}]" if whose else f'tokens("answer", {length})')
        else:
            parts.append(f'tokens("{document}", {length})')
    return " + ".join(parts)


def _quoted(prompt: Prompt, sent: Mapping[str, Turn]) -> str:
    """Return the earlier request with this prompt, "" without one."""
    return next((name for name, turn in sent.items() if turn.prompt == prompt), "")


def awaited_by(events: Sequence[Event], index: int) -> set[str]:
    """Return the requests for whose answers the call of an event itself waits: the turn before, and quoted ones."""
    event = events[index]
    if not isinstance(event, Turn):
        return set()
    sent = {one.name: one for one in reversed(events[:index]) if isinstance(one, Turn)}
    places = [place for place, (document, _) in enumerate(event.prompt) if document == CONTINUATION]
    quoted = {_quoted(event.prompt[:place], sent) for place in places} - {""}
    return quoted | ({event.name} if isinstance(event, Resume) else set())


def is_text(event: Turn) -> bool:
    """Return True if a prompt is one of token ids."""
    return not any(kind_of(document) for document, _ in event.prompt)
