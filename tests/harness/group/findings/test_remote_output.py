"""Output folders at URLs: objects are complete, what was reported is there, one campaign at a time.

`local://` is a directory as an object store of several processes; `memory://` has no directories at all.
"""

import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import MUTANT, Cli, command, wait_for

from hybridfuzz.harness.group.findings import remote_output
from hybridfuzz.harness.group.findings.finding_store import OutputError
from hybridfuzz.harness.group.findings.remote_output import Mirror, fetched, is_url, local_path, mirrored

fsspec = pytest.importorskip("fsspec")

NIGHT = ["fuzz", "--seed", "1", "--jobs", "1", "--reduce", "1s", "--no-canary", "--json", "--target", MUTANT]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a folder in memory."""
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path / "cache"))
    yield f"memory://{uuid.uuid4().hex}/night"


def objects(url: str) -> dict[str, bytes]:
    """Return all objects."""
    file_system, root = fsspec.core.url_to_fs(url)
    return {name[len(root) :].lstrip("/"): file_system.cat_file(name) for name in file_system.find(root)}


def test_urls() -> None:
    assert [is_url(text) for text in ("s3://b/x", "gs://b", "out", "/a/b", "file:///a", "C:/x")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    assert local_path("file:///a/b") == Path("/a/b")


def test_what_changes_is_put_and_what_is_gone_is_removed(url: str) -> None:
    with mirrored(url) as mirror:
        (mirror.folder / "findings").mkdir()
        (mirror.folder / "findings" / "a.json").write_text("1")
        (mirror.folder / "b.txt").write_text("2")
        (mirror.folder / "half.tmp").write_text("not yet")
        mirror.sync()
        assert objects(url).keys() == {"findings/a.json", "b.txt", ".lock"}
        (mirror.folder / "b.txt").unlink()
        (mirror.folder / "findings" / "a.json").write_text("33")
    assert objects(url) == {"findings/a.json": b"33"}
    with mirrored(url) as mirror:
        assert (mirror.folder / "findings" / "a.json").read_text() == "33"
        assert not (mirror.folder / "b.txt").exists()
    with fetched(url) as folder:
        assert (folder / "findings" / "a.json").read_text() == "33"


def test_traces_come_before_the_state_that_names_them(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    put = Mirror._put_object

    def noted(self: Mirror, name: str, data: bytes) -> None:
        order.append(name)
        put(self, name, data)

    monkeypatch.setattr(Mirror, "_put_object", noted)
    with mirrored(url) as mirror:
        for name in ("campaign.json", "triage.json", "z.json"):
            (mirror.folder / name).write_text(name)
    assert order == ["z.json", "campaign.json", "triage.json"]


def test_an_object_is_never_seen_half(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing fails in the middle: readers have the old content, and the error is one line."""
    where = f"local://{tmp_path}/bucket"
    with pytest.raises(OutputError, match="cannot use the output folder"), mirrored(where) as mirror:
        (mirror.folder / "a").write_text("old")
        mirror.sync()
        (mirror.folder / "a").write_text("new one")

        def full(self: Any, path: str, data: bytes, **_: object) -> None:
            Path(path).write_bytes(data[:1])
            raise OSError(28, "No space left on device")

        from fsspec.implementations.local import LocalFileSystem

        monkeypatch.setattr(LocalFileSystem, "pipe_file", full)
        mirror.sync()
    assert (tmp_path / "bucket" / "a").read_text() == "old"


def test_one_campaign_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused; a lock that nobody renews is taken over, and its owner notices."""
    with mirrored(url) as mirror:
        with pytest.raises(OutputError, match="another campaign is at work"), mirrored(url):
            pass
        monkeypatch.setattr(remote_output, "STALE_SECONDS", -1.0)
        monkeypatch.setattr(remote_output, "SETTLE_SECONDS", 0.0)
        with mirrored(url):
            ended = threading.Event()
            monkeypatch.setattr(remote_output, "RENEW_SECONDS", 0.01)
            threading.Timer(0.2, ended.set).start()
            mirror._renew(f"{mirror._root}/.lock", "the first", ended)
            with pytest.raises(OutputError, match="has taken over"):
                mirror.sync()
            mirror._lost = ""
    assert ".lock" not in objects(url)


def test_many_contenders_for_a_stale_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one gets it."""
    file_system, root = fsspec.core.url_to_fs(url)
    file_system.makedirs(root)
    file_system.pipe_file(f"{root}/.lock", json.dumps({"owner": "dead", "renewed": 0}).encode())
    monkeypatch.setattr(remote_output, "SETTLE_SECONDS", 0.5)
    mirrors = [Mirror(url, Path(), file_system, root) for _ in range(8)]
    got = []

    def contend(mirror: Mirror, number: int) -> None:
        try:
            mirror._acquire(f"{root}/.lock", str(number))
            got.append(number)
        except OutputError:
            pass

    threads = [threading.Thread(target=contend, args=pair) for pair in zip(mirrors, range(8), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) <= 1


def test_a_campaign_at_a_url(hybridfuzz: Cli, environment: dict[str, str], tmp_path: Path) -> None:
    """Killed after its first finding: the finding is there, and the same command continues from another machine."""
    out = f"local://{tmp_path}/bucket/night"
    process = subprocess.Popen(
        command(*NIGHT, "--traces", "40", "-o", out), env=environment, cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(process, "FOUND")
    second = hybridfuzz(*NIGHT, "--traces", "1", "-o", out)
    assert second.status == 2 and "another campaign is at work" in second.error
    process.kill()
    process.communicate()
    bucket = tmp_path / "bucket" / "night"
    assert json.loads((bucket / "campaign.json").read_text())["findings"]
    assert list((bucket / "findings").glob("*.json"))
    lock = json.loads((bucket / ".lock").read_text())
    (bucket / ".lock").write_text(json.dumps({**lock, "renewed": time.time() - remote_output.STALE_SECONDS - 1}))
    again = hybridfuzz(*NIGHT, "--traces", "40", "-o", out, env={"HYBRIDFUZZ_CACHE": str(tmp_path / "elsewhere")})
    assert "continuing a campaign that did not end" in again.err
    assert again.json["traces"] == 40
    state = json.loads((bucket / "campaign.json").read_text())
    assert state["exit_reason"] == "traces"
    assert (bucket / "report.html").exists() and (bucket / "triage.json").exists()
    assert not (bucket / ".lock").exists() and not list(bucket.rglob("*.tmp"))
    merged = hybridfuzz("merge", out, "-o", f"local://{tmp_path}/bucket/all", "--json")
    assert merged.json["traces"] == 40
    assert (tmp_path / "bucket/all/campaign.json").exists()


def test_a_scheme_that_is_unknown(hybridfuzz: Cli) -> None:
    ran = hybridfuzz(*NIGHT, "--traces", "1", "-o", "nowhere://a/b")
    assert ran.status == 2
    assert "cannot use the output folder nowhere://a/b" in ran.error
