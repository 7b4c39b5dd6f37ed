"""A connector's store keeps the bytes of pages for each memory; what another engine stores is computed once."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from hybridfuzz.reference.prefix_cache import Key  # noqa: E402
from hybridfuzz.reference.tokens import Truth  # noqa: E402
from hybridfuzz.targets.vllm.gpu.beside import Beside  # noqa: E402
from hybridfuzz.targets.vllm.gpu.memories import Memories  # noqa: E402
from hybridfuzz.targets.vllm.gpu.stored_pages import StoredPages  # noqa: E402

MAMBA, ATTENTION = 0, 1
TRUTH = Truth((("a", 22), ("image.b", 4), ("a", 14)))
BLOCK = 16


class Engine:
    """Four blocks of one state layer (a window of three inputs and one of a draft, a state) and one attention layer."""

    def __init__(self) -> None:
        self.window, self.state, self.pairs = (torch.zeros(4, *shape) for shape in ((4, 2), (3,), (2, BLOCK)))
        kinds = (SimpleNamespace(kind="mamba", block_size=BLOCK), SimpleNamespace(kind="attention", block_size=BLOCK))
        self.layout = SimpleNamespace(groups=kinds)

    def layer_names(self, group: int) -> Sequence[str]:
        return ["ma"[group]]

    def caches(self, name: str) -> Sequence["torch.Tensor"]:
        return (self.window, self.state) if name == "m" else (self.pairs,)


class Alone:
    """An engine without drafts that computes pages full of the number of tokens."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.beside: list[Beside] = []

    def pages(self, tokens: Sequence[int], beside: Beside) -> Mapping[str, Sequence["torch.Tensor"]]:
        self.beside.append(beside)
        self.runs.append(len(tokens))
        blocks = -(-len(tokens) // BLOCK)
        columns = torch.arange(blocks)[:, None, None].expand(blocks, 2, BLOCK)
        return {
            "m": (torch.full((1, 3, 2), float(len(tokens))), torch.full((1, 3), float(len(tokens)))),
            "a": (columns.float(),),
        }


def stored() -> tuple[Engine, Memories, Alone, StoredPages, list[str]]:
    engine, alone, resumed = Engine(), Alone(), list[str]()
    memories = Memories([engine.window, engine.state, engine.pairs], 1)
    for one in memories.others[0]:
        one.fill_(7.0)
    return engine, memories, alone, StoredPages(engine, memories, alone, lambda: resumed.append("")), resumed  # type: ignore[arg-type]


@pytest.mark.parametrize("group", [MAMBA, ATTENTION])
def test_a_copy_brings_each_memory_its_own_bytes(group: int) -> None:
    engine, memories, _, pages, _ = stored()
    caches = engine.caches("ma"[group])
    for part in caches:
        part[1], memories.counterpart(part, 0)[1] = 2.0, 3.0
    copy = pages.read(group, 1)
    for part in caches:
        part[1] = 9.0  # the block is used for something else
    pages.write(group, 0, 2, copy)
    for part in caches:
        assert part[2].unique().tolist() == [2.0]
        assert memories.counterpart(part, 0)[2].unique().tolist() == [3.0]
        assert part[3].unique().tolist() == [0.0]


def test_what_another_engine_stores_is_the_same_for_all_memories() -> None:
    """Its window has no inputs of drafts: those that the page has stay as they are."""
    engine, memories, alone, pages, _ = stored()
    pages.write(MAMBA, 0, 2, pages.computed_elsewhere(Key(MAMBA, 16, 0), TRUTH, 20))
    for window, state, unused in (
        (engine.window, engine.state, 0.0),
        (memories.counterpart(engine.window, 0), memories.counterpart(engine.state, 0), 7.0),
    ):
        assert window[2, :3].unique().tolist() == state[2].unique().tolist() == [16.0]
        assert window[2, 3].unique().tolist() == [unused]
    assert alone.beside == [Beside()], "the state is one before the image"


def test_attention_blocks_come_from_one_run_and_the_engine_goes_on() -> None:
    engine, _, alone, pages, resumed = stored()
    copies = [pages.computed_elsewhere(Key(ATTENTION, depth, 0), TRUTH, 40) for depth in (16, 32)]
    for block, copy in enumerate(copies):
        pages.write(ATTENTION, 0, block, copy)
    assert alone.runs == [40]
    assert resumed == [""]
    assert [one.start for one in alone.beside[0].images] == [22]
    assert [engine.pairs[block].unique().tolist() for block in (0, 1)] == [[0.0], [1.0]]
