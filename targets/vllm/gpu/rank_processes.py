"""The other data-parallel ranks of a worker, which is rank 0: a process each (`rank_main`), kept for all its traces.

An engine with ranks exists once in each process, and all of them run each step together. Rank 0 tells the others what
to run before its own part, and waits for their answers behind it. A rank that raised an exception answers, then ends:
its connections break, so that no collective waits for it. Whoever notices raises `RankFailed` in place of what broke.
One that dies takes the worker with it, by the same signal (`_die_like`): the campaign then judges that as it does for
any worker, with the last words of both. So does one that failed where only NCCL waits for it (`_watch`). One that hangs
is met by the campaign's time limit. All of them end with the worker, however that ends.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from threading import Thread
from typing import NoReturn

from ...base.protocol import EngineError, TargetError
from ...base.trace import Config
from . import rank_group
from .placement import RANK
from .rank_group import WAIT
from .rank_messages import (
    READY,
    Answer,
    Begin,
    Beside,
    Build,
    Close,
    Command,
    Done,
    Failed,
    Join,
    decode_answer,
    encode,
)

GRACE = 20.0
"""Seconds in which the main thread notices that another process has died, or an answer comes after a failure here."""


class RankFailed(EngineError):
    """The engine raised an exception on another rank."""


class RankLost(RuntimeError):
    """The process of another rank failed in our own code, or does not answer."""


class RankSilent(RankLost):
    """The process of another rank does not answer, and lives."""


class _Process:
    """One other rank."""

    def __init__(self, rank: int, device: str) -> None:
        self.rank = rank
        self.is_expected_to_end = False
        self._buffer = b""
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "hybridfuzz.targets.vllm.gpu.rank_main", device],
            # What this process imports, wherever it was told to find it.
            env={**os.environ, RANK: str(rank), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.popen.stdin and self.popen.stdout
        self._input, self._output = self.popen.stdin.fileno(), self.popen.stdout.fileno()

    def tell(self, command: Command) -> None:
        """Send a command. If the process is gone, `line` says so."""
        data = memoryview(encode(command) + b"\n")
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._input, data) :]

    def line(self, seconds: float) -> bytes:
        """Return its next line. Raises RankSilent if none comes in time; one that is gone takes this process along."""
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select.select([self._output], [], [], max(until - time.monotonic(), 0))[0]:
                raise RankSilent(f"data-parallel rank {self.rank} did not answer within {seconds:g} s")
            data = os.read(self._output, 1 << 16)
            if not data:
                _die_like(self.rank, self.popen.wait())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def end(self) -> None:
        """Kill it."""
        self.is_expected_to_end = True
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout):
            with suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


class Processes:
    """The other ranks of this process.

    generation  changes with the processes: engines of earlier ones are lost
    ran         "steps" that the others took part in, and "rows" that they computed in these
    """

    def __init__(self) -> None:
        self.generation = 0
        self.ran: Counter[str] = Counter()
        self._others: list[_Process] = []
        self._waiting: list[_Process] = []
        """Those whose answer to the last command is missing."""
        self._engines = 0

    def ensure(self, size: int, device: str) -> None:
        """Start the processes of `size` ranks, unless they run."""
        if len(self._others) == size - 1 and all(one.popen.poll() is None for one in self._others):
            return
        self.abandon()
        self.generation += 1
        self._others = [_Process(rank, device) for rank in range(1, size)]
        for one in self._others:
            Thread(target=self._watch, args=(one,), daemon=True).start()
        try:
            for one in self._others:
                ready = one.line(WAIT.total_seconds()).decode()
                if ready != READY:
                    raise _failure(one.rank, decode_answer(ready))
            store = rank_group.open_store()
            self.tell(Join(size, store.port))
            rank_group.join(0, size, device, store)
            self.gather()
        except BaseException:
            self.abandon()
            raise

    def number(self) -> int:
        """Return a number for a new engine."""
        self._engines += 1
        return self._engines

    def tell(self, command: Command) -> None:
        """Tell all others to do something."""
        for one in self._others:
            one.tell(command)
        self._waiting = list(self._others)

    def tell_rows(self, engine: int, rows: int) -> None:
        """Tell the others to take part in a step: the first one with `rows` rows, each further one with fewer."""
        self.ran["steps"] += 1
        for one in self._others:
            one.tell(Beside(engine, rows // one.rank))
        self._waiting = list(self._others)

    def gather(self) -> None:
        """Wait until all others have done what they were told. Raises RankFailed or RankLost."""
        for rank, answer in self._answers(WAIT.total_seconds()):
            if isinstance(answer, Failed):
                self.settle()
                self.abandon()
                raise _failure(rank, answer)

    def settle(self) -> Exception | None:
        """After an exception on this rank, wait until the others have done what they were told, or end
        them. Return what another one failed with, None if none did: this rank may have left them alone."""
        found: Exception | None = None
        try:
            for rank, answer in self._answers(GRACE):
                if isinstance(answer, Failed) and not answer.is_refusal:
                    found = found or _failure(rank, answer)
        except RankSilent:  # it waits for this rank
            self.abandon()
        if found:
            self.abandon()
        return found

    def _answers(self, seconds: float) -> Iterator[tuple[int, Answer]]:
        while self._waiting:
            answer = decode_answer(self._waiting[0].line(seconds))
            if isinstance(answer, Done):
                self.ran["rows"] += answer.rows
            yield self._waiting.pop(0).rank, answer

    def abandon(self) -> None:
        """End the processes. What is built next starts new ones."""
        for one in self._others:
            one.end()
        self._others, self._waiting = [], []
        rank_group.leave()

    def _watch(self, one: _Process) -> None:
        """End this process if another one ended by itself while it waits for it: NCCL would wait for ever."""
        status = one.popen.wait()
        time.sleep(GRACE)
        if not one.is_expected_to_end and one in self._waiting:
            _die_like(one.rank, status)


def _die_like(rank: int, status: int) -> NoReturn:
    """End this process as another rank has ended: by its signal, or by SIGABRT."""
    sys.stderr.write(f"data-parallel rank {rank} ended with status {status}\n")
    sys.stderr.flush()
    if status < 0:
        os.kill(os.getpid(), -status)
    os.abort()


def _failure(rank: int, answer: Answer) -> Exception:
    """Return the exception for an answer; what another rank's exception says begins a line of its own."""
    assert isinstance(answer, Failed)
    kind, lines = RankFailed if answer.of_engine else RankLost, answer.text.splitlines()
    brief = f"{lines[-1]}: {lines[0]}" if len(lines) > 1 else lines[0]
    return kind(f"data-parallel rank {rank} raised {brief} at {answer.where}\n{answer.text}")


@cache
def processes() -> Processes:
    """Return the other ranks of this process."""
    return Processes()


class OtherRanks:
    """The other ranks of one engine of this process, which is rank 0. Refers to nothing: engines are restored to what
    they referred to."""

    def __init__(self, config: Config) -> None:
        self._generation = processes().generation
        self._number = processes().number()
        processes().tell(Build(self._number, config))

    def built(self) -> None:
        """Wait until the others have built theirs."""
        processes().gather()

    def reset(self) -> None:
        """Let the others reset theirs."""
        processes().tell(Begin(self._number))
        processes().gather()

    def begin(self, rows: int) -> None:
        """Begin a step beside ranks with `rows` rows; 0: beside idle ones."""
        rank_group.take_part()
        processes().tell_rows(self._number, rows)

    def end(self) -> None:
        """End the step."""
        processes().gather()

    def begin_capture(self) -> None:
        """Begin the capture of graphs, which the others do while they build theirs."""
        rank_group.take_part()

    def close(self) -> None:
        """Let the others close theirs."""
        if processes().generation == self._generation:
            processes().tell(Close(self._number))
            processes().gather()


def prepare(size: int, device: str) -> int:
    """Start the processes of `size` ranks, unless they run; return their generation. Raises TargetError if they do not
    start."""
    try:
        processes().ensure(size, device)
    except RankLost as error:
        raise TargetError(f"the data-parallel ranks do not start: {error}") from error
    return processes().generation
