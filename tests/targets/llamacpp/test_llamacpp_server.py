"""The server's clients and its scripts, without a server."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from hybridfuzz.targets.base.protocol import EngineError, TargetError
from hybridfuzz.targets.base.repro import DEVIATION, Failure, Script
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    Config,
    Event,
    Fork,
    Group,
    Preempt,
    Reset,
    Resume,
    Step,
    Trace,
    Truncate,
)
from hybridfuzz.targets.llamacpp.families import VOCABULARY
from hybridfuzz.targets.llamacpp.repro import write_scripts
from hybridfuzz.targets.llamacpp.server import END, Answer, Server, completed

OPTIONS = {
    "family": "qwen3-5", "slots": "2", "kv": "split", "ubatch": "512", "checkpoints": "2", "spacing": "8192",
    "ram": "0", "similarity": "0.1", "ahead": "1", "idle": "saved", "draft": "model",
}  # fmt: skip
CONFIG = Config(
    num_blocks=200,
    groups=(Group("attention", 1),),
    mamba_cache_mode="none",
    enable_prefix_caching=False,
    max_num_seqs=4,
    options=OPTIONS,
)
TURNS: tuple[Event, ...] = (
    Arrive("r0", (("a", 3),), 1, session=True),
    Arrive("r1", (("b", 2),), 4),
    Step(),
    Resume("r0", (("c", 2),), 2),
    Step(),
    Preempt("r1"),
    Step(),
)


class Posts(Server):
    """A server that notes what is posted, and answers each prompt from a slot of its own."""

    def __init__(self, slots: int = 2) -> None:
        self.slots, self.count, self.drafts, self.arrivals = {}, slots, False, "together"
        self.posts: list[str] = []

    def forget(self, name: str) -> None:
        self.posts.append(f"delete {name}")

    def _post(self, path: str, content: Mapping[str, Any]) -> Any:
        self.posts.append(path)
        return [
            {"index": index, "id_slot": index + 1, **answer([7])} for index, _ in enumerate(content.get("prompt", ()))
        ]


def answer(tokens: Sequence[int], known: int = 1) -> dict[str, Any]:
    """Return an answer of the server, with probabilities of its first `known` tokens."""
    rows = [{"id": token, "logprob": -1.0} for token in range(VOCABULARY)]
    places = [{"top_logprobs": rows if place < known else []} for place, _ in enumerate(tokens)]
    return {"tokens": tokens, "completion_probabilities": places}


def script(events: Sequence[Event], oracle: str = "S6", field: str = "logprobs", config: Config = CONFIG) -> Script:
    failure = Failure(oracle, field, "wrong", tuple(events), 2, sentence="wrong tokens")
    [written] = write_scripts("server", Trace(config, tuple(events)), failure)
    compile(written.text, "repro.py", "exec")
    assert "hybridfuzz" not in written.text
    return written


def calls(written: Script) -> list[str]:
    lines = [line.strip() for line in written.scenario.splitlines()[2:]]
    assert (lines.count(DEVIATION) == 1) == ("died" not in written.promise)
    return [line for line in lines if line != DEVIATION]


def test_a_client_is_served_from_the_slot_that_answered_it() -> None:
    server = Posts()
    server.ask({4: [1, 2], 5: [3]}, 1)
    server.copy(5, 6)
    server.save("r0", 6)
    server.restore("r0", 3)
    server.erase(3)
    assert server.posts[1:] == [
        "slots/2?action=save", "slots/1?action=restore", "delete r0", "slots/1?action=erase",
    ]  # fmt: skip
    server.posts.clear()
    server.erase_all()
    assert server.posts == ["slots/1?action=erase", "slots/2?action=erase"]


@pytest.mark.parametrize(("drafts", "known", "fits"), [(False, 2, True), (False, 1, False), (True, 1, True)])
def test_only_a_server_with_drafts_may_give_a_token_without_probabilities(drafts: bool, known: int, fits: bool) -> None:
    server = Posts()
    server.drafts = drafts
    server._post = lambda path, content: {"index": 0, "id_slot": 0, **answer([7, 8], known)}  # type: ignore[method-assign]
    if fits:
        [found] = server.ask({0: [1]}, 2)
        assert np.isnan(found.logprobs).all(axis=1).tolist() == [False, known < 2]
    else:
        with pytest.raises(EngineError, match="probabilities of 1"):
            server.ask({0: [1]}, 2)


def test_a_token_alone_is_as_wrong_as_the_nearest_probabilities_that_choose_it() -> None:
    expected = np.full((3, VOCABULARY), -9.0, np.float32)
    expected[:, 5], expected[:, 6], expected[:, END] = -1.0, -2.0, -0.5
    given = expected[0] - 0.25
    unknown = np.full(VOCABULARY, np.nan, np.float32)
    found = completed(Answer((5, 5, 6), np.array([given, unknown, unknown]), (True, False, False)), expected)
    distance = np.abs(found - expected).max(axis=1)
    assert distance.tolist() == [0.25, 0.0, 0.5], "the text cannot end, so 5 is right"
    poisoned = completed(Answer((5,), unknown[None], (True,)), expected[:1])
    assert np.isnan(poisoned).all(), "probabilities that the server gives as nothing stay wrong"


def test_a_script_posts_the_prompts_of_the_trace() -> None:
    lines = calls(script(TURNS))
    assert [line.partition("(")[0] for line in lines] == [
        "server.ask", "server.save", "server.restore", "server.ask", "server.erase", "server.ask", "server.save",
    ]  # fmt: skip
    assert lines[1:3] == ["server.save('r0', 0)", "server.restore('r0', 0)"]
    assert lines[0].endswith(", 2)"), "one token and one ahead"


def test_a_script_forks_truncates_and_resets_as_the_clients_do() -> None:
    kept = msgspec.structs.replace(CONFIG, options=OPTIONS | {"idle": "kept"})
    events = (*TURNS[:3], Fork("r2", "r0"), Truncate("r0", 2), Resume("r0", (("c", 1),), 2), Step(), Reset(), Step())
    lines = calls(script(events, config=kept))
    assert lines[1] == "server.copy(0, 2)"
    assert "0: [47, 42, " in lines[2] and lines[2].count(",") < lines[0].count(",") + 3
    assert lines[3].startswith("server.erase(")
    forks = (*TURNS[:3], Fork("r2", "r0"), Resume("r2", (("c", 1),), 2), Step())
    assert "server.copy_saved('r2', 'r0')" in calls(script(forks))


def test_a_script_sends_the_requests_of_clients_that_leave() -> None:
    events = (*TURNS[:3], Abort("r1"), Abort("r0"), Arrive("r2", (("a", 2),), 2), Step(), Step())
    together, apart = (
        calls(script(events, config=msgspec.structs.replace(CONFIG, options=OPTIONS | {"arrivals": arrivals})))
        for arrivals in ("together", "queued")
    )
    assert apart[-1] == together[-1]
    assert apart[-2] == together[-2].removesuffix(")") + ", [(1, [104, 37, 61])])"


def test_a_saved_slot_of_a_session_that_ends_is_deleted() -> None:
    assert calls(script((*TURNS[:3], Abort("r0"))))[-1] == "server.forget('r0')"


def test_a_process_that_died_is_a_script_of_the_whole_trace() -> None:
    """Its history is lost, so the failure has no events."""
    failure = Failure("CRASH", "SIGABRT", "the target died", (), 0, sentence="died")
    [written] = write_scripts("server", Trace(CONFIG, TURNS), failure)
    assert written.promise == "the server's process died"
    assert len(calls(written)) == len(calls(script(TURNS))) + 1
    assert "the server's process died of signal {-status}" in written.text


def test_what_no_answer_shows_has_no_script() -> None:
    with pytest.raises(TargetError, match="a failure of M9 on the server"):
        script(TURNS, "M9")
    with pytest.raises(TargetError, match="a slot has 256 tokens"):
        script(TURNS, config=msgspec.structs.replace(CONFIG, max_model_len=300))
