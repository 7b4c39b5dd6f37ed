"""Trace files: what is written is read, and what cannot be read is explained in one line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import arrive, drawn, make_trace, steps

from hybridfuzz.harness.draw import trace_files
from hybridfuzz.harness.draw.trace_files import decode_trace, encode_trace, load_trace, save_trace
from hybridfuzz.targets.base.trace import (
    Abort,
    CaptureGraphs,
    Crop,
    DummyRun,
    Evict,
    ExternalLoad,
    Fork,
    MoveTier,
    Park,
    Pause,
    Preempt,
    Reorder,
    Repeat,
    Reset,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Select,
    Shift,
    Sleep,
    Step,
    Trace,
    TraceError,
    Truncate,
    Wake,
)

EVERY_EVENT = (
    arrive("r0", ("a", 3), ("~", 2), new=4, priority=2),
    Step(7, {"r0": 3}, 2, 1, {"r0": (2, 0)}, 4),
    Step(), Preempt("r0"), Abort("r0"), DummyRun(2, False), CaptureGraphs(), ResetPrefixCache(True),
    Evict(3), Sleep(), Wake(), ExternalLoad("r0", 5), Fork("r1", "r0"), Truncate("r0", 0),
    MoveTier("r0", "host"), Park("r0"), Resume("r0", (("b", 2),), 3),
    Select(("r1", "r0")), Reorder({"r0": "r1"}), Repeat(2), Crop(3), Reset(), Shift("r0", 4), Pause(),
    ResetEncoderCache(),
)  # fmt: skip


@pytest.mark.parametrize("trace", [make_trace(*EVERY_EVENT), make_trace(Step()), drawn(3, 1), drawn(3, 2)])
def test_round_trip(trace: Trace, tmp_path: Path) -> None:
    assert decode_trace(encode_trace(trace)) == trace
    save_trace(trace, tmp_path / "trace.json")
    assert load_trace(tmp_path / "trace.json") == trace
    assert list(tmp_path.iterdir()) == [tmp_path / "trace.json"], "no temporary file is left"


def test_the_file_is_json_for_people() -> None:
    text = encode_trace(make_trace(*steps(2))).decode()
    assert text.endswith("\n")
    assert json.loads(text)["events"] == [{"event": "step"}] * 2
    assert text.count("\n  {") == 2, "one event a line"


def test_saving_replaces_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    save_trace(drawn(3, 1), path)
    save_trace(make_trace(Step()), path)
    assert load_trace(path) == make_trace(Step())
    assert path.stat().st_mode & 0o777 == 0o644


def test_saving_into_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        save_trace(make_trace(), tmp_path / "missing" / "trace.json")


def broken_file(**changes: Any) -> bytes:
    document = json.loads(encode_trace(make_trace(arrive("r0", 3), Step())))
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = document
        for parent in parents:
            inner = inner[int(parent) if parent.isdigit() else parent]
        inner[int(last) if last.isdigit() else last] = value
    return json.dumps(document).encode()


WHOLE = encode_trace(make_trace(arrive("r0", 3), Step()))
BROKEN = {
    "truncated": (WHOLE[: len(WHOLE) // 2], "truncated"),
    "empty": (b"", "truncated"),
    "no JSON": (b"Traceback (most recent call last):", "not a trace"),
    "another JSON": (b"[1, 2, 3]", "not a trace"),
    "another object": (b"{}", "missing required field"),
    "not UTF-8": (b'{"config": "\xff\xfe"}', r"broken\.json: "),
    "future schema": (broken_file(schema=99), "schema 99 is not supported"),
    "schema that never was": (broken_file(schema=0), r"it reads schema 1\)$"),
    "schema of a wrong type": (broken_file(schema="1"), r"schema`\)$"),
    "wrong type": (broken_file(config__num_blocks="many"), r"\$\.config\.num_blocks"),
    "out of range": (broken_file(config__conv_width=1), r"\$\.config\.conv_width"),
    "unknown field of the configuration": (broken_file(config__colour=1), "colour"),
    "unknown field of an event": (broken_file(events__1__speed=1), r"speed.*\$\.events\[1\]"),
    "unknown event": (broken_file(events__1__event="jump"), r"jump.*\$\.events\[1\]"),
    "unknown field of the trace": (broken_file(colour=1), "colour"),
    "empty prompt": (broken_file(events__0__prompt=[]), r"\$\.events\[0\]\.prompt"),
    "no events": (broken_file(events=[]), "no events"),
    "key twice": (WHOLE.replace(b'"schema": 1', b'"schema": 1, "schema": 1'), "schema.* twice"),
    "key of an event twice": (WHOLE.replace(b'"name":"r0"', b'"name":"r0","name":"r1"'), "name.* twice"),
    "too many events": (broken_file(events=[{"event": "step"}] * 10_001), "10001 events.* at most 10000"),
    "too many tokens": (
        broken_file(events=[{"event": "arrive", "name": "r", "prompt": [["a", 1 << 20]], "max_new_tokens": 1}] * 5),
        "tokens.* at most",
    ),
    "too many blocks": (broken_file(events=[{"event": "evict", "blocks": 1 << 20}]), "blocks"),
    "too many rows": (broken_file(events=[{"event": "dummy_run", "rows": 1 << 20}]), "rows"),
    "too large a graph": (broken_file(config__graph_sizes=[1 << 20]), "graph_sizes"),
    "too many graphs": (broken_file(config__graph_sizes=[1] * 65), "graph_sizes"),
    "too large a priority": (broken_file(events__0__priority=1 << 80), "priority"),
    "too many chunks": (
        broken_file(events__1={"event": "step", "chunks": {f"r{one}": 1 for one in range(300)}}),
        "chunks",
    ),
    "option with markup": (broken_file(config__options={"runner": "<script>"}), "options"),
    "option name with code": (broken_file(config__options={"{x}": "v2"}), "options"),
    "too many options": (broken_file(config__options={f"o{one}": "1" for one in range(99)}), "options"),
    "too long an origin": (broken_file(origin="x" * 2_000), "origin"),
    "unknown mode": (broken_file(config__mamba_cache_mode="most"), "mamba_cache_mode"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_explained_in_one_line(case: str, tmp_path: Path) -> None:
    """The message names the file and the place."""
    data, words = BROKEN[case]
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=words) as caught:
        load_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "TRACE_BYTES_MAX", 10)
    path = tmp_path / "large.json"
    path.write_bytes(WHOLE)
    with pytest.raises(TraceError, match="too large") as caught:
        load_trace(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_device_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "TRACE_BYTES_MAX", 10)
    with pytest.raises(TraceError, match=r"/dev/zero: .*not a regular file"):
        load_trace("/dev/zero")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        load_trace(tmp_path / "missing.json")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="directory"):
        load_trace(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_bytes(WHOLE)
    path.chmod(0)
    with pytest.raises(TraceError, match="Permission denied"):
        load_trace(path)


def test_deeply_nested(tmp_path: Path) -> None:
    """A file made to exhaust the stack is only another broken file."""
    path = tmp_path / "deep.json"
    path.write_bytes(b'{"config": ' + b"[" * 200_000)
    with pytest.raises(TraceError, match=r"deep\.json"):
        load_trace(path)


NAMES = [
    "{__import__('os').system('id')}",
    'r"""\nimport os\n"""',
    "a b",
    "r0\n",
    "\x1b[31m",
    "ä",
    "../x",
    "x" * 65,
    "",
    "~",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["events__0__name", "events__0__prompt__0__0", "events__1__parent"])
def test_a_name_has_only_plain_characters(name: str, field: str) -> None:
    """1 to 64 letters, digits, `_ . -`; the document "~" is the model's own continuation."""
    document = json.loads(encode_trace(make_trace(arrive("r0", 3), Fork("r1", "r0"))))
    *parents, last = field.split("__")
    inner = document
    for parent in parents:
        inner = inner[int(parent) if parent.isdigit() else parent]
    inner[int(last) if last.isdigit() else last] = name
    data = json.dumps(document).encode()
    if name == "~" and "prompt" in field:
        assert decode_trace(data)
        return
    with pytest.raises(TraceError, match=r"1 to 64 (letters, digits|characters).*\$\.events") as caught:
        decode_trace(data, "x.json")
    assert "\n" not in str(caught.value)


def test_a_pipe_is_no_trace(tmp_path: Path) -> None:
    """Opening a FIFO would wait for its writer."""
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(TraceError, match=r"x\.json: .*regular file"):
        load_trace(tmp_path / "x.json")


def test_names_of_surrogates_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"No such file|cannot be read"):
        load_trace(tmp_path / "\udcff\n.json")
