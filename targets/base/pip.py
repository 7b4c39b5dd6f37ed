"""Runs pip, and explains a failure in one line to users who did not call pip themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from .protocol import TargetError

Progress = Callable[[str], None]

NO_SPACE = re.compile(r"No space left on device|Errno 28|Disk quota exceeded")
_NO_NETWORK = re.compile(
    r"NewConnection|ConnectionError|ConnectTimeout|ProxyError|Max retries|"
    r"name resolution|timed out|refused"
)
_STEP = re.compile(r"(Collecting|Downloading|Installing collected packages)[: ]+(\S+)(?: \((.+)\))?")
_RAW = re.compile(r"Progress (\d+) of (\d+)")


class Ended:
    """A command that has ended."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output

    @property
    def last_line(self) -> str:
        """The last line that starts with ERROR, else the last line that is not empty."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        return (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")


def run(command: list[str], on_line: Callable[[str], None] = lambda line: None) -> Ended:
    """Run a command, with both output streams merged; call `on_line` for each line."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            on_line(line)
    return Ended(process.returncode, "".join(lines))


def pip(
    python: Path,
    arguments: list[str],
    what: str,
    progress: Progress,
    *,
    into: Path | None = None,
) -> None:
    """Run an interpreter's pip. TargetError if it fails.

    `what` names the thing that is installed or downloaded. `into` is the interpreter of another environment to act on.
    """
    tenths = 0

    def on_line(line: str) -> None:
        nonlocal tenths
        if (raw := _RAW.match(line)) and int(raw[2]):
            if (now := 10 * int(raw[1]) // int(raw[2])) > tenths:
                progress(f"{what}: {now}0 % of {int(raw[2]) / 1e6:.0f} MB")
            tenths = now
        elif step := _STEP.search(line):
            detail = f" ({step[3]})" if step[3] and "requirements" not in step[3] else ""
            progress(f"{what}: {step[1].lower()} {step[2].rstrip(',')}{detail}")

    options = ["--no-input", "--disable-pip-version-check", "--retries", "1"]
    options += ["--progress-bar", "raw" if _knows_raw(python) else "off"]
    other = ["--python", str(into)] if into else []
    ended = run([str(python), "-m", "pip", *other, arguments[0], *options, *arguments[1:]], on_line)
    if ended.code:
        raise TargetError(explain(ended, what))


def _knows_raw(python: Path) -> bool:
    """Return True if pip can report progress in plain numbers (24.1 and later)."""
    if str(python) == sys.executable:
        number = version("pip")
    else:
        number = run([str(python), "-m", "pip", "--version"]).output.removeprefix("pip ")
    match = re.match(r"(\d+)\.(\d+)", number)
    return match is not None and (int(match[1]), int(match[2])) >= (24, 1)


def explain(ended: Ended, what: str) -> str:
    """Return a line that explains pip's output, with a remedy."""
    found = re.search(r"from versions: (.+)\)", ended.output)
    if NO_SPACE.search(ended.output):
        return f"no space left for {what}: free some space, or set HYBRIDFUZZ_CACHE to a folder on a larger disk"
    if found and found[1] != "none":
        versions = found[1].split(", ")
        return f"{what} does not exist for this Python; newest available: {', '.join(versions[-8:])}"
    if _NO_NETWORK.search(ended.output):
        return f"cannot download {what}: no package index can be reached; check the network and `pip config list`"
    if found:
        return f"cannot download {what}: the package index has no wheel of it for this machine"
    return f"cannot install {what}: {ended.last_line}"


def releases_between(python: Path, name: str, first: str, last: str) -> list[str]:
    """Return the final releases of a distribution from `first` to `last` in pip's package index, oldest first.

    TargetError if the index cannot be reached, or lacks one of the two.
    """
    ended = run([str(python), "-m", "pip", "index", "versions", "--disable-pip-version-check", name])
    if ended.code:
        raise TargetError(explain(ended, f"the list of releases of {name}"))
    return versions_between(ended.output, first, last)


def versions_between(listing: str, first: str, last: str) -> list[str]:
    """Return the same from the output of `pip index versions`. Pre-releases are left out."""
    found = re.search(r"Available versions: (.+)", listing)
    named = re.findall(r"(?<![\w.])\d+(?:\.\d+)*(?=,|$)", found[1]) if found else []
    releases = sorted(named, key=version_numbers)
    for wanted in (first, last):
        if wanted not in releases:
            raise TargetError(f"there is no release {wanted}; the package index lists {', '.join(releases[-12:])}")
    if version_numbers(first) > version_numbers(last):
        raise TargetError(f"{first}..{last}: name the older release first")
    return releases[releases.index(first) : releases.index(last) + 1]


def version_numbers(release: str) -> tuple[int, ...]:
    """Return the sort key of a release: 0.5.9, 0.5.12, 0.5.12.post1."""
    return tuple(map(int, re.findall(r"\d+", release)))
