"""The clients in a report: a script that runs, and sends what the requests of a trace send."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec import structs
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.record.history import History, Moment, RequestStep
from hybridfuzz.harness.tell.at_scale import Reading, Served, at_scale
from hybridfuzz.harness.tell.client_block import client_lines, needs_timing
from hybridfuzz.targets.base.deployment import Scale
from hybridfuzz.targets.base.registry import describe, prepare
from hybridfuzz.targets.base.trace import Abort, Arrive, Preempt, ResetEncoderCache, ResetPrefixCache, Resume, Trace

CORPUS = Path(__file__).parents[3] / "corpus"
RELEASES = {"vllm@0.33.0": "vllm/0.33.0--*.json", "sglang@0.5.23": "sglang/0.5.23--*.json"}


def packaged(target: str) -> dict[str, Trace]:
    return {path.stem: load_trace(path) for path in sorted(CORPUS.glob(RELEASES[target]))}


def served(target: str, trace: Trace) -> Served:
    described = describe(target, trace, target.partition("@")[2])
    scaled = at_scale(trace, described.scale) if described.scale else None
    server = described if scaled is None else describe(target, scaled, target.partition("@")[2])
    return Served(server, scaled or trace)


def script(target: str, trace: Trace, history: History | None = None) -> str:
    return "\n".join(client_lines(served(target, trace), trace, history or History()))


def is_timed(target: str, trace: Trace, history: History | None = None) -> bool:
    return needs_timing(served(target, trace), trace, history or History())


class FakeServer:
    """Stands in for `openai`: answers every request with as many tokens as it asks for."""

    def __init__(self, **_: object) -> None:
        self.completions = self

    sent: ClassVar[list[dict[str, Any]]] = []
    posted: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    async def create(self, *, extra_body: dict[str, Any], **body: Any) -> SimpleNamespace:
        self.sent.append({**body, **extra_body})
        await asyncio.sleep(0)
        return SimpleNamespace(choices=[SimpleNamespace(token_ids=[7] * body["max_tokens"])])

    async def post(self, url: str, *, cast_to: type, body: dict[str, Any] | None = None) -> dict[str, Any]:
        assert cast_to is object
        name, body = url.rpartition("/")[2], body or {}
        if name != "generate":
            self.posted.append((name, body))
            return {}
        self.sent.append(body)
        await asyncio.sleep(0)
        return {"output_ids": [7] * body["sampling_params"]["max_new_tokens"]}


def run(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """Run a script against the stand-in; return the bodies of its requests, and what it posts besides."""
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(AsyncOpenAI=FakeServer))
    monkeypatch.setattr(FakeServer, "sent", [])
    monkeypatch.setattr(FakeServer, "posted", [])
    exec(compile(text, "clients.py", "exec"), {"__name__": "__main__"})
    return FakeServer.sent, FakeServer.posted


@pytest.mark.parametrize("target", RELEASES)
def test_the_clients_of_every_packaged_trace_run(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of a server came without requests, and nobody could make it fail."""
    silent = []
    for name, trace in packaged(target).items():
        text = script(target, trace)
        if not text:
            silent.append(name)
            continue
        sent, _ = run(text, monkeypatch)
        # Samples are one request; one whose client leaves at once may never be sent.
        arrivals = [one for one in trace.events if isinstance(one, Arrive) and "." not in one.name]
        assert sent or any(isinstance(one, Abort) for one in trace.events), name
        assert len(sent) <= len(arrivals) + sum(isinstance(one, Resume) for one in trace.events), name
        assert "Error" not in capsys.readouterr().out.replace("CancelledError", ""), name
    assert all("session" in name for name in silent)


VALID = {
    "vllm@0.33.0": """
import json, sys
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
for body in json.load(sys.stdin):
    unknown = body.keys() - CompletionRequest.model_fields.keys()
    assert not unknown, unknown
    CompletionRequest(**body)
print("valid")
""",
    "sglang@0.5.23": """
import json, sys
from hybridfuzz.targets.sglang import stubs
stubs.install()
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams
for body in json.load(sys.stdin):
    GenerateReqInput(**body).normalize_batch_and_arguments()
    SamplingParams(**body["sampling_params"]).verify(128)
print("valid")
""",
}


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("target", RELEASES)
def test_the_engine_takes_what_the_clients_of_every_packaged_trace_send(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for trace in packaged(target).values() if (text := script(target, trace))]
    bodies = [body for text in texts for body in run(text, monkeypatch)[0]]
    launch = prepare(target, print)
    ran = subprocess.run(
        [launch.python, "-c", VALID[target]],
        input=json.dumps(bodies),
        env={**os.environ, **launch.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(bodies) >= len(texts) and ran.stdout.endswith("valid\n"), ran.stderr[-2000:]


def test_requests_ask_for_what_those_of_the_trace_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first = structs.replace(arrive("r0", 3, new=4), prompt_logprobs=True, priority=2)
    stopped = structs.replace(arrive("r1", 2, new=4), stop_at=2)
    quoting = structs.replace(arrive("r2", 3), prompt=(*first.prompt, ("~", 2)))
    samples = [arrive("r3", 2), arrive("r3.1", 2)]
    trace = make_trace(first, stopped, quoting, *samples)
    [r0, r1, r2, r3], _ = run(script("vllm@0.33.0", trace), monkeypatch)
    assert (r0["prompt_logprobs"], r0["priority"], r0["temperature"]) == (1, 2, 0)
    assert r1["stop_token_ids"] == [0] and "stop_token_ids" not in r0
    length = len(r0["prompt"])
    assert r2["prompt"][:length] == r0["prompt"] and set(r2["prompt"][length:]) == {7}
    assert r3["n"] == 2 and "n" not in r0


def test_what_a_stop_token_is_stands_where_it_is_put() -> None:
    """The script named a variable that it did not have."""
    string = structs.replace(arrive("r1", 2, new=4), stop_at=3, string_before=1)
    text = script("sglang@0.5.23", make_trace(structs.replace(arrive("r0", 2, new=4), stop_at=2), string))
    assert "'r0': 0,  # put here token 2 of its answer" in text
    assert "'r1': 0,  # put here the text of tokens 2 to 3 of its answer" in text


def test_sglang_is_asked_by_an_endpoint_that_has_sessions_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its /v1/completions hands no session on, and with `ignore_eos` it ignores stop tokens."""
    asked = structs.replace(arrive("r0", 3, new=4), stop_at=2, min_tokens=1)
    [stopped, plain], _ = run(script("sglang@0.5.23", make_trace(asked, arrive("r1", 3))), monkeypatch)
    assert stopped["sampling_params"]["stop_token_ids"] == [0] and not stopped["sampling_params"]["ignore_eos"]
    assert stopped["sampling_params"]["min_new_tokens"] == 1
    assert plain["sampling_params"]["ignore_eos"]


@pytest.mark.parametrize("name", ["tokens", "return", "0", "client", "a-b.c"])
def test_a_request_may_have_any_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [body], _ = run(script("vllm@0.33.0", make_trace(arrive(name, 3))), monkeypatch)
    assert body["prompt"]


def test_sessions_and_resets_have_their_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = structs.replace(arrive("r0", 3), session=True)
    trace = make_trace(opening, Resume("r0", (("b", 2),), 1), Abort("r0"))
    sent, posted = run(script("sglang@0.5.23", trace), monkeypatch)
    assert [one["session_params"] for one in sent] == [{"id": "r0"}]  # the second was cancelled before it was sent
    assert [name for name, _ in posted] == ["open_session", "close_session"]
    assert script("vllm@0.33.0", trace) == ""
    assert "StreamingInput" in describe("vllm@0.33.0", trace, "0.33.0").unserved
    assert not describe("sglang@0.5.23", trace, "0.5.23").unserved


def test_an_abort_on_sglang_gives_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client left, and so received nothing of which a token could be wrong."""
    text = script("sglang@0.5.23", make_trace(arrive("r0", 3), Abort("r0")))
    assert "rid='r0'" in text and "cancel" not in text
    _, posted = run(text, monkeypatch)
    assert ("abort_request", {"rid": "r0"}) in posted


def test_further_steps_of_a_servers_lengths_shift_no_event() -> None:
    """A request was aborted as soon as it was sent."""
    trace = make_trace(arrive("r0", 7, new=12), *steps(10), Abort("r0"))
    rows = [RequestStep(step, step - 1, "r0", 0 if step == 1 else 5 + step, 7 if step == 1 else 1, 0, step == 1, 0)
            for step in range(1, 11)]  # fmt: skip
    moments = [Moment(step, "step", "step", (step - 1,)) for step in range(1, 11)]
    history = History(moments=(Moment(0, "arrive", "", ()), *moments), request_steps=tuple(rows))
    scaled = at_scale(trace, Scale(64), Reading(short_answers=False), history)
    assert scaled and len(scaled.events) > len(trace.events)
    server = describe("sglang@0.5.23", scaled, "0.5.23")
    text = "\n".join(client_lines(Served(server, scaled), trace, history))
    assert "await asyncio.sleep(DELAY)  # until r0 decodes\n    await client.post(" in text


def test_a_wrong_cache_is_met_by_a_client_that_sends_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request of the script was right, and the one that shows the failure was not in it."""
    trace = make_trace(arrive("r0", 3, new=2))
    described = describe("vllm@0.33.0", trace, "0.33.0")
    text = "\n".join(client_lines(Served(described, trace), trace, History(), again=True))
    assert text.index("await asyncio.gather(*sent") < text.index("known ="), "the others had not been awaited"
    sent, _ = run(text, monkeypatch)
    first, known, again = [one["prompt"] for one in sent]
    assert first == known == again[:3] and len(again) > 3


def test_the_client_that_sends_the_same_again_does_so_with_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another salt the cache that holds wrong content would not be met."""
    trace = make_trace(arrive("r0", ("salt.a", 1), ("d", 2), priority=1))
    described = describe("vllm@0.33.0", trace, "0.33.0")
    sent, _ = run("\n".join(client_lines(Served(described, trace), trace, History(), again=True)), monkeypatch)
    assert [(one["cache_salt"], one["priority"]) for one in sent] == [("a", 1)] * 3


def test_a_server_that_retracts_is_started_with_the_switch_for_it() -> None:
    """Pools of a server's size run out for no trace; a reader could not make a server retract."""
    trace = make_trace(arrive("r0", 3), *steps(1), Preempt("r0"))
    retracting, plain = (describe("sglang@0.5.23", one, "0.5.23") for one in (trace, make_trace(arrive("r0", 3))))
    assert "SGLANG_TEST_RETRACT=1 SGLANG_TEST_RETRACT_INTERVAL=3 " in retracting.shell[0]
    assert "SGLANG_TEST_RETRACT_INTERVAL" in retracting.client.forced[0]
    assert "RETRACT" not in plain.shell[0]


def test_a_request_behind_the_others_needs_no_timing() -> None:
    """The script slept until an earlier request had ended, and its reader had to find out for how long."""
    trace = make_trace(arrive("r0", 3, new=1), *steps(2), arrive("r1", 1))
    rows = (RequestStep(1, 0, "r0", 0, 3, 0, True, 0),)
    moments = tuple(Moment(index, "", "", one) for index, one in enumerate(((), (0,), (1,), ())))
    text = script("vllm@0.33.0", trace, History(moments=moments, request_steps=rows))
    assert "    await asyncio.gather(r0)\n    r1 = send(" in text
    assert not is_timed("vllm@0.33.0", trace, History(moments=moments, request_steps=rows))
    ahead = structs.replace(trace, config=structs.replace(trace.config, async_depth=1))
    in_flight = History(moments=moments, request_steps=(structs.replace(rows[0], step=1),))
    timed = script("vllm@0.33.0", ahead, in_flight)
    assert "sleep(DELAY)  # until r0 is in its last step" in timed and is_timed("vllm@0.33.0", ahead, in_flight)


@pytest.mark.parametrize(
    ("trace", "meets"),
    [
        (make_trace(arrive("r0", 3)), False),
        (make_trace(arrive("r0", 3), arrive("r1", 3)), True),
        (make_trace(arrive("r0", 3), arrive("r0.1", 3)), False),
        (make_trace(arrive("r0", 3), Abort("r0")), True),
        (make_trace(arrive("r0", 3), ResetPrefixCache()), True),
        (make_trace(arrive("r0", 3), ResetEncoderCache()), True),
        (make_trace(ResetPrefixCache(), arrive("r0", 3)), False),
        (make_trace(arrive("r0", 3), Arrive("r1", (*arrive("r0", 3).prompt, ("~", 1)), 2)), False),
    ],
)
def test_what_happens_beside_a_request_needs_timing(trace: Trace, meets: bool) -> None:
    """The script's text was read, in which a reset or an abort beside a request looked like its end."""
    assert is_timed("vllm@0.33.0", trace) == meets


def test_the_next_turn_of_a_session_waits_for_the_one_before_it_alone() -> None:
    opening = structs.replace(arrive("r0", 3, new=1), session=True)
    trace = make_trace(opening, *steps(1), Resume("r0", (("b", 2),), 1))
    moments = tuple(Moment(index, "", "", one) for index, one in enumerate(((), (0,), ())))
    history = History(moments=moments, request_steps=(RequestStep(1, 0, "r0", 0, 3, 0, True, 0),))
    text = script("sglang@0.5.23", trace, history)
    assert "    await r0  # the next turn of its session\n    r0 = send(" in text
    assert "DELAY" not in text and not is_timed("sglang@0.5.23", trace, history)


def test_a_request_waits_until_the_others_do_what_they_did() -> None:
    """The order of requests says nothing of when: the second one has to join a decode."""
    trace = make_trace(arrive("r0", 3, new=4), arrive("r1", 3), *steps(2), arrive("r2", 1))
    rows = [RequestStep(2, 0, "r0", 0, 3, 0, True, 0), RequestStep(2, 0, "r1", 0, 2, 0, True, 0)]
    rows += [RequestStep(3, 1, "r0", 3, 1, 0, False, 0)]
    moments = [Moment(index, "", "", steps) for index, steps in enumerate(((), (), (0,), (1,), ()))]
    lines = script("vllm@0.33.0", trace, History(moments=tuple(moments), request_steps=tuple(rows))).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("    r2 = "))
    assert (
        lines[at - 1]
        == "    await asyncio.sleep(DELAY)  # until r0 decodes; r1 is in its prefill (the scenario: 2 of 3 tokens)"
    )
    assert sum("sleep(DELAY)" in line for line in lines) == 1
