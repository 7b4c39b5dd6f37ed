"""What `repro` prints."""

from pathlib import Path

import pytest

from hybridfuzz.harness.face.commands.repro import again
from hybridfuzz.targets.base.launch import Launch


@pytest.mark.parametrize(
    ("tree", "command"),
    [("/a tree", "PYTHONPATH='/a tree' /venv/bin/python out/repro.py"), ("", "/venv/bin/python out/repro.py")],
)
def test_how_to_run_a_script_again_where_its_engine_is(tree: str, command: str) -> None:
    """A maintainer had to look for the environment that hybridfuzz had made."""
    assert again(Launch("/venv/bin/python", {}, tree=tree), Path("out/repro.py")) == command
