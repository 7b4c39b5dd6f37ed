"""Each engine's stock server is declared with options and values that the engine has, in all of its variants."""

import pytest

from hybridfuzz.targets.base.declarations import fault
from hybridfuzz.targets.base.protocol import Capabilities
from hybridfuzz.targets.hybrid.factory import CAPABILITIES
from hybridfuzz.targets.llamacpp.factory import server_capabilities
from hybridfuzz.targets.sglang.factory import SglangFactory
from hybridfuzz.targets.transformers.factory import capabilities
from hybridfuzz.targets.transformers.features import Features

ABLE = {
    "hybrid": CAPABILITIES,
    "llamacpp server": server_capabilities(),
    "sglang": SglangFactory("sglang").capabilities,
    "sglang sessions": SglangFactory("sglang", sessions=True).capabilities,
    "sglang old": SglangFactory("sglang", features=frozenset(), strategies=("no_buffer",), drafts=0).capabilities,
    "transformers": capabilities(),
    "transformers old": capabilities("", Features(tags=False, records=False)),
}


@pytest.mark.parametrize("able", ABLE.values(), ids=ABLE)
def test_it_fits_the_other_declarations(able: Capabilities) -> None:
    assert not fault(able)
    names = [setting.name for setting in able.stock or ()]
    assert len(names) == len(set(names))


def test_releases_whose_defaults_nobody_looked_up_declare_none() -> None:
    assert ABLE["sglang old"].stock is None and ABLE["sglang"].stock
