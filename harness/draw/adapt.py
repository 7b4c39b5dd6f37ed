"""Changes a trace so that another target takes it: the same requests, and the events that the target has.

Sampled tokens follow from the prompt alone, so the expected output stays the same when block sizes, modes, options and
pools change. A trace that the target takes is not changed. Otherwise the configuration becomes the nearest one that
the target takes, and events and fields that it does not have are left out. Every change is listed.

The failure that a trace was written for may get lost, since other block sizes have other boundaries. Prefix caching is
never turned on or off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from msgspec import structs

from ...reference.tokens import plain_name
from ...targets.base.alphabet import AtMost, NeedsEvent, NeedsFeature, defaults, fields_with
from ...targets.base.protocol import Capabilities, TargetFactory
from ...targets.base.trace import (
    AnyEvent,
    Config,
    Group,
    Step,
    Trace,
    TraceError,
    Turn,
    check_config,
    has_string_beside,
    needed_events,
    needed_features,
    needed_kinds,
    tag_of,
)
from .overrides import RANKS, foreign_option


def refusal(trace: Trace, factory: TargetFactory) -> str:
    """Return the reason why a target does not take a trace unchanged; empty if it does."""
    try:
        check_config(trace.config)
    except TraceError as error:
        return str(error)
    mode = trace.config.mamba_cache_mode
    if reason := factory.supports(trace.config):
        return f"configuration: {factory.name} does not take it: {reason}"
    if mode not in factory.capabilities.modes:
        return f"configuration: {factory.name} has no mamba_cache_mode={mode}"
    if reason := foreign_option(trace.config.options, factory.capabilities):
        return f"configuration: {factory.name}: {reason}"
    if foreign := needed_events(trace.events) - factory.capabilities.events:
        return f"events: {factory.name} has no {', '.join(sorted(foreign))}"
    foreign = needed_features(trace.events) - factory.capabilities.features
    if any(isinstance(event, Turn) and has_string_beside(event) for event in trace.events):
        foreign |= {"strings-everywhere"} & factory.capabilities.lacks
    if foreign:
        return f"requests: {factory.name} has no {', '.join(sorted(foreign))}"
    if reason := switched_off(trace.events, trace.config, factory.capabilities):
        return f"{factory.name}: {reason}"
    return ""


def switched_off(events: Iterable[AnyEvent], config: Config, capabilities: Capabilities) -> str:
    """Return what events need that a target lacks with the options of a configuration, "" if nothing."""
    events, off = list(events), capabilities.switched_off(config.options)
    missing = needed_events(events) & off
    if missing:
        reason = f"events: there is no {', '.join(sorted(missing))} with "
    elif "long-answers" in off and any(turn.max_new_tokens > 1 for turn in events if isinstance(turn, Turn)):
        missing, reason = (
            {"long-answers"},
            "requests: ask for one token each (max_new_tokens): answers have no more with ",
        )
    else:
        return ""
    switches = [
        f"{name}={value}"
        for name, value in config.options.items()
        if capabilities.switched_off({name: value}) & missing
    ]
    return reason + ", ".join(switches)


def port(trace: Trace, factory: TargetFactory) -> tuple[Trace, tuple[str, ...]]:
    """Return a trace that the target takes, and the changes, one line each. Raises TraceError if there is none."""
    if not refusal(trace, factory):
        return trace, ()
    config, capabilities = _nearest(trace.config, factory), factory.capabilities
    off = capabilities.switched_off(config.options)
    capabilities = structs.replace(capabilities, events=capabilities.events - off)
    known = [event for event in trace.events if tag_of(event) in capabilities.events]
    events = tuple(_limited(event, config, capabilities) for event in known)
    changes = (*_config_changes(trace.config, config), *_event_changes(trace.events, known, events))
    return structs.replace(trace, config=config, events=events), changes


def _nearest(config: Config, factory: TargetFactory) -> Config:
    """Return the first supported configuration, from the nearest on; the pool keeps its number of spare blocks."""
    reason = ""
    spare = max(config.num_blocks - config.smallest_pool(), 0)
    for near in _candidates(_within(config, factory.capabilities), factory.capabilities):
        candidate = structs.replace(near, num_blocks=near.smallest_pool() + spare)
        try:
            check_config(candidate)
        except TraceError as error:
            reason = str(error)
            continue
        reason = factory.supports(candidate)
        if not reason:
            return candidate
    raise TraceError(f"configuration: nothing near it fits {factory.name}: {reason}")


def _within(config: Config, capabilities: Capabilities) -> Config:
    """Return the configuration with each field that can be chosen alone replaced: mode, policy, taps, options."""
    drafts = capabilities.max_speculative_tokens
    mode = config.mamba_cache_mode
    if mode not in capabilities.modes:
        caching = [other for other in capabilities.modes if other != "none"]
        if mode == "none" or not caching:
            has = ", ".join(capabilities.modes)
            raise TraceError(f"configuration: mamba_cache_mode={mode} has no counterpart, the target has {has}")
        mode = caching[0]
    k = min(config.num_speculative_tokens, drafts if mode in capabilities.speculative_modes else 0)
    options = {
        name: value
        for name, value in config.options.items()
        if name == RANKS or value in capabilities.options.get(name, ())
    }
    return structs.replace(
        config,
        mamba_cache_mode=mode,
        num_speculative_tokens=k,
        eagle_block_drop=config.eagle_block_drop and capabilities.eagle_block_drop and k > 0,
        conv_width=_closest(capabilities.conv_widths, config.conv_width),
        async_depth=min(config.async_depth, capabilities.max_async_depth),
        policy=config.policy if config.policy in capabilities.policies else capabilities.policies[0],
        options=options,
    )


def _candidates(config: Config, capabilities: Capabilities) -> Iterator[Config]:
    """Yield nearby configurations: other options first, then block sizes, then less lookahead and fewer drafts."""
    switches = [config.options]
    switches += [
        {**config.options, name: value}
        for name, values in capabilities.options.items()
        for value in dict.fromkeys(values)
    ]
    depths = range(config.async_depth, -1, -1)
    drafts = range(config.num_speculative_tokens, -1, -1)
    for k, depth, groups, options in product(drafts, depths, _groups(config, capabilities), switches):
        drop = config.eagle_block_drop and k > 0
        yield structs.replace(
            config, num_speculative_tokens=k, async_depth=depth, groups=groups, options=options, eagle_block_drop=drop
        )


def _groups(config: Config, capabilities: Capabilities) -> Sequence[tuple[Group, ...]]:
    """Return groups that the target can have, those most like the trace's own first.

    Groups with windows or chunks and of drafters are kept if the target has such groups.
    """
    plain = [group for group in config.groups if not group.draft and not group.window and not group.chunk]
    extra = [
        group
        for group in config.groups
        if (group.draft and capabilities.draft_block_sizes)
        or (group.window and capabilities.windows)
        or (group.chunk and capabilities.attention_chunks)
    ]
    states = [group for group in plain if group.kind == "mamba"]
    attention = [group for group in plain if group.kind == "attention"]
    state_size = (states or config.groups)[0].block_size
    attention_size = (attention or config.groups)[0].block_size
    state_count, attention_count = min(
        capabilities.group_counts, key=lambda count: abs(count[0] - len(states)) + abs(count[1] - len(attention))
    )
    sizes = sorted(capabilities.block_sizes, key=lambda pair: abs(pair[0] - state_size) + abs(pair[1] - attention_size))
    layers = _closest(capabilities.layers_per_group, max(group.layers for group in config.groups))
    return [
        (
            *[Group("mamba", state, layers)] * state_count,
            *[Group("attention", page, layers)] * attention_count,
            *extra,
        )
        for state, page in sizes
    ]


def _closest(offered: Sequence[int], wanted: int) -> int:
    return min(offered, key=lambda value: abs(value - wanted))


def _limited(event: AnyEvent, config: Config, capabilities: Capabilities) -> AnyEvent:
    """Return an event without sessions, kinds of documents, limits and rows that the target does not have."""
    kind = type(event)
    changes: dict[str, object] = {
        field: min(getattr(event, field), getattr(config, most.field)) for field, most in fields_with(kind, AtMost)
    }
    for field, needs in fields_with(kind, NeedsEvent):
        if needs.tag not in capabilities.events:
            changes[field] = defaults(kind)[field]
    for field, wants in fields_with(kind, NeedsFeature):
        if wants.feature not in capabilities.features:
            changes[field] = defaults(kind)[field]
    if isinstance(event, Turn) and not needed_kinds([event]) <= capabilities.features:
        changes["prompt"] = tuple((plain_name(document), length) for document, length in event.prompt)
    if isinstance(event, Turn) and has_string_beside(event) and "strings-everywhere" in capabilities.lacks:
        changes |= {"stop_string": False, "string_before": 0}  # its last token ends the answer
    if isinstance(event, Turn) and "long-answers" in capabilities.switched_off(config.options):
        changes |= {"max_new_tokens": 1, "stop_at": 0}
    if isinstance(event, Step):
        k = config.num_speculative_tokens
        changes["drafts"] = _drafts(event.drafts, k, capabilities)
        changes["per_request"] = {
            name: (_drafts(drafts, k, capabilities), min(right, k))
            for name, (drafts, right) in event.per_request.items()
            if k
        }
    return structs.replace(event, **changes)


def _drafts(wanted: int, k: int, capabilities: Capabilities) -> int:
    return min(wanted, k) if capabilities.variable_drafts else k


def _config_changes(before: Config, after: Config) -> Iterator[str]:
    for name in Config.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if name == "options":
            yield from _option_changes(old, new)
        elif old != new:
            yield f"{name}: {_show(old)} -> {_show(new)}"


def _option_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"option {name}: {before.get(name, 'not set')} -> {after.get(name, 'left out')}"


def _event_changes(before: Sequence[AnyEvent], known: Sequence[AnyEvent], after: Sequence[AnyEvent]) -> Iterator[str]:
    gone = Counter(tag_of(event) for event in before) - Counter(tag_of(event) for event in known)
    for tag, count in sorted(gone.items()):
        yield f"events: {count} {tag} left out"
    ends = ("stop_at", "min_tokens", "stop_string", "string_before")
    asked = ("prompt_logprobs", "logprobs_from", "structured", "reasoning", "bad_grammar", "together")
    for field in ("prompt", "session", *ends, *asked, "chunks", "drafts", "right", "per_request", "rows"):
        changed = sum(getattr(old, field, 0) != getattr(new, field, 0) for old, new in zip(known, after, strict=True))
        if changed:
            yield f"{field}: changed in {changed} events"


def _show(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return " + ".join(_show_group(each) if isinstance(each, Group) else str(each) for each in value)


def _show_group(group: Group) -> str:
    words = [f"{group.kind} {group.block_size}"]
    words += [f"{group.layers} layers"] if group.layers > 1 else []
    words += ["draft"] if group.draft else []
    words += [f"window {group.window}"] if group.window else []
    words += [f"chunk {group.chunk}"] if group.chunk else []
    return " ".join(words)
