"""Explorations: the same certificate from any number of workers and after a kill; failures are shortest ones."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_process import command
from msgspec import structs

from hybridfuzz.harness.campaign_summary import Cause
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.explore import check_certificate
from hybridfuzz.harness.explore.certificate import (
    CERTIFICATE_FILE,
    PAGE_FILE,
    Certificate,
    bugs_line,
    left_inside,
    load_certificate,
    statement,
)
from hybridfuzz.harness.explore.expand import Compare, Expand, Expanded, Expander
from hybridfuzz.harness.explore.exploration import Exploration, Settings
from hybridfuzz.harness.explore.journal import JOURNAL_FILE
from hybridfuzz.harness.explore.scope import read_scope
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.units import Shard
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.trace import Config, Trace, TraceError
from hybridfuzz.targets.hybrid.factory import make_factory


class Killed(Exception):
    """What a worker raises here in place of the end of the whole process."""


class InProcess:
    """A worker in this process; it is killed after some calls."""

    def __init__(self, slug: str = "", calls: int = 1 << 30) -> None:
        self.factory = make_factory(slug)
        self._expander = Expander(self.factory)
        self._calls = calls
        self.calls = 0

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self) -> TargetFactory:
        return self.factory

    def stop(self) -> None: ...

    def supports(self, config: Config) -> str:
        return self.factory.supports(config)

    def expand(self, request: Expand) -> Expanded | Outcome:
        self._calls -= 1
        self.calls += 1
        if self._calls < 0:
            raise Killed
        return self._expander.expand(request, lambda index: None)

    def compare(self, request: Compare) -> str:
        return self._expander.compare(request, lambda index: None).difference

    def run(self, trace: Trace) -> Outcome:
        return run_trace(self.factory, trace)


def settings(out: Path, **more: object) -> Settings:
    plain = Settings(
        target="hybrid",
        engine="",
        patches=(),
        hybridfuzz="0",
        scope=read_scope("minute"),
        scope_name="minute",
        events=4,
        out=out,
        check_every=50,
    )
    changed: Settings = structs.replace(plain, **more)
    return changed


def explored(wanted: Settings, slug: str = "", calls: int = 1 << 30) -> Certificate:
    return Exploration(wanted, lambda: InProcess(slug, calls)).run()


def test_the_built_in_target_is_clean_and_the_certificate_says_what_was_seen(tmp_path: Path) -> None:
    certificate = explored(settings(tmp_path))
    assert (certificate.verdict, certificate.events, certificate.exhausted) == ("clean", 4, False)
    assert certificate.merges_checked > 0
    assert certificate.transitions == sum(level.transitions for level in certificate.levels)
    assert statement(certificate) == "all traces of scope minute up to 4 events: no violation"
    assert left_inside(certificate).startswith("what is left: 0 failing traces inside this bound")
    assert not left_inside(structs.replace(certificate, whole=False)), "a state that is hidden may have been missed"
    assert not left_inside(structs.replace(certificate, verdict="incomplete"))
    assert load_certificate(tmp_path) == certificate
    assert certificate.digest in (tmp_path / PAGE_FILE).read_text(encoding="utf-8")
    assert not (tmp_path / JOURNAL_FILE).exists()


def test_the_number_of_workers_does_not_change_the_digest(tmp_path: Path) -> None:
    one, three = (explored(settings(tmp_path / str(jobs), jobs=jobs)) for jobs in (1, 3))
    assert one.digest == three.digest
    assert one.sample == three.sample


def test_an_exploration_that_was_killed_goes_on(tmp_path: Path) -> None:
    whole = explored(settings(tmp_path / "whole"))
    with pytest.raises(Killed):
        explored(settings(tmp_path / "killed"), calls=3)
    journal = tmp_path / "killed" / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes() + b'[[["cut off')
    assert explored(settings(tmp_path / "killed")).digest == whole.digest


@pytest.mark.parametrize("line", [b'[["no entry"]]', b"\xff", b"[" * 100_000])
def test_a_journal_that_cannot_be_read_is_refused(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(Killed):
        explored(settings(tmp_path), calls=3)
    journal = tmp_path / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes() + line + b"\n")
    with pytest.raises(TraceError, match=r"journal: .*; remove it to begin anew"):
        explored(settings(tmp_path))


def test_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL_FILE)
    with pytest.raises(TraceError, match="not a regular file"):
        explored(settings(tmp_path))


def test_a_folder_of_another_exploration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        explored(settings(tmp_path), calls=2)
    with pytest.raises(TraceError, match="another exploration"):
        explored(settings(tmp_path, disturbances=1))


def test_two_shards_give_the_certificate_of_one_run(tmp_path: Path) -> None:
    """Each asks for its own share and reads the other's answers; one of them is killed, and goes on."""
    alone, asked = InProcess(), InProcess()
    whole = Exploration(settings(tmp_path / "whole"), lambda: alone).run()
    first, second = (settings(tmp_path / "shards", shard=Shard(number, 2)) for number in (1, 2))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(explored, second)
        with pytest.raises(Killed):
            explored(first, calls=1)
        mine = Exploration(first, lambda: asked).run()
        assert mine.digest == other.result().digest == whole.digest
    assert mine.sample == whole.sample
    assert load_certificate(tmp_path / "shards") == mine
    assert 0 < asked.calls < alone.calls / 2


def test_a_shard_that_waits_can_be_ended(tmp_path: Path) -> None:
    exploration = Exploration(settings(tmp_path, shard=Shard(1, 2)), InProcess)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(exploration.run)
        while not (tmp_path / f"{JOURNAL_FILE}-1-of-2").exists():
            time.sleep(0.01)
        exploration.stop("interrupted")
        assert running.result().verdict == "incomplete"


def test_a_kill_drill(tmp_path: Path) -> None:
    """The command is killed with its workers, three times, wherever it is; the certificate is the one of a calm run."""
    whole = explored(settings(tmp_path / "whole", hybridfuzz=version("hybridfuzz"), check_every=200))
    out = tmp_path / "drill"
    arguments = command("explore", "--scope", "minute", "--events", "4", "--jobs", "1", "-o", out)
    for grown in (1, 2000, 4000):
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, start_new_session=True)
        while not (journal := out / JOURNAL_FILE).exists() or journal.stat().st_size < grown:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True, timeout=120)
    assert load_certificate(out).digest == whole.digest


def test_a_limit_makes_it_incomplete(tmp_path: Path) -> None:
    certificate = explored(settings(tmp_path, states=20))
    assert certificate.verdict == "incomplete"
    assert certificate.events < 4


def test_disturbances_bound_traces_of_any_length(tmp_path: Path) -> None:
    certificate = explored(settings(tmp_path, events=30, disturbances=0))
    assert certificate.exhausted
    assert certificate.verdict == "clean"
    assert statement(certificate).startswith("all traces of scope minute of any length with at most 0 disturbances")


def test_a_failure_has_a_shortest_trace(tmp_path: Path) -> None:
    """The mutant of the README is found with the three events that its reduced trace has, and not with two."""
    slug = "finished-row-not-cleared"
    certificate = explored(settings(tmp_path, target=f"hybrid:{slug}", first=True), slug)
    assert certificate.verdict == "fails"
    [failing] = certificate.failures
    assert failing.signature == "M4-dummy_run-mamba-dead-write"
    assert failing.events == len(certificate.levels)
    assert "no trace of the scope with fewer than" in statement(certificate)
    assert (tmp_path / failing.file).exists()


class Fake:
    """Names each second failing trace, and knows no single bug for the first."""

    def names(self, failing: Sequence[tuple[Trace, Violation]]) -> Sequence[Cause | None]:
        return [
            Cause("") if not number else Cause("row", 3, "A row") if number % 2 else None
            for number in range(len(failing))
        ]

    def stop(self) -> None: ...


def test_the_known_bugs_that_failing_traces_show_have_a_shortest_trace_each(tmp_path: Path) -> None:
    slug = "finished-row-not-cleared"
    wanted = settings(tmp_path, target=f"hybrid:{slug}", events=5)
    certificate = Exploration(wanted, lambda: InProcess(slug), naming=Fake()).run()
    several, row, new = certificate.shown
    assert (several.name, several.phrase, several.times) == ("", "known bugs explain it, no single one", 1)
    assert (row.name, row.phrase, row.events) == ("row", "A row", 5)
    assert (new.name, new.phrase) == ("", f"no known bug explains it: {new.signature}")
    assert certificate.named == several.times + row.times + new.times > 5
    assert bugs_line(certificate).startswith(f"1 known bug shown; {certificate.named} of ")
    assert load_trace(tmp_path / row.file).events
    assert certificate.digest == explored(structs.replace(wanted, out=tmp_path / "unnamed"), slug).digest


def test_a_certificate_is_checked_against_the_target(tmp_path: Path) -> None:
    certificate = explored(settings(tmp_path, events=2))
    worker = InProcess()
    capabilities = worker.factory.capabilities
    assert list(check_certificate.check(certificate, tmp_path, capabilities, worker)) == []
    [first, *rest] = certificate.sample
    forged = structs.replace(certificate, sample=(structs.replace(first, fingerprint=1), *rest))
    assert len(list(check_certificate.check(forged, tmp_path, capabilities, worker))) == 1
    assert (tmp_path / CERTIFICATE_FILE).exists()


def test_a_configuration_that_the_target_does_not_support_is_refused(tmp_path: Path) -> None:
    """It was certified: none of its traces admitted anything."""
    scope = read_scope("hour")
    wrong = structs.replace(scope.configuration[1], num_speculative_tokens=2)
    wanted = settings(tmp_path, scope=structs.replace(scope, configuration=(scope.configuration[0], wrong)))
    with pytest.raises(TraceError, match="configuration 2: hybrid does not support it: num_speculative_tokens must be"):
        explored(wanted)
