"""The stock server of a target: what its engine runs where nobody has set anything but the model.

A target declares it in its `Capabilities`. A trace departs from it by a setting if its configuration has another value,
or if it has an event that a server offers only with the setting. `harness/group/findings/measured_reach.py`
finds by running which departures a failure needs. Implementations of one part are declared in `deployment`, not here.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Setting(Struct, frozen=True):
    """One thing that a person sets on a server, or a client does that a server does not offer by default.

    name     what is set, as a person types it: a flag
    stock    fields and options of a trace's configuration -> their values on the stock server, as `--config` takes them
    by_value    value of the first of them -> a name that says more
    events   tags of events that need the setting, whatever the configuration says
    is_rare  True if few servers have it
    is_common  True if about every second server has it, as its model's page says
    rare     values of the first field that few servers have, where other values are usual
    """

    name: str
    stock: Mapping[str, str] = {}
    by_value: Mapping[str, str] = {}
    events: frozenset[str] = frozenset()
    is_rare: bool = False
    is_common: bool = False
    rare: frozenset[str] = frozenset()
