"""hybridfuzz merge: unite the folders of independent campaigns."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """\
The folders hold campaigns on one version of one target: the shards of one seed
(`--seed 7 --shard 1/8`), or campaigns with different seeds. The
order does not matter, and a folder that comes twice counts once. ALL may be the
result of an earlier merge: it is extended.
Exit status: as for `hybridfuzz fuzz`; 5 if a campaign did not end or a shard is
missing and nothing new was found.
example: hybridfuzz merge out-1 out-2 out-3 -o all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("folders", nargs="+", metavar="OUT", help="output folder, or its URL")
    parser.add_argument(
        "--known",
        type=Path,
        metavar="FILE",
        help="list of known bugs, which do not make it fail (default: ALL/known.toml)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="ALL", help="folder or URL for the result")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write a JUnit file")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="write a SARIF file for code-scanning pages")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Merge, report."""
    from contextlib import ExitStack
    from datetime import UTC, datetime

    from ...campaign.resume import exclusive
    from ...campaign_events import CampaignEnded
    from ...exit_status import CLEAN, INTERRUPTED, VACUOUS
    from ...group.findings.remote_output import fetched, is_url, local_path
    from ...group.merge import merge_folders
    from ...units import plural
    from ..outputs import console, junit, sarif
    from ..outputs import summary as last_line
    from ..outputs.handler import CampaignInfo, Dispatcher
    from .common import ours
    from .fuzz import known_bugs, status
    from .where import folder, output_at

    with ExitStack() as stack:
        out, _ = stack.enter_context(output_at(folder(options.out)))
        assert out
        folders = [stack.enter_context(fetched(one)) if is_url(one) else local_path(one) for one in options.folders]
        known = known_bugs(options.known, out)
        stack.enter_context(exclusive(out))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        summary, missing, damaged = merge_folders(folders, out, known, now)
        screen = console.Console(console.Terminal(stderr=options.json))
        screen.line(f"merged {plural(len(summary.merged), 'campaign')} into {out}: {', '.join(summary.merged)}")
        for name in missing:
            screen.line(f"warning: {name} is missing", "yellow")
        for line in damaged:
            screen.line(f"warning: {line}", "yellow")
        makers = (junit.make_handler, sarif.make_handler, ours("reports.handler").make_handler, last_line.make_handler)
        dispatcher = Dispatcher([handler for make in makers if (handler := make(options))])
        info = CampaignInfo(target=summary.target, version=summary.version, seed=summary.seed, out=out, known=known)
        dispatcher.start(info)
        screen.ended(summary)
        dispatcher.deliver([CampaignEnded(summary)])
        dispatcher.shutdown()
    result = status(summary)
    incomplete = missing or summary.exit_reason in (None, "error")
    return INTERRUPTED if result in (CLEAN, VACUOUS) and incomplete else result
