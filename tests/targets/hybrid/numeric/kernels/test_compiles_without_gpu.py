"""Every kernel that the interpreter runs also compiles."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SOURCES = FOLDER.parents[4] / "targets" / "hybrid" / "numeric" / "kernels"


def launched() -> set[str]:
    """Return the names of the launched kernels: `kernel[grid](...)`."""
    return {
        node.func.value.id
        for file in SOURCES.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and isinstance(node.func.value, ast.Name)
    }


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    if not all(map(find_spec, ("torch", "triton"))):  # not imported: the other tests want to interpret
        pytest.skip("torch or triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(FOLDER / "compile_for_hopper.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(done.stdout.split()) == launched()
