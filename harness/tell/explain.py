"""Explains a violation in prose, in the order of a proof: the rule, what happened, where expected and observed diverge.

The subject is the block that the violation names (with the blocks that its content was copied from and the one that
holds the missing state), or else the blocks of the request that it names. Sentences are made from the history alone:
none is specific to an oracle, a target or a bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from msgspec import Struct

from ..judge.oracles import ORACLES
from ..judge.violation import Violation
from ..record.history import History, Mark, RequestStep
from ..units import plural
from .clauses import Blocks, clause, step_clause

FIRST_SHOWN, LAST_SHOWN = 4, 12
"""Sentences that are kept at both ends of a long story."""
SUBJECTS_MAX = 6
_RULES = {
    "CRASH": "The target serves every legal trace without an exception, and its process stays alive.",
    "ADAPTER": "The target's adapter, which is not the engine, raises no exception.",
    "RECORD": "Each record and view has the fields, types and indices of the protocol.",
    "HANG": "The target answers every event within the time limit.",
    "PROTOCOL": "Only the worker writes to its pipe.",
    "DETERMINISM": "The same trace on a fresh engine in the same process gives the same result.",
}


class Explanation(Struct, frozen=True):
    """The rule, what happened (one sentence for each step), and where expected and observed diverge."""

    rule: str
    story: tuple[str, ...]
    apart: str

    def text(self, indent: str = "") -> str:
        """Return all of it as indented lines."""
        story = [f"{indent}{number}. {sentence}" for number, sentence in enumerate(self.story, 1)]
        return "\n".join([f"{indent}What must hold: {self.rule}", *story, f"{indent}{self.apart}"])


def oracle_ids() -> list[str]:
    """Return the ids of all oracles, those included that are no class of their own, such as CRASH."""
    return sorted({*_RULES, *(name for one in ORACLES for name in one.ids)})


def contract(oracle: str, field: str = "") -> str:
    """Return title and rule of an oracle id: the text after "S3: " in the docstrings of its classes, of the class with
    the fewest ids first. With the field of a violation: of the classes that may report it.
    """
    judges = sorted((one for one in ORACLES if oracle in one.ids), key=lambda one: len(one.ids))
    if field:
        own = [one for one in judges if field in one.fields]
        judges = own or [one for one in judges if not one.fields] or judges
    rules = [rule for one in judges for rule in _rules(oracle, one.__doc__ or "")]
    return f"{oracle} {judges[0].title}: {' '.join(rules)}" if rules else _RULES.get(oracle, oracle)


def _rules(oracle: str, docstring: str) -> Iterator[str]:
    parts = re.split(r"\b([MS]\d(?:, [MS]\d)*)(?: \([^)]*\))?: ", " ".join(docstring.split()))
    for names, rule in zip(parts[1::2], parts[2::2], strict=True):
        if oracle in names.split(", "):
            text = (rule[0].upper() + rule[1:]).strip()
            yield text if text.endswith((".", ".)")) else f"{text}."


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
    return Explanation(contract(violation.oracle, violation.field), tuple(sentences), _apart(history, violation))


def subject_blocks(history: History, violation: Violation) -> list[int]:
    """Return the blocks that the story is about, the violation's own first."""
    if violation.block >= 0:
        subjects = {violation.block: None}
        for mark in history.marks:
            if mark.what == "copy" and mark.block == violation.block:
                subjects[mark.other] = None
        if match := re.fullmatch(r"block (\d{1,6})", violation.expected):
            subjects[int(match[1])] = None
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
    alike = groupby(enumerate(idle), lambda one: (one[1][0] - one[0], held[one[1][0]], history.moments[one[1][0]].free))
    for (_, own, free), group in alike:
        places = [place for _, place in group]
        (_, first), (_, last) = places[0], places[-1]
        steps = f"Step {first}" if first == last else f"Steps {first} to {last}"
        how = f"waits and holds {plural(own, 'block')}" if own else "waits and is not admitted"
        room = (
            f"; {plural(free, 'block')} {'is' if free == 1 else 'are'} free" if free >= 0 and history.num_blocks else ""
        )
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


def _apart(history: History, violation: Violation) -> str:
    message = violation.message.partition(": ")[2] or violation.message
    parts = [f"Expected and observed diverge here: {message}."]
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
        parts.append(f"{place} {history.wanted}{column} after step {last.step}{fate}.")
    elif history.wanted:
        parts.append(f"No step wrote {history.wanted}.")
    return " ".join(parts)


_FATES = {"write": "overwrote", "dead write": "overwrote", "zero": "zeroed", "alloc": "reallocated"}
