"""Definitions of a package as one module."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridfuzz.targets.base.inlined import Part, Sources, bare, import_block, trimmed

FILES = {
    "__init__": "",
    "low": (
        '"""Low."""\nimport os\n\nLIMIT, OTHER = 3, 4\n\n\ndef name():\n    return os.sep * LIMIT\n\n\n'
        "def lost():\n    pass\n"
    ),
    "note": "class Note:\n    pass\n",
    "high": (
        '"""High."""\nfrom . import low\nfrom .note import Note\n\n\ndef whole(note: Note) -> str:\n'
        "    from .late import late\n\n    return low.name() + late() + low.name()\n"
    ),
    "late": "def late():\n    return 'late'\n",
    "again": "from . import low\n\n\ndef name():\n    return low.name()\n",
    "itself": "from os import name\nfrom .low import name as own\n\n\ndef both():\n    return name\n",
    "base": "class Base:\n    pass\n",
    "derived": "from .base import Base\n\n\ndef first():\n    pass\n\n\nclass Derived(Base):\n    pass\n",
    "other": "from itertools import count as name\nfrom .itself import both\n\n\ndef all():\n    return both, name\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "inlined_example"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, folder.name, raising=False)
    return folder.name


def test_what_a_definition_uses_comes_with_it_and_modules_of_ours_are_gone(package: str) -> None:
    parts = Sources(package).definitions(("high.py", "whole"))
    text = "\n\n".join([*import_block(parts), *(part.text for part in parts)])
    assert "lost" not in text and "low." not in text and "from ." not in text
    assert text.count("LIMIT, OTHER = 3, 4") == 1
    assert "class Note" not in text, "an annotation is never evaluated"
    found: dict[str, object] = {}
    exec("from __future__ import annotations\n" + text, found)
    assert found["whole"](None) == "///late///"  # type: ignore[operator]


def test_a_base_class_stands_before_what_derives_from_it(package: str) -> None:
    """A file was placed when a function of it was needed, and before the base of a class that was needed later."""
    parts = Sources(package).definitions(("derived.py", "first"), ("derived.py", "Derived"))
    assert [part.text.split()[1] for part in parts] == ["Base:", "first():"]
    exec("\n\n".join(part.text for part in parts), {})


def test_a_whole_file_says_what_it_uses_of_others(package: str) -> None:
    sources = Sources(package)
    assert sources.names("low.py") == {"LIMIT", "OTHER", "name", "lost"}
    assert set(sources.uses("high.py")) == {("low.py", "name"), ("late.py", "late")}
    assert sources.whole("high.py").text.startswith("def whole(note: Note)")
    assert Sources(package, {"late"}).uses("high.py") == [("low.py", "name")]


def test_two_definitions_of_one_name_are_refused(package: str) -> None:
    with pytest.raises(ValueError, match=r"name is defined in again\.py and in low\.py"):
        Sources(package).definitions(("again.py", "name"))


def test_a_name_that_two_files_import_from_different_modules_is_refused(package: str) -> None:
    """One import would replace the other: `chain` of itertools that of ours."""
    with pytest.raises(ValueError, match=r"other\.py has 'from itertools import count as name', another file 'from os"):
        Sources(package).definitions(("itself.py", "both"), ("other.py", "all"))
    with pytest.raises(ValueError, match=r"name is defined in low\.py, another file has 'from os import name'"):
        Sources(package).definitions(("itself.py", "both"), ("high.py", "whole"))


SHARED = """\
def used():
    return 1


def unused():
    return only_by_unused()


def only_by_unused():
    return unused


@registered
def decorated():
    pass


class Adapter:
    def called_by_the_engine(self):
        return used()
"""
CLIENTS = '''\
class Client:
    """A client."""

    def __init__(self):
        self.adapter = Adapter()

    def asked(self):
        return getattr(self, "by_a_string")()

    def by_a_string(self):
        return 1

    def unasked(self):
        return self.helper()

    def helper(self):
        return self.unasked()
'''


def test_a_script_has_no_function_that_nothing_names() -> None:
    """Of a class that an engine may have an object of, each method stays: it may call one by its name."""
    shared, clients = trimmed([Part([], SHARED), Part([], CLIENTS)], "Client().asked()")
    kept = re.findall(r"def (\w+)", f"{shared.text}\n{clients.text}")
    assert kept == ["used", "decorated", "called_by_the_engine", "__init__", "asked", "by_a_string"]
    assert "\n\n\n\n" not in shared.text
    compile(f"{shared.text}\n{clients.text}", "script.py", "exec")


EVENTS = """
class Step:
    pass


class Preempt:
    pass


class Later(Preempt):
    pass


class Target:
    def __init__(self):
        self.handlers = {
            Step: self.step,
            Preempt: self.preempt,
        }

    def apply(self, event):
        match event:
            case Step():
                return self.handlers[type(event)]()
            case Preempt() | Later():
                return self.preempted(event)

    def step(self):
        return "step"

    def preempt(self):
        return "preempt"

    def preempted(self, event):
        return self.preempt()
"""


def test_what_is_done_for_objects_that_nothing_makes_is_left_out() -> None:
    """Scripts had the machinery of events that do not happen in them."""
    clients = "class Client:\n    def step(self):\n        return Target().apply(Step())\n"
    clients += "\n    def preempt(self):\n        return Target().apply(Later())\n"
    parts = [Part([], EVENTS, is_inner=True), Part([], clients)]
    stepping, preempting = (
        "\n\n".join(part.text for part in trimmed(parts, f"Client().{call}()")) for call in ("step", "preempt")
    )
    assert "preempt" not in stepping.lower() and "Later" not in stepping
    assert preempting.count("preempted") == 2 and "class Later(Preempt)" in preempting
    found: dict[str, Any] = {}
    exec(stepping, found)
    assert found["Client"]().step() == "step"
    [kept, _] = trimmed([Part([], EVENTS), Part([], clients)], "Client().step()")
    assert "def preempted" in kept.text, "an engine may call the methods of other parts"


def test_a_machinery_has_no_docstrings_and_few_empty_lines() -> None:
    text = '"""Of a module."""\n\n\nLIMIT = 3\n"""Of a value."""\n\n\ndef alone():\n    """Do nothing."""\n\n\n'
    text += 'class Some:\n    """A class."""\n\n    size: int = 2\n    """Its size."""\n\n    def told(self):\n'
    text += '        """Return a text."""\n\n        return """a\n\n    b"""\n'
    assert bare(text) == (
        'LIMIT = 3\n\ndef alone():\n    """Do nothing."""\n\nclass Some:\n    size: int = 2\n\n    def told(self):\n'
        '        return """a\n\n    b"""'
    )


def test_a_machinery_has_no_comments_in_our_own_terms() -> None:
    """A maintainer read of traces, adapters and findings, which his engine does not have."""
    text = "def f(a):\n    # What the trace asks for\n    # in two lines.\n    b = a  # of the adapter\n"
    text += "    # Blocks move.\n    return '# trace', b  # twice\n\nclass E(Exception):\n"
    text += '    """The finding\n    is a HANG."""\n'
    assert bare(text) == (
        "def f(a):\n    b = a\n    # Blocks move.\n    return '# trace', b  # twice\n\nclass E(Exception):\n    pass"
    )
