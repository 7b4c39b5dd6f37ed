"""The command line as a process of its own."""

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def error(self) -> str:
        """The only error line."""
        [line] = [line for line in self.err.splitlines() if line.startswith("hybridfuzz: error: ")]
        assert "Traceback" not in self.err
        return line


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hybridfuzz.harness.cli", *map(str, arguments)]


Cli = Callable[..., Ran]
