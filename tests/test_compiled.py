"""The compiled build observes exactly what the sources do, and is never installed beside editable sources."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parents[1]
COMPILED = ROOT / ".venv-compiled" / "bin" / "python"
TRACES = 60
NAMED = ("HOT", "COLD")


def observed(python: str) -> dict[str, Any]:
    script = [python, "-P", str(ROOT / "tests" / "observed_runs.py"), str(ROOT / "corpus"), str(TRACES)]
    ran = subprocess.run(script, cwd="/", capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def without_source_lines(broken: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave out the source line that stands for the message of an assertion without one: compiled frames have none."""
    pattern = re.compile("(?<=raised AssertionError: ).*(?= at )")
    return {
        name: [pattern.sub("", one) if isinstance(one, str) else one for one in seen] for name, seen in broken.items()
    }


def test_every_name_in_the_list_of_hot_modules_matches_a_file() -> None:
    """A pattern that matches nothing after a move would silently leave its modules interpreted."""
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in NAMED
    }
    hot, cold = (assigned[name] for name in NAMED)
    stems = {pattern: {path.stem for path in ROOT.glob(pattern)} for pattern in hot}
    assert [pattern for pattern, found in stems.items() if not found - cold] == []
    assert cold <= set().union(*stems.values())


@pytest.mark.parametrize("command", ["editable_wheel", "develop", "build_ext --inplace"])
def test_an_editable_installation_is_never_compiled(command: str) -> None:
    setup = [sys.executable, "setup.py", *command.split()]
    environment = {**os.environ, "HYBRIDFUZZ_COMPILE": "1"}
    ran = subprocess.run(setup, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("HYBRIDFUZZ_COMPILE=1 builds wheels only")


@pytest.mark.compiled
def test_compiled_modules_observe_what_their_sources_do() -> None:
    interpreted, compiled = observed(sys.executable), observed(str(COMPILED))
    assert Path(interpreted["from"]).name == "lockstep.py"
    assert compiled["from"].endswith(tuple(EXTENSION_SUFFIXES))
    assert compiled["clean"] == interpreted["clean"]
    assert without_source_lines(compiled["broken"]) == without_source_lines(interpreted["broken"])


@pytest.mark.compiled
def test_doctor_reports_the_compiled_modules() -> None:
    ran = subprocess.run(
        [str(COMPILED), "-m", "hybridfuzz.harness.cli", "doctor"], cwd="/", capture_output=True, text=True, check=True
    )
    [line] = [line for line in ran.stdout.splitlines() if line.split()[1] == "compiled"]
    assert "modules" in line and "no effect" in line


@pytest.mark.compiled
def test_compiled_modules_are_importable_in_an_engine_s_interpreter(tmp_path: Path) -> None:
    """The interpreter finds them, and the library that they share, through a folder that holds nothing else."""
    environment = {**os.environ, "HYBRIDFUZZ_CACHE": str(tmp_path)}
    ask = "from hybridfuzz.targets.base.environment import importable; print(importable())"
    ran = subprocess.run([str(COMPILED), "-Pc", ask], env=environment, capture_output=True, text=True, check=True)
    ask = "from hybridfuzz.harness.judge import lockstep; print(lockstep.__file__)"
    there = {**environment, "PYTHONPATH": ran.stdout.strip()}
    site = Path(msgspec.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-SPc", f"import sys; sys.path.append({str(site)!r}); {ask}"],
        env=there, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip().endswith(tuple(EXTENSION_SUFFIXES))


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.skipif(not COMPILED.exists(), reason="`make compiled` has not run")
@pytest.mark.parametrize("engine", ["vllm@0.33.0", "sglang@0.5.23", "transformers@5.24.0", "llamacpp@2026.10.11549"])
def test_a_compiled_installation_drives_an_engine(engine: str, tmp_path: Path) -> None:
    """Compiled functions check the types of what an adapter passes: all of SGLang's traces failed, and vLLM's with
    sliding windows, since no test asked for an engine."""
    options = ["--traces", "40", "--seed", "6", "--jobs", "1", "--no-canary", "--json", "-o", str(tmp_path)]
    command = [str(COMPILED), "-m", "hybridfuzz.harness.cli", "fuzz", "--target", engine, *options]
    if not engine.startswith("llamacpp"):
        command += ["--fixes", "builtin"]
    ran = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert ran.stdout, ran.stderr[-2000:]
    assert [one for one in json.loads(ran.stdout)["findings"] if one["oracle"] in ("ADAPTER", "RECORD")] == []
    assert ran.returncode in (0, 1, 3) if engine.startswith("llamacpp") else ran.returncode in (0, 3), ran.stdout
