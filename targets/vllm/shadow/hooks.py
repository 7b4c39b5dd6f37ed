"""Records the device work of a step in the order in which it happens.

vLLM's own functions for copies are wrapped once per process (`install`), a runner's zeroing by `runner_adapter`. The
wrappers report to the recorder of the engine that is open (one at a time). The columns that a fused copy moves follow
from the arrays that its kernel reads, by the kernel's own arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ....reference.layout import Layout
from ...base.observe import Access, Copied, Forward, ForwardRow, Record, Zeroed
from ...base.trace import Config
from ..options import StateParts, state_parts
from ..rows.bounds import Bounds
from ..rows.layer_rows import SlotRow, StateRow
from ..rows.metadata import Batch, Columns, local_rows, slot_rows, writing_order
from ..versions.wrapping import parameters


class Recorder:
    """Records the device work of one engine; `records` belongs to the event that is being applied.

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
        self.records: list[Record] = []
        self.log: list[Access] = []
        self.step = 0
        self.worker: Any = None
        self.contents: Sequence[int] = ()
        """The contents of the present forward's tokens."""
        self._batch = Batch((), (), ())
        self._context: Any = None
        self._ids: Sequence[int] = ()
        self._states: dict[int, list[StateRow]] = {}
        self._slots: dict[int, tuple[list[SlotRow], Sequence[int]]] = {}
        self._place: int | None = None
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

    def begin_step(self, step: int, records: list[Record]) -> None:
        """Attribute device work to `step` from now on."""
        self.step, self.records, self.is_graph = step, records, False
        self.log, self._place = [], None
        self._tables = self._planned.pop(step, {})

    def begin_forward(self, context: Any, ids: Sequence[int]) -> bool:
        """Begin a forward of the model. Return False if it has no metadata (profiling) or is only captured."""
        metadata = self._attention_metadata(context)
        if metadata is None or self.worker is None:
            return False
        starts, lengths = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
        self._batch = Batch(self.worker.names(len(lengths)), starts, lengths)
        self._context, self._ids = context, ids
        self.contents = ids
        if self.inputs:
            positions = [self.position(row) for row in range(len(lengths))]
            self.contents = self.inputs.contents(self._batch.names, starts, positions, ids)
        self._states, self._slots = {}, {}
        self._place = len(self.records)
        return True

    def begin_replay(self, adapters: int) -> None:
        """Note that the model's next forward replays a graph that was captured with this number of adapters."""
        self.is_graph = True
        if self.inputs and not adapters:
            self.inputs.drop_adapters()

    def begin_draft(self, context: Any) -> bool:
        """Begin a forward of the drafter, whose rows are those of the model's forward. Return False before there are
        any."""
        if self.worker is None or not self._batch.names:
            return False
        self._context, self._slots = context, {}
        return True

    def next_contents(self, rows: Sequence[SlotRow], ids: Sequence[int]) -> Sequence[int]:
        """Return the content of a drafter's tokens, which follow those at the positions of its rows."""
        if not self.inputs:
            return ids
        found = list(ids)
        for row in rows:
            own = slice(row.tokens.start, row.tokens.stop)
            found[own] = self.inputs.drafted(self._batch.names[row.row], row.start + 1, ids[own])
        return found

    def end_forward(self) -> None:
        """End a forward of the model and drop the references to vLLM's metadata."""
        self._context = None

    def _attention_metadata(self, context: Any) -> Any:
        """Return the metadata of any attention layer, except those whose rows are cut at chunks: row boundaries and
        lengths are the same in all of them."""
        for metadata in context.attn_metadata.values():
            if hasattr(metadata, "make_virtual_batches_block_table"):
                continue
            if hasattr(metadata, "query_start_loc") and hasattr(metadata, "seq_lens"):
                return metadata
        return None

    def position(self, row: int) -> int:
        """Return the first position that a row computes."""
        batch = self._batch
        return batch.lengths[row] - (batch.starts[row + 1] - batch.starts[row])

    def is_dead(self, row: int) -> bool:
        """Return True if a row belongs to no request."""
        return self._batch.names[row] is None

    def state_rows(self, layer: Any) -> list[StateRow]:
        """Return the rows of a state layer, read from the metadata once per group and forward."""
        rows = self._states.get(layer.group)
        if rows is None:
            bounds, batch = self._bounds(layer, layer.num_blocks), self._batch
            tables = self.worker.table(layer.group, batch.names)
            columns = Columns(tables, batch.lengths, self.aligned_block_size, bounds)
            rows = self._states[layer.group] = layer.contract.rows(
                self._context.attn_metadata[layer.layer_name], columns
            )
            self.log += bounds.found
        return rows

    def _bounds(self, layer: Any, num_blocks: int) -> Bounds:
        return Bounds(layer.group, num_blocks, len(self._batch.lengths), len(self._ids))

    def slot_rows(self, layer: Any) -> tuple[list[SlotRow], Sequence[int]]:
        """Return the rows of an attention layer and the order in which they may store."""
        found = self._slots.get(layer.group)
        if found is None:
            metadata = self._context.attn_metadata[layer.layer_name]
            mapping = getattr(self._context, "slot_mapping", None)
            slots = mapping[layer.layer_name] if mapping else metadata.slot_mapping
            bounds = self._bounds(layer, len(layer.pages))
            if layer.form.chunk:
                rows = local_rows(metadata, slots, layer.block_size, bounds, self._batch)
            else:
                rows = slot_rows(metadata, slots, layer.block_size, bounds, layer.first)
            self.log += bounds.found
            found = self._slots[layer.group] = rows, writing_order(rows, layer.block_size)
        return found

    def end_step(self, drafts: dict[str, int], sampled: dict[str, Sequence[int]], dummy: bool = False) -> None:
        """Insert the record of the forward at the place where the model ran, now that the step's results are known."""
        batch = self._batch
        if dummy:
            place = len(self.records) if self._place is None else self._place
            rows = [ForwardRow(None, 0, (), 0, ())] * (1 if self._place is None else len(batch.names))
            self.records.insert(place, Forward(self.step, rows, self.log, dummy=True, graph=self.is_graph))
        elif self._place is not None:
            rows = [
                ForwardRow(
                    name,
                    self.position(row),
                    self._ids[batch.starts[row] : batch.starts[row + 1]],
                    drafts.get(name or "", 0),
                    sampled.get(name or "", ()),
                )
                for row, name in enumerate(batch.names)
            ]
            self.records.insert(self._place, Forward(self.step, rows, self.log, graph=self.is_graph))
        self.log, self._place = [], None

    def copied(self, name: str | None, group: int, columns: tuple[int, int], offset: int, table: Sequence[int]) -> None:
        """Record an align copy: the temporal state from column source + offset, the window shifted by `offset`."""
        source, destination = columns

        def block(column: int) -> int:
            return table[column] if 0 <= column < len(table) else -1

        for layer in range(self.group_layers[group]):
            for first, temporal in self._moved(source, offset):
                self.records.append(
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
            self.records.append(Zeroed(self.step, done))

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
            self.records.append(
                Copied(
                    self.step, name, group, columns[0], source, columns[1], destination, 0,
                    not slots and self.parts.recurrent, not slots and self.parts.conv, layer, slots,
                )
            )  # fmt: skip


_open: list[Recorder] = []


def activate(recorder: Recorder | None) -> None:
    """Make the wrappers report to `recorder` (None: to no recorder)."""
    _open[:] = [recorder] if recorder else []


def _fused_precopy(recorder: Recorder, context: Any, call: dict[str, Any]) -> None:
    sources, offsets = call["src_col_gpu"].tolist(), call["token_bias_gpu"].tolist()
    destinations = call["state_idx_gpu"].tolist()
    for row, slot in _rows(call, len(sources)):
        if sources[slot] >= 0 and sources[slot] != destinations[slot]:
            _copied(recorder, context, row, slot, (sources[slot], destinations[slot]), offsets[slot])


def _fused_postcopy(recorder: Recorder, context: Any, call: dict[str, Any]) -> None:
    """Record the post-step copy in both forms: V2 passes the computed count after the step, V1 its summands."""
    accepted = call["num_accepted_tokens_gpu"].tolist()
    states = (call["state_idx_gpu"] if "state_idx_gpu" in call else call["mamba_state_idx_gpu"]).tolist()
    for row, slot in _rows(call, len(states)):
        if "new_num_computed_tokens_gpu" in call:
            computed = int(call["new_num_computed_tokens_gpu"][slot])
            running = computed - accepted[slot] + 1
        else:
            counts = ("num_computed_tokens_gpu", "num_scheduled_tokens_gpu", "num_draft_tokens_gpu")
            before, scheduled, drafts = (int(call[name][slot]) for name in counts)
            running = before + scheduled - drafts
            computed = running + accepted[slot] - 1
        boundary = computed // context.block_size * context.block_size
        columns = states[slot], boundary // context.block_size - 1
        if boundary >= running and (boundary > running or columns[0] != columns[1]):
            _copied(recorder, context, row, slot, columns, boundary - running)


def _rows(call: dict[str, Any], size: int) -> list[tuple[int, int]]:
    """Return (batch row, index into the per-request arrays of length `size`) of a fused copy.

    Indices beyond the arrays are left out: the launch itself reports them as out of bounds.
    """
    mapping = call.get("idx_mapping")
    if mapping is None:
        return [(row, row) for row in range(min(call["num_reqs"], size))]
    slots = mapping[: call["num_reqs"]].tolist()
    return [(row, slot) for row, slot in enumerate(slots) if 0 <= slot < size]


def _copied(recorder: Recorder, context: Any, row: int, slot: int, columns: tuple[int, int], offset: int) -> None:
    name = recorder.worker.names(row + 1)[row]
    for group in context.mamba_group_ids:
        recorder.copied(name, group, columns, offset, recorder.worker.copy_table(context, group, slot, row))


def _observed(
    function: Callable[..., Any], note: Callable[[Recorder, Any, dict[str, Any]], None]
) -> Callable[..., Any]:
    """Wrap a method: `note` is called with its arguments before it runs."""
    names = list(parameters(function))[1:]

    @functools.wraps(function)
    def wrapper(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if _open:
            call = {**dict(zip(names, arguments, strict=False)), **keywords}
            if call["num_reqs"] and self.is_initialized:
                note(_open[0], self, _open[0].on_host(call))
        return function(self, *arguments, **keywords)

    return wrapper


@functools.cache
def install() -> None:
    """Wrap vLLM's copy functions, once per process."""
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu import model_runner

    for module in (gpu_model_runner, model_runner):
        if hasattr(module, "copy_kv_cache_blocks_inplace"):
            module.copy_kv_cache_blocks_inplace = _observed_block_copy(module.copy_kv_cache_blocks_inplace)
    try:
        from vllm.v1.worker import mamba_utils
    except ImportError:  # 0.14 moves no states
        return
    context = getattr(mamba_utils, "MambaSpecDecodeGPUContext", None)
    for name, note in (
        ("run_fused_precopy", _fused_precopy),
        ("run_fused_postprocess", _fused_postcopy),
        ("run_fused_postprocess_align", _fused_postcopy),
    ):
        if context is not None and hasattr(context, name):
            setattr(context, name, _observed(getattr(context, name), note))
    mamba_utils.collect_mamba_copy_meta = _observed_scalar_copy(mamba_utils.collect_mamba_copy_meta)


def _observed_scalar_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Record the align copies that V1 without speculation plans one by one on the host."""
    names = list(parameters(function))

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        call = {**dict(zip(names, arguments, strict=False)), **keywords}
        # Some are NumPy's integers, which a history cannot hold.
        names_of = ("src_block_idx", "dest_block_idx", "accept_token_bias")
        source, destination, offset = (int(call[name]) for name in names_of)
        if _open and (source != destination or offset):
            request = call["req_state"]
            for group in call["mamba_group_ids"]:
                table = request.block_ids[group]
                _open[0].copied(request.req_id, group, (source, destination), offset, table)
        return function(*arguments, **keywords)

    return wrapper


def _observed_block_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Record copies on write of whole blocks."""

    @functools.wraps(function)
    def wrapper(caches: Any, num_blocks: Any, copies: Any, *rest: Any) -> Any:
        result = function(caches, num_blocks, copies, *rest)
        for copy in copies or () if _open else ():
            source, destination = copy
            _open[0].block_copied(source, destination)
        return result

    return wrapper
