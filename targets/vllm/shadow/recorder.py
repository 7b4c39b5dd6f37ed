"""Records the device work of a step in the order in which it happens: what comes before its forward, this, the rest.

It is told by wrappers of vLLM's copies (`patches`) and of a runner's zeroing (`runner_adapter`), by a connector that
loads, and by the layers of the forward (`forward`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....reference.layout import Layout
from ...base.observe import Copied, Forward, ForwardRow, Record, Zeroed
from ...base.trace import Config
from ..options import StateParts, state_parts
from ..rows.kernel_reads import Batch
from .forward import ModelForward


class Recorder:
    """Records the device work of one engine, one step at a time.

    The fields without a value are set by `attach`, before which nothing is recorded.
    """

    group_layers: Sequence[int]
    page_slots: Sequence[int]
    """Slots of a page by group, 0 for states."""
    attention_layers: Sequence[Any]
    parts: StateParts
    """The parts of the states of all state layers."""
    aligned_block_size: int | None
    """Tokens per mamba block in align mode, None in the other modes."""
    inputs: Any
    """What token ids stand for, None if for themselves."""

    def __init__(self) -> None:
        self.step = 0
        self.worker: Any = None
        self._before: list[Record] = []
        """The step's records up to its forward."""
        self._forward: ModelForward | None = None
        self._after: list[Record] = []
        self.is_graph = False
        """True while a forward replays a graph."""
        self._planned: dict[int, Mapping[str, Any]] = {}
        """Tables by step that was planned and has not begun."""
        self._tables: Mapping[str, Any] = {}

    def attach(
        self, config: Config, layout: Layout, worker: Any, attention_layers: Sequence[Any], mamba_block_size: int,
        inputs: Any,
    ) -> None:  # fmt: skip
        """Begin to record an engine whose graphs are captured.

        worker            its `RunnerAdapter`
        attention_layers  the layers whose pages show which blocks were zeroed
        mamba_block_size  vLLM's tokens per mamba block
        inputs            its `Inputs`, None if token ids stand for themselves
        """
        self.worker = worker
        self.group_layers = [group.layers for group in layout.groups]
        self.page_slots = [group.block_size if group.kind == "attention" else 0 for group in layout.groups]
        self.attention_layers = attention_layers
        self.parts = state_parts(config)
        self.aligned_block_size = mamba_block_size if config.mamba_cache_mode == "align" else None
        self.inputs = inputs

    def planned(self, step: int, tables: Mapping[str, Any]) -> None:
        """Remember the scheduler's tables of a planned step, which copies of whole pages are found in."""
        self._planned[step] = tables

    def begin_step(self, step: int) -> None:
        """Attribute device work to `step` from now on."""
        self.step, self.is_graph = step, False
        self._before, self._forward, self._after = [], None, []
        self._tables = self._planned.pop(step, {})

    def note(self, record: Record) -> None:
        """Add the record of device work that happens now."""
        (self._after if self._forward else self._before).append(record)

    def begin_forward(self, context: Any, ids: Sequence[int]) -> ModelForward | None:
        """Begin the forward of the model. Return None if it has no metadata (profiling) or is only captured."""
        metadata = self._attention_metadata(context)
        if metadata is None or self.worker is None:
            return None
        if self._forward:
            raise AssertionError(f"a second forward in step {self.step}: no record would tell whose accesses are whose")
        starts, lengths = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
        batch = Batch(self.worker.names(len(lengths)), starts, lengths)
        contents = ids
        if self.inputs:
            positions = [batch.position(row) for row in range(len(lengths))]
            contents = self.inputs.contents(batch.names, starts, positions, ids)
        self._forward = ModelForward(
            batch, ids, contents, context, self.worker.table, self.aligned_block_size, self.inputs
        )
        return self._forward

    def begin_replay(self, adapters: int) -> None:
        """Note that the model's next forward replays a graph that was captured with this number of adapters."""
        self.is_graph = True
        if self.inputs and not adapters:
            self.inputs.drop_adapters()

    def begin_draft(self, context: Any) -> ModelForward | None:
        """Begin a forward of the drafter, behind the model's. Return None if it is only captured."""
        if context.attn_metadata is None or self._forward is None:
            return None
        return self._forward.draft(context)

    def _attention_metadata(self, context: Any) -> Any:
        """Return the metadata of any attention layer, except those whose rows are cut at chunks: row boundaries and
        lengths are the same in all of them."""
        for metadata in (context.attn_metadata or {}).values():
            if hasattr(metadata, "make_virtual_batches_block_table"):
                continue
            if hasattr(metadata, "query_start_loc") and hasattr(metadata, "seq_lens"):
                return metadata
        return None

    def end_step(self, drafts: Mapping[str, int], sampled: Mapping[str, Sequence[int]]) -> list[Record]:
        """Return the device work of the step, now that its results are known."""
        forward = self._forward
        ran = [forward.record(self.step, drafts, sampled, graph=self.is_graph)] if forward else []
        return self._ended(ran)

    def end_dummy_run(self) -> list[Record]:
        """Return the device work of a step without requests, whose forward the engine may give no metadata."""
        forward = self._forward
        rows = [ForwardRow(None, 0, (), 0, ())] * (len(forward.batch.names) if forward else 1)
        accesses = forward.accesses if forward else []
        return self._ended([Forward(self.step, rows, accesses, dummy=True, graph=self.is_graph)])

    def _ended(self, forwards: Sequence[Forward]) -> list[Record]:
        records = [*self._before, *forwards, *self._after]
        self._before, self._forward, self._after = [], None, []
        return records

    def copied(self, name: str | None, group: int, columns: tuple[int, int], offset: int, table: Sequence[int]) -> None:
        """Record an align copy: the temporal state from column source + offset, the window shifted by `offset`."""
        source, destination = columns

        def block(column: int) -> int:
            return table[column] if 0 <= column < len(table) else -1

        for layer in range(self.group_layers[group]):
            for first, temporal in self._moved(source, offset):
                self.note(
                    Copied(
                        self.step, name or "", group, first, block(first), destination, block(destination),
                        0 if temporal else offset, temporal, not temporal, layer,
                    )
                )  # fmt: skip

    def _moved(self, source: int, offset: int) -> Iterator[tuple[int, bool]]:
        """Yield the column that an align copy reads for each part, and True for the temporal state."""
        if self.parts.recurrent:
            yield source + offset, True
        if self.parts.conv:
            yield source, False

    def on_host(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments on the host: here they are there already, a GPU's recorder copies them at once."""
        return call

    def zeroed(self, blocks: Sequence[int]) -> None:
        """Record the zeroing of blocks, as far as their pages really hold zeros."""
        done = [block for block in blocks if all(layer.is_zero(block) for layer in self.attention_layers)]
        if done:
            self.note(Zeroed(self.step, done))

    def block_copied(self, source: int, destination: int) -> None:
        """Record a copy on write: a whole page in all layers.

        It is for the request whose table names the destination, which is then a copy of a cached block; or for the one
        that goes on writing to the source, while the cache keeps the copy.
        """
        for place in (destination, source):
            for name, tables in self._tables.items():
                for group, table in enumerate(tables):
                    if place in table:
                        self._page_copied(name, group, table, source, destination)
                        return

    def _page_copied(self, name: str, group: int, table: Sequence[int], source: int, destination: int) -> None:
        columns = [table.index(block) if block in table else -1 for block in (source, destination)]
        slots = self.page_slots[group]
        for layer in range(self.group_layers[group]):
            self.note(
                Copied(
                    self.step, name, group, columns[0], source, columns[1], destination, 0,
                    not slots and self.parts.recurrent, not slots and self.parts.conv, layer, slots,
                )
            )  # fmt: skip
