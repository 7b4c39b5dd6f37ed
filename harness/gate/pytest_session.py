"""The gate's part of a pytest run: collection of the items, and the summary at the end.

Without paths on the command line only the gate runs (an engine's own tests take hours); with paths, both run.
`hybridfuzz::NAME` selects items. Under xdist every process collects the same items and starts a worker of its own; the
controller prints the summary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ...targets.base.protocol import Capabilities, MisfitError, TargetError
from ...targets.base.registry import prepare
from ...targets.base.tested import narrower
from ...targets.base.trace import TraceError
from ..defaults import drawn_seed
from ..group.findings.finding_store import OutputError
from ..judge.state_catalogue import missing_states, required_oracles
from ..quoting import terminal_line
from ..record.changed_lines import ChangedTally, changed_for
from ..tell.changed_words import changed_lines_text, changed_title
from ..tell.github_step_summary import append_section, step_summary
from ..units import plural
from ..workers.worker_client import Stopped
from .allowance import GRACE_SECONDS, SORTING_SECONDS, Allowance, whole
from .causes import Cause, ItemFailure
from .items import Check, GateCollector, TraceItem, as_printed
from .job_summary import failing_at_most, paragraphs
from .packaged_bugs import acknowledged, fixes_for
from .settings import PACKAGED_CORPUS, SettingsError, combine, own_folder
from .verdicts import STOPPED, ItemVerdict, Verdicts, corpus_files, misfit_text

ROOT_ID = "hybridfuzz"
SEARCH = "search/"
"""Beginning of the names of drawn traces."""
KNOWN = "known/"
"""Of items of known bugs."""
PREFIX = "hybridfuzz_"
SHOWN_MAX = 10
CAPABILITIES = "hybridfuzz_capabilities"
"""Key of what a process of xdist tells."""
AIMED_PART = 2
"""One of so many traces of the search is aimed at changed lines."""
SAME_CAUSE = "of the same cause"
"""Pytest's category for failed items that another one stands for."""


def keep_out(config: pytest.Config) -> None:
    """Put pytest's own cache (for --lf) into the user's, where only the gate runs: a checkout stays as it is.

    Before pytest makes it. There is no public way to set what a configuration file may set.
    """
    if not config.pluginmanager.hasplugin("cacheprovider"):  # -p no:cacheprovider
        return
    only_ours = config.args_source is not pytest.Config.ArgsSource.ARGS or all(_is_ours(text) for text in config.args)
    if only_ours and config.getini("cache_dir") == ".pytest_cache":
        config._inicache["cache_dir"] = str(own_folder(config.rootpath) / "pytest")


def _is_ours(argument: str) -> bool:
    return argument.split("::", maxsplit=1)[0] == ROOT_ID


class GateSession:
    """The plugin that is registered once a target is given."""

    def __init__(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "hybridfuzz: a trace of the hybridfuzz gate")
        self.config = config
        options = {
            name.removeprefix(PREFIX): value
            for name, value in vars(config.option).items()
            if name.startswith(PREFIX) and value is not None
        }
        from_controller = getattr(config, "workerinput", {}).get("hybridfuzz_seed")
        try:
            self.settings = combine(options, config.rootpath)
            self.seed = from_controller if from_controller is not None else self._seed()
            engine = prepare(self.settings.target, self._progress)
            seconds = getattr(config, "workerinput", {}).get("hybridfuzz_seconds", whole(self.settings.budget))
            self.allowance = Allowance(seconds)
            self.fixes = fixes_for(self.settings, engine)
            self.launch, since = self.fixes.launch, self.settings.changed_since
            unpatched = self.fixes.unpatched
            self.changed = changed_for(self.settings.target, since, unpatched, self.launch) if since else None
        except (SettingsError, TargetError, TraceError) as error:
            raise pytest.UsageError(f"hybridfuzz: {error}") from None
        self.acknowledged = acknowledged(self.settings.target, self.fixes)
        processes = getattr(config, "workerinput", {}).get("workercount", 1)  # of xdist
        self.verdicts = Verdicts(
            self.settings, self.seed, self.fixes, self.acknowledged, processes, self.changed, self.allowance
        )
        self._tally = ChangedTally(self.changed) if self.changed else None
        self._states: Counter[str] = Counter()
        self._drawn: Counter[str] = Counter()
        """States of the traces that were drawn."""
        self._exercised: Counter[str] = Counter()
        self._reached: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        """Signatures of failures that are known."""
        self._steps = 0
        self._warnings: list[str] = []
        self._failures: list[ItemFailure] = []
        self._misfits: dict[str, list[str]] = defaultdict(list)
        """Reason -> the items about which the gate says nothing."""
        self._only = self._take_arguments()

    def _seed(self) -> int:
        return drawn_seed() if self.settings.seed is None else self.settings.seed

    def _progress(self, text: str) -> None:
        """Print a line: making an environment takes minutes."""
        if reporter := self.config.pluginmanager.getplugin("terminalreporter"):
            reporter.write_line(text)

    def _take_arguments(self) -> list[str]:
        """Remove the ids of traces from the command line's arguments, where pytest expects paths, and return them."""
        config = self.config
        given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
        ours = [text for text in given if _is_ours(text)]
        config.args = [text for text in given if text not in ours]
        return [text.partition("::")[2] for text in ours]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the seed on: a random one is drawn once, not by every process of xdist. Here time is left for causes."""
        node.workerinput["hybridfuzz_seed"] = self.seed
        left = self.allowance.left
        node.workerinput["hybridfuzz_seconds"] = max(left - SORTING_SECONDS, left / 2)

    def pytest_report_header(self) -> list[str]:
        """Return target, profile, seed and budget, for the header; and which symptoms of known bugs hide others."""
        version = f" ({self.launch.version})" if self.launch.version not in ("", self.settings.target) else ""
        lines = [
            f"hybridfuzz: {self.settings.target}{version}, profile {self.settings.profile}, seed {self.seed}, "
            f"budget {self.settings.budget:g} s"
        ]
        bare = sorted({pattern for entry in self.acknowledged if entry.is_bare for pattern in entry.signatures})
        if bare:
            lines.append(f"hybridfuzz: known by signature alone, other bugs with it do not fail: {', '.join(bare)}")
        return lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the traces; -k, -m and --lf then choose among all items. One item stands for an engine that the adapter
        does not fit at all."""
        try:
            traces = self._traces(self.verdicts.search_count)
        except MisfitError as error:
            verdict = ItemVerdict("misfit", misfit_text(error))
            traces, self._only = [("fits", self.config.rootpath, lambda _: verdict)], []
        except Stopped:
            text = f"{STOPPED}: the engine has not started in {self.allowance.seconds:.0f} s"
            late = ItemVerdict("skipped", text, warning=text)
            traces, self._only = [("fits", self.config.rootpath, lambda _: late)], []
        except (TargetError, TraceError) as error:
            raise pytest.UsageError(f"hybridfuzz: {error}") from None
        wanted = [trace for trace in traces if not self._only or any(_within(trace[0], name) for name in self._only)]
        if self._only and not wanted:
            raise pytest.UsageError(f"hybridfuzz: there is no trace {', '.join(self._only)}")
        strict = self.settings.strict
        collector = GateCollector.from_parent(session, name=ROOT_ID, nodeid=ROOT_ID, traces=wanted, strict=strict)
        items[:0] = session.genitems(collector)  # genitems also reports each item to pytest, which counts them

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin to check the known bugs that are among the items, if they run in this process."""
        if not (self.config.option.collectonly or hasattr(self.config, "workerinput")):
            chosen = {item.name for item in session.items if isinstance(item, TraceItem)}
            self.verdicts.begin_checks(entry for entry in self.fixes.entries if f"{KNOWN}{entry.title}" in chosen)

    def _traces(self, count: int) -> list[tuple[str, Path, Check]]:
        """Return (name, file, check) of every item, with `count` traces of the search. Known bugs come last: they are
        checked beside the others."""
        verdicts, root = self.verdicts, self.config.rootpath
        traces: list[tuple[str, Path, Check]] = [
            (name, path, partial(verdicts.replay, path=path)) for name, path in corpus_files(self.settings)
        ]
        plain = count - count // AIMED_PART if self.changed and self.changed.places else count
        traces += [(f"{SEARCH}{index:04}", root, partial(verdicts.search, index=index)) for index in range(plain)]
        traces += [
            (f"aimed/{index:04}", root, partial(verdicts.search, index=index, aims=True))
            for index in range(plain, count)
        ]
        known = [entry for entry in self.fixes.entries if entry.patch or entry.traces]
        known.sort(key=lambda entry: Path(entry.folder).is_relative_to(PACKAGED_CORPUS))
        return [
            *((name, path, partial(verdicts.in_time, check=check)) for name, path, check in traces),
            *((f"{KNOWN}{entry.title}", root, partial(verdicts.check_known, entry=entry)) for entry in known),
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the counts to the report, which xdist sends to the controller."""
        report = yield
        if isinstance(item, TraceItem) and report.when == "call" and item.verdict:
            outcome, state = item.verdict.outcome, item.verdict.state
            early = state == "skipped" and item.verdict.text.startswith(STOPPED)
            report.hybridfuzz = {  # type: ignore[attr-defined]
                "state": STOPPED if early else state,
                "steps": outcome.steps if outcome else 0,
                "exercised": outcome.exercised if outcome else {},
                "reached": outcome.reached if outcome else {},
                "ran": outcome.ran if outcome else None,
                "warning": item.verdict.warning,
                "text": item.verdict.text,
                "failure": msgspec.json.encode(item.verdict.failure).decode() if item.verdict.failure else "",
            }
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a trace's counts to the totals."""
        if counts := getattr(report, "hybridfuzz", None):
            self._states[counts["state"]] += 1
            if not self.config.getoption("lf", False):  # traces that were chosen since they failed show no rate
                self._drawn[counts["state"]] += report.nodeid.startswith(f"{ROOT_ID}::{SEARCH}")
            self._steps += counts["steps"]
            self._exercised.update(counts["exercised"])
            self._reached.update(counts["reached"])
            if self._tally and counts["ran"] is not None:
                self._tally.add(counts["ran"])
            if counts["warning"]:
                self._warnings.append(f"{report.nodeid}: {counts['warning']}")
            if counts["failure"] and report.failed:
                self._failures.append(msgspec.json.decode(counts["failure"], type=ItemFailure))
            if counts["state"] == "known":
                self._known[counts["text"].partition(": ")[0]] += 1
            if counts["state"] == "misfit":
                self._misfits[counts["text"]].append(report.nodeid.removeprefix(f"{ROOT_ID}::"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what the target can do from a process of xdist: this one need not start the engine to say what was
        never reached."""
        if data := getattr(node, "workeroutput", {}).get(CAPABILITIES):
            self.verdicts.take(msgspec.json.decode(data, type=Capabilities))

    def pytest_sessionfinish(self) -> None:
        """Make one failure of the items that fail by one cause, before pytest prints them. Each stays in JUnit."""
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if hasattr(self.config, "workerinput"):
            if known := self.verdicts.known_capabilities:
                self.config.workeroutput[CAPABILITIES] = msgspec.json.encode(known).decode()  # type: ignore[attr-defined]
            return
        if reporter is None:
            return
        causes = [Cause(tuple(items), text) for text, items in self._misfits.items()] if self.settings.strict else []
        if self._failures:
            try:
                causes += self.verdicts.causes(self._failures)
            except TargetError as error:  # the target does not start again after a crash: each item speaks for itself
                self._warnings.append(f"failures are not grouped: {error}")
        failed = {report.nodeid.removeprefix(f"{ROOT_ID}::"): report for report in reporter.stats.get("failed", ())}
        changed = self._tally.result() if self._tally else None
        if self._states and (page := step_summary()):
            try:
                append_section(page, "hybridfuzz", paragraphs(causes, self._states, self._drawn, changed))
            except OutputError as error:
                self._warnings.append(str(error))
        for cause in causes:
            first, *others = (failed[item] for item in cause.items)
            first.longrepr = as_printed(cause.text)
            for report in others:
                reporter.stats["failed"].remove(report)
                reporter.stats.setdefault(SAME_CAUSE, []).append(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what ran, and which oracles and states were never reached."""
        if not self._states:
            return
        states = ", ".join(f"{count} {state}" for state, count in sorted(self._states.items()))
        terminalreporter.section("hybridfuzz", sep="-")
        terminalreporter.write_line(f"{plural(self._states.total(), 'trace')} ({states}), {self._steps:,} steps")
        if line := failing_at_most(self._drawn):
            terminalreporter.write_line(line)
        if late := self._states[STOPPED]:
            terminalreporter.write_line(
                f"{STOPPED}: there was no time for {plural(late, 'trace')} of {self._states.total()} within the budget "
                f"and {GRACE_SECONDS:.0f} s; use pytest -n auto or a faster machine"
            )
        for warning in [*self._warnings, *self._unpatched()]:
            terminalreporter.write_line(f"warning: {warning}")
        for text, items in self._misfits.items():
            silent = f"nothing is known about {plural(len(items), 'trace')}, {items[0]} among them"
            terminalreporter.write_line(f"{text}; {silent}")
        if self._tally:
            changed = self._tally.result()
            for line in (changed_title(changed), *(f"  {one}" for one in changed_lines_text(changed))):
                terminalreporter.write_line(terminal_line(line))
        if not self._reached and (self._misfits or late):
            return
        if missing := self._never_met():
            shown = ", ".join(missing[:SHOWN_MAX]) + (", ..." if len(missing) > SHOWN_MAX else "")
            line = f"never reached, so nothing is known about them ({len(missing)}): {shown}"
            terminalreporter.write_line(f"{line}; raise the budget, or fix less by config")
        if notes := self.verdicts.capabilities.notes:
            terminalreporter.write_line(f"in this version: {'; '.join(notes)}")
        if line := narrower(self.settings.target, self.launch.version, self.verdicts.capabilities):
            terminalreporter.write_line(f"warning: {line}")

    def _unpatched(self) -> Iterator[str]:
        """Yield a line for each patch that does not apply: what changed in its lines is hidden by its bug."""
        for entry in self.fixes.entries:
            if problem := self.fixes.problems.get(entry.title):
                known = sum(
                    count
                    for signature, count in self._known.items()
                    if entry.has_symptom(signature, self.settings.target)
                )
                like = f"with {', '.join(entry.signatures) or 'its evidence'}"
                bug = f"counted as the known bug {entry.title}"
                count = f"{plural(known, 'failure')} {like} {bug}" if known else f"a failure {like} would be {bug}"
                yield terminal_line(f"{problem}; {count}, also if it is a new one in the lines that the patch changes")

    def _never_met(self) -> list[str]:
        capabilities = self.verdicts.capabilities
        required = required_oracles(capabilities, self.settings.overrides)
        oracles = [oracle for oracle in required if not self._exercised[oracle]]
        return [*oracles, *missing_states(capabilities, self._reached, self.settings.overrides)]

    def pytest_unconfigure(self) -> None:
        """End the worker."""
        self.verdicts.close()


def _within(name: str, chosen: str) -> bool:
    return name == chosen or Path(name).is_relative_to(chosen)
