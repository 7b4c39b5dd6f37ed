"""The llama.cpp target's capabilities, refusals and environment, without llama.cpp."""

from pathlib import Path

import msgspec
import pytest

from hybridfuzz.targets.base.declarations import fault
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import parse
from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.llamacpp.context_sizes import planes_of, sizes_of
from hybridfuzz.targets.llamacpp.environment import ENGINE, prepare
from hybridfuzz.targets.llamacpp.factory import SERVER, capabilities, server_capabilities, variants
from hybridfuzz.targets.llamacpp.families import FAMILIES
from hybridfuzz.targets.llamacpp.kit_limits import limits, refusal

OPTIONS = {"family": "qwen3-5", "planes": "0", "kv": "split", "ubatch": "64", "idle": "kept", "logits": "last"}
PLAIN = Config(
    num_blocks=200,
    groups=(Group("mamba", 8), Group("attention", 1)),
    mamba_cache_mode="none",
    enable_prefix_caching=False,
    options=OPTIONS,
)


def config(changes: dict[str, object] | None = None, **options: str) -> Config:
    return msgspec.structs.replace(PLAIN, options=OPTIONS | options, **(changes or {}))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (config(), ""),
        (config(planes="3"), ""),
        (config(family="jamba", planes="3"), "has no snapshots"),
        (config(ubatch="4", planes="1"), ""),
        (config(ubatch="4", planes="3"), "n_ubatch"),
        (config(changes={"mamba_cache_mode": "align"}), "mamba_cache_mode=none"),
        (config(family="llama"), "family"),
    ],
)
def test_configurations_are_refused_with_a_reason(wanted: Config, reason: str) -> None:
    answer = refusal("library", wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (config(), ""),
        (config(changes={"max_model_len": 300}), "max_model_len"),
        (config(family="llama"), "family"),
        (config(changes={"mamba_cache_mode": "align"}), "mamba_cache_mode=none"),
    ],
)
def test_the_server_refuses_what_its_slots_cannot_hold(wanted: Config, reason: str) -> None:
    answer = refusal("server", wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_what_is_declared_can_be_meant() -> None:
    assert fault(capabilities()) == ""
    assert capabilities("lfm2").options["family"] == ("lfm2",)
    assert capabilities(has_planes=False).options["planes"] == ("0",)
    assert fault(server_capabilities()) == ""
    assert variants().keys() == {*FAMILIES, SERVER}
    assert all("{" not in limit.reason for limit in limits())


def test_only_a_family_and_a_build_with_snapshots_keep_them() -> None:
    assert planes_of(config(planes="3"), has_planes=True) == 3
    assert planes_of(config(planes="3"), has_planes=False) == 0
    assert planes_of(config(planes="3", family="jamba"), has_planes=True) == 0


def test_cells_behind_a_window_are_given_back_where_there_is_one() -> None:
    assert sizes_of(config(), planes=0).swa_full
    assert not sizes_of(config(family="lfm2-window"), planes=0).swa_full


def test_each_sequence_has_cells_for_the_longest_request_and_its_drafts() -> None:
    longest = msgspec.structs.replace(PLAIN, max_model_len=255, num_speculative_tokens=3, max_num_seqs=4)
    sizes = sizes_of(longest, planes=0)
    assert (sizes.n_seq_max, sizes.n_ctx) == (8, 8 * 512)


def test_a_release_is_a_wheel_of_another_name() -> None:
    assert parse("llamacpp:lfm2@2026.10.11549").version == "2026.10.11549"
    assert (ENGINE.name, ENGINE.distribution) == ("llamacpp", "xllamacpp")
    assert not ENGINE.unwanted.search("xllamacpp/xllamacpp.abi3.so")
    assert Path(ENGINE.requirements).exists()


def test_a_path_without_a_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"nor a libllama\.so or a folder with one"):
        prepare(str(tmp_path), print)
