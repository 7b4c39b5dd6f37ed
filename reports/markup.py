"""Elements of HTML and SVG. Text is escaped unless it is `Markup` already, so nothing can slip through."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

VOID = frozenset({"br", "hr", "meta"})


class Markup(str):
    """Text that may stand in a page as it is."""

    __slots__ = ()


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """An element. `class_` and the like lose their underscore, other underscores become dashes; None is left out."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            parts.append(attribute if value is True else f'{attribute}="{escape(str(value), quote=True)}"')
    start = f"<{' '.join(parts)}>"
    return Markup(start if name in VOID else f"{start}{join(*content)}</{name}>")


def join(*content: object, separator: str = "") -> Markup:
    """Several pieces after one another; None and "" vanish."""
    pieces = (
        piece if isinstance(piece, Markup) else escape(str(piece)) for piece in content if piece not in (None, "")
    )
    return Markup(escape(separator).join(pieces))


class Section(NamedTuple):
    """A part of a page with a name of its own in its table of contents."""

    anchor: str
    title: str
    content: Markup

    def html(self) -> Markup:
        """The element."""
        return tag("section", tag("h2", self.title), self.content, id=self.anchor)
