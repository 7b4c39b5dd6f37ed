"""Requests that arrive, and clients that leave, while others are computed, against a server that is made here."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hybridfuzz.targets.llamacpp.server_stream import Stream, Streams

SECONDS = 5


class Handler(BaseHTTPRequestHandler):
    """Gives the prompt back, token by token; the last one when `go` is set."""

    go = threading.Event()
    arrived: list[int] = []  # noqa: RUF012
    broken: list[int] = []  # noqa: RUF012

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["prompt"]
        self.arrived.append(prompt[0])
        assert request["stream"]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for token in prompt:
                self.send({"tokens": [token], "stop": False, "completion_probabilities": [{"top_logprobs": [token]}]})
            while not self.go.wait(0.01):
                self.wfile.write(b"2\r\n\n\n\r\n")
            self.send({"tokens": [99], "stop": False})
            self.send({"tokens": [], "stop": prompt[0] != 66, "id_slot": request["id_slot"]})
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.broken.append(prompt[0])

    def send(self, event: Mapping[str, Any]) -> None:
        data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture(name="address")
def _address() -> Iterator[str]:
    Handler.go.clear()
    Handler.arrived.clear()
    Handler.broken.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Handler.go.set()
    server.shutdown()
    server.server_close()


def test_an_answer_in_parts_is_one_answer(address: str) -> None:
    stream = Stream(address, {"prompt": [1, 2], "id_slot": 3}, SECONDS)
    stream.wait()
    assert not stream.has_ended()
    Handler.go.set()
    known = [{"top_logprobs": [1]}, {"top_logprobs": [2]}, {"top_logprobs": []}]
    assert stream.answer() == {"tokens": [1, 2, 99], "completion_probabilities": known, "id_slot": 3}


def test_each_request_arrives_while_the_one_before_is_computed(address: str) -> None:
    streams = Streams(address, SECONDS, queued=True)
    for slot in range(4):
        streams.send({"prompt": [slot]}, slot)
    assert streams.arrived == 3
    Handler.go.set()
    assert [answer["tokens"][0] for answer in streams.answers()] == Handler.arrived == [0, 1, 2, 3]


def test_a_client_that_leaves_closes_its_connection_and_the_others_get_their_answers(address: str) -> None:
    streams = Streams(address, SECONDS, queued=True)
    left = streams.send({"prompt": [7]}, 0)
    streams.send({"prompt": [8]}, 1)
    streams.leave([left])
    assert streams.cancelled == 1
    while not Handler.broken:
        pass
    Handler.go.set()
    assert [answer["tokens"] for answer in streams.answers()] == [[8, 99]]
    assert Handler.broken == [7]


def test_one_who_leaves_when_all_have_their_answers_is_not_counted(address: str) -> None:
    streams = Streams(address, SECONDS, queued=True)
    left = streams.send({"prompt": [7]}, 0)
    other = streams.send({"prompt": [8]}, 1)
    Handler.go.set()
    other.finish()
    streams.leave([left])
    assert streams.cancelled == 0


def test_a_slot_that_is_not_queued_for_has_answered_before(address: str) -> None:
    streams = Streams(address, SECONDS, queued=False)
    first = streams.send({"prompt": [7]}, 0)
    threading.Timer(0.05, Handler.go.set).start()
    streams.send({"prompt": [8]}, 0)
    assert first.has_ended()
    assert streams.arrived == 0


def test_what_is_no_whole_answer_is_said(address: str) -> None:
    Handler.go.set()
    with pytest.raises(ValueError, match="no whole answer"):
        Stream(address, {"prompt": [66], "id_slot": 0}, SECONDS).answer()
