"""Broken copies between the pool and the external store: missing tensors, missing layers, wrong strides."""

from __future__ import annotations

from collections.abc import Sequence

from ..offload.external_store import ExternalStore


class SideStateNotCarried(ExternalStore):
    """One of the copy paths omits a tensor that belongs to the state.

    SGLang #39862, #39830: temporal states were copied to the host and back, the tensors registered beside them were
    not, and the slot kept the bytes of its previous owner.
    """

    def load_window(self, layer: int, block: int, window: tuple[int, ...]) -> None:
        pass


class LayerSpaceSizedByCount(ExternalStore):
    """The transfer's table is as long as the number of its layers, but is indexed by their ids in the model.

    SGLang #31745, #39876, #37870: layers of the two kinds alternate, so the ids of one kind exceed its count; the high
    ones are never copied.
    """

    def layers(self, group: int) -> Sequence[int]:
        groups = self.layout.groups
        count = sum(one.layers for one in groups if one.kind == groups[group].kind)
        return [layer for layer in super().layers(group) if layer * len(groups) + group < count]


class Int8DtypeMismatchStride(ExternalStore):
    """Slots are placed at the stride of the source, whose items are twice as long.

    SGLang #36371: source and destination kept keys and values in different dtypes; the copy took the item length of
    the source for both.
    """

    def load_slots(self, layer: int, block: int, tags: Sequence[int]) -> None:
        self.memory.store_slots(layer, block, len(tags), 0, [tags[slot // 2] for slot in range(len(tags))])


PARTS: dict[str, type] = {
    "side-state-not-carried-by-one-mover": SideStateNotCarried,
    "layer-space-sized-by-count": LayerSpaceSizedByCount,
    "int8-dtype-mismatch-stride": Int8DtypeMismatchStride,
}
