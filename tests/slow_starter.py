"""The built-in target, whose second process of a campaign fails to start; the first one dies in its first trace."""

import os
from pathlib import Path

import fake_targets

FLAG = Path(os.environ["HYBRIDFUZZ_TEST_FLAG"])
STARTS = FLAG.with_suffix(".starts")


def count() -> int:
    with STARTS.open("a") as file:
        file.write("x")
    return STARTS.stat().st_size


if count() == 2:
    raise MemoryError("no room for another engine")
FACTORY = fake_targets.ONCE
