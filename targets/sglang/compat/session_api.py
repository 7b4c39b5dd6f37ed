"""Requests of clients and the tokenizer for sessions, and detection of releases whose sessions the target can drive."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ....reference.tokens import VOCABULARY
from .scheduler_api import Seen, tokenizer_for


def has_sessions() -> bool:
    """Return True if streaming sessions own the records of their turns, as sessions.py needs it (0.5.23)."""
    if find_spec("sglang.srt.session") is None or find_spec("sglang.srt.session.streaming_session") is None:
        return False
    from sglang.srt.session.streaming_session import StreamingSession

    return hasattr(StreamingSession, "borrowed_slot")


def open_session(name: str) -> Any:
    """Return a client's request to open a session."""
    from sglang.srt.managers.io_struct import OpenSessionReqInput

    return OpenSessionReqInput(capacity_of_str_len=1 << 20, session_id=name, streaming=True)


def close_session(name: str) -> Any:
    """Return a client's request to close its session."""
    from sglang.srt.managers.io_struct import CloseSessionReqInput

    return CloseSessionReqInput(session_id=name)


def make_turn(
    session: Any,
    name: str,
    tokens: list[int],
    sampling: Any,
    keys: Mapping[str, str] | None = None,
    reasons: bool = False,
    processor: str | None = None,
) -> Any:
    """Return a turn as the tokenizer would pass it: the session prepends its history.

    `keys` are the adapter and the salt of the session, "" for none. `reasons`: its answer begins with reasoning.
    `processor` of its logits (`custom_logit_processor`), None for none.
    """
    from sglang.srt.managers.io_struct import SessionParams
    from sglang.srt.managers.schedule_batch import Req

    asked = Seen(
        rid=f"{name}.",
        input_ids=array("q", tokens),
        sampling_params=sampling,
        session_params=SessionParams(id=name),
        require_reasoning=reasons or None,
        custom_logit_processor=processor,
        **{field: value for field, value in (keys or {}).items() if value},
    )

    def plain(**fields: Any) -> Any:
        return Req(**{field: value for field, value in fields.items() if value is not None}, origin_input_text="")

    request = session.create_req(asked, tokenizer_for(sampling), VOCABULARY, req_factory=plain)
    request.client_name = name
    request.logprob_start_len = -1  # as the scheduler sets it for a request whose client wants no log-probabilities
    return request
