"""Makes the sentences of verdicts from their data: the only module that words a violation.

`RELATIONS` has one `Sentence` for each id of a relation. Its templates name the values of the violation; `Words` puts
each value into words, one vocabulary for all relations. A number with a noun as its format is counted ("{n:token}" is
"1 token", "2 tokens"); a value that is absent is its format, or "nothing".

`Pattern` words the same data without names and numbers: two failures whose patterns are equal show the same relation
between what was expected and what was found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple

from .verdict import (
    Batch,
    Because,
    Block,
    Empty,
    Foreign,
    Holders,
    KeyOf,
    PartOf,
    Past,
    Prefix,
    Quoted,
    Request,
    Requests,
    Row,
    StateOf,
    Tokens,
    Unknown,
    Value,
    WindowOf,
    Zeroed,
)

_NUMBER = re.compile(r"\d+")
"""In an engine's own text."""


class Sentence(NamedTuple):
    """The words of one relation, as templates.

    text      what was found; up to the first semicolon it tells the relation, after it the circumstances
    expected  in a table; the expected value itself by default
    observed  in a table; the observed value itself by default
    more      a further clause, if the verdict has its values
    """

    text: str
    expected: str = "{expected}"
    observed: str = "{observed}"
    more: str = ""


_STATE = "state after {expected.depth:token}"


def _fault(expected: str, observed: str) -> Sentence:
    return Sentence(
        f"block {{block}} should be {expected}, but is {observed}", expected, observed, "; held by {holders}"
    )


def _stale(what: str) -> Sentence:
    return Sentence(
        f"{{request}} reads {what} in block {{block}}, {{past}}",
        "written or zeroed bytes",
        "stale bytes",
        "; its bytes are from {previous} ({previous_kind})",
    )


def _ignored(what: str, expected: str = "{expected}") -> Sentence:
    text = "{request} has {settled} tokens computed, but {kind} group {group} starts without reading its "
    return Sentence(text + what, expected, "no read")


def _published(holds: str) -> Sentence:
    text = f"block {{block}} is published as depth {{depth}} of a prefix, but holds {holds}: {{past}}"
    return Sentence(text, _STATE)


def _cache(where: str, seen: str = "{observed}", expected: str = _STATE) -> Sentence:
    text = "{request} has computed {depth:token}, but layer {layer} of {kind} group {group} in its cache (id {block})"
    return Sentence(f"{text} holds at {where}: {seen}", expected, seen)


def _hit(what: str, expected: str, observed: str = "{observed}") -> Sentence:
    return Sentence(f"{{request}} got a hit of {{hit}} tokens{what}", expected, observed)


def _overtaken(what: str) -> Sentence:
    return Sentence(
        f"block {{block}} {what} for step {{by}} while step {{earlier}} still uses it for {{request}}",
        "after step {earlier}",
        "before step {earlier}",
    )


def _column(verb: str) -> dict[str, Sentence]:
    text = (
        f"the device {verb} {{observed}} in column {{column}} of {{request}}'s {{kind}} group {{group}}, where the "
        "scheduler's table holds "
    )
    nothing = "nothing (it has {columns} columns)"
    slug = verb.replace(" ", "-")
    return {slug: Sentence(text + "{expected}"), f"{slug}-behind-the-table": Sentence(text + nothing, nothing)}


def _writes(what: str) -> Sentence:
    text = f"{{who}} writes into block {{block}}, which is {what} ({{past}})"
    return Sentence(text, "an unpublished block of its own", what)


def _dead_write(what: str) -> Sentence:
    return Sentence(f"{{who}} writes {what} into block {{block}}, {{past}}", "no write", "a write to block {block}")


def _after_end(what: str) -> Sentence:
    return Sentence(f"{{request}}, which has ended or never arrived, gets {what}", "nothing", what)


def _logprobs(what: str, expected: str = "{expected}", observed: str = "{observed}") -> Sentence:
    return Sentence(f"{{request}}, after token {{position}}: log-probabilities {what}", expected, observed)


def _number(what: str, expected: str = "{expected:.6g}", observed: str = "{observed:.6g}") -> Sentence:
    return Sentence(f"{{request}} computes {what} in layer {{layer}} of group {{group}}: {{why}}", expected, observed)


RELATIONS: Mapping[str, Sentence] = {
    # The pool (M1, M7, M9)
    "named-by-table": _fault("an id below {limit}", "named by a table"),
    "named-by-queue": _fault("an id below {limit}", "named by the free queue"),
    "named-by-cache": _fault("an id below {limit}", "named by the cache"),
    "queued-again": _fault("once in the free queue", "{count} times"),
    "reserved-owned": _fault("reserved, never owned", "{count} table entries"),
    "queued-owned": _fault("not free", "in the free queue, with {count} owners"),
    "queued-cached": _fault("not free", "in the free queue, with the cache"),
    "queued-reserved": _fault("not free", "in the free queue"),
    "lost-block": _fault("in the free queue (no request holds it)", "absent from it"),
    "miscounted": _fault("referenced {limit} times (its owners)", "referenced {count} times"),
    "owned-twice": _fault("owned by one request", "in {count} tables"),
    "reserved-published": Sentence("reserved block {block} is published as {key}", "no key", "{key}"),
    "budget": Sentence("{observed} tokens were scheduled with a budget of {expected}"),
    "estimate": Sentence("admission of {request} estimated {expected} blocks, {observed} were taken"),
    "peak": Sentence(
        "{request} holds {observed} blocks of {kind} group {group} for {reach} tokens; {expected} are enough"
    ),
    "undrained": Sentence("the list of {what} has {observed} entries after the step that should drain it"),
    "left-over": Sentence("all requests have ended, but {what} are left: {observed}"),
    "not-freed": Sentence("all requests have ended, but only {observed} of {expected} {what}s are free"),
    "planned-after-end": Sentence(
        "a step was planned for {request}, which has ended", "only live requests", "{request}"
    ),
    # The prefix cache (M2, M6, M8, S5)
    "alias": Sentence(
        "block {block}, published as {own}, is also published as {observed}, which is no beginning of it",
        "a beginning of {own}",
    ),
    "agreement": Sentence(
        "the lookup structure has block {block} as {observed:unpublished}, the block's own label is "
        "{expected:unpublished}",
        "{expected:unpublished}",
        "{observed:unpublished}",
    ),
    "key": Sentence(
        "block {block} was published as depth {depth} of a prefix, but no request has it in that prefix's column "
        "({observed:no request holds it})",
        "the column of that depth in a request that computes it",
        "{observed:no request holds it}",
    ),
    "kept": Sentence(
        "{request} kept {observed} tokens, with {settled} computed; of its {known} tokens it may have at most {most} "
        "before this step",
        "at most {most}",
    ),
    "whole-request": _hit("; of its {known} tokens it may have at most {most} before this step", "at most {most}"),
    "prompt-skipped": _hit(
        ", although its client wants the log-probabilities of its prompt behind token {expected}, so that all from "
        "there on must be computed",
        "at most {expected}",
    ),
    "eagle-local": _hit(
        ", but local attention group {group} does not have the block after them cached, which must be computed again "
        "for the drafter",
        "a shorter hit",
    ),
    "eagle-block": _hit(
        ", but only {matched} are cached in attention group {group}, of which the last block must be computed again "
        "for the drafter",
        "at most {most}",
    ),
    "eagle-tokens": _hit(
        ", but only {matched} are cached in attention group {group}, of which the last {dropped:token} must be "
        "computed again for the drafter",
        "at most {most}",
    ),
    "hit-missing": _hit(
        ", but column {column} of its {kind} group {group} is missing", "the block of depth {depth}", "no block"
    ),
    "hit-other": _hit(
        ", but column {column} of its {kind} group {group} is {observed}, published as depth {holds} of another prefix",
        "the block of depth {depth}",
    ),
    "hit-unpublished": _hit(
        ", but column {column} of its {kind} group {group} is {observed}, which is not published",
        "the block of depth {depth}",
    ),
    "hit-no-slot": _hit(
        ", but no slot of mamba group {group} is published as that state", f"a slot with {_STATE}", "none"
    ),
    "hit-too-short": Sentence(
        "{request} got a hit of {observed} tokens, but {expected} tokens of its prefix are cached in every group"
    ),
    "early-hit": Sentence(
        "{request} hits the state after {depth} tokens in block {block}, which is written only by this step",
        "a state written by an earlier step",
        "published in this step",
    ),
    "unpublished": Sentence(
        "{request} has computed {known} tokens, but block {block} of {kind} group {group}, which holds its boundary at "
        "{depth} tokens, is not published: no request can hit it",
        "block {block} published as depth {depth}",
        "{observed:not published}",
    ),
    # Progress (M8)
    "stall": Sentence("nothing was scheduled in {steps} steps while {waiting} could run", "progress", "none"),
    "drain": Sentence("{waiting:a step in flight} did not end within {steps} plain steps", "the end of all", "none"),
    "aborted": Sentence(
        "{request} was aborted, but its client has received tokens of {steps} steps since", "its end", "more tokens"
    ),
    "lost": Sentence(
        "{request} is neither running nor waiting, but its client received only {observed} of {expected} tokens"
    ),
    # Order (S8)
    "forward-overtakes": Sentence("the forward of step {observed} runs before that of step {expected}"),
    "zeroing-overtakes": _overtaken("is zeroed"),
    "copy-overtakes": _overtaken("is overwritten by a copy"),
    "load-overtakes": _overtaken("is loaded into"),
    # Tables and writers (M3, M4, M5)
    **_column("reads"),
    **_column("writes"),
    **_column("copies from"),
    **_column("copies to"),
    **_column("loads into"),
    "outside": Sentence(
        "the metadata of {kind} group {group} points {who} at {what} {index} of {size}",
        "{what} 0 to {last}",
        "{what} {index}",
    ),
    "outside-of-live": Sentence(
        "the metadata of {kind} group {group} points {request} (row {row}) at {what} {index} of {size}",
        "{what} 0 to {last}",
        "{what} {index}",
    ),
    "dead-write-mamba": _dead_write("Mamba state"),
    "dead-write-attention": _dead_write("attention KV"),
    "two-writers": Sentence("block {block} is written by {first} and by {second} in one step", "one writer", "two"),
    "null-write": Sentence(
        "{who} writes {kind} content into the null block {block}", "no write to the null block", "a write"
    ),
    "writes-published": _writes("published as depth {depth} of a prefix"),
    "writes-shared": _writes("held by {holders} requests"),
    "writes-others": _writes("held by {holder}"),
    # Content (S1, S2, S3, S4, S9)
    "resumes": Sentence(
        "{request} resumes from {observed} in block {block} (column {column}), expected {expected}; the block was "
        "{past}",
        _STATE,
    ),
    "resumes-at-start": Sentence(
        "{request} resumes from {observed} in block {block} (column {column}), expected no state, since nothing is "
        "computed yet; the block was {past}",
        _STATE,
    ),
    "attends": Sentence(
        "{request} attends to position {position} in block {block} and reads {observed}, expected its own KV; the "
        "block was {past}",
        "slot {position}",
    ),
    "state-ignored": _ignored("recurrent state", _STATE),
    "window-ignored": _ignored("convolution window", _STATE),
    "slots-ignored": _ignored("keys and values", "{settled} slots"),
    "holds-state": _published("{observed}"),
    "holds-slot": _published("{observed} in slot {index}"),
    "holds-input": _published("{observed} as input {index} of its convolution window"),
    "holds-other-kind": _published("a page of another kind")._replace(observed="a page of another kind"),
    "stored": Sentence(
        "content is stored outside the pool as {key}, but only {right} of {layers} layers hold that content",
        "the content of {expected.depth:token} in {layers} layers",
        "{right} of {layers} layers hold that content",
    ),
    "sent": Sentence(
        "another engine has received content as {key}, but only {right} of {layers} layers hold that content",
        "the content of {expected.depth:token} in {layers} layers",
        "{right} of {layers} layers hold that content",
    ),
    "stale-temporal": _stale("temporal state"),
    "stale-conv": _stale("conv state"),
    "stale-slot": _stale("a slot"),
    "stale-page-tail": _stale("slots after its last token"),
    "cache-slot": _cache("position {position}", expected="KV of {depth} positions"),
    "cache-input": _cache("input {index} of its convolution window"),
    "cache-state": _cache("its recurrent state"),
    "cache-other-kind": _cache("each layer", "content of another kind"),
    "batch-order": Sentence("the rows of the batch are {observed}, expected {expected}"),
    "shared-cache": Sentence(
        "{first} and {request} have the same cache (id {block})", "a cache of its own", "a shared one"
    ),
    "no-cache": Sentence(
        "{request} is running and has computed {settled} tokens, but it has no cache", "a cache", "none"
    ),
    # Tokens (S6, S7)
    "poison": Sentence(
        "{request} sampled token {observed}, which only a poisoned (NaN) hidden state yields", "a token of the model"
    ),
    "differs-sampled": Sentence("{request}, with {settled:token} computed, samples {observed}, expected {expected}"),
    "differs-delivered": Sentence("{request} receives the tokens {observed}, expected {expected}"),
    "differs-prompt-logprobs": Sentence(
        "{request} receives the log-probabilities of the tokens {observed} as those of its prompt, expected {expected}"
    ),
    "differs-length": Sentence("{request} receives {observed:token}, expected {expected}"),
    "differs-input": Sentence(
        "{request}, with {settled:token} computed, is given the tokens {observed}, expected {expected}"
    ),
    "differs-guess": Sentence(
        "{request}, with {settled:token} computed, gets the drafts {observed}; its drafter guesses {expected} if the "
        "engine gives it the right inputs"
    ),
    "differs-position": Sentence(
        "{request}, with {settled:token} computed, starts at position {observed}, expected {expected}"
    ),
    "differs": Sentence("{request}, {settled} tokens computed: {what} is {observed}, expected {expected}"),
    "failed": Sentence(
        "{request}, {settled} tokens computed: error is an error, expected no error", "no error", "an error"
    ),
    "uncompiled": Sentence(
        "{request}, whose grammar does not compile, gets {observed}, expected an error and nothing else",
        "an error",
        "{observed}",
    ),
    "tokens-after-end": _after_end("the tokens {observed}"),
    "end-after-end": _after_end("another end"),
    "error-after-end": _after_end("an error"),
    # A real model (S1, S4, S6, S7)
    "state-fills": Sentence(
        "the state that layer {layer} of group {group} leaves in block {block} depends on unused memory",
        "the same bits",
        "others",
    ),
    "draft-fills": Sentence(
        "{request}: what the draft model computes for draft {number} of the step depends on unused memory",
        "the same bits",
        "others",
    ),
    "draft-nan": Sentence(
        "{request}: what the draft model computes for draft {number} of the step is NaN", "finite numbers", "NaN"
    ),
    "state-bits": Sentence(
        "{request}, after {tokens} tokens: the state of layer {layer} of group {group} has other bits than after the "
        "same steps alone (batch-invariant kernels, tolerance 0)",
        "the same bits",
        "others",
    ),
    "logprobs-bits": _logprobs(
        "differ by up to {distance:.3g} from those of the same steps alone (batch-invariant kernels, tolerance 0)",
        "the same bits",
        "others",
    ),
    "logprobs-nan": _logprobs("are NaN", "finite numbers", "NaN"),
    "logprobs-fills": _logprobs("depend on what unused memory holds", "the same bits", "others"),
    "logprobs": _logprobs(
        "differ by {distance:.3g} from those of the same tokens alone (tolerance {tolerance:g}); greedy token "
        "{observed}, alone {expected}",
        "those of the same tokens alone, within {tolerance:g}; greedy token {expected}",
        "a difference of {distance:.3g}; greedy token {observed}",
    ),
    # Side by side (D2)
    "answers-differ": Sentence(
        "two implementations side by side answer {operation} differently; {expected}; {observed}"
    ),
    # A numeric run
    "guard": Sentence(
        "the device wrote into {where}",
        "the guard pattern",
        "other bytes",
        "; row {row} stored a state of layer {layer} of group {writing} there",
    ),
    "indices": Sentence(
        "{what} on the device gave entries that differ from the block tables",
        "the entries of the tables",
        "other entries",
    ),
    "moved-bytes": Sentence("{what} is not bit-exact", "equal bytes", "other bytes"),
    "computes-nan": _number("NaN", "finite numbers", "NaN"),
    "computes-other-bits": _number("other bits when unused memory holds other bytes", "the same bits", "other bits"),
    "computes-number": _number(
        "{observed:.6g} at position {position} where float64 gives {expected:.6g} (rounding error at most {bound:.1g})"
    ),
    "read-out": Sentence(
        "{request} samples token {observed} after position {position}, expected {expected} by the float64 model"
    ),
    "stored-bytes": Sentence(
        "content is stored outside the pool as depth {depth} of a prefix, but its {part} in layer {layer} differ from "
        "that prefix's",
        _STATE,
        "other numbers",
    ),
    "published-bytes": Sentence(
        "block {block} is published as depth {depth} of a prefix, but its {part} differ from that prefix's: {past}",
        _STATE,
        "other numbers",
    ),
    "because-state": Sentence("it resumes from {found} in block {block}, {past}"),
    "because-window": Sentence(
        "its convolution window in block {block} belongs to another prefix, {past}"
    ),
    "because-slot": Sentence("for position {position} it reads {found} in block {block}"),
    "because-stale": Sentence(
        "it reads {bytes} bytes of block {block}, owned by {previous} ({previous_kind}, {dtype}) until {owner} got it "
        "in step {since}, never zeroed"
    ),
    "because-never-owned": Sentence(
        "it reads {bytes} bytes of block {block}, which had no earlier owner, never zeroed"
    ),
    "because-unknown": Sentence("the tags of everything that it read are right"),
    # What no oracle judges
    "raised": Sentence(
        "the {who} raised {error} at {where} (event {event}, {event_kind})", "no exception"
    ),
    "raised-outside": Sentence("the {who} raised {error} at {where} (while it was {moment})", "no exception"),
    "at-fault": Sentence("{error} (event {event}, {event_kind})", "no fault"),
    "at-fault-outside": Sentence("{error} (while it was {moment})", "no fault"),
    "no-progress": Sentence("{error} (event {event}, {event_kind})", "progress"),
    "no-progress-outside": Sentence("{error} (while it was {moment})", "progress"),
    "no-target": Sentence("{error} (event {event}, {event_kind})", "a target"),
    "no-target-outside": Sentence("{error} (while it was {moment})", "a target"),
    "broken-record": Sentence(
        "{who} reported {what} = {seen}, expected {wanted} (event {event}, {event_kind})", "{wanted}"
    ),
    "broken-processing": Sentence(
        "hybridfuzz raised {error} while it processed what {who} reported; no field is known to be wrong (event "
        "{event}, {event_kind})",
        "no exception",
    ),
    "process-lost": Sentence(
        "the target {what} in event {event} ({event_kind})", "an answer", more="; its last output: {last}"
    ),
    "lost-once": Sentence("the target {what} and did not when the trace ran again, alone", ""),
    "lost-unrepeated": Sentence("the target {what}, and the trace could not run again: {reason}", ""),
    "second-run-differs": Sentence(
        "the trace ran clean, and then differently on a second engine in the same process: it is clean, too, but other "
        "blocks or tokens were seen"
    ),
    "second-run-fails": Sentence(
        "the trace ran clean, and then differently on a second engine in the same process: {again}"
    ),
    "targets-differ": Sentence(
        "the targets differ in event {event}, {what}: {first}: {expected:nothing}; {second}: {observed:nothing}"
    ),
}  # fmt: skip
"""Id of a relation -> its words."""
WITH_STEP = ("M", "S")
"""First letters of the oracles whose sentences end with the step."""


class Words(Formatter):
    """The vocabulary: each value in words."""

    def format_field(self, value: Value, format_spec: str) -> str:
        """Put a value into words. `format_spec`: the format of a float, the noun of a number, or what stands for
        nothing."""
        if value is None:
            return format_spec or "nothing"
        if isinstance(value, float):
            return self.number(value, format_spec)
        if isinstance(value, int):
            noun = f" {format_spec}{'s' * (value != 1)}" if format_spec else ""
            return self.number(value, "") + noun
        return (value or format_spec) if isinstance(value, str) else self.say(value)

    def vformat(self, format_string: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Fill a template; a block that is in no column has none."""
        return super().vformat(format_string, args, kwargs).replace(" (column -1)", "")

    def request(self, name: str) -> str:
        """Return the name of a request."""
        return name

    def number(self, number: float, spec: str) -> str:
        """Return a number."""
        return format(number, spec)

    def quoted(self, text: str) -> str:
        """Return the text of an engine."""
        return text

    def row(self, row: Row) -> str:
        """Return the name of a row without a request."""
        return f"{'dummy' if row.dummy else 'padding'} row {self.number(row.index, '')}"

    def say(self, value: Value) -> str:
        """Return a structured value in words."""
        match value:
            case Request(name):
                return self.request(name)
            case Row():
                return self.row(value)
            case Requests(names):
                return ", ".join(map(self.request, names))
            case Batch(names):
                return f"[{', '.join(repr(self.request(name)) for name in names)}]"
            case Tokens(ids):
                return f"[{', '.join(self.number(token, '') for token in ids)}]"
            case Holders(columns):
                return "; ".join(f"{self.request(name)} has it in column {self.number(at, '')}" for name, at in columns)
            case Prefix(request, before, cached):
                if not request:
                    return f"a cached prefix of {self.format_field(cached, 'token')}"
                return f"what {self.request(request)} had before" if before else self.request(request)
            case StateOf(prefix, depth):
                whose, tokens = self.say(prefix), self.format_field(depth, "token")
                is_own = prefix.request and not prefix.before
                return f"the state of {whose} after {tokens}" if is_own else f"the state after {tokens} of {whose}"
            case PartOf(prefix, position, part):
                return f"the {part} of position {self.number(position, '')} of {self.say(prefix)}"
            case WindowOf(index, found):
                seen = "missing" if found is None else self.say(found)
                return f"a window whose input {self.number(index, '')} is {seen}"
            case KeyOf(group, depth, tag):
                label = self.number(tag % 10_000, "04")
                return f"depth {self.number(depth, '')} of prefix {label} in group {self.number(group, '')}"
            case Block(number):
                return f"block {self.number(number, '')}" if number >= 0 else "no block"
            case Past(what, by, step):
                return self._past(what, self.say(by), self.number(step, ""))
            case Because(relation, details):
                return self.vformat(RELATIONS[relation].text, (), details)
            case Quoted(text):
                return self.quoted(text)
            case Empty():
                return "the empty state"
            case Zeroed():
                return "zeroed memory"
            case Foreign():
                return "bytes of another dtype"
            case Unknown(state):
                return "a state that matches no known prefix" if state else "content that matches no known prefix"
        return self.format_field(value, "")

    @staticmethod
    def _past(what: str, by: str, step: str) -> str:
        return {
            "null": "the null block",
            "never": "never allocated",
            "written": f"last written by {by} in step {step}",
            "zeroed": f"zeroed, not written since {by} got it in step {step}",
            "allocated": f"not written since {by} got it in step {step}",
        }[what]


class Pattern(Words):
    """Words without names and numbers: the request `own` is OWN, every other one OTHER, and each number N."""

    def __init__(self, own: str, names: Collection[str]) -> None:
        self._own, self._names = own, names

    def request(self, name: str) -> str:
        """Return OWN or OTHER."""
        return "OWN" if name == self._own else "OTHER"

    def number(self, number: float, spec: str) -> str:
        """Return N, with its sign."""
        return "-N" if number < 0 else "N"

    def row(self, row: Row) -> str:
        """Return the kind of a row without a request; OWN if the violation is about it."""
        return "OWN" if self._own == Words.row(Words(), row) else super().row(row)

    def quoted(self, text: str) -> str:
        """Return an engine's text with the names of the trace's requests and all numbers replaced."""
        if self._names:
            names = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
            text = re.sub(rf"(?<![\w.-])(?:{names})(?![\w-])", lambda match: self.request(match[0]), text)
        return _NUMBER.sub("N", text)
