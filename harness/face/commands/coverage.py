"""hybridfuzz coverage: measure which lines of an engine's cache code random traces reach."""

from __future__ import annotations

import argparse
from contextlib import suppress

from ...defaults import REDUCE_SECONDS, TRIAGE_SHARE

EXAMPLES = """\
A campaign of `fuzz` without a self-test, with the lines of the target's cache modules recorded
(docs/reference/coverage.md). Output in DIR/coverage: coverage.json, coverage.lcov, html/.
Exit: as fuzz, and 3 if no violation was found and a module is below --fail-under.
example: hybridfuzz coverage --target vllm@0.33.0 --fixes builtin --traces 300 --fail-under 50
"""


def percentage(text: str) -> float:
    """Return a number from 0 to 100. Raises UnitError."""
    from ...units import UnitError

    with suppress(ValueError):
        if 0 <= float(text) <= 100:
            return float(text)
    raise UnitError(text, "a percentage from 0 to 100")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of fuzz that matter here, and --fail-under."""
    from . import fuzz

    fuzz.add_limits(parser)
    fuzz.add_folder(parser)
    parser.add_argument("--fail-under", type=percentage, metavar="N", help="exit with 3 if a module is below N percent")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output at the end")
    unused = dict.fromkeys(("cluster", "shard", "against", "events", "junit", "sarif"))
    parser.set_defaults(
        changed_since=None, coverage=True, no_canary=True, reduce=REDUCE_SECONDS, source="seeded", **unused
    )
    parser.set_defaults(triage_share=TRIAGE_SHARE)


def run(options: argparse.Namespace) -> int:
    """Run the campaign; it ends with the report."""
    from . import fuzz

    return fuzz.run(options)
