"""The event stream never blocks a campaign, whatever its file is and whoever reads it."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from hybridfuzz.harness.campaign_events import Notice
from hybridfuzz.harness.face.outputs.handler import CampaignInfo
from hybridfuzz.harness.face.outputs.ndjson import EventStream
from hybridfuzz.harness.group.findings.finding_store import OutputError

INFO = CampaignInfo(target="hybrid", version="", seed=1, out=Path("out"))


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_file(tmp_path: Path) -> None:
    for resumed, count in ((False, 1), (True, 2), (False, 1)):
        stream = EventStream(tmp_path / "events")
        stream.start(CampaignInfo(target="hybrid", version="", seed=1, out=tmp_path, resumed=resumed))
        stream.handle_event(Notice("ä"))
        stream.shutdown()
        lines = (tmp_path / "events").read_text().splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["ä"] * count


def test_a_file_that_another_process_empties(tmp_path: Path) -> None:
    """Writing went on at the old place, behind as many NUL bytes."""
    stream = EventStream(tmp_path / "events")
    stream.start(INFO)
    stream.handle_event(Notice("before"))
    os.truncate(tmp_path / "events", 0)
    stream.handle_event(Notice("after"))
    stream.shutdown()
    assert [json.loads(line)["text"] for line in (tmp_path / "events").read_text().splitlines()] == ["after"]


def test_without_a_reader_events_wait_for_one(fifo: Path) -> None:
    stream = EventStream(fifo)
    stream.start(INFO)
    for number in range(100):
        stream.handle_event(Notice(str(number)))
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.extend(fifo.read_text().splitlines()))
    reader.start()
    stream.shutdown()
    reader.join(5)
    assert [json.loads(line)["text"] for line in read] == [str(number) for number in range(100)]


def test_without_any_reader_it_ends_with_an_error_and_soon(fifo: Path) -> None:
    stream = EventStream(fifo)
    stream.start(INFO)
    stream.handle_event(Notice("x"))
    began = time.monotonic()
    with pytest.raises(OutputError, match="did not take the last"):
        stream.shutdown()
    assert time.monotonic() - began < 3
    with pytest.raises(OutputError, match="takes none"):
        for _ in range(100):
            stream.handle_event(Notice("x" * 20_000))


def test_a_reader_that_leaves_is_an_error_of_the_stream(fifo: Path) -> None:
    stream = EventStream(fifo)
    stream.start(INFO)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    stream.handle_event(Notice("x"))
    os.close(reader)
    with pytest.raises(OutputError, match="Broken pipe"):
        stream.handle_event(Notice("y"))
