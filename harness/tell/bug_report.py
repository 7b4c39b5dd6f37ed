"""REPORT.md: a bug report in GitHub's Markdown, for a person to check, own and paste into an engine's form.

Its headings are those of the form (`targets/base/issue_form.py`), which says what stands under each: what a client gets
and with which server, the cause, the requests, expected and received. What a maintainer needs later is collapsed.
Everything that comes from the target, the trace or the command line is quoted. The only HTML is that of collapsible
blocks, whose texts are fixed. It is shorter than GitHub's limit for an issue: what does not fit is left out, the script
first, and named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby, pairwise, takewhile
from math import ceil
from typing import NamedTuple

from msgspec import Struct, structs

from ...reference.tokens import CONTINUATION
from ...targets.base.client_script import AGAIN as AGAIN_IN_SCRIPT
from ...targets.base.client_script import RECEIVED
from ...targets.base.client_turn import NOT_SENT
from ...targets.base.deployment import Deployment
from ...targets.base.engine_tests import EngineTest
from ...targets.base.engine_words import in_words
from ...targets.base.issue_form import COMMENT, Form, Part, Section
from ...targets.base.launch import Launch
from ...targets.base.protocol import EngineError
from ...targets.base.repro import Script
from ...targets.base.trace import Abort, Config, Prompt, Resume, Trace, Turn, has_grammar
from ..campaign_summary import Reach, Severity
from ..group.causes.evidence import Place
from ..group.findings.finding_store import replay_command
from ..group.known.cause_text import CauseText
from ..group.known.known_toml import FILES, Known
from ..judge.oracles import client_of, rule_of
from ..judge.oracles.real_model import FIELDS as FIELDS_OF_A_MODEL
from ..judge.verdict import Quoted
from ..judge.violation import Violation
from ..quoting import markdown_code, markdown_fence, markdown_text
from ..record.answers import AGAIN, Answer, Answers
from ..record.history import History
from ..units import listed, plural
from .at_scale import Served
from .client_block import client_lines, needs_timing
from .controls import may_decline
from .explain import Explanation, explain
from .headline import OF_THE_RUN, Headline, headline_of
from .related import RelatedEntry, public_reports
from .scenario import narrate, requests_of, sentence
from .script import CALL, PACKAGE, ScriptVerdict, without_event

NOTHING = "The same requests fail with default settings, too."
SYNCHRONOUS = "synchronous"
"""Of `Reach.scheduling`."""
PASSES = "passes"
FAILS_TOO = "fails, too"
FAILS_OTHERWISE = "fails in another way"
CANNOT_RUN = "cannot run"
FIXES = "fixes"
"""Folder, beside the report, of the patches that the engine has here."""
LENGTH_MAX = 65_000
"""Characters; GitHub refuses an issue of more than 65,536."""
PATCH_LINES_MAX = 300
"""A longer patch is left out."""
PATCH_LINES_SHOWN = 25
"""A longer patch is collapsed."""
SCRIPT_LINES_SHOWN = 80
"""A longer script is collapsed."""
OUTPUT_LINES_SHOWN = 60
"""Of a script that fails in another way than with a plain assertion: trackers ask for the whole traceback."""
PRINTED_LINES_SHOWN = 12
"""Of what another script prints, where that is no table of what clients receive."""
EVENTS_MAX = 100
"""Of a longer scenario the middle is left out."""
ANOTHER_ANSWER = "What shows the failure is an answer that is not that of the same request sent alone to a new server."
SHOWN_BY: Mapping[str, str] = {
    "wrong tokens": ANOTHER_ANSWER,
    "corrupt cache": ANOTHER_ANSWER,
    "hang": "What shows the failure is a request that does not end.",
    "dead engine": "What shows the failure is the exception in the server's log.",
    "failed call": "What shows the failure is the answer to the call, and the exception in the server's log.",
    "leak": "What shows the failure is memory that is in use, by the server's log or metrics, when no request runs.",
}
"""By what a client gets."""
UNSEEN_EFFECT = "corrupt cache"
"""An effect that no client sees at once: a title then has the cause alone."""
SHOWN_IN_COMMENT = ("Reproduction", "Expected and received")
"""Headings of a comment whose text is not collapsed."""
RIGHT = "right"
NO_ANSWER = "**no answer: the engine has ended**"
"""Of a client whose request was not over when the engine raised."""
TOO_MANY = "More tokens than asked for"
"""What a client gets that receives all that it should, and more."""
SETTINGS_IN_TITLE = 2
WHAT_MAX = 60
"""Characters; what a client gets that is longer stands in no title beside a cause."""
TITLE_MAX = 200
"""Characters; a longer title does without the class of the model. GitHub takes 256."""
STEM = 5
"""Letters by which words are compared."""
FLAG_LENGTH_MAX = 60
"""A longer flag is named without its value."""
TOKENS_SHOWN = 12
TOKENS_BEFORE = 3
"""Tokens of a long list before the first one that is wrong."""
PLACES_SHOWN = 5
ISSUE = re.compile(r"\\#(?=\d)")
GREEDY = re.compile(r"greedy tokens (\[.*?\]), alone (\[.*?\]);")
"""In a line that a script prints for a forward."""
ROUNDING = 1e-4
"""Log-probabilities that differ by less do so because sums have another order."""
DIFFER = re.compile(r"log-probabilities differ from the same tokens alone by ([\d.e+-]+)")
"""In such a line, too."""


class OtherRun(Struct, frozen=True):
    """The trace on one implementation of several.

    result     `PASSES`, how it fails, or why it cannot run
    by_script  True if the result is that of the script, since the trace cannot run
    """

    title: str
    default: bool
    current: bool
    result: str
    by_script: bool = False


class SecondPatch(Struct, frozen=True):
    """A second packaged patch. With the first patch alone the script fails by another defect, with both it passes."""

    title: str
    text: str
    script: ScriptVerdict


class TriedFix(Struct, frozen=True):
    """A patch that was tried.

    source  where it comes from, in words
    places  lines of the engine that it changes: "path:line"
    result  the trace with the patch: `PASSES`, how it fails, or why it cannot run
    script  the script with the patch, None without a script
    test    the test of the engine's own tree with the patch, None without one
    second  the second patch, None if none is needed or none was found
    functions  those that these lines are in: "Class.method"
    """

    text: str
    source: str
    result: str
    script: ScriptVerdict | None = None
    test: ScriptVerdict | None = None
    places: Sequence[str] = ()
    second: SecondPatch | None = None
    functions: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """True if the trace passes, and the script and the test if there are any."""
        return self.result == PASSES and all(one.status == 0 for one in self._ran)

    @property
    def passes_script(self) -> bool:
        """True if the script passes, and the test if there is one, and the trace no longer fails like this."""
        is_other = self.result == PASSES or self.result.startswith(FAILS_OTHERWISE)
        return is_other and bool(self._ran) and all(one.status == 0 for one in self._ran)

    @property
    def _ran(self) -> list[ScriptVerdict]:
        return [one for one in (self.script, self.test) if one]


class ReproCase(Struct, frozen=True):
    """The content of a report.

    answers   of a run to the end; none if there was no run
    runs      the trace on each implementation that the engine has, () if it has one
    versions  package -> version in the target's environment, and "Python"
    system    operating system and architecture
    collected  what the engine's own tool says of its environment, "" without one
    usual     values of options that need no mention
    controls  runs that differ from the trace in one factor, which concerns the cause, and pass
    reductions  those with one request fewer, or other lengths
    models    the trace on other models: `PASSES`, how it fails, or why it cannot run
    places    suspicious functions of the engine, most suspicious first; () if they were not computed
    related   the known bug that lists the trace or is recognized, if there is one
    script    without one, the report shows how to replay the trace
    test      the script as a test of the engine's own tree, None if it was not asked for; `tested`: its verdict
    served    the server that the trace stands for, None where nobody asked
    fix       a patch and what the script and the trace do with it, None without a patch
    severity  how much it matters, None if it was not measured
    fixes     known bugs whose patches the engine has here: without them the trace meets one of these first
    shown_as  what clients get in other findings of the same cause, which have no report of their own
    is_explained  True if it passes with all packaged patches, and no single known bug accounts for it
    """

    spec: str
    launch: Launch
    deployment: Deployment
    trace: Trace
    history: History
    violation: Violation
    answers: Answers = Answers()
    runs: Sequence[OtherRun] = ()
    versions: Mapping[str, str] = {}
    system: str = ""
    collected: str = ""
    controls: Sequence[str] = ()
    reductions: Sequence[str] = ()
    models: Mapping[str, str] = {}
    usual: Mapping[str, str] = {}
    places: Sequence[Place] = ()
    related: RelatedEntry | None = None
    script: Script | None = None
    verdict: ScriptVerdict | None = None
    test: EngineTest | None = None
    tested: ScriptVerdict | None = None
    fix: TriedFix | None = None
    severity: Severity | None = None
    fixes: Sequence[Known] = ()
    served: Served | None = None
    shown_as: Sequence[str] = ()
    is_explained: bool = False

    @property
    def server(self) -> Deployment:
        """The server of the trace, with the sizes in which the requests were seen to fail."""
        return self.served.deployment if self.served and self.is_served else self.deployment

    @property
    def told(self) -> Answers:
        """The answers that are told. For a library they come from stand-in layers, those of a script from real ones:
        none if the script shows the failure."""
        return Answers() if _is_library(self) and self.verdict and self.verdict.promised else self.answers

    @property
    def is_served(self) -> bool:
        """False if the requests were not seen to fail in the lengths of a server."""
        return self.served is None or bool(self.served.tried) or not self.served.deployment.scale

    @property
    def has_server(self) -> bool:
        """True if a server can be named: one takes the requests, in its lengths, and a released model is like this."""
        return self.is_served and not self.server.unserved

    @property
    def release(self) -> str:
        """The engine with its version, as its tracker names it."""
        return self.deployment.release or f"{self.deployment.title} {self.launch.version}".strip()

    @property
    def crashes(self) -> bool:
        """True if the engine raises: every client gets an error then, and no rule has to be told."""
        return self.violation.oracle == "CRASH"

    @property
    def cause(self) -> CauseText | None:
        """The text of the known bug that this failure is, None if it is none or has no text."""
        return self.related.cause if self.related else None

    @property
    def gpu(self) -> str:
        """What was seen on a GPU, as the text of the cause has it, "" if it does not say."""
        return self.cause.fields.get("GPU", "") if self.cause else ""

    @property
    def form(self) -> Form:
        """The form of the tracker; of a defect that is public already, that of a comment."""
        return COMMENT if self.cause and self.cause.same else self.deployment.form

    @property
    def title(self) -> str:
        """What a client gets, with which settings and why, and the class of the model if a state layer is wrong: only
        then is the model known to matter."""
        headline, current = self.headline, next((run for run in self.runs if run.current), None)
        reach = self.severity.reach if self.severity else None
        flags = _flags(self) if reach else list(headline.settings)
        asked = [words for words in headline.asked if not any(words.removesuffix("s") in flag for flag in flags)]
        needs = [*flags, *asked]
        if self.cause:  # the settings that it names; without any, the one that is needed most
            told = " ".join([self.cause.body, *self.cause.fields.values()])
            needs = [one for one in needs if _is_named(one, told)] or needs[:1]
            needs = [one for one in needs if not _is_named(one, self.cause.title)]
        needs = [one.partition(" with ")[2] or one for one in needs[:SETTINGS_IN_TITLE]]
        usual = " with default settings" if reach and not reach.needs else ""
        where = f" with {listed(needs)}" if needs else usual
        kind = self.deployment.model_in_title or "hybrid model"
        kind = kind if self.violation.group_kind == "mamba" or not self.deployment.has_sizes else ""
        on = current.title if current and any(run.result == PASSES for run in self.runs) else ""
        on = "" if self.cause and on and on.split(" ")[0] in self.cause.title else on
        what = self.error or self.what
        said = f"{self._when(what)}{where}"
        if self.cause:
            events = headline.events if _adds_words(headline.events, self.cause.title) else ""
            told = f"{' '.join(filter(None, (what, events)))}{where}"
            cause = self.cause.title
            is_of_a_client = not self.severity or self.severity.effect != UNSEEN_EFFECT or _shows_tokens(self)
            said = f"{told}: {_in_a_sentence(cause)}" if len(what) <= WHAT_MAX and is_of_a_client else f"{cause}{where}"
        last = ", ".join(filter(None, (kind, on)))
        whole = f"{said} ({last})" if last else said
        return whole if len(whole) <= TITLE_MAX else said

    @property
    def situation(self) -> str:
        """What a client gets, and when."""
        return self._when(self.what)

    def _when(self, what: str) -> str:
        return " ".join(filter(None, (what, _circumstances(self))))

    @property
    def what(self) -> str:
        """What a client gets, in the engine's words: what the script shows, where that is wrong tokens, else what the
        run does."""
        told = self.verdict.told if self.verdict and self.verdict.promised else ()
        greedy = [found.groups() for line in told if (found := GREEDY.search(line))]
        received = [found for line in told if (found := RECEIVED.fullmatch(line)) and found["expected"]]
        is_seen = bool(received) and "wrong tokens" in (self.script.promise if self.script else "")
        if is_seen and all(one["name"].startswith(AGAIN_IN_SCRIPT) for one in received):
            return "Wrong tokens from a prefix-cache hit"
        if is_seen and all(_is_longer(one["received"], one["expected"]) for one in received):
            return TOO_MANY
        if is_seen or any(one != other for one, other in greedy):
            return "Wrong tokens"
        # A library raises in the process of its caller: nothing ends with it.
        what = self.declined + self.headline.what.removeprefix("The engine crashes with " if self.engine_lives else "")
        return in_words(what, self.deployment.phrases)

    @property
    def declined(self) -> str:
        """ "POST /x fails with ", if the engine answers the call that raises with an error and lives on; else ""."""
        call = self.deployment.declines.get(self.violation.event_kind, "") if self.crashes else ""
        return f"{call} fails with " if call else ""

    @property
    def engine_lives(self) -> bool:
        """True if nothing ends with what is raised: the engine answers the call with an error, or is a library."""
        return bool(self.declined) or _is_library(self)

    @property
    def error(self) -> str:
        """What the engine raises, with its message; "" if it raises nothing, or the message is long."""
        error = self.violation.details.get("error") if self.crashes and not _is_told_by_us(self) else None
        told = error.text if isinstance(error, Quoted) else ""
        is_short = 0 < len(told) <= WHAT_MAX and told.partition(":")[2].strip()
        return f"{self.declined}{told}" if is_short else ""

    @property
    def headline(self) -> Headline:
        """Title and first paragraph."""
        deployment, reach = self.deployment, self.severity.reach if self.severity else None
        return headline_of(
            self.trace, self.history, self.violation, self.told.rows, deployment.calls,
            nouns=deployment.nouns,
            is_synchronous=bool(reach and reach.scheduling.get(SYNCHRONOUS)),
            has_numbers=not (self.told.variation or _shows_tokens(self) or _prints_tokens(self)),
        )  # fmt: skip


def shown_as(defect: Sequence[ReproCase]) -> list[str]:
    """Return how other findings of a cause show, each once, and not as the first one does."""
    found = dict.fromkeys(f"{one.what} {_circumstances(one)}".strip() for one in defect)
    return [*found][1:]


def _circumstances(case: ReproCase) -> str:
    """Return when it fails, in words: of a library, after which of its calls."""
    return case.headline.circumstances if case.deployment.has_sizes else case.headline.events


def _is_longer(received: str, expected: str) -> bool:
    """Return True if a client receives all that it should, and more behind it: lists, as scripts print them."""
    return received.startswith(f"{expected.removesuffix(']')}, ")


def _adds_words(phrase: str, title: str) -> bool:
    """Return True if a phrase has a word of some length whose stem a title has not."""
    stems = [word[:STEM].lower() for word in re.findall(r"\w+", phrase) if len(word) >= STEM and word != "after"]
    return any(stem not in title.lower() for stem in stems)


def _is_named(setting: str, text: str) -> bool:
    """Return True if a text has a setting: its flag, or the name that is its value."""
    flag, *value = setting.split(" ")
    words = [flag, *value[-1:]] if flag.startswith("--") else [setting.removesuffix("s")]
    return any(word.lower() in text.lower() for word in words)


def _in_a_sentence(title: str) -> str:
    """Return a title for the middle of a sentence: names keep their first letter."""
    first, second = title[:1], title[1:2]
    return first.lower() + title[1:] if second.islower() or second == " " else title


def report(case: ReproCase) -> str:
    """Return the text of REPORT.md."""
    for with_script in (True, False):
        text = "\n".join(_lines(_Page(case, with_script))) + "\n"
        if len(text) <= LENGTH_MAX:
            return text
    note = "\n\n(Cut: longer than an issue may be.)\n"
    return text[: LENGTH_MAX - len(note)].rpartition("\n")[0] + note


class _Page(NamedTuple):
    """A case, and what of it is written."""

    case: ReproCase
    with_script: bool


OWNER = """\
> To do before it is filed, by a person who answers for it; then remove these lines:
>
> - [ ] Run the script.
> - [ ] Read the code that it is about.
> - [ ] {}
{}>
> In hybridfuzz it is {}.
"""
SEARCH = "Search the issues{}."
COMPARE = "Read {}: is it still open, and does this add to it?"
ONE_REPORT = """\
> - [ ] File one report of this cause. It also shows as {}: that is the same defect.
"""
REREAD = """\
> - [ ] Read the public reports named below again: what is said of them dates from {}.
"""
ATTACH = """\
> - [ ] Attach `repro.py`, or put it into a gist and link it where this text calls it attached.
"""
TESTED = """\
> - [ ] Attach `{}`, too, or remove its row from the table of the patch.
"""
ON_A_GPU = """\
> - [ ] Run it on a GPU (`hybridfuzz repro --kind engine` writes a script), or remove what is said of one.
"""
EXPLAINED = """\
> - [ ] It passes with all packaged patches, and no single one accounts for it: is it one of these defects, or several?
"""
SAME = "The defect that this {} is about also occurs in {}. This comment adds: {}."
NOTHING_NEW = """\
**Nothing to add.** This is the defect of {}, which says as much as this report: do not file it. What was run is below.
"""


def _ours(case: ReproCase) -> str:
    """Return what hybridfuzz calls a failure, and the command that replays it."""
    known = ""
    if case.related:
        reason = "" if case.cause else f", {re.sub(ISSUE, '#', markdown_text(case.related.reason)).rstrip('.')}"
        known = f", known as {markdown_code(case.related.name)}{reason}"
    again = f"replayed by {markdown_code(_replay(case).removeprefix('$ '))}"
    other = (
        f". With the patch its trace {OTHER_DEFECT}"
        if case.fix and not case.fix.good and case.fix.passes_script
        else ""
    )
    return f"{markdown_code(case.violation.signature)}{known}, {again}{other}"


def _lines(page: _Page) -> Iterator[str]:
    case = page.case
    form, same = case.form, case.cause.same if case.cause else ""
    is_attached = case.script and (case.script.scenario or not page.with_script)
    before, title = form.title, case.title
    if same and case.cause:
        what = "Comment on" if case.cause.fields.get("adds") else "Nothing to file, known as"
        before, title = f"{what} {same}: ", case.cause.title
    yield f"# {before}{markdown_text(title)}\n"
    to_read = COMPARE.format(same) if same else SEARCH.format(_search(case))
    is_cited = bool(case.cause and "#" in case.cause.public)
    others = [one for one in (case.related.others if case.related else ()) if one != case.violation.signature]
    also = [
        ONE_REPORT.format(listed([markdown_code(one) for one in others])) if others else "",
        REREAD.format(SEARCHED) if is_cited else "",
        ATTACH if is_attached else "",
        TESTED.format(case.test.path) if case.test and not case.test.part and case.fix and case.fix.test else "",
        ON_A_GPU if case.gpu else "",
        EXPLAINED if case.is_explained else "",
    ]
    adds = case.cause.fields.get("adds", "") if case.cause else ""
    if not same or adds:
        yield OWNER.format(to_read, "".join(also), _ours(case))
    if same:
        kind = "pull request" if case.cause and f"PR {same} " in case.cause.public else "issue"
        yield f"{SAME.format(kind, markdown_text(case.release), adds) if adds else NOTHING_NEW.format(same)}\n"
    for section in form.sections:
        lines = list(_section(section, page))
        # Who reads a comment knows the defect: what it adds is the reproduction.
        is_known = bool(same) and section.heading not in SHOWN_IN_COMMENT
        heading, below = section.heading or "What was seen here", lines[1:] if section.heading else lines
        yield from _collapsed(heading, below) if is_known else lines


def _section(section: Section, page: _Page) -> Iterator[str]:
    """Yield a section of the form; of several parts under one heading each but the first has a smaller one."""
    found = {part: list(PARTS[part](page)) for part in section.parts}
    if section.parts and not section.text and not any(found.values()):
        return
    if section.heading:
        yield f"## {section.heading}\n"
    if section.text:
        yield f"{section.text}\n"
    written = [part for part, lines in found.items() if lines]
    for part in written:
        if part in HEADINGS and part != written[0] and HEADINGS[part] != section.heading:
            yield f"### {HEADINGS[part]}\n"
        yield from found[part]
        yield ""


HEADINGS: Mapping[Part, str] = {
    "server": "Server",
    "cause": "Cause",
    "reproduction": "Reproduction",
    "expected": "Expected and received",
    "more": "More",
}


def _bug(page: _Page) -> Iterator[str]:
    """Yield what a client gets, and what has to be set for it."""
    case = page.case
    client = case.cause.fields.get("client", "") if case.cause else ""  # Markdown of ours
    told = markdown_text(case.what if client else case.situation)
    # The cause says what follows; the run then adds only what one of its clients sees.
    impact = case.headline.impact if not client or case.headline.impact.startswith(OF_THE_RUN) else ""
    if case.crashes and case.engine_lives:
        impact = ""  # no other request is lost with it
    more = markdown_text(f"{'' if client and case.crashes else impact} {_shown(case)}".strip())
    if client and case.severity and case.severity.effect == UNSEEN_EFFECT and not _shows_tokens(case):
        more, client = f"{more} By the source: {client}.".lstrip(), ""  # no client of this run has seen it
    if client.lower().startswith(told.lower()):
        told = f"{client[0].upper()}{client[1:]}"
    elif ":" in client and "; " in client:  # a list of what each kind of client gets
        more = f"{more} By the source: {client}.".lstrip()
    elif client:
        told += f". {client[0].upper()}{client[1:]}" if ":" in client else f": {client}"
    yield f"{told}. {more}".rstrip() + "\n"
    if when := list(_when(case)):
        yield "**When it happens**\n"
        yield from (f"* {one}" for one in when)
        yield ""
    if case.shown_as:
        yield "**The same defect shows also as**, in other runs with other requests:\n"
        yield from (f"* {markdown_text(one)}" for one in case.shown_as)
        yield ""
    if case.fixes:
        yield "**Run with patches.** Without them the scenario meets another bug first; the patches are in "
        yield f"{markdown_code(f'{FIXES}/{FILES}')}:\n"
        yield from (f"* {markdown_code(f'{one.title}.patch')}: {markdown_text(one.reason)}" for one in case.fixes)
        yield ""


def _when(case: ReproCase) -> Iterator[str]:
    """Yield the clauses of a list: what triggers the failure by the source, in the words of its cause; what was run:
    the settings without which it passes, other implementations and models."""
    if case.cause and (needs := case.cause.fields.get("needs", "")):
        yield f"It needs {needs.rstrip('.')} (read in the source)."
    elif (
        case.cause and case.cause.fields.get("client", "") and (here := _circumstances(case))
    ):  # else `_bug` begins with it
        yield f"The reproduction below fails {markdown_text(here)}."
    # A call that is refused without a setting does not show that it is needed.
    is_told = (case.deployment.command or not case.cause) and not may_decline(case.trace)
    if case.severity and case.severity.reach and is_told:
        reach = _as_served(case.severity.reach, case.server)
        given = [words.removesuffix("s") for words in case.headline.asked]  # without it they would be other requests
        # Beside a cause each is told with what that needs; otherwise the table of controls is enough.
        by_table = not case.cause
        told = [
            one
            for one in reach.needs
            if any(words in one for words in given) or (by_table and _passes_without(one, case))
        ]
        measured = _settings_needed(reach, case.deployment.scheduling, told, only_flags=bool(case.cause))
        if words := " ".join(measured):
            yield words
    if case.deployment.reached:
        yield f"Public functions that get there (read in the source): {'; '.join(case.deployment.reached)}."
    yield from _implementations(case)
    yield from _models(case)
    if gpu := case.gpu:
        yield f"On a GPU (run earlier, not by the script below): {gpu}."


def _passes_without(setting: str, case: ReproCase) -> bool:
    """Return True if a control is a run without a setting, whatever its value is."""
    name = setting.partition(" ")[0]
    return any(re.search(rf"without {re.escape(name)}(?![\w-])", control) for control in case.controls)


def _settings_needed(
    reach: Reach, scheduling: Sequence[str], told: Sequence[str], *, only_flags: bool
) -> Iterator[str]:
    """Yield sentences about the settings without which the same requests do not fail: each was run. `scheduling`: flags
    that choose how requests are scheduled. `told`: settings that are told elsewhere. `only_flags`: a cause tells what
    else it needs."""
    kinds = [kind for kind, failed in reach.scheduling.items() if not failed]
    tried = [
        one
        for one in reach.needs
        if not (one in reach.untried or one in told or (kinds and one in scheduling))
        and (one.startswith("-") or not only_flags)
    ]
    if not reach.needs:
        yield NOTHING
    elif tried:
        told = " or ".join(f"without {_setting(one)}" for one in tried)
        others = "; other requests may" if only_flags else ""
        yield f"Run {told}, the same requests do not fail{others}."
    if reach.untried and not only_flags:
        names = listed([_setting(one) for one in reach.untried])
        yield f"{names} {'were' if len(reach.untried) > 1 else 'was'} set in all runs."
    if kinds:
        yield (
            f"With {' or '.join(kinds)} scheduling these requests do not fail in this order; whether others do was "
            "not looked for."
        )
    if not reach.is_complete:
        yield "Not all other settings were tried."


def _setting(name: str) -> str:
    """Return a setting: a flag as code, what our settings call otherwise as text."""
    return markdown_code(name) if name.startswith("-") else markdown_text(name)


def _models(case: ReproCase) -> Iterator[str]:
    """Yield a clause on which models the trace fails: what was run, and nothing else."""
    if not case.models:
        return
    results = {case.deployment.model_words: FAILS_TOO, **case.models}
    # A model that refuses the call does not pass, and is not told from one that does.
    by_result = {"fails": FAILS_TOO} if may_decline(case.trace) else {"fails": FAILS_TOO, "passes": PASSES}
    cut, told = _same_words([*results]), []
    for words, result in by_result.items():
        if found := [" ".join(model.split(" ")[cut:]) for model, each in results.items() if each == result]:
            told.append(f"{words} with {listed(found)}")
    what = "State layers" if case.deployment.is_stood_in else "Models"
    how = ", as stand-ins, without model weights" if case.deployment.is_stood_in else ""
    yield f"{what}, each run with the same requests{how}: {markdown_text('; '.join(told))}."


def _same_words(names: Sequence[str]) -> int:
    """Return the number of words that all names begin with; 0 for fewer than two names."""
    columns = zip(*(name.split(" ") for name in names), strict=False)
    return len(list(takewhile(lambda column: len(set(column)) == 1, columns))) if len(names) > 1 else 0


def _flags(case: ReproCase) -> list[str]:
    """Return flags without which the trace does not fail, those first that the cause names, then controls, then rare
    ones; values that are names."""
    if not (case.severity and case.severity.reach):
        return []
    needs = _as_served(case.severity.reach, case.server).needs
    chosen = case.deployment.scheduling if case.cause else ()  # in other steps the cause may show without them, too
    flags = [one.split(" ") for one in needs if one.startswith("--") and one not in chosen]
    named = set(re.findall(r"--[\w-]+", " ".join(case.cause.fields.values()))) if case.cause else set[str]()

    def rank(flag: Sequence[str]) -> tuple[bool, ...]:
        return flag[0] not in named, not _passes_without(flag[0], case), flag[0] not in case.deployment.unusual

    flags.sort(key=rank)
    return [" ".join([flag, *(one for one in value if re.fullmatch(r"[A-Za-z_-]+", one))]) for flag, *value in flags]


def _as_served(reach: Reach, server: Deployment) -> Reach:
    """Return a reach whose flags have the values that the server has; the implementations are told apart."""
    served = {flag.partition(" ")[0]: flag for flag in server.shell[1:] if len(flag) <= FLAG_LENGTH_MAX}
    needs, rare, untried = ([served.get(name, name) for name in names]
                            for names in (reach.needs, reach.rare, reach.untried))  # fmt: skip
    return structs.replace(reach, needs=needs, rare=rare, untried=untried, implementations={})


def _prints_tokens(case: ReproCase) -> bool:
    """Return True if the script prints what clients receive: no tokens of another run, which may differ, are told."""
    return bool(case.verdict and any(map(RECEIVED.fullmatch, case.verdict.told)))


def _shows_tokens(case: ReproCase) -> bool:
    """Return True if the script prints wrong tokens: a run of other prompts has others."""
    return bool(case.script and case.verdict and case.verdict.promised and "wrong tokens" in case.script.promise)


def _shown(case: ReproCase) -> str:
    """Return what the script shows if no client of the run does."""
    is_right = bool(case.told.rows) and all(one.wrong_from < 0 for one in case.told.rows)
    if is_right and _shows_tokens(case) and not case.cause:
        return "In the script, a client that sends the same tokens again, or asks for more, receives wrong ones."
    told = case.verdict.told if case.verdict and case.verdict.promised and not case.crashes else ()
    found = [match.groups() for line in told if (match := GREEDY.search(line))]
    differ = [line for line in told if (match := DIFFER.search(line)) and float(match[1]) > ROUNDING]
    if found and differ and all(one == other for one, other in found):
        return "In the script no greedy token differs from those of the same tokens alone, but log-probabilities do."
    return ""


NOT_DRIVEN = "not run, because the test harness does not drive it with these settings"


def _implementations(case: ReproCase) -> Iterator[str]:
    """Yield which implementations show the failure, the default one first, in one line."""
    if not case.runs:
        return
    told = []
    for run in sorted(case.runs, key=lambda run: not run.default):
        was_run = NOT_DRIVEN if run.result.startswith(CANNOT_RUN) else without_event(run.result)  # for our reasons
        was_run += " (the script)" * run.by_script
        result = "**fails** (this report)" if run.current else _said(case, was_run)
        told.append(f"{markdown_text(run.title)}{' (the default)' * run.default}: {result}")
    yield f"{'; '.join(told)}."


def _server(page: _Page) -> Iterator[str]:
    """Yield the command of a server with the settings of the trace; collapsed, what was run of it and its clients.
    Nothing where the requests were not seen to fail in the lengths of one."""
    server, served = page.case.server, page.case.served
    if server.unserved:
        yield f"{server.unserved}\n"
        return
    if not server.shell or not page.case.is_served:
        return
    scale = server.scale if served and served.tried else None
    again = _meets_a_wrong_cache(page.case)
    forced = list(_by_chance(page.case, server, again))
    yield markdown_fence(" \\\n  ".join(server.shell), "bash")
    ran = "script" if page.case.script else "trace"
    clients = list(client_lines(served, page.case.trace, page.case.history, again)) if served and not forced else []
    if scale and served:
        what = "the requests below" if clients else "the same requests"
        yield (
            f"\nThese flags stand for the {ran}'s settings, with {scale.what} of {plural(scale.block, 'token')}. "
            f"No server was started; {what} were run on the {ran}'s stand-ins with {scale.what} of "
            f"{plural(served.tried, 'token')}, and fail in the same way.\n"
        )
    else:
        yield f"\nThese flags stand for the {ran}'s settings. No server was started.\n"
    lines = [*(f"* {markdown_text(note)}" for note in server.notes), *_other_numbers(page.case, ran)]
    if forced:
        yield "No client can make this server fail at will, so no client script is given. These are up to chance:\n"
        yield from (f"* {markdown_text(one)}" for one in forced)
        yield ""
        lines += list(_sent(served)) if served else []
    elif not clients:
        lines += ["", "No client script is given: the requests are no calls of a server's HTTP interface.", ""]
    elif served and needs_timing(served, page.case.trace, page.case.history):
        lines += ["", TIMED]
    if clients:
        lines += ["", markdown_fence("\n".join(clients), "python")]
        if shows := SHOWN_BY.get(client_of(page.case.violation)):
            lines += ["", shows]
    yield from _collapsed("Sizes and client script" if clients else "About such a server", lines)


def _other_numbers(case: ReproCase, ran: str) -> Iterator[str]:
    """Yield a table of the numbers that a server has and the script has not, and of limits that only the script has."""
    server, served, config = case.server, case.served, case.trace.config
    if served is None or server.scale is None:
        return
    limits = case.deployment.limits
    own = structs.replace(
        case.deployment, flags=(*case.deployment.flags, *(part for one in limits.values() for part in one))
    )
    scripts, servers = (dict(_valued(one)) for one in (own, server))
    largest = max(group.block_size for group in config.groups)
    rows = [(f"{server.scale.what}, in tokens", str(server.scale.block), str(largest))]
    of_block = {flag for flag in server.scale.flags if flag.startswith("--")}  # the row above has it
    for flag, value in servers.items():
        if value != scripts.get(flag, value) and flag not in of_block:
            rows.append((markdown_code(flag), markdown_text(value), markdown_text(scripts[flag])))
    left_out = [flag for name, flags in limits.items() if name not in served.needs for flag in flags[::2]]
    rows += [(markdown_code(flag), "not set", markdown_text(scripts[flag])) for flag in left_out if flag in scripts]
    yield f"\n| numbers | this server | the {ran} |\n| --- | ---: | ---: |"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)
    if left_out:
        yield "\nLimits that are not set are not needed: the same requests fail with large values, too."


def _valued(server: Deployment) -> Iterator[tuple[str, str]]:
    """Yield the flags of a server that have a value."""
    for each in server.shell[1:]:
        flag, _, value = each.partition(" ")
        if value:
            yield flag, value


TIMED = """\
The clients below send the requests. The step in which a server takes each of them, and the order of those that are
sent together, are up to chance: it may take several attempts, and other values of `DELAY` where there is one."""


def _by_chance(case: ReproCase, server: Deployment, again: bool) -> Iterator[str]:
    """Yield what no client decides. `again`: a client that sends the same tokens again meets a wrong cache."""
    yield from server.client.forced
    if again and any(isinstance(event, Resume | Abort) for event in case.trace.events):
        yield "the client that meets the wrong cache sends tokens that depend on the answers of others"
    if repeats_its_stop(case):
        yield "a model that samples the stop token twice in one answer"
    if case.served and POOL in case.served.needs and (flags := server.limits.get(POOL)):
        names = listed([one for one in flags if one.startswith("--")])
        yield f"how much room the pool has for a request: {names} would have to be found for the layers of a model"


def repeats_its_stop(case: ReproCase) -> bool:
    """Return True if an answer has its stop token before, too: a stand-in gives one twice, a model hardly will."""
    answers = {row.request: row.expected for row in case.answers.rows if not row.again}
    stops = [(event.name, event.stop_at) for event in case.trace.events if isinstance(event, Turn) and event.stop_at]
    return any(tokens[at - 1] in tokens[: at - 1] for name, at in stops if len(tokens := answers.get(name, ())) >= at)


POOL = "num_blocks"
"""Of `Deployment.limits`."""


def _sent(served: Served) -> Iterator[str]:
    """Yield what a client can send: the requests, in the lengths of the server."""
    calls, events = served.deployment.client.calls, served.trace.events
    told = [sentence(event, served.trace.config) for index, event in enumerate(events) if index in calls]
    if told:
        yield "\nWhat clients can send, in the lengths of this server:\n"
        yield from (f"* {markdown_text(one)}" for one in told)


def _meets_a_wrong_cache(case: ReproCase) -> bool:
    """Return True if only a client that sends the same tokens again receives wrong ones."""
    told = [found for line in case.verdict.told if (found := RECEIVED.fullmatch(line))] if case.verdict else []
    wrong = [one["name"] for one in told if one["expected"]]
    return bool(wrong) and all(name.startswith(AGAIN_IN_SCRIPT) for name in wrong)


def _cause(page: _Page) -> Iterator[str]:
    """Yield why it fails where that is known, and in any case where the run first deviates."""
    case, cause, fix = page.case, page.case.cause, page.case.fix
    if cause:
        about = "" if case.runs else cause.fields.get("where", "")  # which runners it is in was told: each was run
        yield f"**{markdown_text(cause.title)}**{f' ({about})' if about else ''}.\n"
        yield f"{cause.body.strip()}\n"
        used = " ".join([cause.title, cause.body, *cause.fields.values()])
        known = TERMS if case.deployment.command else {}  # a library has no block tables, and other columns
        if terms := [
            f'"{word}" is {means}' for word, means in known.items() if re.search(rf"\b{word}s?\b(?!-th)", used)
        ]:
            yield f"Here {'; '.join(terms)}.\n"
    if values := " ".join(_values(case)):
        yield f"{'' if cause or fix else 'Not known. '}**In the reproduction.** {values}\n"
    if fix:
        yield from _fix(case, fix)


def _values(case: ReproCase) -> Iterator[str]:
    """Yield what the cache and the scheduler make of requests that hit, load or are split, and what is wrong first: the
    values of the cause in this run."""
    told = []
    for row in requests_of(case.trace, case.history):
        what = [f"hits {plural(row.hit, 'token')}"] if row.hit > 0 else []
        what += [f"is to load {plural(row.load, 'token')}"] if row.load else []
        chunks = " + ".join(map(str, row.chunks))
        if len(row.chunks) > 1:
            what += [f"computes its prompt in steps of {chunks} tokens"]
        elif what and chunks:
            what += [f"computes {plural(row.chunks[0], 'token')} of its prompt"]
        if what:
            told.append(f"{row.name} {listed(what)}")
    if told:
        yield f"{markdown_text('; '.join(told))}."
    if not (case.crashes and case.cause and case.script):  # what the script raises is shown below
        first = "The exception" if case.crashes else "First deviation"
        yield f"{first}: {_said(case, without_event(case.violation.sentence)).rstrip('.')}."


TERMS: Mapping[str, str] = {
    "k": "the number of drafts in a step",
    "column": "an entry of a request's row in the block table",
    "DCP": "decode context parallelism",
}
"""Words of causes that not every reader has -> what they mean."""


OTHER_DEFECT = "meets another defect, which is not reported here"


def _fix(case: ReproCase, fix: TriedFix) -> Iterator[str]:
    """Yield what fails without the patch and passes with it, and the patch."""
    shown = fix.text.splitlines()
    lines, count = len(shown), plural(len(shown), "line")
    about = "This patch shows the cause; it was not written for review."
    if fix.places:
        changed: dict[str, list[str]] = {}
        for file, _, line in (place.partition(":") for place in fix.places):
            changed.setdefault(file, []).append(line)
        where = listed([markdown_code(f"{file}:{', '.join(numbers)}") for file, numbers in changed.items()])
        about += f" It changes {where}."
    yield f"{about}\n"
    before = "without it" if case.fixes else "as released"
    second = fix.second
    heads = ["", before, "with the patch", *(["with a second patch, too"] if second else [])]
    yield f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}"
    if case.verdict and fix.script:
        ran = [case.verdict.status, fix.script.status, *([second.script.status] if second else [])]
        yield f"| `python repro.py` | {' | '.join(f'exit status {one}' for one in ran)} |"
    if case.test and case.tested and fix.test:
        words = ["fails" if one.status else "passes" for one in (case.tested, fix.test)]
        yield f"| {' | '.join([markdown_code(case.test.path), *words, *([''] if second else [])])} |"
    is_other = not fix.good and fix.passes_script
    if not fix.script:
        yield f"| the run | fails | {OTHER_DEFECT if is_other else markdown_text(fix.result)} |"
    yield ""
    if second and fix.script:
        yield (
            f"With the patch the script meets another defect ({markdown_text(_in_a_sentence(second.title))}): "
            f"{markdown_text(fix.script.raised)}. The second patch is for that one.\n"
        )
    elif not (fix.good or is_other):
        yield "**The patch does not fix this failure.**\n"
    yield from _patch(shown, f"The patch ({count})", lines)
    if second:
        of_second = second.text.splitlines()
        yield from _patch(of_second, f"The second patch ({plural(len(of_second), 'line')})", PATCH_LINES_SHOWN + 1)


def _patch(shown: Sequence[str], title: str, lines: int) -> Iterator[str]:
    """Yield a patch: as it is, or collapsed under a title if it counts as long; nothing of a very long one."""
    text = markdown_fence("\n".join(shown), "diff")
    if lines <= PATCH_LINES_SHOWN:
        yield f"{text}\n"
    elif lines <= PATCH_LINES_MAX:
        yield from _collapsed(title, [text])
    else:
        yield f"{title} is left out for its length.\n"


def _reproduction(page: _Page) -> Iterator[str]:
    """Yield how to run the script, and its part that is about the failure."""
    case = page.case
    script, verdict = case.script, case.verdict
    if script is None or verdict is None:
        yield "There is no stand-alone script for this failure. With hybridfuzz installed:\n"
        yield markdown_fence(_replay(case), "console")
        return
    if case.test and case.test.part and case.tested:
        yield from _part_test(case, case.test, case.tested)
        told = "\n".join(_script(page, script, verdict)).splitlines()
        yield from _collapsed(WHOLE_ENGINE, told)
    else:
        yield from _script(page, script, verdict)


WHOLE_ENGINE = "The same with scheduler and worker: what clients receive"


def _part_test(case: ReproCase, test: EngineTest, tested: ScriptVerdict) -> Iterator[str]:
    """Yield the test of a part of the engine."""
    text = test.files[test.path]
    with_patch = ", and passes with the patch" if case.fix and case.fix.test and case.fix.test.status == 0 else ""
    yield (
        f"A test of the {test.part} alone: no worker, no model weights, no GPU. "
        f"It fails on {markdown_text(case.release)}"
        f"{with_patch}.\n"
    )
    yield markdown_fence(text.rstrip("\n"), "python") + "\n"
    raised = [line for line in tested.told if not line[1:].strip().startswith("+")]  # without "where ..."
    yield markdown_fence("\n".join([f"$ pytest {test.path}", *raised[:OUTPUT_LINES_SHOWN]]), "console") + "\n"


def _script(page: _Page, script: Script, verdict: ScriptVerdict) -> Iterator[str]:
    """Yield how to run a script, its part that is about the failure, and what it prints."""
    lines = script.text.count("\n")
    if verdict.promised:
        part = " (the built-in target is part of it)" if script.needs == PACKAGE else ""
        after = f"within {plural(ceil(verdict.seconds / 60), 'minute')}" if verdict.seconds > 1 else "within a second"
        needs = markdown_text(listed(script.needs.split(", ")))
        yield f"With {needs} installed{part}, on a CPU, `python repro.py` reproduces the failure {after}.\n"
    elif verdict.elsewhere:
        yield f"**`repro.py` meets another defect first, {markdown_text(verdict.elsewhere)}: do not rely on it.**\n"
    else:
        yield "**`repro.py` did not fail as promised when it was tried: do not rely on it.**\n"
    if script.more:
        yield f"{script.more}\n"
    if script.scenario:
        legend = [words for name, words in LEGEND.items() if name in script.scenario]
        told = f". {' '.join(legend)}" if legend else ":"
        yield f"Its requests ({lines} lines in all, attached; the rest is machinery){told}\n"
        yield markdown_fence(script.scenario, "python") + "\n"
    elif not page.with_script:
        yield f"`repro.py` ({lines} lines) is too long for this text and is attached.\n"
    elif lines <= SCRIPT_LINES_SHOWN:
        yield markdown_fence(script.text.rstrip("\n"), "python") + "\n"
    else:
        yield from _collapsed(f"repro.py ({lines} lines)", [markdown_fence(script.text.rstrip("\n"), "python")])
    raised = verdict.raised if verdict.promised and verdict.raised.startswith("AssertionError") else ""
    printed = [] if any(map(RECEIVED.fullmatch, verdict.told)) else verdict.told[-PRINTED_LINES_SHOWN:]
    tail = verdict.tail.splitlines()
    # The script says in its own words what it met; the engine's traceback is above.
    below = tail.index(CHAINED) if raised and CHAINED in tail else 0
    begins = next((at for at, line in enumerate(tail[:below]) if line == TRACEBACK or line.startswith("  File ")), 0)
    met = [line for line in tail[begins:below] if line]
    shown = [*printed, *met, raised] if raised else tail[-OUTPUT_LINES_SHOWN:]
    yield markdown_fence("\n".join(["$ python repro.py", *shown]), "console")


TRACEBACK = "Traceback (most recent call last):"
CHAINED = "The above exception was the direct cause of the following exception:"
"""Python's own lines around exceptions of which one is raised for another."""


def _restricted(case: ReproCase) -> str:
    """Return what grammars do to the tokens of the stand-in model."""
    if not any(isinstance(event, Turn) and has_grammar(event) for event in case.trace.events):
        return ""
    return (
        " and, with structured output, of its grammar: a token that the grammar forbids is replaced by the next choice"
    )


LEGEND: Mapping[str, str] = {
    "right=": "Of the drafts of a step, which a stand-in proposes, the first `right` are the model's own next "
    "tokens, whatever a grammar says.",
    "budget=": "A step computes at most `budget` tokens.",
    "per_request=": "`per_request` has (drafts, right ones) of single requests.",
    "stop_at=": "`stop_at` is the number of the new token that is a stop token.",
    "stops=": "`stops` are the stop tokens of a request.",
    "is_string=": "With `is_string` the stop is found in the text of the answer.",
    "min_tokens=": "`min_tokens` is the least number of new tokens that a request asks for.",
    "structured=": "With `structured=n` the answer is structured output, whose grammar is ready after n - 1 steps.",
    "reasons_until=": "`reasons_until` is the token with which the reasoning before structured output ends.",
    "reasoning=": "`reasoning` is the new token by which the reasoning before structured output has ended.",
    "closes=": "`closes` is the number of new tokens with which the grammar is complete.",
    "bad_grammar=": "With `bad_grammar=n` the request's grammar does not compile, which is known after n - 1 steps.",
    "scored_from=": "`scored_from` is the position of the prompt, counted from 0, after which its log-probabilities "
    "are asked for.",
    "priority=": "Requests with a lower `priority` are served first.",
    "delay=": "`delay` is the number of further steps that a load takes.",
    "preempt(": "`preempt` does what the scheduler does for lack of memory.",
}
"""Part of a script's calls -> what it means."""


def _replay(case: ReproCase) -> str:
    return f"$ {replay_command(case.spec, 'trace.json', [FIXES] if case.fixes else [])}"


FRAMES_SHOWN = 8
OURS = "hybridfuzz/targets/"
"""The folder of our adapters, each of which has its engine's name."""


def _stack(violation: Violation) -> Iterator[str]:
    """Yield the engine's own frames of what it raised, the innermost last."""
    who, raised = violation.details.get("who"), violation.observed
    module = re.search(r"\((\w+)", who.text) if isinstance(who, Quoted) else None
    if module is None or not isinstance(raised, Quoted):
        return
    package, frames, lines = module[1], list[str](), raised.text.splitlines()
    for line, code in pairwise(lines):
        if not (frame := CALL.fullmatch(line)):
            continue
        before, its, inside = frame["file"].rpartition(f"{package}/")
        if its and not before.endswith(OURS):
            frames += [f'  File "{package}/{inside}", line {frame["line"]}, in {frame["function"]}', code]
    if frames:
        yield markdown_fence("\n".join([*frames[-2 * FRAMES_SHOWN :], lines[-1]]), "text")
        yield ""


def _expected(page: _Page) -> Iterator[str]:
    """Yield what clients should receive and what they do, what is wrong inside, and runs that pass."""
    case, violation = page.case, page.case.violation
    received = list(_received(case))
    rows, expected = received or list(_answers(case)), "no exception"
    if case.crashes and all(cells[-1] in (RIGHT, NO_ANSWER, NOT_SENT) for cells in rows):
        if lacking := [name for name, *_, grade in rows if grade == NO_ANSWER and not case.declined]:
            expected = f"an answer for {listed(lacking)}"
        rows = []
    if rows:
        yield "| client | should receive | receives | |\n| --- | --- | --- | --- |"
        yield from (f"| {' | '.join(cells)} |" for cells in rows)
        varied = f"; {markdown_text(case.told.variation)}" if case.told.variation and not received else ""
        told = f"each token is a function of all tokens before it{_restricted(case)}{varied}.{_zeros(rows)}"
        yield f"\n{OF_A_REAL_MODEL if _is_library(case) else f'Token ids of a stand-in model: {told}'}\n"
    if case.crashes and not rows:
        raised = case.verdict.raised if case.verdict and case.verdict.promised else ""
        kind = violation.field.partition("-")[0]
        is_wrapped = not (raised.startswith(kind) or _is_told_by_us(case))  # the script's words for what it met
        found = without_event(violation.sentence) if is_wrapped else raised
        if _is_told_by_us(case):
            yield f"It is the script that raises, where the engine breaks a promise: {markdown_text(found)}.\n"
        else:
            yield f"Expected: {expected}. Received: {markdown_text(found)}.\n"
    tail = case.verdict.tail if case.verdict and case.verdict.promised else ""
    if case.crashes and not _is_told_by_us(case) and TRACEBACK not in tail:  # else the script's output has it
        yield from _stack(violation)
    if alone := list(_alone(case)):
        yield ALONE
        yield from (f"| {' | '.join(cells)} |" for cells in alone)
        yield "\nWhat should be there is what the same tokens give alone, without a cache.\n"
    elif not (case.crashes or (case.cause and any(cells[-1].startswith("**") for cells in received))):
        yield from _inside(case)
        if not case.deployment.has_sizes:
            yield f"{ROWS}\n"
    yield from _controls(case)


OF_A_REAL_MODEL = (
    "Token ids of a tiny model with random weights. It should give the same ones with and without a cache."
)


def _is_told_by_us(case: ReproCase) -> bool:
    """Return True if what is raised is our word for a broken promise of the engine, which raises nothing by itself."""
    return case.crashes and case.violation.field.startswith(f"{EngineError.__name__}-")


def _controls(case: ReproCase) -> Iterator[str]:
    """Yield a table of runs that differ in one factor that concerns the cause, and pass."""
    ran = "the script" if case.script else "the run"
    if case.controls:
        yield f"**Controls.** Each was run, and differs from {ran} in one thing only:\n"
        yield f"| run | result |\n| --- | --- |\n| {ran} | **fails** |"
        yield from (f"| the same, but {markdown_text(control)} | passes |" for control in case.controls)
        yield ""


def _alone(case: ReproCase) -> Iterator[list[str]]:
    """Yield a row for each forward of which the script prints the greedy tokens and those of the same tokens alone;
    none if it finds nothing wrong with any."""
    told, raised = (case.verdict.told, case.verdict.raised) if case.verdict and case.verdict.promised else ((), "")
    rows = [(found, f"{found[0]}:" in f"{raised}:") for line in told if (found := FORWARD.match(line))]
    for found, is_told in rows if any(is_told or one["is"] != one["alone"] for one, is_told in rows) else ():
        is_wrong = is_told or found["is"] != found["alone"]
        grade = "**wrong**" if is_wrong else "differs" if float(found["by"]) > DIFFERS else "right"
        cells = found["row"], found["count"], *_beside(_ids(found["alone"]), _ids(found["is"])), found["by"]
        yield [*cells, grade]


ALONE = """\
| row of the batch | tokens so far | greedy token, should be | is | log-probabilities differ by | |
| ---: | ---: | --- | --- | ---: | --- |"""
DIFFERS = 0.01
"""Of log-probabilities: the limit of the scripts of libraries (`targets/transformers/repro.py`: `TOLERANCE`)."""
FORWARD = re.compile(
    r"row (?P<row>\d+), after (?P<count>\d+) tokens: greedy tokens (?P<is>\[.*?\]), alone (?P<alone>\[.*?\]); "
    r"log-probabilities differ from the same tokens alone by (?P<by>\d(?:[\d.e+-]*\d)?)"
)


def _inside(case: ReproCase) -> Iterator[str]:
    """Yield what is wrong inside the engine, and the rule."""
    violation = case.violation
    who = violation.request or (f"block {violation.block}" if violation.block >= 0 else "engine")
    observed = violation.observed_words.splitlines()
    seen = observed[0] if len(observed) == 1 else violation.sentence
    wanted = violation.expected_words
    if wanted == seen or seen.isdecimal():  # a number beside them differs, or does not say of what it is
        wanted, seen = "", violation.sentence
    at = f", step {violation.step}" if violation.step >= 0 else ""
    yield "| inside the engine | expected | observed |\n| --- | --- | --- |"
    yield f"| {' | '.join(_said(case, words) for words in (who + at, wanted or 'see the rule', seen))} |\n"
    rule, dot, _ = rule_of(violation.oracle, violation.field).partition(". ")
    yield f"**What must hold.** {rule}{dot.strip()}\n"


ROWS = "Requests are the rows of the batch: r0 is the first prompt of the script, r1 the second, and so on."


def _zeros(rows: Sequence[Sequence[str]]) -> str:
    """Return what a token 0 is, where a client receives one."""
    is_there = any("0" in received.split() and "0" not in wanted.split() for _, wanted, received, *_ in rows)
    return f" {ZERO}" if is_there else ""


ZERO = "No right token is 0: a 0 is the answer to content that is of no prefix, such as zeros or a mixture of two."


def _received(case: ReproCase) -> Iterator[list[str]]:
    """Yield a row for each client of which the script prints what it receives."""
    told = case.verdict.told if case.verdict and case.verdict.promised else ()
    turns = Counter[str]()
    for client in (found for line in told if (found := RECEIVED.fullmatch(line))):
        wanted, got, end = client["expected"] or client["received"], client["received"], client["end"]
        grade = GRADES.get(end, f"**{markdown_text(end)}**") if client["expected"] else RIGHT
        if client["expected"] and end in GRADES and _is_longer(got, wanted):
            grade = GRADES[end].replace("wrong", "too many")
        cells = _beside(_ids(wanted), _ids(got))
        if end == NOT_SENT:
            cells, grade = ["", ""], NOT_SENT
        name = client["name"]
        turns[name] += 1
        turn = f", turn {turns[name]}" if turns[name] > 1 else ""
        shown = f"a later request with the same tokens ({name})" if name.startswith(AGAIN_IN_SCRIPT) else name
        yield [markdown_text(shown + turn), *cells, grade]


GRADES = {"ended": "**wrong**", "aborted": "**wrong**, aborted"}
"""How a request ended that received something else than it should -> what is said of it."""


def _ids(tokens: str) -> list[int]:
    """Return the tokens of a list that a script prints."""
    return [int(one) for one in re.findall(r"-?\d+", tokens)]


def _answers(case: ReproCase) -> Iterator[list[str]]:
    """Yield a row for each client of the run that goes on after the deviation; none if the script's has others, and of
    a library that raises: it has no clients who wait."""
    if (case.told.variation and _shows_tokens(case)) or (case.crashes and _is_library(case)):
        return
    turns = Counter[str]()
    unanswered = {answer.request for answer in case.told.rows if answer.end and not answer.again}
    for answer in case.told.rows:
        if answer.again and answer.request.removesuffix(AGAIN) in unanswered:
            continue  # one without an answer has none to send
        turns[answer.request] += not answer.again
        turn = f", turn {turns[answer.request]}" if turns[answer.request] > 1 else ""
        name = answer.request + turn
        if answer.again:
            name = f"{answer.request.removesuffix(AGAIN)} (its prompt and answer sent again)"
        cells = [markdown_text(name), *_beside(answer.expected, answer.observed)]
        yield [*cells, NO_ANSWER if case.crashes and answer.end else _grade(answer)]
    for name in case.told.unsent:
        turns[name] += 1
        turn = f", turn {turns[name]}" if turns[name] > 1 else ""
        yield [markdown_text(name + turn), "", "", NOT_SENT]


def _is_library(case: ReproCase) -> bool:
    """Return True for an engine that its caller's own process runs, without a server and sizes."""
    return not (case.deployment.has_sizes or case.deployment.command)


def _beside(wanted: Sequence[int], found: Sequence[int]) -> list[str]:
    """Return the tokens of two cells of a row: of long lists those around the first place where they differ."""
    pairs = enumerate(zip(wanted, found, strict=False))
    first = next((index for index, (one, other) in pairs if one != other), min(len(wanted), len(found)))
    begin = max(first - TOKENS_BEFORE, 0) if first >= TOKENS_SHOWN else 0
    return [markdown_text(_tokens(one, begin if wanted != found else 0)) for one in (wanted, found)]


def _tokens(tokens: Sequence[int], begin: int) -> str:
    """Return at most `TOKENS_SHOWN` tokens from one on."""
    shown = tokens[begin : begin + TOKENS_SHOWN]
    which = f"tokens {begin + 1} to {begin + len(shown)} of {len(tokens)}" if begin else f"{len(tokens)} in all"
    more = f" ... ({which})" if len(tokens) > TOKENS_SHOWN else ""
    return ("... " if begin else "") + " ".join(map(str, shown)) + more if tokens else "none"


def _grade(answer: Answer) -> str:
    if answer.wrong_from >= 0:
        return f"**wrong from token {answer.wrong_from + 1} on**"
    return RIGHT if answer.is_right and not answer.end else markdown_text(answer.end or "too short")


def _more(page: _Page) -> Iterator[str]:
    """Yield what is read later."""
    case = page.case
    yield from _related(case)
    yield from _collapsed("Requests and events", list(_scenario(case)))
    explanation = None if case.cause else explain(case.history)  # blocks and steps are those of the harness
    if explanation and explanation.story and case.violation.field not in FIELDS_OF_A_MODEL and not case.crashes:
        yield from _collapsed("What happens, step by step", list(_story(page, explanation)))
    if case.places:
        told = [
            f"* {markdown_code(f'{place.file}:{place.line}')} {markdown_code(place.function)}, {place.score:.2f}"
            for place in case.places[:PLACES_SHOWN]
        ]
        yield from _collapsed("Where to look", [PLACES, *told])
    fewer = [f"* {markdown_text(one)}" for one in case.reductions]
    yield from _collapsed("Smaller runs that pass", fewer)
    yield from _collapsed("What is the engine's own, and what is stood in", list(_own(case)))
    count = plural(len(case.trace.events), "event")
    yield from _sources(case)
    yield f"Found by hybridfuzz {_version()}, a fuzzer of hybrid cache managers, and reduced to {count}."


def _sources(case: ReproCase) -> Iterator[str]:
    """Yield which statements are of runs, and which are of the text of the cause."""
    if not case.cause:
        return
    release = "run on the release with other known bugs fixed" if case.fixes else "run on the release"
    script = f" The script, {release}: its output and exit statuses." if case.script else ""
    how = "by the fuzzer, with stand-ins" if case.deployment.is_stood_in else "by the fuzzer"
    passing = [*case.controls, *case.reductions]
    ran = {"settings": case.severity and case.severity.reach, "models": case.models, "controls": passing}
    told = [what for what, is_there in ran.items() if is_there]
    runs = f" Runs of the same requests {how}: {listed(told)}." if told else ""
    yield f"**What is measured.**{script}{runs}"
    yield "Not measured by these runs: the cause and what it needs (read in the source), and the public reports.\n"


PLACES = """\
Functions in which the failing run takes another path than its nearest passing neighbors, or holds values of a kind that
none of them holds, with scores from 0 to 1:
"""


def _scenario(case: ReproCase) -> Iterator[str]:
    """Yield every request and event, nothing where the script's own calls are shown."""
    if case.script and case.verdict and case.verdict.promised:
        return
    if case.deployment.scaled:
        yield "Scaled down, or given by the scenario:\n"
        yield from (f"* {markdown_text(clause)}" for clause in case.deployment.scaled)
        yield ""
    rows = requests_of(case.trace, case.history)
    if rows:
        heads = ["request", "arrives before", "prompt tokens", "shared prefix", "cache hit", "chunks", "new tokens"]
        idle = {"shared prefix": not any(row.shared for row in rows), "cache hit": all(row.hit <= 0 for row in rows),
                "chunks": all(row.chunks == (row.prompt,) for row in rows)}  # fmt: skip
        kept = [index for index, head in enumerate(heads) if not idle.get(head)]
        rules = ["---", "---", "---", "---", "---:", "---", "---:"]
        yield "\n".join(f"| {' | '.join(cells[index] for index in kept)} |" for cells in (heads, rules))
    for row in rows:
        parts = ", ".join(f"{tokens} of {document}" for document, tokens in _named(row.parts))
        hit = f"{max(row.hit, 0)} + {row.load} loaded" if row.load else max(row.hit, 0)
        is_plain = len(row.parts) == 1 and row.parts[0][0] != CONTINUATION
        prompt = f"{row.prompt} (document {row.parts[0][0]})" if is_plain else f"{row.prompt} ({parts})"
        shared = f"{row.shared} with {row.shares_with}" if row.shared else "none"
        chunks = " + ".join(map(str, row.chunks)) or ("none" if row.hit >= 0 else "not admitted")
        chunks += " + …" if row.chunks and max(row.hit, 0) + sum(row.chunks) < row.prompt else ""
        cells = [row.name, f"step {row.arrives}", prompt, shared, hit, chunks, row.new]
        yield f"| {' | '.join(markdown_text(str(cells[index])) for index in kept)} |"
    yield ""
    told = narrate(case.trace, case.history, case.deployment.calls, is_brief=True)
    events = [f"{number}. {markdown_text(words)}" for number, words in enumerate(told, 1)]
    if len(events) > EVENTS_MAX:
        left_out = len(events) - EVENTS_MAX
        events[EVENTS_MAX // 2 : -EVENTS_MAX // 2] = ["", f"({left_out} more.)", ""]
    yield from events
    if case.deployment.has_sizes and not case.server.shell:
        yield f"\nThe settings: {_settings(case)}."


def _named(parts: Prompt) -> Iterator[tuple[str, int]]:
    """Yield the documents of a prompt with their tokens, in words: tokens of an answer may be in it."""
    for document, run in groupby(parts, lambda part: part[0]):
        yield ("what the model says next" if document == CONTINUATION else document), sum(part[1] for part in run)


def _plain_options(case: ReproCase) -> Mapping[str, str]:
    """Return options that say nothing: usual values, and what the table of implementations shows."""
    chosen = case.trace.config.options
    shown = [name for one in case.deployment.implementations for name in one.options]
    return {**case.usual, **{name: chosen[name] for name in shown if name in chosen}}


def _settings(case: ReproCase) -> str:
    """Return the settings that differ from the defaults, in the words of a trace."""
    config, plain = case.trace.config, _plain_options(case)
    defaults = structs.asdict(Config(0, config.groups))
    shown = {
        key: value
        for key, value in structs.asdict(config).items()
        if (value and value != defaults[key]) or key in SHOWN
    }
    shown.pop("options", None)
    options = {key: value for key, value in config.options.items() if plain.get(key) != value}
    settings = [f"{key}={value}" for key, value in {**shown, **options}.items() if key != "groups"]
    return ", ".join(map(markdown_code, settings))


SHOWN = ("mamba_cache_mode", "num_speculative_tokens", "async_depth")
"""Settings that are shown even with their default."""


def _story(page: _Page, explanation: Explanation) -> Iterator[str]:
    history = page.case.history
    if any(kind == "mamba" for kind, _ in history.groups):
        yield "Here state@n is the recurrent state after exactly n tokens of a prefix.\n"
    yield from (f"{number}. {_said(page.case, words)}" for number, words in enumerate(explanation.story, 1))
    diverge = f"Expected and observed diverge here. {explanation.fate}".rstrip()  # the sentence is at the top
    yield f"\n{_said(page.case, diverge)}\n"


def _said(case: ReproCase, words: str) -> str:
    """Return our words for places of the cache in those of the engine's developers."""
    return markdown_text(in_words(words, case.deployment.phrases))


def _environment(page: _Page) -> Iterator[str]:
    case, deployment = page.case, page.case.deployment
    yield f"* {markdown_text(case.release)}"
    for run in case.runs:
        if run.current and deployment.command:  # else it is the caller who chooses
            default = "the default of this release" if run.default else "not the default of this release"
            yield f"* {markdown_text(run.title)}, {default}"
    if case.versions:
        names = {"torch": "PyTorch", "triton": "Triton", "transformers": "Transformers", "numpy": "NumPy"}
        yield "* " + markdown_text(
            ", ".join(f"{names.get(one, one)} {number}" for one, number in case.versions.items())
        )
    if case.system:
        yield f"* {markdown_text(case.system)}"
    if case.collected:
        yield ""
        yield from _collapsed(f"The output of {deployment.form.collects}", [markdown_fence(case.collected, "text")])


def _own(case: ReproCase) -> Iterator[str]:
    """Yield what ran as released, and what did not."""
    parts = ("The engine's own code", case.deployment.own), ("Stand-ins", case.deployment.replaced)
    for title, clauses in parts:
        if clauses:
            yield f"{title}:\n"
            yield from (f"* {markdown_text(clause)}" for clause in clauses)
            yield ""


def _search(case: ReproCase) -> str:
    """Return where and for what the issues are searched, as their authors word them: what a client gets with the
    engine's function, and with the feature that the failure needs most, or the kind of model. What raises names its
    place itself, so that the model's kind is left out where there is a feature."""
    where = f" in {markdown_code(case.deployment.tracker)}" if case.deployment.tracker else ""
    symptom = "too many tokens" if case.what == TOO_MANY else SYMPTOMS.get(client_of(case.violation), "")
    if case.crashes and not _is_told_by_us(case):
        symptom, _, raised_in = case.violation.field.partition("-")
        functions = [raised_in]
    else:
        patched = case.fix.functions if case.fix else ()
        named = FUNCTION.findall(case.cause.body) if case.cause else ()
        functions = [_searched(one) for one in (patched or named)[:FUNCTIONS_SEARCHED]]
    deployment = case.deployment
    kind, *needs = (*deployment.search, *case.headline.search[bool(deployment.search) :])
    features = [*deployment.features, *(deployment.words.get(one, one) for one in needs)][:1]
    about = features if case.crashes and features and not deployment.search else [kind, *features]
    queries = [*([symptom, one] for one in functions), [*about, symptom]]
    # GitHub wants every word of a query: each of these is one.
    told = dict.fromkeys(" ".join(filter(None, words)) for words in queries)
    return f"{where}, one query each: {', '.join(map(markdown_code, told))}"


def _searched(function: str) -> str:
    """Return the name by which a function is searched: with its class, if it has a name of one word."""
    name = function.rpartition(".")[2]
    return name if "_" in name.strip("_") else function


FUNCTIONS_SEARCHED = 2
FUNCTION = re.compile(r"`((?:[A-Za-z]\w*\.)*(?:[A-Za-z]\w*_\w+(?=\()|_\w+)|[A-Z]\w*\.[a-z]\w*)(?:\(.*?\))?`")
"""A function or method of the engine in the text of a cause: not a field, and not a flag."""
SYMPTOMS: Mapping[str, str] = {
    "wrong tokens": "wrong output",
    "corrupt cache": "wrong output",
    "hang": "hang",
    "leak": "memory leak",
}
"""What a client gets -> how issues call it."""


def _related(case: ReproCase) -> Iterator[str]:
    # Numbers of issues become links in the repository where the report is filed.
    if case.cause and (public := case.cause.public):
        first, *others = parts = PARTS_OF_PUBLIC.split(public)
        if first.startswith("not found"):
            own = f"(up to {SEARCHED}): no report of this defect was found{first.removeprefix('not found')}."
            yield f"**Public reports** {own}{' Near it:' if others else ''}\n"
            parts = others
        else:
            yield "**Public reports**:\n"
        yield from (f"* {one}" for one in parts)
        yield from [""] if parts else []
    elif case.related and (numbers := public_reports(case.related)):
        yield f"**Public reports** of this or a related bug: {', '.join(numbers)}.\n"


SEARCHED = "September 2026"
"""When the public reports in the texts of causes were read last."""
PARTS_OF_PUBLIC = re.compile(r"; (?![^(]*\))")
"""Between the parts of what a cause says is public: each has numbers and how they differ."""


def _collapsed(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield a collapsible block, nothing without lines. `title` is text of ours without markup."""
    if lines:
        yield f"<details><summary>{title}</summary>\n"
        yield from lines
        yield "\n</details>\n"


PARTS: Mapping[Part, Callable[[_Page], Iterator[str]]] = {
    "bug": _bug,
    "server": _server,
    "cause": _cause,
    "reproduction": _reproduction,
    "expected": _expected,
    "more": _more,
    "environment": _environment,
}


def _version() -> str:
    try:
        return version("hybridfuzz")
    except PackageNotFoundError:
        return "of a checkout"
