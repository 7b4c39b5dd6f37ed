"""What tokens of SGLang stand for: numbers in place of an image's placeholders, and the namespace of a key."""

from types import SimpleNamespace

import pytest

from hybridfuzz.reference.tokens import PLACEHOLDER, Image, key_of
from hybridfuzz.targets.base.protocol import EngineError
from hybridfuzz.targets.sglang.inputs import Inputs, encode, namespace

NUMBERS = (1001, 1002, 1003, 1004)
IMAGE = Image(0, 6, "image.b.0-6")
SHOWN = (1001, 1002, 1003, 1004, 1001, 1002)


@pytest.fixture
def inputs() -> Inputs:
    known = Inputs()
    known.name(IMAGE, NUMBERS)
    return known


def test_a_client_has_placeholders_where_the_tree_has_numbers(inputs: Inputs) -> None:
    assert inputs.tokens((5, *SHOWN, 6)) == (5, *(PLACEHOLDER,) * 6, 6)


def test_images_are_encoded_one_after_the_other_by_what_they_show() -> None:
    other = Image(0, 2, "image.c.0-2")
    encoded = encode([SimpleNamespace(feature=IMAGE), SimpleNamespace(feature=other)])
    assert encoded.flatten().tolist() == [*IMAGE.contents(0), *other.contents(0)]
    assert encoded.shape == (8, 1)


def test_an_image_whose_pixels_are_gone_cannot_be_encoded() -> None:
    with pytest.raises(EngineError, match="no longer there"):
        encode([SimpleNamespace(feature=None)])


def test_nodes_of_a_tree_may_end_inside_an_image_and_two_may_follow_each_other(inputs: Inputs) -> None:
    own = IMAGE.contents(7)
    assert inputs.walk((5, *SHOWN[:3]), 7, 0) == ((12, *own[:3]), 3)
    assert inputs.walk((*SHOWN[3:], *SHOWN[:1]), 7, 3) == ((*own[3:], *own[:1]), 1)


def test_an_adapter_or_a_salt_is_the_namespace_of_a_key() -> None:
    assert namespace(SimpleNamespace(extra_key="adapter.b", cache_salt=None)) == key_of("adapter.b")
    assert namespace(SimpleNamespace(extra_key=None, cache_salt="salt.d")) == key_of("salt.d")
    assert namespace(SimpleNamespace()) == 0
