"""A worker sees no secrets, has a home of its own, and reaches no network."""

import ast
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_process import Cli
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.trace_files import encode_trace
from hybridfuzz.harness.workers.worker_environment import (
    YOUNG_SECONDS,
    Home,
    environment,
    namespaces_missing,
    passes,
    remove_home,
)
from hybridfuzz.harness.workers.worker_process import Process
from hybridfuzz.targets.base.launch import Launch

SECRETS = """
    GITHUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_PROFILE HF_TOKEN OPENAI_API_KEY VLLM_API_KEY DB_PASSWORD SSH_AUTH_SOCK
    GITHUB_ENV GITHUB_OUTPUT PIP_INDEX_URL KUBECONFIG HYBRIDFUZZ_SECRET PYTHON_KEYRING_TOKEN NPM_CONFIG__AUTH"""
RUN_TOGETHER = """
    HF_ACCESSTOKEN VLLM_AUTHTOKEN SGLANG_SECRETKEY HF_TOKEN2 VLLM_DB_PASSWORD1 SGL_APIKEY HF_TOKENS_OLD NVIDIA_MYKEYS
    HF_Token VLLM_SERVER_PASSWD2 HYBRIDFUZZ_CREDS TORCH_OAUTH2 HF_TOKENIZERTOKEN VLLM_TOKENIZER_SECRETS
    SGLANG_DBPWD VLLM_SSL_PASSPHRASE"""
NEEDED = """
    PATH LANG LC_ALL PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TRITON_CACHE_DIR
    TRITON_INTERPRET VLLM_CACHE_ROOT SGLANG_CACHE_DIR HF_HOME HF_HUB_OFFLINE TORCH_HOME PYTORCH_CUDA_ALLOC_CONF
    NCCL_DEBUG HYBRIDFUZZ_CACHE TOKENIZERS_PARALLELISM MKL_NUM_THREADS PWD
    VLLM_USE_FLASHINFER_SAMPLER VLLM_WORKER_MULTIPROC_METHOD SGLANG_TOKENIZER_BACKEND CUDA_HOME"""


def test_names_that_pass() -> None:
    assert [name for name in NEEDED.split() if not passes(name)] == []
    assert [name for name in SECRETS.split() if passes(name)] == []
    assert [name for name in RUN_TOGETHER.split() if passes(name)] == []
    assert passes("MY_TOKEN", frozenset({"MY_TOKEN"}))


def rights(hybridfuzz: Cli, tmp_path: Path, **env: str) -> dict[str, object]:
    """What a target can read and reach, as it reports it."""
    (tmp_path / "t.json").write_bytes(encode_trace(make_trace(arrive("r0", 3), *steps(6))))
    secrets = dict.fromkeys(SECRETS.split(), "tell-nobody")
    ran = hybridfuzz("replay", "t.json", "--target", "python:fake_targets:RIGHTS", env={**secrets, **env})
    assert ran.status == 1, ran
    text = ran.out.partition("raised RuntimeError: ")[2]
    return dict(ast.literal_eval(text[: text.index("}") + 1]))


def test_a_target_sees_no_secrets_and_has_a_home_of_its_own(hybridfuzz: Cli, tmp_path: Path) -> None:
    seen = rights(hybridfuzz, tmp_path)
    assert seen["secrets"] == []
    home = Path(str(seen["home"]))
    assert home != Path.home()
    assert Path(str(seen["tmp"])).is_relative_to(home)
    assert not home.exists(), "removed with its worker"


def test_a_variable_passes_by_name(hybridfuzz: Cli, tmp_path: Path) -> None:
    assert rights(hybridfuzz, tmp_path, HYBRIDFUZZ_PASS_ENV="HF_TOKEN,AWS_PROFILE")["secrets"] == [
        "AWS_PROFILE",
        "HF_TOKEN",
    ]


@pytest.mark.skipif(bool(namespaces_missing()), reason=f"no namespaces here: {namespaces_missing()}")
def test_a_target_reaches_only_itself(hybridfuzz: Cli, tmp_path: Path) -> None:
    """No interface but loopback, which works; and the coordinator's environment cannot be read in /proc."""
    seen = rights(hybridfuzz, tmp_path)
    assert seen["interfaces"] == ["lo"]
    assert not {"1.1.1.1", "8.8.8.8"} & set(seen["reached"])  # type: ignore[call-overload]
    assert seen["parent"] is False


def test_the_network_can_be_kept(hybridfuzz: Cli, tmp_path: Path) -> None:
    seen = rights(hybridfuzz, tmp_path, HYBRIDFUZZ_NETWORK="1")
    assert set(seen["interfaces"]) == {name for _, name in socket.if_nameindex()}  # type: ignore[call-overload]
    assert seen["secrets"] == []


def test_caches_are_shared_and_named(tmp_path: Path) -> None:
    """A worker finds the kernels that an earlier one compiled."""
    one, other = (environment({"HOME": "/h"}, {}, tmp_path / name, tmp_path / "cache") for name in ("a", "b"))
    differ = {key for key in one if one[key] != other[key]}
    assert differ == {"HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"}
    assert environment({"TRITON_CACHE_DIR": "/mine"}, {}, tmp_path, tmp_path)["TRITON_CACHE_DIR"] == "/mine"
    assert (
        environment({"TRITON_CACHE_DIR": "/mine"}, {"TRITON_CACHE_DIR": "/t"}, tmp_path, None)["TRITON_CACHE_DIR"]
        == "/t"
    )


def test_sets_have_one_order_in_all_workers(tmp_path: Path) -> None:
    """A trace's digest depended on the process, where vLLM frees blocks in the order of a set of names."""
    assert environment({}, {}, tmp_path, None)["PYTHONHASHSEED"] == "0"
    assert environment({"PYTHONHASHSEED": "7"}, {}, tmp_path, None)["PYTHONHASHSEED"] == "7"


def test_only_a_home_of_ours_is_removed(tmp_path: Path) -> None:
    remove_home(tmp_path)
    assert tmp_path.exists()
    with Home() as home:
        assert (home / "tmp").is_dir()
    assert not home.exists()


def test_homes_of_killed_owners_are_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker of a campaign on Ray left its home, of 150 MB with torch's precompiled header, on its node."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = (
        "import time; from hybridfuzz.harness.workers.worker_environment import Home;"
        "print(Home().path, flush=True); time.sleep(60)"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    owners = [
        subprocess.Popen([sys.executable, "-c", source], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        homes = [Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout]
        others = tmp_path / "of-somebody-else"
        others.mkdir()
        link = tmp_path / f"{homes[0].name}-link"
        link.symlink_to(others)
        young = tmp_path / f"{homes[0].name}-young"
        young.mkdir()
        old = time.time() - 2 * YOUNG_SECONDS
        for path in (*homes, others):
            os.utime(path, (old, old))
        os.utime(link, (old, old), follow_symlinks=False)
        owners[0].send_signal(signal.SIGKILL)
        owners[0].wait()
        with Home():
            assert [home.exists() for home in homes] == [False, True], "of the dead, of the living"
            assert others.exists() and young.exists()
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()


def test_an_interpreter_that_is_gone_leaves_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OSError, match="No such file"):
        Process("hybrid", Launch(str(tmp_path / "python"), {}))
    assert list(tmp_path.glob("hybridfuzz-*")) == []


def test_isolation_costs_less_than_50_ms(tmp_path: Path) -> None:
    """The environment and the folders, in CPU time: the wall clock would measure the machine."""
    namespaces_missing()
    began = time.process_time()
    with Home() as home:
        environment(os.environ, {}, home, tmp_path)
    assert time.process_time() - began < 0.05
