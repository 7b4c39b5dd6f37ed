"""Trees of drafts: their shapes, and the path that the model says."""

import pytest

from hybridfuzz.reference.draft_trees import ROOT, longest_path, path_to, shape


@pytest.mark.parametrize("breadth", [1, 2, 3])
def test_a_shape_is_numbered_by_breadth_and_no_broader_than_asked(breadth: int) -> None:
    shapes = [shape(6, breadth, seed) for seed in range(200)]
    for parents in shapes:
        assert parents == sorted(parents) and all(ROOT <= parent < draft for draft, parent in enumerate(parents))
        assert max(parents.count(parent) for parent in parents) <= breadth
    assert len({tuple(parents) for parents in shapes}) == 1 or breadth > 1
    assert shape(6, breadth, 7) == shape(6, breadth, 7)


def test_a_breadth_of_one_is_a_chain() -> None:
    assert shape(4, 1, 9) == [ROOT, 0, 1, 2]


def test_a_path_leads_from_the_last_known_token() -> None:
    assert path_to(4, [ROOT, ROOT, 1, 1, 3]) == [1, 3, 4]


@pytest.mark.parametrize(
    ("drafts", "wanted", "path"),
    [
        ([5, 6, 7, 8], [6, 8, 1], [1, 3]),  # 1 is behind the root, 3 behind it
        ([5, 6, 7, 8], [5, 7, 8], [0]),  # 7 is behind 6
        ([5, 6, 7, 8], [9, 5], []),
        ([5, 6, 7, 8], [6], [1]),  # nothing is wanted behind it
        ([6, 6, 7, 8], [6, 8], [1, 3]),  # the first of two leads nowhere
    ],
)
def test_the_longest_right_path_is_taken(drafts: list[int], wanted: list[int], path: list[int]) -> None:
    assert longest_path(drafts, [ROOT, ROOT, 1, 1], wanted) == path


def test_drafts_without_parents_are_a_chain() -> None:
    assert longest_path([5, 6, 7], (), [5, 6, 8]) == [0, 1]
