"""Files of sdist and wheel, and the installed wheel in an empty virtual environment (`make test-wheel`)."""

import json
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.metadata import PackageMetadata, distributions
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "reference", "targets", "corpus", "reports")
BESIDE = ("tests", "docs", "benchmarks")
"""Folders of the sdist that no wheel has."""
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, so that the checkout gets no build output."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Makefile", "constraints.txt"):
        copy(ROOT / name, folder)
    for name in FOLDERS + BESIDE:
        copytree(ROOT / name, folder / name, ignore=ignore_patterns("__pycache__", "out"))
    copytree(ROOT / "src", folder / "src", symlinks=True, ignore=ignore_patterns("__pycache__", "*.egg-info"))
    return folder


@pytest.fixture(scope="module")
def sdist(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=sources, capture_output=True, check=True)
    [archive] = folder.glob("*.tar.gz")
    return archive


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel from a source tree or an sdist."""
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(sdist, tmp_path_factory.mktemp("wheel"))


def contents(wheel: Path) -> set[str]:
    """Names of the files in a wheel."""
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_sdist_has_all_sources_and_tests(sources: Path, sdist: Path) -> None:
    """Files, where a checkout has links: an sdist also builds where there are none."""
    packages = sources / "src" / "hybridfuzz"
    folders = [*(packages / name for name in FOLDERS), *(sources / name for name in BESIDE)]
    expected = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    expected |= {path for folder in (sources, packages) for path in folder.iterdir() if path.is_file()}
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    made = {name for name in names if name.startswith("src/hybridfuzz.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - made == {path.relative_to(sources).as_posix() for path in expected}


def test_wheel_has_every_source_and_data_file_and_nothing_else(sources: Path, wheel: Path) -> None:
    expected = {
        *(sources / name for name in ("__init__.py", "py.typed")),
        *(path for name in FOLDERS for path in (sources / name).rglob("*.py")),
        *(sources / name / "py.typed" for name in FOLDERS),
        *(path for pattern in ("*.json", "*.md", "*.patch", "*.toml") for path in (sources / "corpus").rglob(pattern)),
        *(sources / "reports" / "templates").glob("*"),
        sources / "harness" / "tell" / "timeline.css",
        *(sources / "harness" / "explore" / "scopes").glob("*.toml"),
        *(
            path
            for name in ("requirements*.txt", "coverage.toml", "names.json", "tested.json")
            for path in (sources / "targets").glob(f"*/{name}")
        ),
        *(sources / "targets" / engine / "model" / "config.json" for engine in ("sglang", "vllm")),
    }
    packed = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert packed == {f"hybridfuzz/{path.relative_to(sources).as_posix()}" for path in expected}


def test_wheels_of_sdist_and_checkout_have_the_same_files(sources: Path, wheel: Path, tmp_path: Path) -> None:
    assert contents(build_wheel(sources, tmp_path)) == contents(wheel)


class Installed:
    """The wheel in a virtual environment that has nothing else; commands run in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.empty = folder / "venv" / "bin", folder / "empty"
        self.empty.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        [self.site] = folder.glob("venv/lib/*/site-packages")

    def pip(self, *arguments: object) -> None:
        """Run the pip of the tests' environment on this one."""
        subprocess.run([*PIP, "--python", self.bin / "python", *arguments], check=True)

    def install(self, *packages: object) -> None:
        """Install packages in the pinned versions."""
        self.pip("install", "-c", ROOT / "constraints.txt", *packages)

    def distributions(self) -> dict[str, PackageMetadata]:
        """Metadata of everything that is installed, by name."""
        return {found.metadata["Name"].lower(): found.metadata for found in distributions(path=[str(self.site)])}

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        words = [str(self.bin / program), *map(str, arguments)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        environment["HYBRIDFUZZ_CACHE"] = str(self.empty.parent / "cache")
        return subprocess.run(words, cwd=self.empty, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    there = Installed(tmp_path_factory.mktemp("installed"))
    there.install(wheel)
    return there


@pytest.mark.wheel
def test_wheel_installs_no_heavy_package(installed: Installed) -> None:
    """Without extras neither torch nor an engine nor a development tool comes along."""
    names = installed.distributions().keys()
    assert {"hybridfuzz", "numpy"} <= names
    assert not names & {"torch", "triton", "vllm", "sglang", "transformers", "mypy", "pytest", "ruff", "setuptools"}
    installed.pip("check")


@pytest.mark.wheel
def test_metadata(installed: Installed) -> None:
    metadata = installed.distributions()["hybridfuzz"]
    for field in ("Summary", "Author", "Keywords", "License-Expression", "License-File", "Requires-Python"):
        assert metadata[field], field
    assert {"Typing :: Typed", "Framework :: Pytest"} <= set(metadata.get_all("Classifier", []))
    assert set(metadata.get_all("Provides-Extra", [])) >= {"dev", "gpu"}


@pytest.mark.wheel
def test_doctor(installed: Installed) -> None:
    ran = installed.run("hybridfuzz", "doctor", "--json")
    assert ran.returncode == 0, ran.stderr
    status = {check["check"]: check["status"] for check in json.loads(ran.stdout.splitlines()[-1])["checks"]}
    assert status["torch"] == "note"
    assert status["built-in target"] == "ok"


@pytest.mark.wheel
def test_help_is_immediate(installed: Installed) -> None:
    """With byte code in place a start takes less than 0.2 s of CPU time, as does each command's help.

    Of several starts the least counts: a machine with other work on its cores bills a process for waiting on memory.
    """

    def cpu_seconds(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = installed.run("hybridfuzz", *arguments, "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert ran.returncode == 0 and ran.stdout.startswith("usage: hybridfuzz"), ran.stderr
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    commands: Sequence[tuple[str, ...]] = [(), ("fuzz",), ("replay",), ("mutants",), ("doctor",)]
    for command in commands:
        assert min(cpu_seconds(*command) for _ in range(4)) < 0.2, command


@pytest.mark.wheel
def test_fuzz_from_an_empty_folder(installed: Installed) -> None:
    # Not by time: a busy machine would not reach every state that a clean campaign has to reach.
    ran = installed.run("hybridfuzz", "fuzz", "--steps", "30000", "--seed", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "clean: " in ran.stdout


@pytest.mark.wheel
def test_gate_from_an_empty_folder(installed: Installed) -> None:
    """pytest finds the plugin, and the installed corpus is replayed."""
    installed.install("pytest")
    ran = installed.run("pytest", "--hybridfuzz-target", "hybrid", "--hybridfuzz-budget", "5s")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout and " traces (" in ran.stdout


@pytest.mark.wheel
def test_type_checkers_see_every_installed_package(installed: Installed) -> None:
    """mypy reports the one mistake in a user's script; without py.typed every import would be untyped."""
    script = installed.empty / "user.py"
    script.write_text(
        "from hybridfuzz import corpus, harness, reference, reports, targets\n"
        "from hybridfuzz.targets.base.registry import load_factory\n"
        "wrong: str = load_factory('hybrid')\n"
    )
    check = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(installed.empty.parent / "mypy")]
    ran = subprocess.run(
        [*check, "--python-executable", str(installed.bin / "python"), script.name],
        cwd=installed.empty, capture_output=True, text=True, check=False,
    )  # fmt: skip
    first, last = ran.stdout.splitlines()
    assert first.startswith("user.py:3: error: Incompatible types in assignment")
    assert last.startswith("Found 1 error in 1 file")
