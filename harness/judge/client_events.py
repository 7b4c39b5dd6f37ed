"""Applies client events to the reference: arrivals, aborts, the turns of sessions, operations on a batch.

Each kind says when it acts (`alphabet.Acts`). What a target cannot decline is applied before the target gets it
(`announce`); the rest afterwards (`confirm`), as far as the target took it and its view shows that it took place.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...reference.model import Reference
from ...targets.base.observe import View
from ...targets.base.trace import (
    Abort,
    Arrive,
    Config,
    Crop,
    Event,
    ExternalLoad,
    Fork,
    Park,
    Reorder,
    Repeat,
    Reset,
    Resume,
    Select,
    Truncate,
    fits,
    least_tokens,
    logprob_start,
)


def announce(event: Event, reference: Reference, config: Config, names: set[str]) -> None:
    """Apply an event before the target gets it. `names` are all names that arrived so far."""
    if isinstance(event, Arrive) and event.name not in names and fits(config, event):
        names.add(event.name)
        asked = event.session, event.stop_at, event.prompt_logprobs, event.structured, event.bad_grammar > 0
        more = least_tokens(event), event.string_before, event.reasoning, logprob_start(event) or 0
        reference.arrive(event.name, event.prompt, event.max_new_tokens, *asked, *more)
    elif isinstance(event, Resume):
        life = reference.lives.get(event.name)
        if life is not None and life.parked and fits(config, event, life.known):
            asked_again = event.stop_at, event.structured, least_tokens(event), event.string_before, event.reasoning
            reference.resume(event.name, event.prompt, event.max_new_tokens, *asked_again)
    elif isinstance(event, ExternalLoad) and event.breaks_off and event.name in reference.lives:
        reference.lives[event.name].load_breaks_off = True


def confirm(
    event: Event, reference: Reference, before: View, view: View, refused: str, config: Config, names: set[str]
) -> None:
    """Apply an event after it happened. `before` and `view` are the metadata before and after it, `refused` the reason
    if it was refused."""
    acts = event.about.acts
    reference.batch = None
    if acts == "on the batch":
        _confirm_batch(event, reference, before.running, refused, config, names)
    elif acts == "after":
        _follow(event, reference, view)
    elif acts == "with consent" and not refused:
        _change_session(event, reference, view, names)


def _confirm_batch(
    event: Event, reference: Reference, rows: Sequence[str], refused: str, config: Config, names: set[str]
) -> None:
    """Apply an event that acts on the batch, the requests that were running before it."""
    if not rows or any(name not in reference.lives for name in rows):
        return
    if refused:
        reference.batch = rows
    elif isinstance(event, Select):
        reference.select(rows, event.names)
    elif isinstance(event, Reorder):
        reference.reorder(rows, event.sources)
    elif isinstance(event, Repeat):
        reference.repeat(rows, event.times, config.max_num_seqs, names)
    elif isinstance(event, Crop):
        reference.crop(rows, event.tokens)
    elif isinstance(event, Reset):
        reference.reset(rows)


def _follow(event: Event, reference: Reference, view: View) -> None:
    """Apply the end of a request or turn, as the view shows it."""
    if isinstance(event, Abort):
        for name in (event.name, *event.together):
            lingers = name in view.running or name in view.waiting
            reference.abort(name, lingers, event.keeps_session)
    elif isinstance(event, Park) and event.name in view.parked:
        life = reference.lives.get(event.name)
        if life is not None and not life.parked:
            reference.end(event.name)


def _change_session(event: Event, reference: Reference, view: View, names: set[str]) -> None:
    """Apply a change of a parked session that the target agreed to."""
    if isinstance(event, Fork):
        life = reference.lives.get(event.parent)
        if life is not None and life.parked and event.name not in names:
            names.add(event.name)
            reference.fork(event.name, event.parent, view.tables)
    elif isinstance(event, Truncate):
        life = reference.lives.get(event.name)
        if life is not None and life.parked and 0 < event.length < life.known:
            table = view.tables.get(event.name, ())
            reference.truncate(event.name, event.length, table, view.references, view.published)
