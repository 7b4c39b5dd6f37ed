"""A field that differs between a server's configuration and the one that ran is named, and needs a reason."""

import pytest

from hybridfuzz.targets.base.front_door import Difference, differences, reason_for
from hybridfuzz.targets.base.kits import Behind
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import behind_the_door, front_door

ENGINES = ("sglang", "vllm")
SERVER = {"cache.blocks": 4, "sizes": (1, 2)}
TABLE = (Behind("one", ("cache", "door.lock")), Behind("two", ("sizes",)))


def test_equal_configurations_have_no_difference() -> None:
    assert list(differences(SERVER, dict(SERVER))) == []


@pytest.mark.parametrize(
    ("ran", "found"),
    [
        ({"cache.blocks": 5, "sizes": (1, 2)}, Difference("cache.blocks", "4", "5")),
        ({"cache.blocks": 4, "sizes": (1,)}, Difference("sizes", "(1, 2)", "(1,)")),
        ({"sizes": (1, 2)}, Difference("cache.blocks", "4", "None")),
        ({"cache.blocks": 4, "sizes": (1, 2), "more": 1}, Difference("more", "None", "1")),
    ],
)
def test_each_field_that_differs_is_named(ran: dict[str, object], found: Difference) -> None:
    assert list(differences(SERVER, ran)) == [found]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("cache", "one"),
        ("cache.blocks", "one"),
        ("caches", ""),
        ("door", ""),
        ("door.lock.key", "one"),
        ("sizes", "two"),
    ],
)
def test_a_field_may_differ_only_if_it_or_what_it_is_part_of_is_listed(field: str, reason: str) -> None:
    assert reason_for(TABLE, field) == reason


@pytest.mark.parametrize("engine", ENGINES)
def test_no_field_is_listed_twice(engine: str) -> None:
    table = behind_the_door(engine)
    fields = [one for behind in table for one in behind.fields]
    assert len(fields) == len(set(fields)) > 0
    assert all(reason_for(table, field.rpartition(".")[0]) == "" for field in fields)


def test_an_engine_without_commands_is_refused() -> None:
    assert behind_the_door("hybrid") == ()
    with pytest.raises(TargetError, match="no front door"):
        front_door("hybrid")
