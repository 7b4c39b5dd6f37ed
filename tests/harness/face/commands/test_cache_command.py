"""`hybridfuzz cache`: it lists and removes what hybridfuzz has made in its cache folder, and nothing else."""

import os
import time
from pathlib import Path

import pytest
from cli_process import Cli

DAY = 86400
HEX = "0123456789ab"
OURS = {
    f"venvs/vllm-{HEX}": "vllm",
    f"venvs/sglang-{HEX}": "sglang",
    "venvs/pip": "",
    f"tools/coverage-{HEX}": "",
    f"patched/{HEX}cdef": "vllm",
    f"gate/{HEX}": "",
    "vllm/0.33.0": "vllm",
    f"vllm/path-{HEX}": "vllm",
}
NOT_OURS = ("notes", "vllm/mine", "tools/hammer", "venvs/project", "kernels/x", "gate/0123")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache in a folder that holds other things, too; `OURS` were used in this order, a day apart, the last today."""
    root = tmp_path / "cache"
    for name in (*OURS, *NOT_OURS):
        (root / name / "inner").mkdir(parents=True)
        (root / name / "inner/file").write_bytes(bytes(5000))
    (root / f"patched/{HEX}cdef/vllm").symlink_to(tmp_path)
    (root / f"venvs/vllm-{HEX}.lock").touch()
    for age, name in enumerate(reversed(OURS)):
        os.utime(root / name, (time.time() - age * DAY - 60,) * 2)
    return root


def entries(ran: object) -> dict[str, str]:
    return {"/".join(Path(one["path"]).parts[-2:]): one["engine"] for one in ran.json["entries"]}  # type: ignore[attr-defined]


def test_it_lists_what_is_its_own(hybridfuzz: Cli, cache: Path) -> None:
    ran = hybridfuzz("cache", "list", "--json")
    assert entries(ran) == OURS
    assert all(one["size"] >= 5000 for one in ran.json["entries"])
    assert entries(hybridfuzz("cache", "list", "--engine", "sglang", "--json")) == {f"venvs/sglang-{HEX}": "sglang"}


def test_it_removes_what_was_not_used(hybridfuzz: Cli, cache: Path) -> None:
    before = set(OURS)
    ran = hybridfuzz("cache", "clean", "--unused-for", "5d", "--dry-run")
    assert ran.out.count("would remove") == 3
    assert {name for name in OURS if (cache / name).exists()} == before, "nothing is removed in a dry run"
    ran = hybridfuzz("cache", "clean", "--unused-for", "5d")
    assert ran.status == 0
    assert {name for name in OURS if not (cache / name).exists()} == set([*OURS][:3])
    assert f"venvs/vllm-{HEX}" in ran.out
    assert not (cache / f"venvs/vllm-{HEX}.lock").exists()
    assert all((cache / name / "inner/file").exists() for name in NOT_OURS)


def test_it_removes_what_is_of_an_engine(hybridfuzz: Cli, cache: Path) -> None:
    hybridfuzz("cache", "clean", "--engine", "vllm")
    assert {name for name in OURS if (cache / name).exists()} == {
        name for name, engine in OURS.items() if engine != "vllm"
    }
    assert all((cache / name / "inner/file").exists() for name in NOT_OURS)


def test_links_are_not_followed(hybridfuzz: Cli, cache: Path, tmp_path: Path) -> None:
    """Neither where a folder of the cache is one, nor an entry, nor what is in an entry."""
    for place in (tmp_path / "elsewhere" / HEX, tmp_path / "linked"):
        place.mkdir(parents=True)
        (place / "file").touch()
    (cache / "importable").symlink_to(tmp_path / "elsewhere")
    (cache / "vllm/0.1.0").symlink_to(tmp_path / "linked")
    (cache / "vllm/0.33.0/tree").symlink_to(tmp_path / "linked")
    hybridfuzz("cache", "clean", "--engine", "vllm")
    hybridfuzz("cache", "clean", "--unused-for", "1s")
    assert not (cache / "vllm/0.33.0").exists()
    assert (tmp_path / "elsewhere" / HEX / "file").exists()
    assert (tmp_path / "linked/file").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("clean",), "say what to remove"), (("list", "--engine", "vlm"), "did you mean vllm? (known: ")],
)
def test_mistakes(hybridfuzz: Cli, arguments: tuple[str, ...], words: str) -> None:
    ran = hybridfuzz("cache", *arguments)
    assert ran.status == 2
    assert words in ran.error


def test_what_is_used_is_young(hybridfuzz: Cli, cache: Path, tmp_path: Path) -> None:
    """A patched copy that a command uses is touched, also where nothing has to be made."""
    from hybridfuzz.targets.base.environment import used

    folder = cache / f"gate/{HEX}"
    os.utime(folder, (0, 0))
    used(folder)
    assert time.time() - folder.stat().st_mtime < 60
    used(tmp_path / "gone")
