"""A mutant is the correct target but for one method, and its docstring names the bug."""

import re
from inspect import isfunction

import pytest

from hybridfuzz.targets.hybrid.mutants import MUTANTS, PARTS, titles


@pytest.mark.parametrize("slug", PARTS)
def test_one_method_is_overridden(slug: str) -> None:
    part = PARTS[slug]
    methods = [name for name, member in vars(part).items() if isfunction(member)]
    assert len(methods) == 1
    assert hasattr(part.__mro__[1], methods[0]), "it must override a method of the correct part"


@pytest.mark.parametrize("slug", PARTS)
def test_its_public_number_and_title_are_given(slug: str) -> None:
    documentation = PARTS[slug].__doc__ or ""
    assert re.search(r"#\d+|no public issue known", documentation)
    assert 10 < len(titles()[slug]) < 120


def test_each_part_makes_one_target() -> None:
    assert MUTANTS.keys() == PARTS.keys()
    assert len(set(PARTS.values())) == len(PARTS)
