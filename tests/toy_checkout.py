"""A git checkout of the toy target of docs/how-to, in which lines have changed since its only commit, `HEAD`."""

import subprocess
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs/how-to"
TARGET = "python:toy_target:FACTORY"
OLD = "            missing += [index] * (needs - has)\n"
NEW = """\
            more = needs - has
            if more > 500:
                more = 500
            missing += [index] * more
"""


def make(folder: Path) -> None:
    """Make it in a folder."""
    path, text = folder / "toy_target.py", (DOCS / "toy_target.py").read_text()
    path.write_text(text)
    for arguments in (["init", "--quiet"], ["add", "toy_target.py"], ["commit", "--quiet", "-m", "base"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)
    assert text.count(OLD) == 1
    path.write_text(text.replace(OLD, NEW))


def line(words: str) -> int:
    """The number of the only line of the changed file that begins with these words."""
    lines = (DOCS / "toy_target.py").read_text().replace(OLD, NEW).splitlines()
    [number] = [number for number, one in enumerate(lines, 1) if one.strip().startswith(words)]
    return number
