"""Environments of engines, without a network: wheels come from a folder, or from nowhere."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from zipfile import ZipFile

import pytest
from cli_process import Cli

from hybridfuzz.targets.base import environment as base
from hybridfuzz.targets.base.pip import Ended, explain
from hybridfuzz.targets.base.protocol import MisfitError, TargetError
from hybridfuzz.targets.base.releases import cannot_import

BINARIES = re.compile(r"\.so$")


def make_wheel(folder: Path, name: str, version: str) -> None:
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        wheel.writestr(f"{name}/_C.so", "binary")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip sees one folder and no configuration."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path / "cache"))
    make_wheel(tmp_path / "wheels", "vllm", "0.1.0")


def test_wheel_is_unpacked_once(tmp_path: Path) -> None:
    said: list[str] = []
    folder = base.unpack_wheel("vllm", "0.1.0", BINARIES, 0.001, said.append)
    assert (folder / "vllm" / "__init__.py").exists()
    assert not (folder / "vllm" / "_C.so").exists()
    assert not list((tmp_path / "cache").rglob("*.whl"))
    assert said[-1] == "made vllm 0.1.0"
    said.clear()
    assert base.unpack_wheel("vllm", "0.1.0", BINARIES, 0.001, said.append) == folder
    assert not said


def test_interrupted_attempt_is_taken_up_again(tmp_path: Path) -> None:
    download = tmp_path / "cache" / "vllm" / "0.1.0" / "download"
    download.mkdir(parents=True)
    (download / "vllm-0.1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    with pytest.raises(TargetError, match=r"damaged|invalid"):
        base.unpack_wheel("vllm", "0.1.0", BINARIES, 0.001, lambda line: None)
    assert base.unpack_wheel("vllm", "0.1.0", BINARIES, 0.001, lambda line: None).exists()


def test_no_space_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"needs 1e\+06 GB but .* free some space, or set HYBRIDFUZZ_CACHE"):
        base.unpack_wheel("vllm", "0.1.0", BINARIES, 1e6, lambda line: None)
    monkeypatch.setattr(base, "_unpack", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(TargetError, match=r"No space left on device: free some space"):
        base.unpack_wheel("vllm", "0.1.0", BINARIES, 0.001, lambda line: None)


def test_two_at_once(tmp_path: Path) -> None:
    code = (
        "import re, sys; from hybridfuzz.targets.base.environment import unpack_wheel as u;"
        "u('vllm', '0.1.0', re.compile('x^'), 0.001, print)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("made vllm 0.1.0" in text for text in said) == 1


def test_venv(tmp_path: Path) -> None:
    requirements = tmp_path / "toy" / "requirements.txt"
    requirements.parent.mkdir()
    requirements.write_text("vllm==0.1.0\n")
    python = base.make_venv(requirements, "a toy", 0.001, lambda line: None)
    assert subprocess.run([python, "-c", "import vllm"], check=False).returncode == 0
    again = base.make_venv(requirements, "a toy", 0.001, pytest.fail)
    assert again == python


def test_an_environment_whose_interpreter_is_gone_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("vllm==0.1.0\n")
    python = base.make_venv(tmp_path / "requirements.txt", "an environment", 0.001, print)
    python.unlink()
    python.symlink_to("/nowhere/python")
    said: list[str] = []
    assert base.make_venv(tmp_path / "requirements.txt", "an environment", 0.001, said.append) == python
    assert said[-1] == "made an environment"
    assert subprocess.run([python, "-c", "import vllm"], check=False).returncode == 0


def test_an_engine_that_does_not_import_says_what_to_do_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ImportError("No module named 'x'")
    assert "use vllm@0.33.0" in str(cannot_import("vLLM", "vllm@0.33.0", error))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "cache" / "venvs" / "vllm-1"))
    message = str(cannot_import("vLLM", "vllm@0.33.0", error))
    assert f"remove {sys.prefix}" in message
    assert "No module named 'x'" in message


def test_a_name_that_the_engine_does_not_have_is_a_misfit_only_where_the_adapter_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An import that the engine itself breaks is a broken engine, and so is one for lack of a package."""
    adapter = tmp_path / "adapter.py"
    adapter.write_text("def of_engine(): from json import no_such\n\ndef of_lacking(): import no_such_package\n")
    scope: dict[str, Any] = {}
    exec(compile(adapter.read_text(), str(adapter), "exec"), scope)

    def told(function: str) -> TargetError:
        with pytest.raises(ImportError) as caught:
            scope[function]()
        return cannot_import("vLLM", "vllm@0.33.0", caught.value)

    assert not isinstance(told("of_engine"), MisfitError)
    monkeypatch.setattr("hybridfuzz.targets.base.releases.ADAPTERS", tmp_path)
    assert isinstance(told("of_engine"), MisfitError)
    assert "'no_such'" in str(told("of_engine")) and str(told("of_engine")).endswith("(adapter.py:1)")
    assert not isinstance(told("of_lacking"), MisfitError)


def test_threads_that_need_the_link_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    for turn in range(50):
        place, start = tmp_path / str(turn), Barrier(8)

        def link(_: int, place: Path = place, start: Barrier = start) -> None:
            start.wait()
            base._link(place, tmp_path)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(link, range(8)))
        assert place.readlink() == tmp_path


def test_hybridfuzz_is_importable_elsewhere() -> None:
    folder = base.importable()
    assert [path.name for path in folder.iterdir()] == ["hybridfuzz"]
    assert (folder / "hybridfuzz" / "targets" / "base" / "environment.py").samefile(base.__file__)
    assert base.importable() == folder


def test_version_that_does_not_exist(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuzz", "--target", "vllm@9.9.9", "--traces", "1")
    assert ran.status == 2
    assert "vllm 9.9.9 does not exist for this Python; newest available: " in ran.error


def test_no_network(hybridfuzz: Cli) -> None:
    closed = {
        "PIP_NO_INDEX": "0",
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    }
    ran = hybridfuzz("fuzz", "--target", "vllm@0.1.0", "--traces", "1", env=closed)
    assert ran.status == 2
    assert "cannot download vllm 0.1.0: no package index can be reached" in ran.error


def test_no_such_package(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuzz", "--target", "vllm@0.1.0", env={"PIP_FIND_LINKS": ""})
    assert ran.status == 2
    assert "has no wheel of it" in ran.error


def test_cache_folder_cannot_be_used(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuzz", "--target", "vllm@0.1.0", env={"HYBRIDFUZZ_CACHE": "/dev/null/cache"})
    assert ran.status == 2
    assert "cannot use the cache folder /dev/null/cache" in ran.error
    assert "set HYBRIDFUZZ_CACHE" in ran.error


def test_vllm_is_not_installed_here(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuzz", "--target", "vllm", "--traces", "1")
    assert ran.status == 2
    assert "vLLM is not installed for" in ran.error


def test_other_failures_keep_pips_words() -> None:
    assert explain(Ended(1, "ERROR: metadata is odd\nmore\n"), "x") == "cannot install x: metadata is odd"
    assert "no space left for x" in explain(Ended(1, "ERROR: [Errno 28] No space left"), "x")
