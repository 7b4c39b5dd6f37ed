"""Servers in processes of their own, without llama.cpp: a stand-in of xllamacpp."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridfuzz.targets.base.protocol import EngineError, TargetError
from hybridfuzz.targets.llamacpp.server import ALONE
from hybridfuzz.targets.llamacpp.server_process import ServerProcess

STAND_IN = """
import os, signal, sys
from types import SimpleNamespace
count = 0

class common_speculative_type:
    __members__ = {}

def CommonParams():
    names = "n_parallel n_ctx kv_unified n_ubatch n_ctx_checkpoints checkpoint_min_step cache_ram_mib " \\
        "slot_prompt_similarity cache_type_k cache_type_v flash_attn_type warmup port verbosity"
    params = SimpleNamespace(**dict.fromkeys(names.split()))
    params.model = params.speculative = SimpleNamespace()
    params.cpuparams, params.cpuparams_batch = SimpleNamespace(), SimpleNamespace()
    return params

class Server:
    def __init__(self, params):
        global count
        count += 1
        print("a line that is no answer")
        match params.model.path:
            case "raises":
                raise RuntimeError("no model")
            case "aborts":
                os.kill(os.getpid(), signal.SIGABRT)
        self.listening_address = f"http://{os.getpid()}/{count}"

    def __del__(self):
        open(f"stopped-{os.getpid()}", "w").close()
"""
FOLLOWS = """
import os, signal, sys
from pathlib import Path
from hybridfuzz.targets.llamacpp.server import ALONE
from hybridfuzz.targets.llamacpp import server_process
server_process.SECONDS = 1
server = server_process.ServerProcess(Path("good"), Path(), Path(), ALONE)
server.lost() if sys.argv[1] == "0" else os.kill(int(server.address.split("/")[2]), int(sys.argv[1]))
server.lost() if sys.argv[2] == "lost" else server.close()
print("lives")
"""


@pytest.fixture(autouse=True)
def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "xllamacpp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "xllamacpp.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.chdir(tmp_path)


def start(model: str = "good", **options: str) -> ServerProcess:
    return ServerProcess(Path(model), Path("draft"), Path("slots"), ALONE | options)


def test_each_server_is_the_first_one_of_its_process(tmp_path: Path) -> None:
    servers = [start(), start()]
    processes = {one.address.split("/")[2] for one in servers}
    assert len(processes) == 2
    assert [one.address.split("/")[3] for one in servers] == ["1", "1"]
    for one in servers:
        one.close()
    assert {path.name for path in tmp_path.glob("stopped-*")} == {f"stopped-{one}" for one in processes}


def test_what_the_build_does_not_have_is_refused() -> None:
    with pytest.raises(TargetError, match="no drafts of COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE: use draft=none"):
        start(draft="ngram")


@pytest.mark.parametrize(("number", "after"), [(signal.SIGABRT, "lost"), (signal.SIGSEGV, "close"), (0, "close")])
def test_who_started_a_server_dies_as_it_died(number: int, after: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FOLLOWS, str(int(number)), after], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == ((-number, "") if number else (0, "lives\n")), ran.stderr


def test_a_server_that_cannot_be_started_is_the_engines_fault() -> None:
    with pytest.raises(EngineError, match="no model"):
        start("raises")
