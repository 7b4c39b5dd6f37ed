"""Options that several commands have: in one order, under the same short names."""

from argparse import Action
from graphlib import TopologicalSorter
from itertools import pairwise

from hybridfuzz.harness.cli import COMMANDS, _parsers

OTHER_MEANING = {("explore", "--events"): "--events N"}
"""An option that shares no more than its name with that of the other commands."""


def options(verb: str) -> dict[str, Action]:
    """Return the options of a command by long name, as its help lists them."""
    _, command = _parsers(verb)
    assert command
    named = {next((text for text in one.option_strings if text.startswith("--")), ""): one for one in command._actions}
    return {OTHER_MEANING.get((verb, name), name): one for name, one in named.items() if name}


def test_one_order_in_every_command() -> None:
    """There is an order of all options that no command contradicts; if not, graphlib names the circle."""
    order = TopologicalSorter[str]()
    for verb in COMMANDS:
        for before, after in pairwise(options(verb)):
            order.add(after, before)
    assert next(iter(order.static_order())) == "--help"


def test_the_same_short_names_in_every_command() -> None:
    found: dict[str, set[frozenset[str]]] = {}
    for verb in COMMANDS:
        for name, one in options(verb).items():
            found.setdefault(name, set()).add(frozenset(text for text in one.option_strings if text[1] != "-"))
    assert not {name: forms for name, forms in found.items() if len(forms) > 1}
