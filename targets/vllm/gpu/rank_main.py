"""A process that holds a data-parallel rank beside a worker: `python -m hybridfuzz.targets.vllm.gpu.rank_main DEVICE`.

It has the same engines as rank 0, and runs with each the part of its own rank: vLLM's scheduler and runner, with the
model's own tokens. It takes part in each step by one collective, as `DPEngineCoreProc.run_busy_loop` does: with its
requests, or with a dummy run if none of them is scheduled. What it runs follows from what it is told, so a trace means
the same each time. Nothing here is judged.

    what it is told       what it runs
    `rows` rows, mostly   so many decode rows; their prompts were computed beforehand, without the other ranks
    each fourth time      the same, and the prompt of a new request in the same batch
    no rows               a dummy run, whatever requests it has; or its own step that is still to be executed

With asynchronous scheduling a step is executed after the next one was scheduled, as on rank 0: the worker corrects its
counts by what the step before accepted, and a scheduler that knows that already would make them wrong.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import structs

from ....reference.tokens import VOCABULARY
from ...base.protocol import TargetError
from ...base.trace import Config, Step
from .placement import RANK
from .rank_messages import (
    READY,
    Answer,
    Begin,
    Beside,
    Build,
    Command,
    Done,
    Failed,
    Join,
    decode_command,
    encode,
)

_PR_SET_PDEATHSIG = 1
LONGEST = 40
"""Tokens of a request at most: then another one takes its place."""
FRESH = 4
"""Every so many steps with rows a new prompt is computed, too."""
PREPARING = 16
"""Steps within which the prompts of requests that are to decode are computed, at most."""
UNUSED = {
    "connector": "none", "reports": "none", "prefills": "eager", "reset": "direct", "sampling": "greedy",
    "jitter": "no", "load_failure": "recompute",
}  # fmt: skip
"""Values of options that matter only to a rank's own clients and device."""


def config_beside(config: Config) -> Config:
    """Return the configuration of a rank beside one with this configuration: what the ranks agree on is the same."""
    replay = "0" if config.options.get("connector", "none") != "none" else config.options.get("replay", "0")
    unused = {name: value for name, value in UNUSED.items() if name in config.options}
    return structs.replace(config, options={**config.options, **unused, "replay": replay})


class Work:
    """The requests of this rank in one engine, for one trace."""

    def __init__(self, engine: Any) -> None:
        from ..shadow import patches

        self._engine = engine
        engine.reset("zero")
        engine.real.mirror = None
        patches.activate(None)
        self._k = engine.config.num_speculative_tokens
        engine.drafter.event = Step(drafts=self._k)
        self._names = 0
        self._busy = 0
        self._in_flight: deque[tuple[Any, Any]] = deque()
        """Plans of steps that were not executed yet, as the scheduler has them and as the worker gets them."""

    def run(self, rows: int) -> int:
        """Take part in one step; return the number of rows that were computed, 0 for a dummy run."""
        from ..shadow import patches

        patches.activate(None)
        engine = self._engine
        # As `EngineCore`: what a rank does before each dummy run is a step without tokens.
        computed = self._step(rows) if rows else self._execute(0)
        if not computed:
            engine.worker.dummy_run(1)
        return computed

    def _step(self, rows: int) -> int:
        from vllm.v1.worker.dp_utils import skip_dp_coordination

        config, scheduler = self._engine.config, self._engine.scheduler
        rows = min(rows, config.max_num_seqs)
        self._busy += 1
        with skip_dp_coordination():
            self._have(rows)
            self._plan_ahead(rows)
        if fresh := self._busy % FRESH == 0:
            if len(scheduler.requests) == config.max_num_seqs:
                self._drop()
            self._add()
        return self._execute(rows * (1 + self._k) + LONGEST * fresh)

    def _have(self, rows: int) -> None:
        """Have so many requests that decode. Their prompts are computed without the other ranks."""
        scheduler = self._engine.scheduler
        while len(scheduler.requests) < rows:
            self._add()
        for _ in range(PREPARING):
            if all(one.num_computed_tokens >= one.num_prompt_tokens for one in scheduler.requests.values()):
                return
            self._execute(self._engine.config.max_num_batched_tokens)
            self._execute(0)

    def _plan_ahead(self, rows: int) -> None:
        """With asynchronous scheduling, have a step of so many rows scheduled, or of one more: a new prompt."""
        if self._engine.config.async_depth:
            planned = [len(plan.num_scheduled_tokens) for plan, _ in self._in_flight]
            if planned not in ([rows], [rows + 1]):
                self._execute(0)
                self._execute(rows * (1 + self._k))

    def _add(self) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        from ..versions import compat

        number, self._names = self._names, self._names + 1
        longest = min(LONGEST, self._engine.config.max_model_len)
        prompt = [(number * 7 + place) % (VOCABULARY - 1) + 1 for place in range(2 + number % 3)]
        chosen = SamplingParams(max_tokens=longest - len(prompt), temperature=0.0, ignore_eos=True)
        arguments = compat.request_arguments(self._engine.hasher, 0, 1.0 + number)
        self._engine.scheduler.add_request(Request(f"beside-{number}", prompt, chosen, **arguments))

    def _drop(self) -> None:
        """Abort the oldest request."""
        from vllm.v1.request import RequestStatus

        scheduler = self._engine.scheduler
        scheduler.finish_requests([next(iter(scheduler.requests))], RequestStatus.FINISHED_ABORTED)

    def _execute(self, tokens: int) -> int:
        """Schedule a step of at most so many tokens, and execute what is due; return the rows that were computed."""
        engine, scheduler = self._engine, self._engine.scheduler
        scheduler.max_num_scheduled_tokens = min(tokens, engine.config.max_num_batched_tokens)
        plan = scheduler.schedule()
        # Results are processed after the next schedule(): the worker gets a copy, as in a process of its own.
        self._in_flight.append((plan, pickle.loads(pickle.dumps(plan)) if engine.config.async_depth else plan))
        computed = 0
        while len(self._in_flight) > (engine.config.async_depth if plan.total_num_scheduled_tokens else 0):
            oldest, sent = self._in_flight.popleft()
            engine.recorder.begin_step(0)
            output: Any = engine.worker.execute(sent, 0)
            scheduler.update_from_output(oldest, output)
            if self._k and not engine.config.async_depth and oldest.total_num_scheduled_tokens:
                engine.worker.pass_drafts(scheduler)
            computed += len(oldest.num_scheduled_tokens)
        return computed


class Rank:
    """This process: its engines, and the requests of the trace that each of them runs."""

    def __init__(self, rank: int, device: str) -> None:
        self._rank, self._device = rank, device
        self._engines: dict[int, Any] = {}
        self._work: dict[int, Work] = {}

    def do(self, command: Command) -> int:
        """Do what rank 0 says; return the number of rows that were computed."""
        from . import rank_group
        from .real_engine import RealEngine

        if isinstance(command, Join):
            rank_group.join(self._rank, command.size, self._device, command.port)
        elif isinstance(command, Build):
            one = RealEngine(config_beside(command.config), self._device, rank_group.InGroup())
            self._engines[command.engine] = one
        elif isinstance(command, Begin):
            self._work[command.engine] = Work(self._engines[command.engine])
        elif isinstance(command, Beside):
            return self._work[command.engine].run(command.rows)
        else:
            self._work.pop(command.engine, None)
            self._engines.pop(command.engine).close()
        return 0


def failure(error: Exception) -> Failed:
    """Return an exception as an answer."""
    own = Path(__file__).parents[3]
    frames = traceback.extract_tb(error.__traceback__)
    known = [one for one in frames if own in Path(one.filename).parents or "/vllm/" in one.filename]
    last = (known or frames)[-1]
    of_engine = own not in Path(last.filename).parents
    text = f"{error}\n{type(error).__name__}" if str(error) else f"{type(error).__name__} in {last.name}: {last.line}"
    return Failed(text, f"{Path(last.filename).name}:{last.lineno}", of_engine, isinstance(error, TargetError))


def end_with_parent() -> None:
    """End this process once its parent has ended, however that does."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def claim_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return copies of standard input and output; what the engine prints goes to standard error."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return inbox, outbox


def main() -> int:
    """Load vLLM, then do what rank 0 says until it closes its end."""
    end_with_parent()
    inbox, outbox = claim_streams()

    def answer(one: Answer) -> None:
        outbox.write(encode(one) + b"\n")
        outbox.flush()

    device = sys.argv[1]
    try:
        from .factory import make_factory

        make_factory("vllm", device)
    except Exception as error:
        traceback.print_exc()
        answer(failure(error))
        return 1
    outbox.write(READY.encode() + b"\n")
    outbox.flush()
    rank = Rank(int(os.environ[RANK]), device)
    for line in inbox:
        try:
            answer(Done(rank.do(decode_command(line))))
        except Exception as error:
            failed = failure(error)
            answer(failed)
            if not failed.is_refusal:
                traceback.print_exc()
                sys.stderr.write(f"{failed.text}\n")  # on a line of its own, as a fault of the device is recognized
                sys.stderr.flush()
                os._exit(1)  # at once: rank 0 may wait for a collective
    return 0


if __name__ == "__main__":
    sys.exit(main())
