"""hybridfuzz completion: print what makes a shell complete commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """\
bash   hybridfuzz completion bash > ~/.local/share/bash-completion/completions/hybridfuzz
zsh    hybridfuzz completion zsh > DIR/_hybridfuzz, with DIR in $fpath before compinit
fish   hybridfuzz completion fish > ~/.config/fish/completions/hybridfuzz.fish
example: hybridfuzz completion bash
"""
FOLDERS = ("folder", "folders")
FILES = ("trace", "paths", "finding", "path", "what")
"""Arguments that take files; so do options whose type is a path."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("shell", choices=SHELLS, metavar="{bash,zsh,fish}", help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print the script; it is made by shtab of the parser of all commands, which `options.whole` makes."""
    import shtab

    from ...exit_status import CLEAN

    parser = options.whole()
    for action in _actions(parser):
        if action.dest == "target":
            action.complete = shtab.cmd("hybridfuzz targets --names")  # type: ignore[attr-defined]
        elif action.type is Path or action.dest in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest in FOLDERS or getattr(action.type, "__name__", "") == "folder":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))
    return CLEAN


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options and arguments of a parser and of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action
