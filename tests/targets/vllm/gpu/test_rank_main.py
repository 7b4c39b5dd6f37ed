"""A process that holds another rank: its configuration is that of rank 0, but for what concerns its own clients only;
what it raises is told apart; it ends with its parent."""

import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridfuzz.harness.judge.environment_fault import fault_of
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.gpu.rank_main import Work, config_beside, failure
from hybridfuzz.targets.vllm.gpu.rank_messages import Beside, Failed, decode_answer, decode_command, encode
from hybridfuzz.targets.vllm.models import mixer
from hybridfuzz.targets.vllm.shadow import patches

GROUPS = (Group("mamba", 16), Group("attention", 16))


def config(**options: str) -> Config:
    return Config(num_blocks=40, groups=GROUPS, async_depth=1, options={"ranks": "2", **options})


def test_what_ranks_agree_on_is_the_same() -> None:
    same = config(runner="v1", graphs="decode", mixer="gdn", pipeline="sync", replay="0")
    assert config_beside(same) == same


def test_clients_of_other_ranks_have_no_connector_and_nobody_reads_their_reports() -> None:
    beside = config_beside(config(connector="store", reports="all", jitter="yes"))
    assert [beside.options[name] for name in ("connector", "reports", "jitter")] == ["none", "none", "no"]


def test_the_model_is_that_of_rank_0() -> None:
    """vLLM takes ReplaySSM, and with it another model, only without a connector."""
    for connector in ("store", "none"):
        one = config(connector=connector, runner="v1", mixer="mamba2", replay="3")
        assert mixer(config_beside(one)) == mixer(one)


def raised(source: str, file: str) -> Failed:
    """What a process answers if code of a file raises an exception."""
    with pytest.raises(Exception) as error:
        exec(compile(source, file, "exec"), {"TargetError": TargetError})
    return failure(error.value)


def test_an_exception_is_the_engine_s_if_its_code_raised_it() -> None:
    one = raised("assert 1 == 2", "/somewhere/vllm/v1/worker/dp_utils.py")
    assert (one.of_engine, one.is_refusal, one.where) == (True, False, "dp_utils.py:1")
    assert one.text.startswith("AssertionError in <module>")
    own = str(Path(failure.__code__.co_filename).with_name("rank_group.py"))
    assert not raised("raise ValueError('ours')", own).of_engine
    assert raised("raise TargetError('too small')", own).is_refusal


def test_a_fault_of_the_environment_is_recognized_in_what_another_rank_says() -> None:
    message = "CUDA out of memory. Tried to allocate 2.00 GiB."
    one = raised(f"raise RuntimeError({message!r})", "/somewhere/vllm/v1/worker/gpu/model_runner.py")
    fault = fault_of(RuntimeError(f"data-parallel rank 1 raised at {one.where}:\n{one.text}"))
    assert fault is not None
    assert fault.kind == "out of memory"


def test_messages_come_back_as_they_were() -> None:
    assert decode_command(encode(Beside(3, 2))) == Beside(3, 2)
    assert decode_answer(encode(Failed("x", "y", of_engine=True))) == Failed("x", "y", of_engine=True)


PARENT = """
import subprocess, sys
code = "from hybridfuzz.targets.vllm.gpu.rank_main import end_with_parent as end; end(); print(1, flush=True)\\n"
child = subprocess.Popen([sys.executable, "-c", code + "import time; time.sleep(600)"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_it_ends_with_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = Path("/proc", parent.stdout.readline().strip(), "stat")
    assert child.exists()
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 20
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_rank_runs_a_step_without_tokens_before_a_dummy_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fix of cause 18 a dummy run drops the rows of the batch. Behind a step with tokens the scheduler thought
    that they were there: KeyError in V1 with asynchronous scheduling, on a GPU in 25 of 923 traces."""
    done: list[object] = []
    work = Work.__new__(Work)
    work._engine = SimpleNamespace(worker=SimpleNamespace(dummy_run=lambda rows: done.append("dummy run")))
    monkeypatch.setattr(patches, "activate", lambda target: None)
    monkeypatch.setattr(Work, "_step", lambda self, rows: done.append(f"{rows} rows") or rows)
    monkeypatch.setattr(Work, "_execute", lambda self, tokens: done.append(f"{tokens} tokens") or 0)
    work.run(3)
    work.run(0)
    assert done == ["3 rows", "0 tokens", "dummy run"]


class Engine:
    """An engine that says when its steps are scheduled and executed, and when their results are processed."""

    def __init__(self, async_depth: int) -> None:
        self.config = SimpleNamespace(async_depth=async_depth, max_num_batched_tokens=8)
        self.said: list[str] = []
        self.scheduler = self.worker = self.recorder = self
        self.max_num_scheduled_tokens = 0

    def schedule(self) -> SimpleNamespace:
        number = sum(one.startswith("schedule") for one in self.said)
        self.said.append(f"schedule {number}")
        tokens = self.max_num_scheduled_tokens
        return SimpleNamespace(
            number=number, total_num_scheduled_tokens=tokens, num_scheduled_tokens={"a": tokens} if tokens else {}
        )

    def begin_step(self, number: int) -> None:
        """Nothing is recorded."""

    def execute(self, plan: SimpleNamespace, pad_to: int) -> None:
        self.said.append(f"execute {plan.number}")

    def update_from_output(self, plan: SimpleNamespace, output: None) -> None:
        self.said.append(f"process {plan.number}")


def steps(async_depth: int, *tokens: int) -> tuple[list[str], list[int]]:
    """What a rank does in steps of so many tokens at most, and how many rows each call computes."""
    work = Work.__new__(Work)
    engine = work._engine = Engine(async_depth)
    work._k, work._in_flight = 0, deque()
    computed = [work._execute(most) for most in tokens]
    return engine.said, computed


def test_with_asynchronous_scheduling_a_step_is_executed_once_the_next_one_was_scheduled() -> None:
    """V1 corrects the counts of a row by what its last step accepted. Where the scheduler knew that already they fell
    below zero: an illegal memory access in `postprocess_mamba_fused_kernel`, in 6 of 1,904 traces on two GPUs."""
    said, computed = steps(1, 5, 5, 0)
    assert said == [
        "schedule 0", "schedule 1", "execute 0", "process 0", "schedule 2", "execute 1", "process 1", "execute 2",
        "process 2",
    ]  # fmt: skip
    assert computed == [0, 1, 1]


def test_without_it_a_step_is_executed_at_once() -> None:
    said, computed = steps(0, 5, 0)
    assert said == ["schedule 0", "execute 0", "process 0", "schedule 1", "execute 1", "process 1"]
    assert computed == [1, 0]


def test_what_is_planned_ahead_has_as_many_rows_as_the_step_that_executes_it() -> None:
    """Otherwise each step of other ranks would meet a dummy run of this one."""
    work = Work.__new__(Work)
    engine = work._engine = Engine(1)
    work._k, work._in_flight = 0, deque()
    work._plan_ahead(1)
    assert engine.said == ["schedule 0", "execute 0", "process 0", "schedule 1"]
    assert work._execute(1) == 1
    work._plan_ahead(1)
    assert engine.said[4:] == ["schedule 2", "execute 1", "process 1"]
