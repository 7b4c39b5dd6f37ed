"""Sets of SGLang's requests have one order, wherever the requests lie in memory."""

from __future__ import annotations

import pytest

from hybridfuzz.harness.tell.script import run_program
from hybridfuzz.targets.base.registry import prepare

PROGRAM = """
from hybridfuzz.targets.sglang import stubs
stubs.install()
from hybridfuzz.targets.sglang.compat import tree_api
from sglang.srt.managers.schedule_batch import Req
{first}
orders, kept = set(), []
for _ in range(40):
    requests = [Req.__new__(Req) for _ in range(6)]
    kept.append(requests[::2])
    orders.add(tuple(requests.index(one) for one in set(requests)))
print("orders:", len(orders))
"""


@pytest.mark.engine
@pytest.mark.parametrize(("first", "is_one"), [("", False), ("tree_api.order_sets()", True)])
def test_the_order_does_not_depend_on_addresses(first: str, is_one: bool) -> None:
    output = run_program(PROGRAM.format(first=first), prepare("sglang@0.5.23", print))
    assert "orders: " in output
    assert ("orders: 1\n" in output) == is_one
