"""One worker process, as the coordinator sees it.

A process is *lost* when it died or took more memory than `memory_limit` (CRASH: `_died`, `_check_memory`), did not
reply in time (HANG: `receive`) or sent an invalid reply (PROTOCOL: `misbehaved`). That raises `Lost`; `judge_loss` says
what it means. If the kernel killed the process for want of memory, the loss has an `EnvironmentFault`, which is no
finding.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...targets.base.environment import cache_folder
from ...targets.base.launch import SHARED_DEVICE, Launch
from ...targets.base.protocol import TargetError
from ..judge.environment_fault import EnvironmentFault, fault_in_words
from ..record.watched_lines import Watched
from .descendants import end_descendants, end_with_home
from .machine import PAGE, oom_kills, queued_seconds
from .messages import Forked, Reply, Request, decode_reply, encode
from .worker_environment import NETWORK, Home, environment, namespaces_missing

TAIL_BYTES = 4000
REPLY_BYTES_MAX = 256 << 20
TIME_LIMIT = "time-limit"
"""Field of the loss of a process that did not reply in time."""
GLANCE_SECONDS = 0.5
"""Interval between checks of the memory limit."""


class Limit(NamedTuple):
    """The time for a request. Seconds in which the process waited for a processor are not counted: on a busy machine
    they are most of them, and an engine that only waits does not hang.

    `began` is of the monotonic clock; `queued` are the seconds that the process had waited for a processor by then.
    """

    seconds: float
    began: float
    queued: float


class Lost(Exception):
    """The worker process is gone.

    `kind` is an oracle id, `field` a signal, exit status or the like. `fault` is what the environment lacked, if that
    is why. `event` is that of the trace at which it happened, None for the one that has started last.
    """

    event: int | None = None

    def __init__(
        self, kind: str, field: str, what: str, last_words: str, fault: EnvironmentFault | None = None
    ) -> None:
        super().__init__(what)
        self.fault = fault
        self.kind = kind
        self.field = field
        self.what = what
        self.last_words = last_words


class Process:
    """A worker process in a session of its own: Ctrl-C does not reach it, and what it started ends with it."""

    def __init__(self, spec: str, launch: Launch, memory_limit: int = 0, watched: Watched | None = None) -> None:
        self.memory_limit = memory_limit
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._home = Home()
        variables = variables_for(launch, self._home.path)
        if namespaces_missing():
            variables[NETWORK] = "1"
        try:
            self._popen = subprocess.Popen(
                [launch.python, "-m", "hybridfuzz.harness.workers.worker_main", spec],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError:
            self._home.remove()
            raise
        assert self._popen.stdin and self._popen.stdout
        self._input, self._output = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        self._buffer = b""
        self._shares = SHARED_DEVICE in launch.env
        self._oom_kills = oom_kills()
        """As it was when the last request was sent."""
        self._seal = secrets.token_hex(8).encode()
        self._write(self._seal + b"\n" + msgspec.json.encode(watched or {}) + b"\n")

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._popen.pid

    def send(self, request: Request) -> None:
        """Send a request. If the worker is gone, `receive` raises Lost."""
        self._oom_kills = oom_kills()
        self._write(encode(request) + b"\n")

    def _write(self, line: bytes) -> None:
        data = memoryview(line)
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._input, data) :]

    def limit(self, seconds: float) -> Limit:
        """Return the time for a request that begins now."""
        return Limit(seconds, time.monotonic(), self.queued)

    @property
    def queued(self) -> float:
        """Return for how many seconds the process has had work to do and no processor, 0 where nothing tells."""
        return queued_seconds(self.pid)

    def receive(self, limit: Limit) -> Reply:
        """Return the next reply. Raises Lost if there is none in time."""
        while b"\n" not in self._buffer:
            left = limit.seconds - (time.monotonic() - limit.began) + self.queued - limit.queued
            if left <= 0:
                self.kill()
                raise Lost("HANG", TIME_LIMIT, f"did not end within {limit.seconds:g} s", self._last_words())
            self._check_memory()
            if select.select([self._output], [], [], min(left, GLANCE_SECONDS))[0]:
                data = os.read(self._output, 1 << 20)
                if not data:
                    raise self._died()
                self._buffer += data
                if len(self._buffer) > REPLY_BYTES_MAX:
                    what = f"made its worker send more than {REPLY_BYTES_MAX >> 20} MiB in one reply"
                    raise self.misbehaved("reply-size", what)
            elif self._popen.poll() is not None and not select.select([self._output], [], [], 0)[0]:
                raise self._died()  # what it started may keep the pipe open
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            reply = self._unsealed(line)
        except msgspec.DecodeError as error:
            what = f"made its worker answer nonsense ({error}): {line.removeprefix(self._seal)[:80]!r}"
            raise self.misbehaved("reply", what) from None
        if isinstance(reply, Forked):
            lost = self.misbehaved("fork", "forked its worker, and the copy came back into hybridfuzz's code")
            lost.event = reply.event
            raise lost
        return reply

    def _unsealed(self, line: bytes) -> Reply:
        if not line.startswith(self._seal):
            raise msgspec.DecodeError("not the worker's own words")
        reply: Reply = decode_reply(line[len(self._seal) :])
        return reply

    def misbehaved(self, field: str, what: str) -> Lost:
        """Kill the process, and return the loss for a worker that does not follow the protocol."""
        self.kill()
        return Lost("PROTOCOL", field, what, self._last_words())

    def kill(self) -> None:
        """Kill the process and what it started. Safe at any time and from any thread."""
        if self._popen.returncode is None:
            end_descendants(self._popen.pid)
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill, reap, and close all files."""
        self.kill()
        self._popen.wait()
        end_with_home(self._home.path)
        for stream in (self._popen.stdin, self._popen.stdout, self._errors):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._home.remove()

    def _check_memory(self) -> None:
        if not self.memory_limit:
            return
        with (
            suppress(OSError, IndexError),
            Path(f"/proc/{self.pid}/statm").open() as file,
        ):
            used = int(file.read().split()[1]) * PAGE
            if used > self.memory_limit:
                self.kill()
                what = f"took {used >> 20} MiB of memory (the limit is {self.memory_limit >> 20} MiB)"
                raise Lost("CRASH", "memory-limit", what, self._last_words())

    def _died(self) -> Lost:
        """Return the reason why the output ended."""
        try:
            code = self._popen.wait(5)
            self._kill_group()  # what it left behind
        except subprocess.TimeoutExpired:
            self.kill()
            return Lost("PROTOCOL", "closed", "closed its worker's standard output", self._last_words())
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal-{-code}"
            words = self._last_words()
            fault = fault_in_words(words, shares=self._shares) if name == "SIGABRT" else None
            if name == "SIGKILL" and oom_kills() > self._oom_kills:
                fault = EnvironmentFault("out of memory", "the kernel killed the worker")
            return Lost("CRASH", name, f"died of {name}", words, fault)
        return Lost(
            "CRASH",
            f"exit-{code}",
            f"ended its process with exit status {code}",
            self._last_words(),
        )

    def _last_words(self) -> str:
        """Return the end of its standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - TAIL_BYTES, 0))
        return self._errors.read().decode(errors="replace").strip()


def variables_for(launch: Launch, home: Path) -> dict[str, str]:
    """Return the environment of a process that runs a target's code, with the folder of a `Home`."""
    try:
        cached = cache_folder()
    except TargetError:
        cached = None
    return environment(os.environ, launch.env, home, cached)
