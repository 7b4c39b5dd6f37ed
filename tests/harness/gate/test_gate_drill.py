"""The gate on checkouts of vLLM and SGLang: without a bug green, one bug is one failure, a renamed name is none, and
nothing is written there."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import copy_sources

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

MANAGERS = "vllm/v1/core/single_type_kv_cache_manager.py"
STATES = "python/sglang/srt/mem_cache/unified_cache/components/mamba.py"
PYTEST = ("-m", "pytest", "--hybridfuzz-budget", "300s", "-k", "search/000 or fits")
"""Ten traces of a search whose time a busy machine does not use up with them."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """That of vLLM."""
    copy_sources("vllm", "0.33.0", tmp_path)
    return tmp_path


@pytest.fixture
def sglang(tmp_path: Path) -> Path:
    """That of SGLang, whose package is not at the top."""
    copy_sources("sglang", "0.5.23", tmp_path / "python")
    return tmp_path


def gate(checkout: Path, *more: str, engine: str = "vllm") -> tuple[int, list[str]]:
    """Run it. Return its exit status and the lines of its output."""
    before = files(checkout)
    command = [sys.executable, *PYTEST, f"--hybridfuzz-target={engine}@.", *more]
    ran = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert files(checkout) == before
    return ran.returncode, ran.stdout.splitlines()


def one_failure(status: int, lines: list[str]) -> list[str]:
    """Return the lines of a run with one failure that stands for others, and that fits on a page."""
    text = "\n".join(lines)
    assert status == 1, text
    assert "= 1 failed, " in lines[-1] and "of the same cause" in lines[-1], text
    assert len(lines) <= 60, text
    return lines


def files(checkout: Path) -> set[Path]:
    return {path for path in checkout.rglob("*") if "__pycache__" not in path.parts}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_one_line_broken_is_one_failure(checkout: Path) -> None:
    """At a block boundary the state to continue from is given back."""
    line = "        return num_computed_tokens - 1\n\n    def cache_blocks("
    edit(checkout / MANAGERS, line, line.replace(" - 1", ""))
    lines = one_failure(*gate(checkout, "--hybridfuzz-fixes=builtin"))
    [config] = [line for line in lines if line.startswith("config ")]
    assert "model runner" in config and "cache mode align" in config
    assert any(line.startswith("What must hold: ") for line in lines)


def test_sglang_as_it_is_passes(sglang: Path) -> None:
    status, lines = gate(sglang, "--hybridfuzz-fixes=builtin", engine="sglang")
    assert status == 0, "\n".join(lines)
    assert "= 10 passed, " in lines[-1]


@pytest.mark.exhaustive
def test_one_line_of_sglang_broken_is_one_failure(sglang: Path) -> None:
    """A node without a state counts as a match."""
    node = "lambda node: node.component_data[ct].value is not None\n"
    edit(sglang / STATES, node, "lambda node: True\n")
    lines = one_failure(*gate(sglang, "--hybridfuzz-fixes=builtin", engine="sglang"))
    [config] = [line for line in lines if line.startswith("config ")]
    assert "tree core" in config


def test_a_renamed_field_is_no_bug(checkout: Path) -> None:
    for path in (checkout / "vllm").rglob("*.py"):
        text = path.read_text()
        if "cached_block_hash_to_block" in text or "input_block_tables" in text:
            text = text.replace("cached_block_hash_to_block", "block_by_hash")
            path.write_text(text.replace("input_block_tables", "batch_block_tables"))
    status, lines = gate(checkout, "--hybridfuzz-fixes=builtin")
    assert status == 0, "\n".join(lines)
    [said] = [line for line in lines if line.startswith("in this version: ")]
    assert "BlockPool.cached_block_hash_to_block is called block_by_hash here" in said


def test_what_the_adapter_cannot_find_is_said_once_and_no_bug(checkout: Path) -> None:
    """Its type has changed with its name: that could be anything."""
    edit(checkout / MANAGERS, "req_to_blocks: defaultdict[str, list[KVCacheBlock]] =", "tables: dict[str, list] =")
    for path in (checkout / "vllm/v1").rglob("*.py"):
        if "req_to_blocks" in (text := path.read_text()):
            path.write_text(text.replace("req_to_blocks", "tables"))
    status, lines = gate(checkout)
    assert status == 0, "\n".join(lines)
    said = [line for line in lines if "does not fit this version of the engine" in line and "nothing is known" in line]
    assert len(said) == 1, "\n".join(lines)
    assert "'req_to_blocks'" in said[0] and "targets/vllm/pool_reader.py:" in said[0]
    assert "skipped" in lines[-1]
