"""The findings of a page: message, proof, block lives, trace, and commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from ..harness.group.findings.finding_store import cause_words, fixes_asked, fixes_options, replay_of
from ..harness.group.findings.severity import is_on_default, rank, severity_known, severity_words
from ..harness.markup import Markup, Section, join, tag
from ..harness.quoting import clean
from ..harness.tell.explain import explain
from ..harness.tell.timeline import FREE_KEYED, LEGEND
from ..harness.tell.timeline_svg import timeline_svg
from ..targets.base.trace import Config, Trace
from .data import Shown

GROUPS = (
    ("new", "New findings"),
    ("flaky", "Flaky: some runs of the trace show it, others do not"),
    ("known", "Known: acknowledged in known.toml"),
    ("fixed", "Fixed: their traces run clean now"),
)
ELSEWHERE = "On an implementation that is not the default: {}"
"""The part of what the default implementation does not show, under the titles above."""
OPEN_MAX = 3
"""Findings that are unfolded from the start."""
DRAWN_BYTES_MAX = 1_200_000
"""Bytes of drawings on a page; those of later findings are left out."""
EVENTS_MAX = 60


def findings_section(findings: Sequence[Shown]) -> Section:
    """Return all findings by state, new ones first, then those that the default implementation does not show; the most
    severe first in each part."""
    parts: list[Markup] = []
    drawn, number = 0, 0
    for title, group in _parts(findings):
        parts.append(tag("h3", title, tag("span", len(group), class_="count")))
        for one in group:
            article = finding_article(one, is_open=number < OPEN_MAX, draw=drawn < DRAWN_BYTES_MAX)
            drawn += len(article)
            number += 1
            parts.append(article)
    if not parts:
        parts = [tag("p", "No findings.", class_="dim")]
    else:
        parts.append(tag("p", f"Timelines: {LEGEND}, dashed: free but still published ({FREE_KEYED})", class_="legend"))
    return Section("findings", "Findings", join(*parts))


def _parts(findings: Sequence[Shown]) -> Iterator[tuple[str, list[Shown]]]:
    """Yield each part that has findings, with its title."""
    ordered = sorted(findings, key=lambda one: rank(one.finding))
    for on_default in (True, False):
        for state, title in GROUPS:
            group = [one for one in ordered if state_of(one) == state and is_on_default(one.finding) == on_default]
            if group:
                yield title if on_default else ELSEWHERE.format(title[0].lower() + title[1:]), group


def state_of(one: Shown) -> str:
    """Return new, flaky, known or fixed."""
    if one.bug:
        return one.bug.state
    return "new" if one.finding.reproduced else "flaky"


def finding_article(one: Shown, *, is_open: bool, draw: bool) -> Markup:
    """Return one finding; its first line stays visible when it is folded."""
    finding = one.finding
    severity = severity_known(finding)
    head = tag(
        "summary",
        tag("span", state_of(one), class_=f"pill {state_of(one)}"),
        tag("span", severity.level, class_=f"pill {severity.level}") if severity and severity.level else None,
        tag("b", clean(finding.phrase)) if finding.phrase else None,
        tag("code", finding.id, class_="signature"),
        tag("span", _numbers(one), class_="dim"),
        tag("span", clean(severity_words(severity)), class_="message") if severity else None,
        tag("span", clean(finding.message), class_="message"),
    )
    body = join(*_proof(one, draw), *_trace(one), commands(one))
    anchor = f"finding-{finding.id}"
    return tag("details", head, tag("div", body, class_="body"), class_="finding", open=is_open, id=anchor)


def _numbers(one: Shown) -> str:
    finding, bug = one.finding, one.bug
    count = bug.count if bug else finding.count
    parts = [f"{count:,} {'trace' if count == 1 else 'traces'}", f"{finding.events} events"]
    if finding.setting:
        parts.append(clean(finding.setting))
    if finding.cause:
        parts.append(clean(f"known: {cause_words(finding.cause)}"))
    if finding.like:
        parts.append(clean(f"like the known bug {finding.like}"))
    if finding.tried:
        parts.append(f"reproduced {finding.shown}/{finding.tried}")
    if bug:
        parts.append(f"first seen {bug.first_seen[:16].replace('T', ' ')}")
        if bug.reason:
            parts.append(bug.reason)
    return " · ".join(parts)


def _proof(one: Shown, draw: bool) -> Iterator[Markup]:
    history = one.history
    explanation = explain(history) if history else None
    if history is None or explanation is None:
        why = "the trace did not fail again, or it ended its process"
        if one.finding.cause:
            why = "a known bug explains it, so it was not reduced; hybridfuzz reduce does that"
        elif one.finding.reproduced and not one.finding.reduced:
            why = "there was no time to reduce it; hybridfuzz reduce does that"
        yield tag("p", f"There is no explanation: {why}.")
        return
    yield tag("p", tag("b", "What must hold. "), explanation.rule, class_="rule")
    if explanation.story:
        yield tag("ol", *(tag("li", _strong_head(sentence)) for sentence in explanation.story), class_="story")
    yield tag("p", explanation.apart, class_="apart")
    if draw:
        if svg := timeline_svg(history):
            yield tag("div", svg, class_="scroll", tabindex=0, role="region", aria_label="block lives")
    else:
        yield tag("p", "Its timeline is left out to keep this page small; the replay command shows it.", class_="dim")


def _strong_head(sentence: str) -> Markup:
    head, colon, rest = sentence.partition(":")
    return join(tag("b", f"{head}{colon}"), rest)


def _trace(one: Shown) -> Iterator[Markup]:
    trace = one.trace
    if trace is None:
        return
    lines = [msgspec.json.encode(event).decode() for event in trace.events[:EVENTS_MAX]]
    if len(trace.events) > EVENTS_MAX:
        lines.append(f"... and {len(trace.events) - EVENTS_MAX} more")
    yield tag("h4", f"The trace: {len(trace.events)} events")
    yield tag("pre", "\n".join(lines))
    yield tag("p", tag("b", "Configuration. "), tag("span", configuration(trace), class_="mono"), class_="dim")


def configuration(trace: Trace) -> str:
    """Return the configuration in one line: fields that differ from the defaults."""
    config = trace.config
    groups = ", ".join(
        f"{group.kind} (blocks of {group.block_size}{f', {group.layers} layers' if group.layers > 1 else ''})"
        for group in config.groups
    )
    plain = Config(config.num_blocks, config.groups)
    names = [name for name in config.__struct_fields__ if name not in ("groups", "num_blocks")]
    changed = [f"{name}={_value(config, name)}" for name in names if getattr(config, name) != getattr(plain, name)]
    return "; ".join([f"{config.num_blocks} blocks", groups, *changed])


def _value(config: Config, name: str) -> str:
    value = getattr(config, name)
    if isinstance(value, dict):
        return ",".join(f"{key}:{one}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def commands(one: Shown) -> Markup:
    """Return the commands to copy."""
    target, path = one.target, one.finding.trace
    behind = fixes_options(fixes_asked(one.asked))
    lines = [replay_of(one.finding, target, one.asked)]
    if one.finding.events > 8:
        lines.append(shlex.join(["hybridfuzz", "reduce", path, "--target", target, *behind, "-o", "smaller.json"]))
    lines.append(shlex.join(["hybridfuzz", "repro", path, "--target", target, *behind, "-o", "repro"]))
    return join(*(tag("code", line, class_="command") for line in lines))
