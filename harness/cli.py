"""`hybridfuzz COMMAND ...`: picks the command, turns every known error into one line and an exit status.

    0  clean        1  violation found        2  usage, configuration or environment
    3  vacuous: a required state or an applicable oracle was never exercised; or blind: the self-test failed
    4  hybridfuzz itself failed               5  interrupted before anything new was found

Only the chosen command's module is imported, and it imports what is heavy when it runs.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from .exit_status import CLEAN, INTERNAL, INTERRUPTED, USAGE
from .quoting import terminal_line
from .standard_streams import NO_SPACE, Elapsed, drop_output, open_standard_streams, outlast_full_disks

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the command."""
ENVIRONMENT = (
    *NO_SPACE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ELOOP,
)  # fmt: skip
"""Errors of the system that no code of ours can cause or mend."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others of the command line are."""

    options: Sequence[str] = ()
    """What a mistyped option may have been."""

    def error(self, message: str) -> NoReturn:
        """End with the status for wrong usage."""
        from .suggestions import did_you_mean

        head, _, words = message.partition("unrecognized arguments: ")
        if words and not head:
            message += did_you_mean(words.split("=")[0].split()[0], self.options)
        self.exit(complain(f"{message} ({self.prog} --help)", USAGE))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is none of the choices, and name them."""
        if action.choices is not None and value not in action.choices:
            from .suggestions import did_you_mean

            known = [str(choice) for choice in action.choices]
            text = f"{value!r}: choose from {', '.join(known)}{did_you_mean(str(value), known)}"
            raise argparse.ArgumentError(action, text)


COMMANDS = {
    "fuzz": "run random traces against a target",
    "coverage": "measure which lines of an engine's cache code traces reach",
    "explore": "cover every trace of a small scope up to a length, with a certificate",
    "replay": "run traces from files",
    "reduce": "shrink a failing trace",
    "verify-fix": "test whether a patch fixes a finding, and what it breaks",
    "known": "add, list and check known bugs",
    "bisect": "find the releases of an engine in which a trace fails",
    "repro": "write a script and a bug report for a failing trace",
    "confirm": "run a finding on a real model, with and without a fix",
    "merge": "unite the folders of independent campaigns",
    "report": "write an HTML page for a campaign or a finding",
    "mutants": "measure how fast each known bug is found (mutants of a target)",
    "targets": "list the targets, or describe one",
    "new-target": "write the skeleton of a target of your own",
    "doctor": "check this machine and installation",
    "cache": "list and clean the folder with engines and their environments",
    "completion": "print what makes a shell complete commands and options",
}
ABOUT_ALL = "completion"
"""The command that is about the arguments of all others."""
EPILOG = """\
Exit status: 0 clean, 1 violation found, 2 usage or environment,
3 inconclusive (vacuous or blind), or a known bug is outdated, 4 internal
error, 5 interrupted, 6 only faults of the target's adapter.
in pytest: pytest --hybridfuzz-target vllm@. --hybridfuzz-budget 60s
example: hybridfuzz fuzz --target hybrid --time 60s
"""


def _module(command: str) -> ModuleType:
    return importlib.import_module(f".face.commands.{command.replace('-', '_')}", __package__)


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the chosen command gets its arguments."""
    return _parsers(chosen)[0]


def _parsers(chosen: str | None, *, whole: bool = False) -> tuple[Parser, Parser | None]:
    """The parser, and that of the chosen command; if `whole`, all commands get their arguments."""
    own = None
    parser = Parser(
        prog="hybridfuzz",
        description="Fuzzes the block caches of hybrid inference engines against an exact reference.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if whole or name == chosen:
            module = _module(name)
            command.epilog = module.EXAMPLES
            module.add_arguments(command)
            own = command if name == chosen else own
            command.add_argument(
                "--profile", default="", metavar="NAME", help="options of a profile in hybridfuzz.toml"
            )
    if own:
        parser.options = list(own._option_string_actions)
    if own and chosen == ABOUT_ALL:
        own.set_defaults(whole=lambda: _parsers(None, whole=True)[0])
    return parser, own


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, that of this process if none is given; returns the exit status."""
    own = arguments is None
    open_standard_streams()
    try:
        if own:
            for number in ENDING:
                signal.signal(number, signal.default_int_handler)  # a campaign replaces this
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without a middle dot prints a question mark
        if not own:
            return run_line(list(arguments or ()))
        elapsed = Elapsed()
        output = outlast_full_disks(elapsed)
        with elapsed.of(" ".join(sys.argv[1:2])):
            status = run_line(sys.argv[1:])
        with suppress(BrokenPipeError):  # the work is done, and its status counts
            sys.stdout.flush()
        if output.lost:  # a result that is lost is no success
            status = complain(f"standard output: {output.lost.strerror}", status or USAGE)
        return status
    except KeyboardInterrupt:  # in the middle of an import, for instance
        return complain("interrupted", INTERRUPTED)
    finally:
        if own:  # the result is settled: a signal during the interpreter's exit does not change it
            for number in ENDING:
                signal.signal(number, signal.SIG_IGN)


def run_line(arguments: Sequence[str]) -> int:
    """Parse, run."""
    if broken := next((word for word in arguments if not _is_unicode(word)), ""):
        return complain(f"{broken!a} is not valid {sys.getfilesystemencoding()}: give a path another name", USAGE)
    first = next((word for word in arguments if not word.startswith("-")), None)
    chosen = first if first in COMMANDS else None
    if first and not chosen:
        from .suggestions import did_you_mean

        return complain(f"there is no command {first!r}{did_you_mean(first, COMMANDS)} (--help lists all)", USAGE)
    parser, command = _parsers(chosen)
    if command is None or not {"-h", "--help"}.isdisjoint(arguments):  # help comes at once
        options = parser.parse_args(arguments)
    else:
        from ..targets.base.trace import TraceError

        try:
            options = parse(parser, command, arguments)
        except TraceError as error:
            return complain(str(error), USAGE)
    if options.version:
        from importlib.metadata import version

        print(f"hybridfuzz {version('hybridfuzz')}")
        return CLEAN
    if options.command is None:
        parser.print_help()
        return USAGE
    return run_command(options)


def parse(parser: Parser, command: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, with the defaults of the options file here. Raises TraceError for a file that is wrong."""
    from .options_file import make_defaults, own_options, profile_entries

    asked = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    asked.add_argument("--profile", default="")
    profile = asked.parse_known_args(arguments)[0].profile
    verb = command.prog.rpartition(" ")[2]
    entries = profile_entries(Path.cwd(), verb, own_options(command), profile)
    configured = entries.pop("target", None)
    repeated = make_defaults(command, entries)
    options = parser.parse_args(arguments)
    for name, values in repeated.items():
        if not getattr(options, name):  # the command line wins
            setattr(options, name, values)
    if getattr(options, "fixes", None) == ["none"]:  # in place of those that the file names
        options.fixes = []
    if configured and "target" in options:
        options.configured_target = str(configured.value)
    return options


def _is_unicode(word: str) -> bool:
    """Return False for an argument whose bytes are no text: it could not be written to a state file."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_command(options: argparse.Namespace) -> int:
    """Run the chosen command; errors become one line on standard error."""
    from ..targets.base.protocol import TargetError
    from ..targets.base.registry import on_device
    from ..targets.base.trace import TraceError
    from .group.findings.finding_store import OutputError

    command = _module(options.command)
    try:
        if "target" in options and options.command != "targets":
            from .face.commands.common import target_of

            options.target = target_of(options)
        if "device" in options:
            options.target = on_device(options.target, options.device)
        status: int = command.run(options)
    except (TargetError, TraceError, OutputError) as error:
        return complain(str(error), USAGE)
    except (BrokenPipeError, SystemExit):  # rich turns the first into the second
        drop_output()
        return USAGE
    except OSError as error:
        if error.errno not in ENVIRONMENT:
            return internal_error(error)
        if error.errno in NO_SPACE:
            drop_output()
        return complain(f"{error.filename or 'standard output or a temporary file'}: {error.strerror}", USAGE)
    except Exception as error:
        return internal_error(error)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the work is done, and its status counts
        drop_output()
    return status


def complain(message: str, status: int) -> int:
    """One line on standard error."""
    print(f"hybridfuzz: error: {terminal_line(' '.join(message.split()))}", file=sys.stderr)
    return status


def internal_error(error: Exception) -> int:
    """Print an error of hybridfuzz itself as one line, and write its traceback to a file."""
    import tempfile
    import traceback

    from .workers.worker_client import InternalError

    if isinstance(error, InternalError):  # of a worker, in its words
        message, details = str(error), error.details
    else:
        message, details = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    first = (message.splitlines() or [""])[0]
    try:
        with tempfile.NamedTemporaryFile("w", prefix="hybridfuzz-", suffix=".log", delete=False) as file:
            file.write(details)
    except OSError:
        print(details, file=sys.stderr)
        return complain(f"internal error: {first} (please report it)", INTERNAL)
    return complain(f"internal error: {first} (traceback in {file.name}; please report it)", INTERNAL)


if __name__ == "__main__":
    sys.exit(main())
