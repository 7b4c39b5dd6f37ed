"""Runs the interpreter's tests, and the example of its page, in processes where Triton interprets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[2] / "docs/explanation/triton-interpreter.md"
INTERPRETED = os.environ | {"TRITON_INTERPRET": "1"}


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this process interprets: the tests run here")
def test_small_kernels_give_the_same_bits_as_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", str(FOLDER / "test_interpreter.py")]
    done = subprocess.run(command, env=INTERPRETED, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_the_example_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    script, printed = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[:2]
    (tmp_path / "example.py").write_text(script, encoding="utf-8")  # Triton reads a kernel's source from its file
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=INTERPRETED, capture_output=True, text=True, check=False
    )
    assert done.stdout == printed, done.stderr
