"""Elements of HTML and SVG. All text is escaped, except `Markup`, which is the result of these functions."""

from __future__ import annotations

from typing import NamedTuple

from .quoting import xml_text

VOID = frozenset({"br", "hr", "meta"})


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element. `class_` and the like lose their underscore, other underscores become dashes.

    Attributes that are None or False are left out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            parts.append(attribute if value is True else f'{attribute}="{xml_text(str(value))}"')
    start = f"<{' '.join(parts)}>"
    return Markup(start if name in VOID else f"{start}{join(*content)}</{name}>")


def join(*content: object, separator: str = "") -> Markup:
    """Return the pieces one after another, without None and ""."""
    pieces = (
        piece if isinstance(piece, Markup) else xml_text(str(piece)) for piece in content if piece not in (None, "")
    )
    return Markup(xml_text(separator).join(pieces))


class Section(NamedTuple):
    """A part of a page, with an entry in its table of contents."""

    anchor: str
    title: str
    content: Markup

    def html(self) -> Markup:
        """Return the element."""
        return tag("section", tag("h2", self.title), self.content, id=self.anchor)
