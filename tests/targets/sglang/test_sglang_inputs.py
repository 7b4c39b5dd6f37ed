"""What tokens of SGLang stand for: numbers in place of an image's placeholders, and the namespace of a key."""

from types import SimpleNamespace

import pytest

from hybridfuzz.reference.tokens import PLACEHOLDER, Image, key_of
from hybridfuzz.targets.sglang.inputs import Inputs, namespace

NUMBERS = (1001, 1002, 1003, 1004)
IMAGE = Image(0, 6, "image.b.0-6")
SHOWN = (1001, 1002, 1003, 1004, 1001, 1002)


@pytest.fixture
def inputs() -> Inputs:
    known = Inputs()
    known.name(IMAGE, NUMBERS)
    return known


def media(start: int, *, numbers: tuple[int, ...] = NUMBERS, feature: Image | None = IMAGE) -> SimpleNamespace:
    """Return a request's images: one, at a position."""
    item = SimpleNamespace(offsets=[(start, start + 5)], feature=feature, padding_values=lambda: numbers)
    return SimpleNamespace(mm_items=[item])


def test_a_client_has_placeholders_where_the_tree_has_numbers(inputs: Inputs) -> None:
    assert inputs.tokens((5, *SHOWN, 6)) == (5, *(PLACEHOLDER,) * 6, 6)


def test_a_chunk_that_begins_inside_an_image_shows_the_rest_of_it(inputs: Inputs) -> None:
    assert inputs.contents((*SHOWN[2:], 9), 0, 12, media(10)) == (*IMAGE.contents(0)[2:], 9)


def test_nothing_is_shown_where_the_item_is_not_or_has_other_numbers_or_no_content(inputs: Inputs) -> None:
    assert inputs.contents(SHOWN, 0, 0, media(6)) == SHOWN
    assert inputs.contents(SHOWN, 0, 0, media(0, numbers=(7,))) == SHOWN
    assert inputs.contents(SHOWN, 0, 0, media(0, feature=None)) == SHOWN


def test_nodes_of_a_tree_may_end_inside_an_image_and_two_may_follow_each_other(inputs: Inputs) -> None:
    own = IMAGE.contents(7)
    assert inputs.walk((5, *SHOWN[:3]), 7, 0) == ((12, *own[:3]), 3)
    assert inputs.walk((*SHOWN[3:], *SHOWN[:1]), 7, 3) == ((*own[3:], *own[:1]), 1)


def test_an_adapter_or_a_salt_is_the_namespace_of_a_key() -> None:
    assert namespace(SimpleNamespace(extra_key="adapter.b", cache_salt=None)) == key_of("adapter.b")
    assert namespace(SimpleNamespace(extra_key=None, cache_salt="salt.d")) == key_of("salt.d")
    assert namespace(SimpleNamespace()) == 0
