"""The built-in target, which ends its process in its fourth step; after that it cannot be imported any more."""

import os
from pathlib import Path

import fake_targets

FLAG = Path(os.environ["HYBRIDFUZZ_TEST_FLAG"])


def wedge() -> None:
    FLAG.touch()
    os._exit(3)


if FLAG.exists():
    raise OSError("the device does not answer")
FACTORY = fake_targets.Fake(wedge)
