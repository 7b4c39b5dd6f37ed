"""`hybridfuzz completion`: a script for each shell that knows all commands and options."""

import shutil
import subprocess
from pathlib import Path

import pytest
from cli_process import Cli

from hybridfuzz.harness.face.commands.completion import SHELLS
from hybridfuzz.harness.options_file import OPTIONS, VERBS

pytest.importorskip("shtab")


@pytest.mark.parametrize("shell", SHELLS)
def test_it_knows_all_commands_and_options(hybridfuzz: Cli, tmp_path: Path, shell: str) -> None:
    ran = hybridfuzz("completion", shell)
    assert ran.status == 0, ran.err
    assert all(verb in ran.out for verb in VERBS)
    assert all(option in ran.out for option in OPTIONS - {"explain"})
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(ran.out)
        subprocess.run([program, "-n", "script"], cwd=tmp_path, check=True)


def test_bash_completes(hybridfuzz: Cli, tmp_path: Path) -> None:
    """As bash asks a completion function."""
    (tmp_path / "script").write_text(hybridfuzz("completion", "bash").out)
    ask = (
        'source ./script; COMP_WORDS=(hybridfuzz fuzz --chang); COMP_CWORD=2; _shtab_hybridfuzz; echo "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["--changed-since"]


def test_targets_are_named_one_a_line(hybridfuzz: Cli) -> None:
    names = hybridfuzz("targets", "--names").out.splitlines()
    assert {"hybrid", "vllm", "hybrid:null-as-state-slot"} <= set(names)
    assert all(len(name.split()) == 1 for name in names)
