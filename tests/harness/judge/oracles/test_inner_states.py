"""M2 where a chunk leaves a state inside it: any depth, in the column before the chunk's last, nowhere else."""

from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.harness.judge.oracles.prefix_cache import Hash
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.request import Life


@pytest.mark.parametrize(
    ("inner_states", "column", "silent"), [(True, 1, True), (True, 2, False), (True, 0, True), (False, 1, False)]
)
def test_a_key_of_a_state_inside_a_chunk(inner_states: bool, column: int, silent: bool) -> None:
    """Ten tokens in blocks of four: state@4 belongs into column 0, or, left by the chunk, into column 1."""
    layout = Layout((Group("mamba", 4, inner_states=inner_states),), 9, 4, "align", prefix_caching=True)
    life = Life("r0", (("a", 10),), 1)
    life.settled = 10
    table = [0, 0, 0]
    table[column] = 5
    view: Any = SimpleNamespace(
        published={5: Key(0, 4, life.truth.tag(4))}, labels=None, tables={"r0": [table]}, pins={}, copies={}, aliases={}
    )
    reference = SimpleNamespace(lives={"r0": life}, ledger=None)
    context: Any = SimpleNamespace(
        layout=layout, reference=reference, facts=None, step=0, event_index=0, event_kind="step"
    )
    assert (Hash().on_view(context, view) is None) == silent
