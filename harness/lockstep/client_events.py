"""What clients do, for the reference: requests come and go, sessions are parked and go on.

What a client asks for by itself (`announce`) holds before the target hears of it; what the target has to agree to
(`confirm`) is taken from what it shows afterwards.
"""

from __future__ import annotations

from ...reference.model import Reference
from ...targets.base.observe import View
from ...targets.base.trace import Abort, Arrive, Config, Event, Fork, Park, Resume, Truncate, fits


def announce(event: Event, reference: Reference, config: Config, names: set[str]) -> None:
    """Before the event happens. `names` are those that ever arrived."""
    if isinstance(event, Arrive) and event.name not in names and fits(config, event):
        names.add(event.name)
        reference.arrive(event.name, event.prompt, event.max_new_tokens, event.session)
    elif isinstance(event, Resume):
        life = reference.lives.get(event.name)
        if life is not None and life.parked and fits(config, event, life.known):
            life.resume(event.prompt, event.max_new_tokens)


def confirm(event: Event, reference: Reference, view: View, refused: str, names: set[str]) -> None:
    """After the event; `view` is what it left behind, `refused` says why nothing happened."""
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
