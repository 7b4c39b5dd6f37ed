"""Explains a violation in prose, in the order of a proof: the rule, what happened, where expected and observed diverge.

The subject is the block that the violation names (with the blocks that its content was copied from and the one that
holds the missing state), or else the blocks of the request that it names. Sentences are made from the history alone:
none is specific to an oracle, a target or a bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from msgspec import Struct

from ..judge.oracles import contract
from ..judge.violation import Violation, wanted_block
from ..record.history import History, Mark, RequestStep
from ..units import listed, plural
from .clauses import Blocks, clause, step_clause

FIRST_SHOWN, LAST_SHOWN = 4, 12
"""Sentences that are kept at both ends of a long story."""
SUBJECTS_MAX = 6


class Explanation(Struct, frozen=True):
    """The rule, what happened (one sentence for each step), where expected and observed diverge (`sentence`), and what
    became of the expected state."""

    rule: str
    story: tuple[str, ...]
    sentence: str
    fate: str = ""

    @property
    def apart(self) -> str:
        """Where expected and observed diverge, in full."""
        return f"Expected and observed diverge here: {self.sentence}." + (f" {self.fate}" if self.fate else "")

    def text(self, indent: str = "") -> str:
        """Return all of it as indented lines."""
        story = [f"{indent}{number}. {sentence}" for number, sentence in enumerate(self.story, 1)]
        return "\n".join([f"{indent}What must hold: {self.rule}", *story, f"{indent}{self.apart}"])


def explain(history: History) -> Explanation | None:
    """Return the explanation, None for a run without a violation."""
    violation = history.violation
    if violation is None:
        return None
    subjects = subject_blocks(history, violation)
    sentences = list(_story(history, subjects, violation))
    if not sentences and violation.request:
        sentences.append(f"No step computed a token of {violation.request} or gave it a block.")
    if violation.block == history.null_block >= 0:
        sentences.insert(0, f"The null block, block {violation.block}, is a placeholder in tables and holds nothing.")
    if len(sentences) > FIRST_SHOWN + LAST_SHOWN:
        left_out = len(sentences) - FIRST_SHOWN - LAST_SHOWN
        sentences[FIRST_SHOWN:-LAST_SHOWN] = [f"({left_out} more {'steps' if left_out > 1 else 'step'}.)"]
    return Explanation(
        contract(violation.oracle, violation.field), tuple(sentences), violation.sentence, _fate(history, violation)
    )


def subject_blocks(history: History, violation: Violation) -> list[int]:
    """Return the blocks that the story is about, the violation's own first."""
    if violation.block >= 0:
        subjects = {violation.block: None}
        for mark in history.marks:
            if mark.what == "copy" and mark.block == violation.block:
                subjects[mark.other] = None
        if (wanted := wanted_block(violation)) >= 0:
            subjects[wanted] = None
        subjects |= {mark.block: None for mark in _holding_wanted(history)[-1:]}
        return list(subjects)[:SUBJECTS_MAX]
    held = {
        mark.block: None
        for mark in history.marks
        if mark.what in ("alloc", "hit") and mark.who == violation.request and violation.group in (-1, mark.group)
    }
    return list(held)[:SUBJECTS_MAX]


def _holding_wanted(history: History) -> list[Mark]:
    return [
        mark for mark in history.marks if history.wanted and mark.what == "write" and mark.content == history.wanted
    ]


def _story(history: History, subjects: Sequence[int], violation: Violation) -> Iterator[str]:
    """Yield one sentence for each moment and step that touched a subject or ran the violation's request."""
    blocks = Blocks(history)
    last = len(history.moments) - 1
    marks: dict[tuple[int, int], list[Mark]] = {}
    for mark in history.marks:
        marks.setdefault((mark.moment, mark.step), []).append(mark)
    steps_at: dict[tuple[int, int], list[RequestStep]] = {}
    for turn in history.request_steps:
        if turn.request == violation.request or not (subjects or violation.request):
            steps_at.setdefault((turn.moment, turn.step), []).append(turn)
    waits = {} if subjects and violation.block >= 0 else dict(_waits(history, violation.request))
    for moment, step in sorted(marks.keys() | steps_at.keys() | waits.keys()):
        clauses = [step_clause(turn) for turn in steps_at.get((moment, step), ())]
        for mark in marks.get((moment, step), ()):
            status = blocks.take(mark)
            wanted = mark.block in subjects and (mark.what != "read" or moment == last)
            if wanted and (words := clause(mark, status, history)):
                clauses.append(words)
        if clauses:
            yield f"{_head(history, moment, step)} {'; '.join(dict.fromkeys(clauses))}."
        if (moment, step) in waits:
            yield waits[moment, step]


def _waits(history: History, request: str) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield a sentence for each run of steps that schedule nothing while a request waits, with its (moment, step)."""
    busy = {turn.step for turn in history.request_steps}
    idle = [
        (moment, step)
        for moment, there in enumerate(history.moments)
        if there.kind == "step" and request in there.waiting
        for step in there.steps
        if step not in busy
    ]
    held = _held(history, request)
    frees = [history.moments[moment].free for moment, _ in idle]
    alike = groupby(enumerate(idle), lambda one: (one[1][0] - one[0], held[one[1][0]], frees[one[0]]))
    for (_, own, free), group in alike:
        places = [place for _, place in group]
        (_, first), (_, last) = places[0], places[-1]
        steps = f"Step {first}" if first == last else f"Steps {first} to {last}"
        how = f"waits and holds {plural(own, 'block')}" if own else "waits and is not admitted"
        counts = listed([plural(count, name) for name, count in free.items()])
        room = f"; {counts} {'is' if [*free.values()] == [1] else 'are'} free" if free else ""
        yield places[0], f"{steps}: nothing is scheduled; {request} {how}{room}."


def _held(history: History, request: str) -> list[int]:
    """Return the number of blocks that a request holds at the end of each moment."""
    changes = [0] * len(history.moments)
    for mark in history.marks:
        if mark.who == request:
            changes[mark.moment] += _CHANGES.get(mark.what, 0)
    return list(accumulate(changes))


_CHANGES = {"alloc": 1, "hit": 1, "release": -1}


def _head(history: History, moment: int, step: int) -> str:
    there = history.moments[moment]
    if there.kind == "step":
        return f"Step {step}:"
    if there.kind == "dummy_run":
        return f"Step {step}, a dummy run:"
    return f"Then {there.label.replace('_', ' ')}:"


def _fate(history: History, violation: Violation) -> str:
    holding = _holding_wanted(history)
    if holding:
        last = holding[-1]
        after = [
            mark
            for mark in history.marks[history.marks.index(last) + 1 :]
            if mark.block == last.block and mark.what in ("write", "dead write", "zero", "alloc")
        ]
        fate = f"; step {after[0].step} then {_FATES[after[0].what]} it" if after else ", and still does"
        word = "block" if history.num_blocks else "cache"
        place = f"That {word} held" if last.block == violation.block else f"{word.capitalize()} {last.block} held"
        column = f" (column {last.column})" if last.column >= 0 else ""
        return f"{place} {history.wanted}{column} after step {last.step}{fate}."
    return f"No step wrote {history.wanted}." if history.wanted else ""


_FATES = {"write": "overwrote", "dead write": "overwrote", "zero": "zeroed", "alloc": "reallocated"}
