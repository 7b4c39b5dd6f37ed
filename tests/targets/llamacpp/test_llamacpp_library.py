"""Which layout of its parameters a build has is found by its defaults, and never guessed."""

import pytest

from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.llamacpp.library import _ADDED, _DEFAULTS, OPAQUE, Library, _params, layout_of


def defaults(added: tuple[str, ...], **changes: float) -> bytes:
    """Return what a library with this layout fills a struct with, and noise behind it."""
    params = _params(added)()
    names = [name for name, *_ in params._fields_]
    for name, value in (_DEFAULTS | changes).items():
        if name in names:
            setattr(params, name, value)
    return bytes(params).ljust(OPAQUE, b"\x5a")


@pytest.mark.parametrize("added", _ADDED)
def test_each_known_layout_is_told_from_the_others(added: tuple[str, ...]) -> None:
    fields = [name for name, *_ in layout_of(defaults(added))._fields_]
    assert fields == [name for name, *_ in _params(added)._fields_]


@pytest.mark.parametrize("changes", [{"n_ctx": 4096}, {"n_threads": 8}, {"type_k": 8}, {"swa_full": False}])
def test_other_defaults_are_refused_in_one_line(changes: dict[str, float]) -> None:
    with pytest.raises(TargetError, match="is not known") as error:
        layout_of(defaults(_ADDED[-1], **changes))
    assert "\n" not in str(error.value)


def test_a_field_that_no_known_layout_has_is_refused() -> None:
    """Build 11549 has 8 bytes before its callbacks that its predecessors do not have; the next one may have others."""
    known = defaults(_ADDED[-1])
    place = _params(_ADDED[-1]).abort_callback.offset
    with pytest.raises(TargetError, match="is not known"):
        layout_of((known[:place] + b"\x01" * 8 + known[place:])[:OPAQUE])


def test_what_is_no_library_is_refused_in_one_line() -> None:
    with pytest.raises(TargetError, match="is no library with"):
        Library("/dev/null")
