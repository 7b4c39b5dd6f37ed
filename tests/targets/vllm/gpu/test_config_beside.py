"""A rank beside rank 0 has the same configuration, but for what concerns its own clients only."""

from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.gpu.rank_main import config_beside
from hybridfuzz.targets.vllm.models import mixer

GROUPS = (Group("mamba", 16), Group("attention", 16))


def config(**options: str) -> Config:
    return Config(num_blocks=40, groups=GROUPS, async_depth=1, options={"ranks": "2", **options})


def test_what_ranks_agree_on_is_the_same() -> None:
    same = config(runner="v1", graphs="decode", mixer="gdn", pipeline="sync", replay="0")
    assert config_beside(same) == same


def test_clients_of_other_ranks_have_no_connector_and_nobody_reads_their_reports() -> None:
    beside = config_beside(config(connector="store", reports="all", jitter="yes"))
    assert [beside.options[name] for name in ("connector", "reports", "jitter")] == ["none", "none", "no"]


def test_the_model_is_that_of_rank_0() -> None:
    """vLLM takes ReplaySSM, and with it another model, only without a connector."""
    for connector in ("store", "none"):
        one = config(connector=connector, runner="v1", mixer="mamba2", replay="3")
        assert mixer(config_beside(one)) == mixer(one)
