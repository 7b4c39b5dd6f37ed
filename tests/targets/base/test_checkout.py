"""A checkout imports as a release does, whatever a build left in it, and is not written to."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hybridfuzz.targets.base import releases
from hybridfuzz.targets.base.checkout import UNBUILT, make_view
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.protocol import TargetError

BINARIES = re.compile(r"\.so$|/vendored/")
ASK = "import engine, engine._version, importlib.metadata as m; print(m.version('engine'), engine._version.__version__)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of a git checkout: sources only, beside things that must not be importable."""
    package = tmp_path / "checkout" / "engine"
    for name in ("__init__.py", "core/__init__.py", "core/pool.py", "core/deep/__init__.py", "layers/__init__.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    (package.parent / "tools.py").write_text("")
    return package


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def run(code: str, path: object, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1", **more}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_a_checkout_gets_metadata_and_version(package: Path, tmp_path: Path) -> None:
    before = files(package.parent)
    view = make_view(package, BINARIES, tmp_path / "home")
    assert run(ASK, view).stdout.split() == [UNBUILT, UNBUILT]
    assert files(package.parent) == before
    assert run("import tools", view).returncode != 0


def test_what_a_build_left_is_used_but_for_binaries(package: Path, tmp_path: Path) -> None:
    """vLLM takes a version with "cpu" in it for a build whose Triton compiles for CPUs."""
    (package / "_version.py").write_text("__version__ = version = '0.34.1.dev7+g12ab.cpu'\n")
    (package.parent / "engine.egg-info").mkdir()
    (package.parent / "engine.egg-info" / "PKG-INFO").write_text("Name: engine\nVersion: 0.34.1.dev7+g12ab.cpu\n")
    (package / "_C.abi3.so").write_bytes(b"not for this Torch")
    (package / "core" / "deep" / "_C.abi3.so").write_bytes(b"not for this Torch")
    (package / "vendored").mkdir()
    (package / "vendored" / "huge.h").write_text("")
    view = make_view(package, BINARIES, tmp_path / "home")
    assert run(ASK, view).stdout.split() == ["0.34.1.dev7", "0.34.1.dev7+g12ab.cpu"]
    seen = {str(path.relative_to(view / "engine")) for path in (view / "engine").rglob("*")}
    assert {"core/pool.py", "core/deep/__init__.py", "layers"} <= seen
    assert not {"core/deep/_C.abi3.so", "_C.abi3.so", "vendored"} & seen
    assert run("import engine.core.deep, engine.core.pool, engine.layers", view).returncode == 0


def test_a_view_in_use_never_changes(package: Path, tmp_path: Path) -> None:
    first = make_view(package, BINARIES, tmp_path / "home")
    made = first.stat().st_mtime_ns
    assert make_view(package, BINARIES, tmp_path / "home") == first
    assert first.stat().st_mtime_ns == made
    (package / "new.py").write_text("")
    second = make_view(package, BINARIES, tmp_path / "home")
    assert second != first
    assert run("import engine.new", second).returncode == 0


def test_processes_that_make_it_at_the_same_time_agree(package: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        views = set(pool.map(lambda _: make_view(package, BINARIES, tmp_path / "home"), range(8)))
    assert len(views) == 1
    assert len(list((tmp_path / "home").iterdir())) == 1


def test_a_cache_that_cannot_be_written_to(package: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(TargetError, match=r"cannot make a view of .*engine in .*home"):
        make_view(package, BINARIES, tmp_path / "home")


class TestLaunch:
    """`engine@PATH` and `engine@RELEASE`, started in a checkout."""

    @pytest.fixture
    def engine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> releases.EngineReleases:
        monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(releases, "make_venv", lambda *_: Path(sys.executable))
        release = tmp_path / "release"
        (release / "engine").mkdir(parents=True)
        (release / "engine" / "__init__.py").write_text("")
        monkeypatch.setattr(releases, "unpack_wheel", lambda *_: release)
        return releases.EngineReleases(
            name="engine",
            title="Engine",
            example="1.0.0",
            requirements=tmp_path / "none",
            venv_gigabytes=0,
            release_gigabytes=0,
            unwanted=BINARIES,
            variables=lambda home: {},
            source="python",
        )

    @staticmethod
    def imported(launch: Launch, cwd: Path) -> str:
        """The name of the folder that a worker started in `cwd` imports the engine from."""
        command = [launch.python, "-c", "import engine; print(engine.__path__[0])"]
        env = {**os.environ, **launch.env}
        ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=True)
        return Path(ran.stdout.strip()).parent.name

    def test_a_release_is_imported_even_in_a_checkout(self, engine: releases.EngineReleases, package: Path) -> None:
        """Python puts the working directory first unless told otherwise: the checkout ran under the release's name."""
        assert self.imported(releases.prepare(engine, "1.0.0", print), package.parent) == "release"

    @pytest.mark.parametrize("number", ["1.0", "1.0rc1", "1.0.post1", "1.0+cpu"])
    def test_a_number_without_a_patch_is_refused(self, engine: releases.EngineReleases, number: str) -> None:
        """An index takes it for the first patch, a reader for the newest."""
        with pytest.raises(
            TargetError, match=f"'engine@{re.escape(number)}' may be any patch of 1.0: name one, such as engine@1.0.0"
        ):
            releases.prepare(engine, number, print)

    def test_the_package_may_lie_where_the_engine_keeps_its_sources(
        self, engine: releases.EngineReleases, package: Path, tmp_path: Path
    ) -> None:
        repository = tmp_path / "repository"
        (repository / "python").mkdir(parents=True)
        package.rename(repository / "python" / "engine")
        for path in (repository, repository / "python"):
            launch = releases.prepare(engine, str(path), print)
            assert launch.version == str(path)
            assert self.imported(launch, repository).startswith("view-")

    def test_a_folder_without_the_package_is_refused(self, engine: releases.EngineReleases, tmp_path: Path) -> None:
        with pytest.raises(TargetError, match=r"neither a release number nor a folder with engine/__init__\.py"):
            releases.prepare(engine, str(tmp_path), print)
