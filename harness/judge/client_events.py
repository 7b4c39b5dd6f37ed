"""Applies client events to the reference: arrivals, aborts, and the turns of sessions.

Events that a target cannot decline (`announce`) are applied before the target gets them; those that need its consent
(`confirm`) afterwards, as far as its view shows that they took place.
"""

from __future__ import annotations

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
)


def announce(event: Event, reference: Reference, config: Config, names: set[str]) -> None:
    """Apply an event before the target gets it. `names` are all names that arrived so far."""
    if isinstance(event, Arrive) and event.name not in names and fits(config, event):
        names.add(event.name)
        reference.arrive(event.name, event.prompt, event.max_new_tokens, event.session)
    elif isinstance(event, Resume):
        life = reference.lives.get(event.name)
        if life is not None and life.parked and fits(config, event, life.known):
            reference.resume(event.name, event.prompt, event.max_new_tokens)
    elif isinstance(event, ExternalLoad) and event.breaks_off and event.name in reference.lives:
        reference.lives[event.name].load_breaks_off = True


def confirm_batch(
    event: Event, reference: Reference, before: View, refused: str, config: Config, names: set[str]
) -> None:
    """Apply an event that acts on the batch, the running requests of the view `before` it."""
    reference.batch = None
    rows = before.running
    if not rows or any(name not in reference.lives for name in rows):
        return
    if refused:
        reference.batch = rows if isinstance(event, Select | Reorder | Repeat | Crop | Reset) else None
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


def confirm(event: Event, reference: Reference, view: View, refused: str, names: set[str]) -> None:
    """Apply an event after it happened. `view` is the metadata after it, `refused` the reason if it was refused."""
    if isinstance(event, Abort):
        reference.abort(event.name, lingers=event.name in view.running or event.name in view.waiting)
    elif isinstance(event, Park) and event.name in view.parked:
        life = reference.lives.get(event.name)
        if life is not None and not life.parked:
            reference.end(event.name)
    elif isinstance(event, Fork) and not refused:
        life = reference.lives.get(event.parent)
        if life is not None and life.parked and event.name not in names:
            names.add(event.name)
            reference.fork(event.name, event.parent, view.tables)
    elif isinstance(event, Truncate) and not refused:
        life = reference.lives.get(event.name)
        if life is not None and life.parked and 0 < event.length < life.known:
            table = view.tables.get(event.name, ())
            reference.truncate(event.name, event.length, table, view.references, view.published)
