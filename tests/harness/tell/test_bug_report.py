"""REPORT.md: what a user sees first, every request, valid Markdown, nothing of strangers as markup, never too long."""

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import structs
from support import CLEAN, HOSTILE, arrive, make_trace, steps

from hybridfuzz.harness.campaign_summary import Reach, Severity
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.causes.evidence import Place
from hybridfuzz.harness.group.known.cause_text import CauseText
from hybridfuzz.harness.judge.oracles import consequence, consequence_of, oracle_ids
from hybridfuzz.harness.judge.target_exception import crash_violation
from hybridfuzz.harness.judge.verdict import Prefix, Quoted, StateOf
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.answers import AGAIN, Answer, Answers, collect_answers
from hybridfuzz.harness.record.history import History, Mark, Moment, RequestStep
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.harness.tell.at_scale import serve
from hybridfuzz.harness.tell.bug_report import (
    LEGEND,
    LENGTH_MAX,
    OTHER_DEFECT,
    SCRIPT_LINES_SHOWN,
    OtherRun,
    ReproCase,
    SecondPatch,
    TriedFix,
    repeats_its_stop,
    report,
)
from hybridfuzz.harness.tell.headline import headline_of
from hybridfuzz.harness.tell.related import RelatedEntry
from hybridfuzz.harness.tell.repro_folder import write_folder
from hybridfuzz.harness.tell.scenario import narrate, requests_of
from hybridfuzz.harness.tell.script import ScriptVerdict
from hybridfuzz.harness.tell.versions import collected, versions_of
from hybridfuzz.targets.base.client_turn import NOT_SENT, ClientTurn
from hybridfuzz.targets.base.deployment import Deployment
from hybridfuzz.targets.base.engine_tests import EngineTest
from hybridfuzz.targets.base.issue_form import PLAIN
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.protocol import EngineError
from hybridfuzz.targets.base.registry import describe, load_factory
from hybridfuzz.targets.base.repro import MACHINERY, Script
from hybridfuzz.targets.base.trace import (
    AnyEvent,
    Arrive,
    DummyRun,
    ExternalLoad,
    Preempt,
    Select,
    Step,
    Trace,
)
from hybridfuzz.targets.vllm.deployment import FORM

CORPUS = Path(__file__).parents[3] / "corpus"
LAUNCH = Launch(sys.executable, {})
DETAILS = re.compile(
    r"<details><summary>(Requests and events|The output of python collect_env\.py|What happens, step by step|"
    r"The model and clients of such a server|About such a server|Where to look|"
    r"What is the engine's own, and what is stood in|"
    r"(repro\.py|fix\.patch) \(\d+ lines?\))</summary>|</details>"
)
"""All HTML that a report may have."""
DIFFER = "log-probabilities differ from the same tokens alone by"
VERDICT = ScriptVerdict(True, 1, 0.1, "AssertionError: x")


def case_of(slug: str) -> ReproCase:
    [path] = CORPUS.glob(f"{slug}--*.json")
    trace, factory, spec = load_trace(path), load_factory(f"hybrid:{slug}"), f"hybrid:{slug}"
    outcome, history = record_history(factory, trace)
    assert outcome.violation
    answers = collect_answers(factory, trace, outcome.violation.request)
    return ReproCase(spec, LAUNCH, describe(spec, trace), trace, history, outcome.violation, answers)


def parsed(text: str) -> list[Token]:
    """Block and inline tokens of GitHub's Markdown."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [*tokens, *(child for token in tokens for child in token.children or ())]


def headings(text: str) -> list[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [after.content for one, after in pairwise(tokens) if one.type == "heading_open" and one.tag == "h2"]


def slugs() -> list[str]:
    """One mutant for each oracle."""
    found: dict[str, str] = {}
    for path in sorted(CORPUS.glob("*.json")):
        slug, _, signature = path.stem.partition("--")
        found.setdefault(signature[:2], slug)
    return sorted(found.values())


@pytest.mark.parametrize("slug", slugs())
def test_the_title_says_what_a_user_sees_and_no_block_number(slug: str) -> None:
    text = report(case_of(slug))
    title = text.splitlines()[0].removeprefix("# ")
    assert not re.search(r"\bblock \d|\bstep \d|\bcolumn \d|\br\d", title), title
    assert 15 < len(title) <= 160, title
    told = "The exception: " if slug == "mixed-decodes" else "First deviation: "
    assert text.index("## Describe the bug") < text.index(told) < text.index("<details>")


def test_the_rule_stands_without_its_id() -> None:
    [line] = [line for line in report(case_of("null-id-not-zero")).splitlines() if line.startswith("**What must hold")]
    assert line.startswith("**What must hold.** Every block is exactly one of"), line


def test_a_crash_is_told_as_its_clients_see_it() -> None:
    """They received a KeyError, the step that raised scheduled nothing, and the rule spoke of legal traces. A table
    told what all others got, right as it was."""
    case = case_of("mixed-decodes")
    gone = Answer("r0", 0, (1, 2), (1,), False, "AssertionError: x")
    text = report(structs.replace(case, answers=Answers((gone,))))
    assert "Expected: an answer for r0. Received: " in text and "should receive" not in text
    wrong = Answer("r1", 0, (1, 2), (3, 2))
    both = report(structs.replace(case, answers=Answers((gone, wrong))))
    assert "| r0 | 1 2 | 1 | **no answer: the engine has ended** |" in both, "what else is wrong is told"
    library = structs.replace(case, deployment=structs.replace(case.deployment, has_sizes=False))
    assert "the engine has ended" not in report(structs.replace(library, answers=Answers((gone,))))
    nothing = report(structs.replace(case, answers=Answers()))
    assert "Expected: no exception. Received: " in nothing, "the section did not say what is expected"
    assert "What must hold" not in text and "inside the engine" not in text
    told = list(narrate(case.trace, case.history))
    assert told[-1] == "The next step raises AssertionError.", told
    assert not any("nothing is scheduled" in line for line in told)


def test_a_defect_that_is_public_already_is_a_comment_there() -> None:
    """Reports of such defects had the headings of a new issue, and their numbers in the last lines."""
    case = structs.replace(case_of("accepted-count-zero"), verdict=VERDICT, script=Script("pass\n", "x", "nothing"))
    fix = TriedFix("--- a/x\n+++ b/x\n", "the patch of E", "passes", ScriptVerdict(False, 0, 0.1, ""))
    cause = CauseText("A key too early", {"same": "#7", "public": "#7 (open)"}, "It publishes.")
    entry = RelatedEntry("entry", "engine #9", cause=cause)
    text = report(structs.replace(case, related=entry, fix=fix))
    assert text.startswith("# Nothing to file, known as #7: A key too early\n")
    assert "**Nothing to add.** This is the defect of #7" in text
    assert "To do before it is filed" not in text
    fields = {**cause.fields, "adds": "a script"}
    more = structs.replace(entry, cause=structs.replace(cause, fields=fields))
    added = report(structs.replace(case, related=more, fix=fix))
    assert "Nothing to add" not in added
    assert (
        "The defect that this issue is about also occurs in hybrid (built into hybridfuzz). "
        "This comment adds: a script.\n"
    ) in added
    assert added.startswith("# Comment on #7: A key too early\n")
    assert "- [ ] Read #7: is it still open" in added and "Search the issues" not in added
    assert headings(text)[0] == "Reproduction" and "Describe the bug" not in text


def test_the_class_of_the_model_stands_in_the_title_where_a_state_is_wrong() -> None:
    """It stood there as well where nothing of the path knows a state."""
    case = case_of("accepted-count-zero")
    assert case.title.endswith("(hybrid model)")
    other = structs.replace(case.violation, group_kind="", group=-1)
    assert "hybrid" not in structs.replace(case, violation=other).title


def test_every_oracle_has_a_consequence() -> None:
    """S9, ADAPTER and RECORD had none: the title was "Invariant S9 is violated"."""
    assert all(consequence(oracle) for oracle in oracle_ids() if oracle != "CRASH")


def test_wrong_tokens_come_first() -> None:
    case = case_of("accepted-count-zero")
    symptom = headline_of(case.trace, case.history, case.violation, case.answers.rows)
    assert symptom.title.startswith("Wrong tokens ")
    assert "speculative decoding" in symptom.title
    assert re.search(r"receives wrong tokens: token \d+ is \d+, expected \d+\.", symptom.impact)


def test_numbers_of_which_the_token_is_the_same_are_no_wrong_tokens() -> None:
    """The title said so beside two equal tokens."""
    case = case_of("accepted-count-zero")
    details = {"position": 3, "distance": 4.15, "tolerance": 0.002}
    same = Violation("S6", "logprobs", relation="logprobs", details=details, expected=7, observed=7, request="r0")
    other = structs.replace(same, observed=9)
    told, differs = (headline_of(case.trace, case.history, one, ()) for one in (same, other))
    assert told.title.startswith("Wrong log-probabilities ") and "The token does not show it here." in told.impact
    assert "Found: a difference of 4.15; greedy token 7." in told.impact
    assert differs.title.startswith("Wrong tokens ")
    assert "greedy token 7" in differs.impact and "greedy token 9" in differs.impact


def test_calls_of_the_engine_are_told_by_their_names() -> None:
    case = case_of("finished-row-not-cleared")
    trace = structs.replace(case.trace, events=(Select(("r0",)), *case.trace.events))
    calls = {"select": "llama_memory_seq_keep"}
    symptom = headline_of(trace, case.history, case.violation, (), calls=calls)
    assert "after llama_memory_seq_keep" in symptom.title and "llama_memory_seq_keep" in symptom.search
    assert next(iter(narrate(trace, case.history, calls))).endswith(" (llama_memory_seq_keep).")


def test_tokens_stand_once_where_the_script_prints_them() -> None:
    """The table had others than the script: of other prompts, or of another stand-in."""
    case = case_of("accepted-count-zero")
    script = Script("pass\n", "AssertionError: clients receive wrong tokens", "nothing")
    alone, shown = report(case), report(structs.replace(case, script=script, verdict=VERDICT))
    assert "**wrong from token 1 on**" in alone and ": token 1 is " in alone
    assert "receives wrong tokens, from token " in shown
    varied = structs.replace(case.answers, variation="other prompts")
    assert "| client |" not in report(structs.replace(case, script=script, verdict=VERDICT, answers=varied))
    told = ["r7: prompt [1, 2], received [3, 4], expected [3, 5]; ended", "r8: no client"]
    printed = structs.replace(VERDICT, told=told)
    table = report(structs.replace(case, script=script, verdict=printed))
    assert "| r7 | 3 5 | 3 4 | **wrong** |" in table and "wrong from" not in table and "r8" not in table


def test_long_answers_are_shown_where_they_differ() -> None:
    """Both cells of the row showed the same first tokens."""
    script = Script("pass\n", "AssertionError: clients receive wrong tokens", "nothing")
    right = [*range(100, 130)]
    got = [*right[:20], 7, *right[21:]]
    told = [f"r7: prompt [1, 2], received {got}, expected {right}; ended"]
    case = structs.replace(case_of("accepted-count-zero"), script=script)
    text = report(structs.replace(case, verdict=structs.replace(VERDICT, told=told))).replace("\\", "")
    assert "| ... 117 118 119 120 121 " in text and "| ... 117 118 119 7 121 " in text
    assert "... (tokens 18 to 29 of 30)" in text


def test_a_turn_that_was_not_sent_is_not_called_right() -> None:
    """The run had ended, or the session was not idle, and the table said that all was right."""
    script = Script("pass\n", "AssertionError: clients receive wrong tokens", "nothing")
    turns = [ClientTurn("r7", [1], [3]), ClientTurn("r7", [1], [], NOT_SENT)]
    turns[0].receive([4])
    turns[0].end = "ended"
    case = structs.replace(case_of("accepted-count-zero"), script=script)
    text = report(structs.replace(case, verdict=structs.replace(VERDICT, told=[*map(str, turns)])))
    assert "| r7 | 3 | 4 | **wrong** |\n| r7, turn 2 |  |  | not sent |" in text
    answers = structs.replace(case.answers, unsent=("r9",))
    assert text.count("r9") == 0 and "| r9 |  |  | not sent |" in report(
        structs.replace(case_of("accepted-count-zero"), answers=answers)
    )


def test_a_script_that_meets_another_defect_is_called_so() -> None:
    verdict = ScriptVerdict(False, 1, 0.1, "AssertionError: x", "in line 3, before the call")
    case = structs.replace(case_of("accepted-count-zero"), verdict=verdict, script=Script("pass\n", "x", "nothing"))
    assert "**`repro.py` meets another defect first, in line 3, before the call: do not rely on it.**" in report(case)


def test_a_poisoned_cache_is_told_by_the_request_that_hits_it() -> None:
    case = case_of("split-on-wrong-grid")
    assert headline_of(case.trace, case.history, case.violation, case.answers.rows).title.startswith(
        "Wrong tokens from a prefix-cache hit"
    )


def test_a_failure_that_no_client_sees_claims_no_wrong_token() -> None:
    case = case_of("finished-row-not-cleared")
    assert all(one.is_right for one in case.answers.rows)
    symptom = headline_of(case.trace, case.history, case.violation, case.answers.rows)
    assert "Wrong tokens" not in symptom.title
    assert symptom.impact.endswith("In the run below every client receives the right tokens.")


def test_a_stall_is_told_as_what_a_client_sees() -> None:
    """The title was "Requests stall for a request", the rule that of publication, and each idle step had a line."""
    case = case_of("align-starvation")
    text = report(case)
    assert text.startswith("# A request is never admitted\n")
    assert "r0 waits until the client gives up, and so do requests that are sent later. No error is raised." in text
    assert "While requests are unfinished" in text and "published" not in text
    assert "1. Steps 0 to 8: nothing is scheduled while r0 waits." in text, "and nothing else is told"
    assert "nothing is scheduled; r0 waits and is not admitted; 1 block is free." in text


def test_an_idle_step_that_executes_an_earlier_one_has_its_own_number() -> None:
    """With asynchronous scheduling it was "Steps 10 to 9"."""
    planned = Moment(0, "step", "step", (0,)), Moment(1, "step", "step", (1, 0))
    history = History(moments=planned, request_steps=(RequestStep(0, 0, "r0", 0, 3, 0, True, 0),))
    assert [*narrate(make_trace(*steps(2)), history)][-1] == "Step 1: nothing is scheduled."


def test_a_stall_after_a_failed_load_names_the_load() -> None:
    case = case_of("align-starvation")
    trace = structs.replace(case.trace, events=(*case.trace.events, ExternalLoad("r0", 3, breaks_off=True)))
    both = [structs.replace(one, waiting=("r0", "r1")) for one in case.history.moments]
    history = structs.replace(case.history, moments=tuple(both))
    title = headline_of(trace, history, case.violation, ()).title
    assert title == "Requests wait forever after a failed load of a KV connector (hybrid model)"


def test_a_patch_is_shown_with_what_ran_before_and_after() -> None:
    """Maintainers ask for the test that fails before and passes after; the packaged patch was not mentioned."""
    case = structs.replace(case_of("accepted-count-zero"), verdict=VERDICT, script=Script("pass\n", "x", "nothing"))
    fix = TriedFix("--- a/x\n+++ b/x\n", "the patch of E", "passes", ScriptVerdict(False, 0, 0.1, ""))
    text = report(structs.replace(case, fix=fix))
    assert "| `python repro.py` | exit status 1 | exit status 0 |" in text
    assert "```diff\n--- a/x\n+++ b/x\n```" in text and "does not fix" not in text
    assert "**The patch does not fix this failure.**" in report(
        structs.replace(case, fix=structs.replace(fix, result="fails, too"))
    )
    for result, told in (("fails in another way", OTHER_DEFECT),):
        assert told in report(structs.replace(case, fix=structs.replace(fix, result=result)))
    assert OTHER_DEFECT not in report(
        structs.replace(case, fix=structs.replace(fix, result="cannot run: no such setting"))
    )


def test_every_place_of_a_patch_is_named_and_a_test_that_it_was_tried_on_goes_with_the_report() -> None:
    """ "And more" hid the file that decided, and a row named a test that nobody had been given."""
    case = structs.replace(case_of("accepted-count-zero"), verdict=VERDICT, script=Script("pass\n", "x", "nothing"))
    passes = ScriptVerdict(False, 0, 0.1, "")
    places = [*(f"manager.py:{line}" for line in range(1, 9)), "state.py:1787"]
    fix = TriedFix("--- a/x\n+++ b/x\n", "the patch of E", "passes", passes, passes, places)
    test = EngineTest({"tests/v1/test_wrong.py": "pass\n"}, ["-m", "pytest"])
    text = report(structs.replace(case, fix=fix, test=test, tested=VERDICT))
    assert "It changes `manager.py:1, 2, 3, 4, 5, 6, 7, 8` and `state.py:1787`." in text
    assert "- [ ] Attach `tests/v1/test_wrong.py`, too" in text
    assert "too, or remove its row" not in report(structs.replace(case, fix=fix))


def test_memory_of_another_request() -> None:
    case = case_of("accepted-count-zero")
    violation = structs.replace(case.violation, request="r0", observed=StateOf(Prefix("r1"), 3))
    trace = structs.replace(case.trace, events=(arrive("r0", 3), arrive("r1", 3)))
    history = structs.replace(case.history, marks=[Mark(0, 0, violation.block, "alloc", who="r1")])
    assert "reads the state of another request, r1" in headline_of(trace, history, violation, ()).impact
    freed = structs.replace(history, marks=[*history.marks, Mark(1, 1, violation.block, "free")])
    told = headline_of(trace, freed, violation, ()).impact
    assert "reads the state that r1 left in a block that was freed since" in told, "it is nobody's memory by then"
    own = structs.replace(violation, observed=StateOf(Prefix("r0"), 3))
    assert "another request" not in headline_of(trace, case.history, own, ()).impact


@pytest.mark.parametrize("slug", slugs())
def test_all_requests_and_their_lengths_are_listed(slug: str) -> None:
    case = case_of(slug)
    text = report(case)
    arrivals = {event.name: event for event in case.trace.events if isinstance(event, Arrive)}
    assert [row.name for row in requests_of(case.trace, case.history)] == list(arrivals)
    for name, event in arrivals.items():
        assert re.search(
            rf"^\| {re.escape(name)} \| step \d+ \| {sum(n for _, n in event.prompt)} ", text, re.MULTILINE
        )


def test_a_shared_prefix_and_the_hit_are_shown() -> None:
    trace = make_trace(arrive("r0", 24, new=1), *steps(4), arrive("r1", 24, ("e", 4), new=1), *steps(3))
    _, history = record_history(CLEAN, trace)
    _, second = requests_of(trace, history)
    assert (second.shared, second.shares_with, second.hit, second.chunks) == (24, "r0", 24, (4,))


def test_chunks_are_those_of_the_first_time() -> None:
    """A request that was preempted without an end filled the table's row with hundreds of numbers."""
    trace = make_trace(arrive("r0", 20), *steps(2, budget=8), Preempt("r0"), *steps(4), mamba_cache_mode="none")
    _, history = record_history(CLEAN, trace)
    [row] = requests_of(trace, history)
    assert row.chunks == (8, 8)


@pytest.mark.parametrize("fails", [True, False])
def test_a_server_has_its_clients_and_what_was_run_of_it(fails: bool) -> None:
    """The command alone could not be made to fail."""
    case = case_of("accepted-count-zero")
    config = structs.replace(case.trace.config, options={}, num_speculative_tokens=2)
    plain = structs.replace(case.trace, config=config, events=(*case.trace.events, Step(drafts=2)))

    def described(trace: Trace) -> Deployment:
        return describe("vllm@0.33.0", trace, "0.33.0")

    served = serve(plain, described, lambda _: fails)
    text = report(structs.replace(case, deployment=described(plain), served=served))
    fences = [token.content for token in parsed(text) if token.type == "fence"]
    assert not any("r0 = send(tokens(" in one for one in fences), "no client decides which drafts are right"
    without = structs.replace(served.deployment, client=structs.replace(served.deployment.client, forced=()))
    free = report(
        structs.replace(case, deployment=described(plain), served=structs.replace(served, deployment=without))
    )
    assert ("r0 = send(tokens(" in free) == fails
    assert ("an answer that is not that of the same request sent alone" in free) == fails
    assert "comes by chance: it may take several attempts" not in free, "one request, which needs no timing"
    commands = [one for one in fences if "vllm serve" in one]
    if not fails:  # flags with the sizes of a script are of no server, and without them of one that does not fail
        assert not commands and "No client script is given" not in text
        return
    [command] = commands
    assert "--block-size 1024" in command and "--num-gpu-blocks-override" not in command
    assert "No client can make this server fail at will, so no client script is given. These are up to chance:" in text
    assert "What clients can send, in the lengths of this server:\n\n* r0 arrives: " in text
    tight = report(
        structs.replace(case, deployment=described(plain), served=structs.replace(served, needs=["num_blocks"]))
    )
    assert "how much room the pool has for a request: --num-gpu-blocks-override would" in tight
    assert "how much room" not in text
    assert "settings, with blocks of 1,024 tokens. No server was started" in text
    # Numbers that differ stood in two places, and nothing said which of the script's have no flag.
    blocks, length = max(group.block_size for group in plain.config.groups), plain.config.max_model_len
    assert (
        f"| numbers | this server | the trace |\n| --- | ---: | ---: |\n| blocks, in tokens | 1024 | {blocks} |" in text
    )
    assert f"| `--max-model-len` | not set | {length} |" in text
    assert f"| `--num-gpu-blocks-override` | not set | {plain.config.num_blocks} |" in text
    assert "| `--num-gpu-blocks-override` |" not in tight, "the server has the trace's"
    assert "Limits that are not set are not needed: the same requests fail with large values, too." in text


def test_a_server_without_clients_says_why() -> None:
    case = case_of("accepted-count-zero")
    server = structs.replace(case.deployment, command=("serve", "MODEL"), flags=("--eager",))
    text = report(structs.replace(case, deployment=server))
    assert "No client script is given: the requests are no calls of a server's HTTP interface." in text


def test_a_title_has_the_settings_that_are_needed_and_the_class_of_the_model() -> None:
    """Titles of causes said neither: "A block that is filled in the same step is copied before"."""
    case = case_of("accepted-count-zero")
    needs = ["--no-async-scheduling", "--scheduling-policy priority", "--prefix-match-unit 32", "a retraction"]
    unusual = ("--scheduling-policy", "--prefix-match-unit")
    measured = structs.replace(
        case,
        deployment=structs.replace(
            case.deployment, model="gated delta nets", architecture="Qwen3NextForCausalLM", unusual=unusual
        ),
        runs=[OtherRun("V2", True, True, "fails"), OtherRun("V1", False, False, "passes")],
        severity=Severity("P1", "wrong tokens", Reach(needs, [], [], {}, {}, "V2", 1, True)),
    )
    settings = "with --scheduling-policy priority and --prefix-match-unit"
    kind = "(gated delta nets: Qwen3NextForCausalLM, V2)"
    stood_in = structs.replace(measured, deployment=structs.replace(measured.deployment, is_stood_in=True))
    assert stood_in.title.endswith("(gated delta nets, V2)"), "no model of the class was run"
    assert measured.title == f"{case.headline.situation} {settings} {kind}"
    entry = RelatedEntry("entry", "engine #9", cause=CauseText("7. V2 keeps a key", {}, "It does."))
    # A title named structured output beside a cause that has nothing to do with it.
    told = "Wrong tokens with --scheduling-policy priority: V2 keeps a key (gated delta nets: Qwen3NextForCausalLM)"
    assert structs.replace(measured, related=entry).title == told
    named = structs.replace(entry, cause=CauseText("7. V2 keeps a key", {"needs": "`--prefix-match-unit`"}, "It does."))
    assert " with --prefix-match-unit: V2 keeps" in structs.replace(measured, related=named).title
    stock = structs.replace(measured, severity=Severity("P0", "wrong tokens", Reach([], [], [], {}, {})))
    assert "with default settings (" in stock.title


def test_a_title_of_a_wrong_cache_is_its_cause() -> None:
    """ "What is kept in the store holds wrong KV with ...: the V2 runner zeroes blocks" was read as a prefix."""
    entry = RelatedEntry("entry", "engine #9", cause=CauseText("7. The runner zeroes blocks too early", {}, "It does."))
    case = structs.replace(case_of("null-id-not-zero"), related=entry)
    inside = structs.replace(case, severity=Severity("P3", "corrupt cache", Reach([], [], [], {}, {})))
    assert inside.title.startswith("The runner zeroes blocks too early")
    assert not case.title.startswith("The runner zeroes blocks too early")


def test_a_comment_shows_the_reproduction_and_folds_the_rest() -> None:
    """A comment on a pull request that explains the cause had 354 lines."""
    script = Script("pass\n", "AssertionError", "nothing")
    case = structs.replace(
        known_case(same="#7", public="PR #7 (open)", adds="a script"), script=script, verdict=VERDICT
    )
    text = report(case)
    assert "The defect that this pull request is about also occurs in " in text
    shown = re.sub(r"<details>.*?\n</details>\n(?=\n*(<details>|## |$))", "", text, flags=re.DOTALL)
    assert "## Reproduction" in shown and "python repro.py" in shown
    assert "publishes before it writes" in text and "publishes before it writes" not in shown
    assert "<summary>Cause</summary>" in text and "## Environment" not in text


def test_a_stop_token_that_comes_twice_is_up_to_chance() -> None:
    """A client was to put a token there that the model should sample again: the stand-in does, a model hardly will."""
    case = case_of("accepted-count-zero")
    arrival = next(event for event in case.trace.events if isinstance(event, Arrive))
    others = [structs.replace(event, stop_at=2) if event is arrival else event for event in case.trace.events]
    trace = structs.replace(case.trace, events=tuple(others))
    answer = Answer(arrival.name, 2, (81, 81), ())
    told = structs.replace(case, trace=trace, answers=Answers((answer,)))
    assert repeats_its_stop(told)
    assert not repeats_its_stop(structs.replace(told, answers=Answers((structs.replace(answer, expected=(80, 81)),))))


def test_the_cause_is_told_where_it_is_known() -> None:
    cause = CauseText("A key too early", {"public": "#7 (open)"}, "`f` publishes before it writes.")
    entry = RelatedEntry("entry", "engine #9", cause=cause)
    text = report(structs.replace(case_of("accepted-count-zero"), related=entry))
    assert text.partition("\n")[0] == "# Wrong tokens with speculative decoding: a key too early (hybrid model)"
    assert "## Cause\n\n**A key too early**.\n\n`f` publishes before it writes.\n" in text
    assert "**Public reports**:\n\n* #7 (open)\n" in text
    assert "#9" not in text.partition("## ")[2], "our own reason is for the owner of the report"


def test_a_request_without_an_answer_has_nothing_to_send_again() -> None:
    """A row told that tokens of an answer were sent again that no client had received."""
    case = case_of("accepted-count-zero")
    waits = Answer("r0", 3, (1, 2), (), end="not finished")
    again = Answer(f"r0{AGAIN}", 3, (1, 2), (), again=True)
    text = report(structs.replace(case, answers=Answers((waits, again)), script=None))
    assert "| r0 |" in text and "sent again" not in text


def test_of_a_long_scenario_the_middle_is_left_out() -> None:
    case = case_of(slugs()[0])
    often = [event for _ in range(150) for event in (Preempt("r0"), Step())]
    trace = make_trace(arrive("r0", 30), *steps(2), *often)
    _, history = record_history(CLEAN, trace)
    text = report(structs.replace(case, trace=trace, history=history))
    told = [line for line in text.splitlines() if re.match(r"\d+\. ", line)]
    assert 90 < len(told) <= 110 and " more.)" in text


def test_plain_steps_are_not_told_one_by_one() -> None:
    """Nobody reads a list of all steps: what each request gets, other events, and the step where it goes wrong are
    enough."""
    trace = make_trace(arrive("r0", 30), *steps(2, budget=8), Preempt("r0"), *steps(3))
    _, history = record_history(CLEAN, trace)
    history = structs.replace(history, moments=history.moments[: len(trace.events)])
    told = [*narrate(trace, history, is_brief=True)]
    assert told[0] == "Before step 2: r0 is preempted."
    assert len(told) == 2 and told[1] == [*narrate(trace, history)][-1] and told[1].startswith("Step ")
    ends = structs.replace(trace, events=trace.events[:4])
    ended = structs.replace(history, moments=history.moments[:4])
    assert [*narrate(ends, ended, is_brief=True)] == told[:1]
    assert [*narrate(make_trace(), History(), is_brief=True)] == []


def test_every_argument_of_a_script_is_in_its_legend() -> None:
    """Readers of a script did not know what `reasoning=7` asks for."""
    sources = [CORPUS.parent / "targets" / engine / "repro.py" for engine in ("vllm", "sglang")]
    named = {name for path in sources for name in re.findall(r'f", (\w+=)\{', path.read_text(encoding="utf-8"))}
    assert len(named) > 8 and named - LEGEND.keys() <= {"session="}


def test_every_kind_of_event_has_words() -> None:
    """A default would name the event's tag."""
    made: list[AnyEvent] = []
    for kind in get_args(AnyEvent):
        values = {"name": "r0", "prompt": (("d", 3),), "max_new_tokens": 2, "blocks": 2, "rows": 2, "length": 3}
        values |= {"parent": "r1", "slot": "s", "tier": "t", "order": ("r0",)}
        values |= {"names": ("r0",), "sources": {"r0": "r1"}, "times": 2, "tokens": 2, "by": 2}
        made.append(kind(**{key: value for key, value in values.items() if key in kind.__struct_fields__}))
    _, history = record_history(CLEAN, make_trace(arrive("r0", 3), *steps(30)))
    moments = history.moments[: len(made)]
    words = list(narrate(make_trace(*made), structs.replace(history, moments=moments, request_steps=())))
    assert len(words) == len(made) > 15
    assert not [one for one in words if one.startswith("Event ")]
    assert "Dummy run of 2 rows" in words[made.index(next(one for one in made if isinstance(one, DummyRun)))]
    assert re.match(r"(A step|Step \d+): nothing is scheduled", words[made.index(Step())])


@pytest.mark.parametrize("slug", slugs())
def test_it_is_valid_markdown(slug: str) -> None:
    case = case_of(slug)
    script = Script("print()\n" * 200, "x", "nothing")
    text = report(structs.replace(case, script=script, verdict=VERDICT, versions={"Python": "3.12.0"}))
    tokens = parsed(text)
    html = [one.content.strip() for one in tokens if one.type in ("html_block", "html_inline")]
    assert html and all(DETAILS.fullmatch(one) for one in html), html
    assert text.count("<details>") == text.count("</details>")
    assert [one.tag for one in tokens if one.type == "heading_open"].count("h1") == 1
    assert any(one.type == "table_open" for one in tokens) or case.crashes
    for line in text.splitlines():
        assert not line.startswith("| |  |")
    assert headings(text) == [section.heading for section in case.deployment.form.sections]


def test_a_short_script_is_shown_and_a_long_one_is_collapsed() -> None:
    case = structs.replace(case_of("accepted-count-zero"), verdict=VERDICT)
    short = report(structs.replace(case, script=Script("pass\n" * SCRIPT_LINES_SHOWN, "x", "nothing")))
    long = report(structs.replace(case, script=Script("pass\n" * (SCRIPT_LINES_SHOWN + 1), "x", "nothing")))
    assert "```python\npass\n" in short and "<summary>repro.py" not in short
    assert f"<details><summary>repro.py ({SCRIPT_LINES_SHOWN + 1} lines)</summary>\n\n```python\npass\n" in long


def test_of_a_script_with_machinery_only_the_scenario_is_shown() -> None:
    """5,000 lines are longer than an issue may be: the report had no line of them."""
    case = structs.replace(case_of("accepted-count-zero"), verdict=VERDICT)
    script = Script(f"ask()\n\n\n{MACHINERY} Of the engine.\n" + "x = 1\n" * 20_000, "x", "nothing")
    text = report(structs.replace(case, script=script))
    assert "(20004 lines in all, attached; the rest is machinery):\n\n```python\nask()\n```\n" in text
    assert "x = 1" not in text and MACHINERY not in text


def test_calls_of_a_script_that_do_not_speak_for_themselves_are_explained() -> None:
    case = structs.replace(case_of("accepted-count-zero"), verdict=VERDICT)
    text = f"def reproduce():\n    engine.step(right=1)\n\n\n{MACHINERY}\n"
    shown = report(structs.replace(case, script=Script(text, "x", "nothing")))
    assert "the rest is machinery). Of the drafts of a step, which a stand-in proposes, the first `right`" in shown


def test_the_values_of_the_run_stand_beside_its_cause() -> None:
    """A cause spoke of a hit of 4 tokens, and nothing in the report said that there is one."""
    trace = make_trace(arrive("r0", 24, new=1), *steps(4), arrive("r1", 24, ("e", 4), new=1), *steps(3))
    case = structs.replace(case_of("null-id-not-zero"), trace=trace, history=record_history(CLEAN, trace)[1])
    script = Script(f"def reproduce():\n    pass\n\n\n{MACHINERY}\n", "x", "nothing")
    text = report(structs.replace(case, script=script, verdict=VERDICT))
    values = "**In the reproduction.** r1 hits 24 tokens and computes 4 tokens of its prompt. First deviation: "
    assert f"Not known. {values}" in text
    cause = RelatedEntry("entry", "engine #9", cause=CauseText("A key too early", {}, "It publishes."))
    known = report(structs.replace(case, related=cause))
    assert known.index("It publishes.") < known.index(f"\n{values}")


def test_the_output_of_a_script_is_shown_with_what_clients_receive() -> None:
    """Of six lines all were the traceback's. Of a plain assertion no traceback is shown."""
    printed = ["r0: received [1], expected [2]", *[f"  line {number} of the traceback" for number in range(8)]]
    verdict = structs.replace(VERDICT, promised=True, tail="\n".join(printed))
    case = structs.replace(case_of("accepted-count-zero"), verdict=verdict, script=Script("pass\n", "x", "vllm, torch"))
    text = report(case)
    assert "$ python repro.py\nr0: received [1], expected [2]\n" in text
    assert "With vllm and torch installed, on a CPU" in text
    plain = report(structs.replace(case, verdict=structs.replace(verdict, raised="AssertionError: no")))
    assert "$ python repro.py\nAssertionError: no\n```" in plain


def test_it_does_not_say_that_a_person_has_done_what_nobody_has_done_yet() -> None:
    """Each said "I have run the reproduction below", also where there was none."""
    text = report(case_of("accepted-count-zero"))
    assert "> - [ ] Run the script.\n" in text and "I have " not in text and "[x]" not in text


def test_a_report_fits_into_an_issue() -> None:
    case = structs.replace(case_of("accepted-count-zero"), verdict=VERDICT)
    huge = report(structs.replace(case, script=Script("x = 1\n" * 20_000, "x", "nothing")))
    assert len(huge) < LENGTH_MAX < 65_536
    assert "`repro.py` (20000 lines) is too long for this text and is attached." in huge
    rows = tuple(Answer(f"r{number}", 1, (1,) * 12, (2,) * 12) for number in range(3000))
    cut = report(structs.replace(case, answers=Answers(rows)))
    assert len(cut) <= LENGTH_MAX
    assert cut.endswith("(Cut: longer than an issue may be.)\n")


def test_a_script_whose_tokens_are_right_claims_no_wrong_ones() -> None:
    """A report said "wrong tokens", and its script printed the same tokens twice. Another said that numbers differ, and
    its script printed that they differ by 0."""
    case = structs.replace(case_of("accepted-count-zero"), script=Script("pass\n", "x", "nothing"))
    rows = ((94, 94, "0.5"), (1, 2, "0.5"))
    lines = [f"row 0: greedy tokens [{one}], alone [{other}]; {DIFFER} {by}" for one, other, by in rows]
    verdict = structs.replace(VERDICT, raised="AssertionError: x")
    same, other = (report(structs.replace(case, verdict=structs.replace(verdict, told=lines[:n]))) for n in (1, 2))
    said = "no greedy token differs from those of the same tokens alone, but log-probabilities do."
    assert said in same and said not in other
    assert f"$ python repro.py\n{lines[0]}\nAssertionError: x" in same
    equal = [lines[0].replace("0.5", "0")]
    assert said not in report(structs.replace(case, verdict=structs.replace(verdict, told=equal)))


def test_it_is_said_how_another_implementation_fails() -> None:
    """It said "fails in another way" and not how; and of one that was not run, why our adapter cannot."""
    unable = [OtherRun("python", False, True, "fails"), OtherRun("rust", True, False, "cannot run: x needs y")]
    told = report(structs.replace(case_of("accepted-count-zero"), runs=unable))
    reason = "not run, because the test harness does not drive it with these settings"
    assert f"rust (the default): {reason}; python: **fails** (this report).\n" in told
    by_script = [unable[0], OtherRun("rust", True, False, "fails, too", by_script=True)]
    told = report(structs.replace(case_of("accepted-count-zero"), runs=by_script))
    assert "rust (the default): fails, too (the script); python: **fails** (this report).\n" in told
    runs = [OtherRun("python", False, True, "fails"), OtherRun("rust", True, False, "fails in another way: TypeError")]
    assert "rust (the default): fails in another way: TypeError; python" in report(
        structs.replace(case_of("accepted-count-zero"), runs=runs)
    )


def test_the_default_implementation_is_named_first() -> None:
    case = case_of("accepted-count-zero")
    old, new = OtherRun("V1 runner", False, True, "fails (S3)"), OtherRun("V2 runner", True, False, "passes")
    text = report(structs.replace(case, runs=(old, new)))
    assert "V2 runner (the default): passes; V1 runner: **fails** (this report)." in text
    assert text.splitlines()[0].endswith(" (hybrid model, V1 runner)")
    other = report(
        structs.replace(case, runs=(structs.replace(old, default=True), structs.replace(new, default=False)))
    )
    assert "V1 runner (the default): **fails** (this report); V2 runner: passes." in other


def test_controls_stand_beside_what_is_wrong() -> None:
    case = case_of("accepted-count-zero")
    text = report(structs.replace(case, controls=["without r1", "without --x_y"]))
    section = text.partition("## Expected behavior")[2].partition("<details>")[0]
    assert "**Controls.** Each was run, and differs from the run in one thing only:" in section
    assert (
        "| the run | **fails** |\n| the same, but without r1 | passes |\n| the same, but without --x_y | passes |"
        in (section.replace("\\_", "_"))
    )
    assert "Controls" not in report(case)
    small = report(structs.replace(case, reductions=["without r2", "with 3 tokens in the prompt of r0 instead of 4"]))
    smaller = small.partition("<summary>Smaller runs that pass</summary>")[2]
    assert "* without r2\n* with 3 tokens in the prompt of r0 instead of 4\n" in smaller, "no controls of the cause"


def test_settings_that_the_failure_needs_are_no_controls() -> None:
    """A run without them may compute less than what fails: they stood in the table of controls, some of them twice."""
    reach = Reach(("--flag", "--other", "--rare"), (), ("--rare",), {"synchronous": False, "asynchronous": True})
    case = structs.replace(case_of("accepted-count-zero"), severity=Severity("P2", "wrong tokens", reach))
    text = report(case)
    assert "Run without `--flag` or without `--other`, the same requests do not fail. `--rare` was set" in text
    passing = "scheduling these requests do not fail in this order; whether others do was not looked for."
    assert f"With synchronous {passing}" in text and "Controls" not in text
    stock = structs.replace(case, severity=Severity("P1", "wrong tokens", Reach()))
    assert "The same requests fail with default settings, too." in report(stock)


def test_a_setting_is_told_once_and_not_if_it_is_asked_for() -> None:
    """One that a control is about was told above the table, too; without sessions the requests are not the same."""
    reach = Reach(("--tier", "--tier-size 3", "--streaming-session", "--other"))
    case = structs.replace(case_of("accepted-count-zero"), severity=Severity("P2", "wrong tokens", reach))
    first, *rest = case.trace.events
    session = structs.replace(case.trace, events=(structs.replace(first, session=True), *rest))
    case = structs.replace(case, controls=["without --tier-size"], trace=session)
    assert "Run without `--tier` or without `--other`, the same" in report(case)
    assert "with --tier-size and --tier" in case.title, "those that were tried in the script come first"


def test_a_flag_of_the_schedule_is_not_said_to_be_needed() -> None:
    """By its cause a defect showed in both schedules, and the title named the flag of one: there the same requests met
    other steps."""
    needs = Reach(("--sync", "--other"), (), (), {"synchronous": True, "asynchronous": False})
    case = structs.replace(known_case(), severity=Severity("P2", "wrong tokens", needs))
    case = structs.replace(
        case, deployment=structs.replace(case.deployment, command=("serve",), scheduling=("--sync",))
    )
    text = report(case)
    assert (
        "Run without `--other`, the same requests do not fail; other requests may. "
        "With asynchronous scheduling these requests do not fail in this order" in text
    )
    assert "--sync" not in text and "--other" in case.title
    unknown = structs.replace(case, related=None)
    assert "--sync" in unknown.title, "no cause says that it shows without it"


def test_no_setting_is_needed_for_a_call_that_is_refused_without_it() -> None:
    needs = Severity("P2", "wrong tokens", Reach(("recording of the past",)))
    case = structs.replace(case_of("accepted-count-zero"), severity=needs)
    assert "the same requests do not fail" in report(case)
    cropped = structs.replace(case.trace, events=(*case.trace.events, Select(("r0",))))
    assert "the same requests do not fail" not in report(structs.replace(case, trace=cropped))


def test_the_engine_says_what_its_form_asks_for() -> None:
    """The form of vLLM has a required field for the output of its script."""
    assert collected(LAUNCH, ("-c", "import sys; print('engine 1 in', sys.prefix)")) == "engine 1 in ..."
    ours = "print('engine 1'); print('CACHE=.../.cache/hybridfuzz/kernels')"
    assert collected(LAUNCH, ("-c", ours)) == "engine 1", "variables of a worker are no part of an environment"
    assert collected(LAUNCH, ("-c", "raise SystemExit(1)")) == collected(LAUNCH, ()) == ""
    case = case_of("accepted-count-zero")
    served = structs.replace(case, deployment=structs.replace(case.deployment, form=FORM))
    text = report(structs.replace(served, collected="GPU ``` none"))
    assert "The output of python collect_env.py</summary>\n\n````text\nGPU ``` none\n````\n" in text
    assert "The output of" not in report(served)


def test_places_are_shown_with_their_scores_and_never_guessed() -> None:
    case = case_of("accepted-count-zero")
    assert "Where to look" not in report(case)
    places = [Place(f"engine/file{number}.py", "Class.function", 7, 0.5 + number / 20) for number in range(7)]
    text = report(structs.replace(case, places=places))
    assert "* `engine/file0.py:7` `Class.function`, 0.50\n" in text
    assert text.count("`Class.function`") == 5


def test_known_reports_are_listed_and_a_search_is_named() -> None:
    case = case_of("finished-row-not-cleared")
    deployment = Deployment("engine", tracker="https://example.org/issues", form=FORM)
    text = report(structs.replace(case, deployment=deployment))
    assert text.startswith("# [Bug]: ")
    assert "Public reports" not in text, "nobody searched"
    assert "in `https://example.org/issues`, one query each: `mamba dummy run data parallel wrong output`.\n" in text
    text = report(structs.replace(case, related=RelatedEntry("entry", "engine #123, not #abc")))
    assert "**Public reports** of this or a related bug: #123.\n" in text
    assert "known as `entry`, engine #123, not \\#abc, replayed by" in text.partition("## ")[0]


def test_an_entry_of_ours_is_no_public_report() -> None:
    """ "Related reports: ... not searched" listed our own entry as if it were one."""
    case = structs.replace(case_of("finished-row-not-cleared"), related=RelatedEntry("entry", "Public: not searched."))
    text = report(case)
    assert "known as `entry`" in text.partition("## ")[0] and "`entry`" not in text.partition("## ")[2]
    assert "Public reports" not in text


def test_the_server_command_is_one_shell_command() -> None:
    case = case_of("accepted-count-zero")
    flags = ("--json", '{"a": "it\'s"}', "--switch", "--number", "3")
    text = report(structs.replace(case, deployment=Deployment("E", ("serve", "M"), flags, {"X": "1"})))
    block = text.partition("```bash\n")[2].partition("\n```")[0]
    import shlex

    assert shlex.split(block.replace("\\\n", " ")) == ["X=1", "serve", "M", *flags]


def test_versions_of_this_environment() -> None:
    found = versions_of(LAUNCH, ("msgspec", "no-such-package"))
    assert found.keys() == {"Python", "msgspec"}
    assert found["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions_of(Launch("/no/such/python", {}), ()) == {}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_neither_report_nor_drawing(tmp_path: Path, text: str) -> None:
    """REPORT.md gets no HTML, links or headings of it, timeline.svg stays well-formed, no file lies elsewhere."""
    case = case_of(slugs()[0])
    violation = structs.replace(
        case.violation, told=f"M4: {text}", relation="", expected=text, observed=text, request=text, field=text
    )
    marks = tuple(structs.replace(mark, who=text, content=text) for mark in case.history.marks)
    turns = tuple(structs.replace(one, request=text) for one in case.history.request_steps)
    history = structs.replace(case.history, violation=violation, marks=marks, request_steps=turns)
    hostile = structs.replace(
        case,
        spec=f"python:{text}",
        launch=Launch("python", {}, text),
        deployment=Deployment(
            text, (text,), (text, text), {"X": text}, (text,), (), (text,), (text,), (), text, (text,), (text,), (text,)
        ),
        history=history,
        violation=violation,
        answers=Answers((Answer(text, 1, (1,), (2,), end=text), Answer(text, 1, (1,), (1,), end=text)), text),
        runs=(OtherRun(text, True, False, text), OtherRun(text, False, True, text)),
        versions={text: text},
        system=text,
        places=(Place(text, text, 1, 0.5),),
        related=RelatedEntry(text, text),
        fix=TriedFix(text, text, text, ScriptVerdict(True, 1, 0.1, text)),
        script=Script(f"{text}\n", text, text),
        verdict=ScriptVerdict(False, 0, 0.1, text),
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(folder, hostile)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    written = (folder / "REPORT.md").read_text()
    tokens = parsed(written)
    html = [one.content.strip() for one in tokens if one.type in ("html_block", "html_inline")]
    assert all(DETAILS.fullmatch(one) for one in html), html
    assert not [one.attrs for one in tokens if one.type in ("link_open", "image")]
    assert headings(written) == [section.heading for section in PLAIN.sections]
    assert [one.tag for one in tokens if one.type == "heading_open"].count("h1") == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)
    ElementTree.fromstring((folder / "timeline.svg").read_bytes())


def test_each_turn_of_a_session_has_its_number() -> None:
    """Two rows had the same name, and one of them was right."""
    rows = [Answer("r0", 1, (5,), (5,)), Answer("r0", 4, (6,), (7,)), Answer("r0", 5, (8,), (8,), again=True)]
    text = report(structs.replace(case_of("null-id-not-zero"), answers=Answers(rows)))
    table = text.partition("| client |")[2].partition("\n\n")[0]
    names = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| r0")]
    assert names == ["| r0", "| r0, turn 2", "| r0 (its prompt and answer sent again)"]


def test_what_only_the_script_shows_is_said_where_every_client_of_the_run_is_right() -> None:
    """The report said that every client receives the right tokens, and its script showed one that does not."""
    case = structs.replace(case_of("finished-row-not-cleared"), verdict=VERDICT)
    told = "In the script, a client that sends the same tokens again, or asks for more, receives wrong ones."
    scripts = [
        Script("x = 1\n", promise, "engine") for promise in ("AssertionError: clients receive wrong tokens", "leak")
    ]
    assert [told in report(structs.replace(case, script=script)) for script in scripts] == [True, False]


def test_the_flags_of_a_server_come_first_and_our_names_of_settings_last() -> None:
    """A maintainer read twenty settings in our words before the flags that say the same."""
    case = case_of("null-id-not-zero")
    server = structs.replace(
        case.deployment, command=("serve", "MODEL"), flags=("--eager",), search=("falcon", "cache")
    )
    served = report(structs.replace(case, deployment=server))
    assert "```bash\nserve MODEL" in served and "num_blocks=" not in served
    assert "The settings: `num_blocks=" in report(case), "without a command nothing else says them"
    assert "one query each: `falcon cache memory leak`" in served


def test_what_a_stand_in_refuses_is_no_exception_of_the_engine() -> None:
    """The title was "The engine crashes with EngineError in two_devices", with a line of ours as its place."""

    def run() -> None:
        raise EngineError("`cat` mixes tensors of the host and of the accelerator")

    with pytest.raises(EngineError) as caught:
        run()
    violation = crash_violation(None, caught.value, ("engine",))
    assert violation.sentence == "`cat` mixes tensors of the host and of the accelerator (while it was opened)"
    assert consequence_of(violation)[0] == "`cat` mixes tensors of the host and of the accelerator"


NEEDS = "an abort, `--flag-of-two` and more than one block"


def known_case(body: str = "`Pool.take_block` publishes before it writes.", **fields: str) -> ReproCase:
    cause = CauseText("A key too early", {"client": "wrong tokens", "needs": NEEDS, **fields}, body)
    return structs.replace(case_of("accepted-count-zero"), related=RelatedEntry("entry", "engine #9", cause=cause))


def test_the_trigger_stands_before_the_machinery() -> None:
    """What a reader has to do stood behind the cause, in its parenthesis; then in one sentence with what was run."""
    text = report(known_case(where="V2"))
    when = text.index(f"**When it happens**\n\n* It needs {NEEDS} (read in the source).\n")
    assert when < text.index("## Cause") and when < text.index("**Public reports**")
    assert text.count(NEEDS) == 1 and "**A key too early** (V2)." in text


def test_what_a_client_gets_is_said_once() -> None:
    """ "Wrong tokens: wrong tokens with beams"."""
    text = report(known_case(client="wrong tokens with beams"))
    assert "\nWrong tokens with beams. " in text and "okens: wrong" not in text
    assert "\nWrong tokens: an answer of another. " in report(known_case(client="an answer of another"))


def test_a_script_of_a_library_is_not_beside_the_answers_of_stand_ins() -> None:
    """All rows of the table were right, and none had a token of the script."""
    case = case_of("accepted-count-zero")
    library = structs.replace(case, deployment=structs.replace(case.deployment, has_sizes=False, command=()))
    assert case.answers.rows and "| client | should receive |" in report(library)
    script = structs.replace(library, verdict=VERDICT, script=Script("pass\n", "x", "nothing"))
    text = report(script)
    assert "| client | should receive |" not in text and "In the run below" not in text


def test_what_the_first_sentence_says_is_not_measured_again() -> None:
    """A report without a cause said twice after what it fails."""
    case = known_case()
    assert "The reproduction below fails " not in report(case), "what it needs is told"
    needs = structs.replace(case.related.cause, fields={"client": "wrong tokens"})
    assert "\n* The reproduction below fails " in report(
        structs.replace(case, related=structs.replace(case.related, cause=needs))
    )
    assert "The reproduction below fails " not in report(structs.replace(case, related=None))


def raising(field: str, raised: str, told: tuple[str, ...] = (), tail: str = "") -> ReproCase:
    """A library in which a forward raises, and what its script prints."""
    case = case_of("accepted-count-zero")
    violation = Violation("CRASH", field, "the model raised RuntimeError: sizes differ (event 6, step)", event=6)
    library = structs.replace(case.deployment, has_sizes=False, command=())
    return structs.replace(
        case, violation=violation, deployment=library, script=Script("pass\n", raised, "nothing"),
        verdict=ScriptVerdict(True, 1, 0.1, tail, "", told, raised),
    )  # fmt: skip


def test_a_library_raises_and_no_engine_crashes() -> None:
    """There is no engine that ends with it, and numbers that differ by rounding were called wrong."""
    told = "row 0, after 1 tokens: greedy tokens [1], alone [1]; log-probabilities differ from the same tokens alone by"
    case = raising("RuntimeError-update", "AssertionError: the model raises RuntimeError", (f"{told} 1.9e-06",))
    text = report(case)
    assert case.title.startswith("RuntimeError in update") and "The engine crashes" not in text
    assert "no request that runs or waits gets its answer" not in text
    assert "no greedy token differs" not in text
    shown = structs.replace(case, violation=structs.replace(case.violation, oracle="S6", field="logprobs"))
    assert "no greedy token differs" not in report(shown), "a difference of rounding is none"
    large = structs.replace(shown, verdict=ScriptVerdict(True, 1, 0.1, "", "", (f"{told} 0.2",)))
    assert "no greedy token differs" in report(large)


def test_a_crash_is_called_by_its_message_and_shows_where_the_engine_raised() -> None:
    """A title said "AssertionError in schedule", and a maintainer's first question was where that is."""
    stack = """Traceback (most recent call last):
  File "/c/hybridfuzz/targets/engine/target.py", line 7, in apply
    handle(event)
  File "/c/hybridfuzz/engine/1.0/tree/engine/sched.py", line 9, in schedule
    assert a == b
AssertionError
"""
    error = {"who": Quoted("engine (engine.sched)"), "error": Quoted("AssertionError: assert a == b")}
    message = "the engine raised AssertionError: assert a == b (event 6, step)"
    violation = Violation("CRASH", "AssertionError-schedule", message, event=6, details=error, observed=Quoted(stack))
    case = structs.replace(case_of("accepted-count-zero"), violation=violation)
    text = report(case)
    [shown] = [one.content for one in parsed(text) if one.type == "fence" and 'File "engine/' in one.content]
    assert shown == '  File "engine/sched.py", line 9, in schedule\n    assert a == b\nAssertionError\n'
    assert case.title.startswith("AssertionError: assert a == b")
    other = structs.replace(violation, details={**error, "error": Quoted(f"AssertionError: {'x' * 60}")})
    assert structs.replace(case, violation=other).title.startswith("The engine crashes with AssertionError in schedule")


def test_an_engine_that_answers_a_call_with_an_error_does_not_crash() -> None:
    """vLLM catches what a reset raises: a report said that the engine crashes, and that no request gets its answer."""
    violation = Violation("CRASH", "AssertionError-reset_cache", "raised", event=6, event_kind="reset_prefix_cache")
    case = structs.replace(case_of("accepted-count-zero"), violation=violation)
    assert "The engine crashes with AssertionError in reset_cache" in report(case)
    lives = structs.replace(case.deployment, declines={"reset_prefix_cache": "POST /reset"})
    text = report(structs.replace(case, deployment=lives))
    assert "POST /reset fails with AssertionError in reset_cache" in text
    assert "The engine crashes" not in text and "gets its answer" not in text


def test_the_traceback_is_that_of_the_engine() -> None:
    """A script that says in its own words what it met hid where the engine raised, and was what was received."""
    head = "Traceback (most recent call last):"
    tail = "\n".join([
        "printed", head, '  File "engine.py", line 3, in update', "RuntimeError: sizes differ", "",
        "The above exception was the direct cause of the following exception:", "", head,
        '  File "repro.py", line 9', "AssertionError: the model raises RuntimeError",
    ])  # fmt: skip
    text = report(raising("RuntimeError-update", "AssertionError: the model raises RuntimeError", tail=tail))
    [shown] = [one.content for one in parsed(text) if one.type == "fence" and one.content.startswith("$ python repro")]
    cut = tail.replace(f"printed\n{head}", "    ^^^^")
    [later] = [one.content for one in parsed(report(raising("RuntimeError-update", "AssertionError: x", tail=cut)))
               if one.type == "fence" and one.content.startswith("$ python repro")]  # fmt: skip
    assert later.startswith('$ python repro.py\n  File "engine.py"'), "a long one begins with a whole line"
    assert 'engine.py", line 3' in shown and 'repro.py", line 9' not in shown
    assert shown.endswith("\nAssertionError: the model raises RuntimeError\n")
    assert "Received: the model raised RuntimeError: sizes differ." in text
    own = raising("AssertionError-update", "AssertionError: no room")
    assert "Received: AssertionError: no room." in report(own)


def test_a_bare_number_says_of_what_it_is() -> None:
    """A row said "0" and "1"."""
    leak = Violation("M9", "request-rows", "request rows are left: 1", expected=0, observed=1)
    text = report(structs.replace(case_of("accepted-count-zero"), violation=leak))
    assert "| engine | see the rule | request rows are left: 1 |" in text


def test_of_several_known_bugs_the_owner_is_told() -> None:
    """The fixes of all known bugs silence it, and the report said that nothing was known."""
    case = case_of("accepted-count-zero")
    assert "is it one of these defects, or several?" in report(structs.replace(case, is_explained=True))
    assert "is it one of these defects" not in report(case)


def test_each_public_report_has_its_line() -> None:
    text = report(known_case(public="not found on V2; #1 (merged): brought the pool (2026); PR #2: a repair of `a; b`"))
    assert "no report of this defect was found on V2. Near it:\n\n* #1 (merged): brought" in text
    assert "(up to September 2026): no report" in text
    assert "Read the public reports named below again: what is said of them dates from September 2026." in text
    assert "no report of this defect was found.\n" in report(known_case(public="not found"))


def test_the_words_to_search_for_are_of_the_function_and_the_symptom() -> None:
    """They were the settings of the trace, for which a tracker has hundreds of reports; then one query of all words,
    which no report has; then names of fields, of flags and of ours alone."""
    case = known_case("`max_tokens` is a field, `--flag` a flag. `Pool.take_block` publishes. `_grow` is called.")
    about = case.headline.search[1]
    last = f"`mamba {about} wrong output`"
    assert f"one query each: `wrong output take_block`, `wrong output _grow`, {last}" in report(case)
    fix = TriedFix("--- a/x\n+++ b/x\n", "E", "passes", functions=["Pool.take"])
    assert f"one query each: `wrong output Pool.take`, {last}" in report(structs.replace(case, fix=fix))
    crash = structs.replace(case_of("mixed-decodes"), related=known_case().related)
    exception, _, function = crash.violation.field.partition("-")
    about = crash.headline.search[1]
    assert f"one query each: `{exception} {function}`, `{about} {exception}`" in report(crash)
    words = structs.replace(crash.deployment, words={about: "as users say"})
    assert f"`as users say {exception}`" in report(structs.replace(crash, deployment=words))
    named = structs.replace(words, features=("HiTier",))
    assert f"`HiTier {exception}`" in report(structs.replace(crash, deployment=named))


def test_a_title_names_the_event_that_the_cause_does_not() -> None:
    """An abort was the trigger, and the title did not have it."""
    case = known_case()
    trace = structs.replace(case.trace, events=(Preempt("r0"), *case.trace.events))
    assert structs.replace(case, trace=trace).title.startswith("Wrong tokens after a preemption with ")
    told = structs.replace(case.related, cause=structs.replace(case.cause, heading="A preempted request keeps its key"))
    assert "after a preemption" not in structs.replace(case, trace=trace, related=told).title


def test_nothing_of_ours_stands_in_the_body() -> None:
    """Rows that only users of hybridfuzz understand, and files that are not attached, were in what is filed."""
    case = structs.replace(known_case(), verdict=VERDICT, script=Script("pass\n", "x", "nothing"))
    fix = TriedFix("--- a/x\n+++ b/x\n", "E", "passes", ScriptVerdict(False, 0, 0.1, ""))
    ours, _, body = report(structs.replace(case, fix=fix)).partition("## ")
    assert "replayed by `hybridfuzz replay trace.json" in ours and case.violation.signature in ours
    for one in ("trace.json", "timeline.svg", "in hybridfuzz", case.violation.signature, "`entry`"):
        assert one not in body, one


def test_the_models_are_those_on_which_it_was_run() -> None:
    case = structs.replace(known_case(), models={"hybrid other": "passes", "hybrid small": "fails, too"})
    here = structs.replace(case, deployment=structs.replace(case.deployment, model="hybrid model"))
    line = "\n* Models, each run with the same requests: fails with model and small; passes with other.\n"
    assert line in report(here)
    cropped = structs.replace(here.trace, events=(*here.trace.events, Select(("r0",))))
    told = report(structs.replace(here, trace=cropped))
    assert "fails with model and small.\n" in told, "a call that is refused does not pass"
    assert "* Models, " not in report(known_case())
    stood_in = structs.replace(here.deployment, is_stood_in=True, architecture="SomeForCausalLM")
    told = report(structs.replace(here, deployment=stood_in))
    assert "* State layers, each run with the same requests, as stand-ins, without model weights: fails" in told
    assert "SomeForCausalLM" not in told, "no model of that class was run"


def test_a_token_0_is_explained_where_one_is_received() -> None:
    script = Script("pass\n", "AssertionError: clients receive wrong tokens", "nothing")
    for received, is_there in (("0", True), ("7", False)):
        told = [f"r7: prompt [1, 2], received [{received}], expected [3]; ended"]
        case = structs.replace(case_of("accepted-count-zero"), script=script)
        text = report(structs.replace(case, verdict=structs.replace(VERDICT, told=told)))
        assert ("No right token is 0" in text) == is_there


def test_rows_of_a_script_on_a_real_model_are_a_table() -> None:
    """Expected was told in our words, beside a script that prints what the model does."""
    script = Script("pass\n", "AssertionError", "nothing")
    lines = [
        f"row {n}, after {n + 4} tokens: greedy tokens [{one}], alone [8]; {DIFFER} {n}" for n, one in ((0, 8), (1, 9))
    ]
    case = structs.replace(case_of("finished-row-not-cleared"), script=script)
    text = report(structs.replace(case, verdict=structs.replace(VERDICT, told=lines)))
    assert (
        "| 0 | 4 | 8 | 8 | 0 | right |\n| 1 | 5 | 8 | 9 | 1 | **wrong** |" in text and "inside the engine" not in text
    )
    same = report(structs.replace(case, verdict=structs.replace(VERDICT, told=lines[:1])))
    assert "row of the batch" not in same and "inside the engine" in same
    numbers = [lines[0], lines[0].replace("by 0", "by 0.024")]
    raised = f"AssertionError: {numbers[1]}: token 89 has 1, alone 2"
    told = report(structs.replace(case, verdict=structs.replace(VERDICT, told=numbers, raised=raised)))
    assert "| 8 | 8 | 0 | right |" in told and "| 8 | 8 | 0.024 | **wrong** |" in told


def test_an_answer_that_is_too_long_is_called_so() -> None:
    """The title said "wrong tokens" where all of them were right, and one was too many."""
    script = Script("pass\n", "AssertionError: clients receive wrong tokens", "nothing")
    told = ["r0: prompt [1], received [3, 4, 5], expected [3, 4]; aborted"]
    case = structs.replace(known_case(), script=script, verdict=structs.replace(VERDICT, told=told))
    assert case.title.startswith("More tokens than asked for") and "| **too many**, aborted |" in report(case)
    other = ["r0: prompt [1], received [3, 45], expected [3, 4]; ended"]
    wrong = structs.replace(case, verdict=structs.replace(VERDICT, told=other))
    assert wrong.title.startswith("Wrong tokens") and "| **wrong** |" in report(wrong)
    answer = Answer("r0", 1, (3, 4), (3, 4, 5))
    assert "receives 3 tokens instead of 2." in headline_of(case.trace, case.history, case.violation, (answer,)).impact


def test_another_patch_that_the_script_needs_is_told() -> None:
    """A patch was said not to fix its failure, because the script meets another known defect behind it."""
    case = structs.replace(known_case(), verdict=VERDICT, script=Script("pass\n", "x", "nothing"))
    second = SecondPatch("A Key too late", "--- a/y\n+++ b/y\n", ScriptVerdict(False, 0, 0.1, ""))
    raised = ScriptVerdict(False, 1, 0.1, "", raised="Error: other")
    fix = TriedFix("--- a/x\n+++ b/x\n", "E", "fails in another way: y", raised, second=second)
    text = report(structs.replace(case, fix=fix))
    assert "| `python repro.py` | exit status 1 | exit status 1 | exit status 0 |" in text
    assert "meets another defect (a Key too late): Error: other. The second patch is for that one." in text
    assert "does not fix" not in text and "+++ b/y" in text


def test_it_says_which_figures_are_of_runs_and_which_of_the_text_of_the_cause() -> None:
    case = structs.replace(known_case(GPU="not run"), verdict=VERDICT, script=Script("pass\n", "x", "nothing"))
    [line] = [one for one in report(case).splitlines() if one.startswith("**What is measured.**")]
    assert "run on the release: " in line and "GPU" not in line and "with stand-ins" not in line
    assert "Not measured by these runs: the cause" in report(case)
    stood_in = structs.replace(case.deployment, is_stood_in=True)
    ran = structs.replace(case, deployment=stood_in, controls=["without r1"])
    assert "by the fuzzer, with stand-ins: controls." in report(ran)
    assert "by the fuzzer" not in line, "nothing but the script was run"
    # What makes a maintainer believe it stood in the list that is removed.
    assert "\n* On a GPU (run earlier, not by the script below): not run.\n" in report(case)
    assert "> - [ ] Run it on a GPU" in report(case)
    assert "not measured by these runs" not in report(case_of("accepted-count-zero"))


def test_what_our_stand_ins_raise_is_no_exception_of_the_engine() -> None:
    """ "Expected: no exception. Received: EngineError" was of a script's own class, and it was searched for."""
    case = case_of("mixed-decodes")
    raised = structs.replace(case.violation, field="EngineError-unfinished_copy")
    text = report(structs.replace(case, violation=raised, answers=structs.replace(case.answers, rows=[])))
    assert "It is the script that raises, where the engine breaks a promise: " in text and "Received: " not in text
    [search] = [one for one in text.splitlines() if "Search the issues" in one]
    assert "EngineError" not in search and "unfinished_copy" not in search


def test_a_grammar_restricts_what_the_stand_in_model_says() -> None:
    """A token was called wrong that another request rightly got behind the same tokens."""
    case = case_of("accepted-count-zero")
    assert "of all tokens before it" in report(case) and "of its grammar" not in report(case)
    [first, *rest] = case.trace.events
    assert isinstance(first, Arrive)
    events = (structs.replace(first, structured=2), *rest)
    text = report(structs.replace(case, trace=structs.replace(case.trace, events=events)))
    assert "of all tokens before it and, with structured output, of its grammar" in text


def test_a_cause_tells_the_whole_where_the_symptom_is_long() -> None:
    """The title was a sentence about streams, and then the cause."""
    case = known_case()

    def run() -> None:
        raise EngineError("`cat` uses a tensor that another stream copies, and its own stream has not waited for that")

    with pytest.raises(EngineError) as caught:
        run()
    violation = crash_violation(None, caught.value, ("engine",))
    title = structs.replace(case, violation=violation).title
    assert title.startswith("A key too early") and "stream" not in title


def test_words_that_not_every_reader_has_are_explained() -> None:
    body = "The column of a prompt of 1 + k tokens is read."
    case = known_case(body)
    served = structs.replace(case, deployment=structs.replace(case.deployment, command=("serve",)))
    told = 'Here "k" is the number of drafts in a step; "column" is an entry of a request\'s row in the block table.'
    assert told in report(served) and 'Here "k" is' not in report(case), "a library has other columns"
