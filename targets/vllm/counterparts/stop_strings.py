"""The front end of a server, for requests with a stop string: vLLM's own `OutputProcessor` and incremental detokenizer.

The core of vLLM knows no text: it goes on until the front end, which finds the string in the text of the answer, aborts
the request. Here that happens as in `LLMEngine.step`, behind the step whose outputs complete the string. The front end
drops what the same step sampled after it. Replaced is the tokenizer: the text of each token is one to three characters
that no other token has, so a string is found where its tokens stand in a row.

Half of the clients keep the stop string in the text; independently, half get cumulative output instead of deltas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.request import RequestStatus

from ....reference.tokens import FIRST_TOKEN, VOCABULARY
from ...base.protocol import EngineError

FIRST_CHARACTER = 0x4E00
LONGEST = 3
"""Characters of a token."""


def text_of(token: int) -> str:
    """Return the text of a token."""
    first = FIRST_CHARACTER + LONGEST * token
    return "".join(map(chr, range(first, first + 1 + token % LONGEST)))


def stopped_by(tokens: Sequence[int], name: str) -> dict[str, Any]:
    """Return the sampling parameters of a request with a name that ends by the text of these tokens."""
    kind = crc32(name.encode())
    return {
        "stop": ["".join(map(text_of, tokens))],
        "include_stop_str_in_output": kind % 2 > 0,
        "output_kind": RequestOutputKind.CUMULATIVE if kind // 2 % 2 else RequestOutputKind.DELTA,
    }


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models
    from transformers import TokenizersBackend

    words = {text_of(token): token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=text_of(FIRST_TOKEN - 1)))
    tokenizer.decoder = decoders.Fuse()
    return TokenizersBackend(tokenizer_object=tokenizer)


class Answer:
    """What the client of one request has got."""

    def __init__(self, chosen: SamplingParams) -> None:
        self.chosen = chosen
        self.tokens: list[int] = []
        self.text = ""

    def take(self, given: Any) -> list[int]:
        """Take what a `CompletionOutput` has; return the tokens that are new. Raises EngineError at the end of an
        answer whose text is not that of its tokens."""
        if self.chosen.output_kind == RequestOutputKind.CUMULATIVE:
            new = list(given.token_ids[len(self.tokens) :])
            self.text = given.text
        else:
            new = list(given.token_ids)
            self.text += given.text
        self.tokens += new
        if given.finish_reason in ("stop", "length"):
            self._check(given.stop_reason)
        return new

    def _check(self, reason: str | None) -> None:
        text = "".join(map(text_of, self.tokens))
        if reason is not None and not text.endswith(reason):
            return  # the tokens are not those of the answer, which S6 sees
        if reason is not None and not self.chosen.include_stop_str_in_output:
            text = text.removesuffix(reason)
        if self.text != text:
            lengths = f"{len(self.text)} characters, those of its {len(self.tokens)} tokens are {len(text)}"
            raise EngineError(f"the text of an answer with a stop string is not that of its tokens: {lengths}")


class Shown(NamedTuple):
    """What a step's output shows to a client: new tokens, and whether its answer is over. `behind`: how many tokens the
    core has behind its end."""

    tokens: list[int]
    is_over: bool
    behind: int = 0


class FrontEnd:
    """The front end of one engine's requests with stop strings."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._processor = OutputProcessor(_tokenizer(), log_stats=False)
        self._answers: dict[str, Answer] = {}

    def add(self, request: Any, prompt: list[int], chosen: SamplingParams) -> None:
        """Take a request that is sent to the core."""
        name = request.request_id
        self._answers[name] = Answer(chosen)
        sent = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=chosen,
            pooling_params=None,
            arrival_time=request.arrival_time,
            lora_request=request.lora_request,
            cache_salt=request.cache_salt,
            data_parallel_rank=None,
            external_req_id=name,
        )
        self._processor.add_request(sent, None)

    def process(self, outputs: Sequence[Any]) -> dict[str, Shown]:
        """Take the outputs of a step, and abort the requests in the core whose stop string is complete. Return what the
        clients of these requests get, by request."""
        ours = [one for one in outputs if one.request_id in self._answers]
        shown = {one.request_id: Shown([], False) for one in ours}
        sampled = {one.request_id: len(one.new_token_ids) for one in ours}  # the processor cuts these lists
        processed = self._processor.process_outputs(ours)
        for one in processed.request_outputs:
            (given,) = one.outputs
            new = self._answers[one.request_id].take(given)
            behind = max(sampled[one.request_id] - len(new), 0) if one.finished else 0
            shown[one.request_id] = Shown(new, one.finished, behind)
        if processed.reqs_to_abort:
            self._scheduler.finish_requests(processed.reqs_to_abort, RequestStatus.FINISHED_ABORTED)
        return shown

    def abort(self, names: Sequence[str]) -> None:
        """Forget requests whose clients left."""
        self._processor.abort_requests([name for name in names if name in self._answers], internal=True)
