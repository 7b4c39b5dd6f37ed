"""The wheel holds every source file and corpus trace under `hybridfuzz`, and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "reference", "targets", "corpus", "reports")


def copy_sources(folder: Path) -> Path:
    """A copy of what a wheel is made from, so that the checkout gets no build output."""
    folder.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in FOLDERS:
        unwanted = shutil.ignore_patterns("__pycache__", "out")
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    return folder


def test_wheel(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    code = {path for name in FOLDERS for path in (sources / name).rglob("*.py")}
    data = {
        *(sources / "corpus").rglob("*.json"),
        *(sources / "reports" / "templates").glob("*"),
        *(sources / "targets").glob("*/requirements.txt"),
        sources / "targets" / "vllm" / "model" / "config.json",
    }
    expected = {f"hybridfuzz/{path.relative_to(sources).as_posix()}" for path in code | data}

    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(sources)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        [entry_points] = [name for name in names if name.endswith("/entry_points.txt")]
        commands = archive.read(entry_points).decode()
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert "hybridfuzz = hybridfuzz.harness.cli:main" in commands
    assert "hybridfuzz = hybridfuzz.harness.gate.plugin" in commands
