"""Quotes text from traces, targets and files for one output format each.

Names, messages and paths may come from strangers: a trace attached to a bug report, a cache that a pull request can
write, an exception of an engine. Every writer passes such text through the function of its format:

    markdown_text   a paragraph or list item    markdown_code   an inline code span
    markdown_fence  a fenced code block         html_text       HTML text and attribute values
    xml_text        XML and SVG text and attribute values; `printable` where a library escapes them
    toml_string     a TOML string
    terminal_line   one line of a terminal or a log; `terminal_lines` for several, `terminal_text` for a paragraph
    clean           JSON, logs and plain text: valid Unicode of a bounded length

Python scripts are written by targets: `targets/base/repro.py` has the functions for them.

Each result is valid UTF-8, contains no control characters that its format cannot hold, and cannot end the string,
comment, element or code block that it stands in.
"""

from __future__ import annotations

import re
from html import escape

MESSAGE_MAX = 2_000
"""Characters that are kept of one message."""
DETAILS_MAX = 4_000
"""Characters that are kept of a traceback or another long detail."""

_MARKDOWN = re.compile(r"([\\`*\[\]<>~|!#]|(?<![^\W_])_|_(?![^\W_]))")
"""What may be markup. An underscore between letters or digits is none, and would show in a title that is pasted."""
_BLOCK_START = re.compile(r"^(\s*)([-+=]|\d+(?=[.)]))", re.MULTILINE)
_CI_COMMAND = re.compile(r"^([ \t]*):(?=:)|#(?=#(\[|vso\[|teamcity\[))", re.MULTILINE)
"""What a CI service would take for a command to itself in the log of a step: GitHub `::warning::` at the start of a
line and `##[warning]`, Azure `##vso[...]`, TeamCity `##teamcity[...]`."""
_AUTOLINK = re.compile(r"(?i)\b(https?|ftp|mailto|www)(?=[:.])|@")


def clean(text: str, limit: int = MESSAGE_MAX) -> str:
    """Return the text as valid Unicode, with unsafe characters escaped, cut to about `limit` characters.

    A cut text ends with its full length. Carriage returns become newlines.
    """
    length, text = len(text), text[: limit + 1]
    text = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    return text if length <= limit else f"{text[:limit]} ... (cut: {length:,} characters)"


def without_addresses(text: str) -> str:
    """Return text without the addresses of objects that Python prints: each run has others."""
    return re.sub(r" at 0x[0-9a-f]+(?=[>\s]|$)", "", text)


def one_line(text: str, limit: int = MESSAGE_MAX) -> str:
    """Return the cleaned text with each run of white space as one space."""
    return " ".join(clean(text, limit).split())


def printable(text: str) -> str:
    """Return text in which everything that Unicode calls unprintable is escaped as in Python: controls, surrogates,
    bidirectional marks. Newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def terminal_text(text: str) -> str:
    """Return text that sends no control sequences to a terminal, and no commands to a CI service that reads the log.

    Newlines and tabs stay: use `terminal_line` for what a line is made of.
    """
    return _CI_COMMAND.sub(lambda match: f"{match[1] or ''}\\x{ord(match[0][-1]):x}", printable(text))


def terminal_line(text: str) -> str:
    """Return one line for a terminal: newlines and tabs become spaces."""
    return terminal_text(re.sub(r"[\r\n\t]+", " ", text))


def terminal_lines(*texts: str) -> str:
    """Return several lines for a terminal, each of one text."""
    return "\n".join(map(terminal_line, texts))


def markdown_text(text: str) -> str:
    """Return Markdown that renders as this text: no HTML, links, images, mentions, headings or lists of its own."""
    text = _MARKDOWN.sub(r"\\\1", one_line(text, DETAILS_MAX).replace("&", "&amp;"))
    text = _AUTOLINK.sub(lambda match: f"{match[0][:-1]}&#{ord(match[0][-1])};", text)
    return _BLOCK_START.sub(lambda match: f"{match[1]}{_entity(match[2])}", text)


def _entity(start: str) -> str:
    return f"&#{ord(start[0])};{start[1:]}"


def markdown_code(text: str) -> str:
    """Return an inline code span that shows this text on one line."""
    text = one_line(text, DETAILS_MAX)
    marks = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{marks}{pad}{text}{pad}{marks}"


def markdown_fence(text: str, language: str = "") -> str:
    """Return a fenced code block that shows this text."""
    text = printable(text)
    marks = "`" * max(_longest_run(text) + 1, 3)
    return f"{marks}{language}\n{text}\n{marks}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def xml_text(text: str) -> str:
    """Return the text for XML and SVG, in elements and in quoted attributes; what XML cannot hold is escaped."""
    return escape(printable(text), quote=True)


def html_text(text: str) -> str:
    """Return the text for HTML, in elements and in quoted attributes."""
    return xml_text(text)


def toml_string(text: str) -> str:
    """Return a basic TOML string for this text; lone surrogates, which TOML cannot hold, are escaped."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    text = re.sub("[\ud800-\udfff]", lambda match: ascii(match[0])[1:-1], text)
    return '"' + "".join(escapes.get(one) or (one if one.isprintable() else _unicode(one)) for one in text) + '"'


def _unicode(one: str) -> str:
    return f"\\u{ord(one):04x}" if ord(one) <= 0xFFFF else f"\\U{ord(one):08x}"
