"""Hostile text stays text in every output format: it never becomes code, markup or a control sequence."""

import tomllib
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from hypothesis import given
from support import TEXTS

from hybridfuzz.harness import quoting

CONTROLS = {*map(chr, range(32)), *map(chr, range(0x7F, 0xA0))}


@given(TEXTS)
def test_xml_and_svg_are_well_formed_and_hold_only_text(text: str) -> None:
    quoted = quoting.xml_text(text)
    root = ET.fromstring(f'<svg a="{quoted}"><text>{quoted}</text></svg>')
    assert [one.tag for one in root.iter()] == ["svg", "text"]
    assert "".join(root[0].itertext()) == quoting.terminal_text(text)
    quoted.encode()


class Tags(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        self.tags.append("!--")


@given(TEXTS)
def test_html_has_no_elements_of_the_text(text: str) -> None:
    parser = Tags()
    parser.feed(f'<p title="{quoting.html_text(text)}">{quoting.html_text(text)}</p>')
    parser.close()
    assert parser.tags == ["p"]


@given(TEXTS)
def test_toml_reads_back(text: str) -> None:
    wanted = "".join(one if not 0xD800 <= ord(one) <= 0xDFFF else f"\\u{ord(one):04x}" for one in text)
    assert tomllib.loads(f"x = {quoting.toml_string(text)}") == {"x": wanted}


@given(TEXTS)
def test_a_terminal_gets_no_control_characters(text: str) -> None:
    assert not CONTROLS - {"\n", "\t"} & set(quoting.terminal_text(text))
    assert not CONTROLS & set(quoting.terminal_line(text))
    quoting.terminal_text(text).encode()


@given(TEXTS)
def test_markdown_has_no_markup_of_the_text(text: str) -> None:
    quoted = quoting.markdown_text(text)
    bare = quoted.replace("\\<", "").replace("\\[", "").replace("\\`", "").replace("\\!", "").replace("\\#", "")
    assert not set("<[`!#@") & set(bare.replace("&#", ""))
    assert "\n" not in quoted
    assert "https:" not in quoted
    code = quoting.markdown_code(text)
    assert "\n" not in code
    marks = len(code) - len(code.lstrip("`"))
    assert "`" * marks not in code[marks:-marks], "the span ends where it should"


@given(TEXTS)
def test_a_fence_ends_only_at_its_end(text: str) -> None:
    first, *lines, last = quoting.markdown_fence(text).split("\n")
    assert set(first) == {"`"}
    assert first == last
    assert not any(line.strip().startswith(first) for line in lines)


def test_clean_text_is_cut_and_its_length_is_given() -> None:
    cut = quoting.clean("x" * 3_000_000)
    assert len(cut) < 2_100
    assert cut.endswith("(cut: 3,000,000 characters)")
    assert quoting.clean("\ud800\x1b[m ok\n") == "\\ud800\\x1b[m ok\n"


@given(TEXTS)
def test_clean_text_is_valid_unicode(text: str) -> None:
    quoting.clean(text).encode()
    assert "\n" not in quoting.one_line(text)
