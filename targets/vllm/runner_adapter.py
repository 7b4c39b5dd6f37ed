"""vLLM's two model runners behind one interface: requests by row, block tables, execution of a step.

V2 gives a request a *slot* for life and gathers batch-ordered copies of its tables before each forward; V1 keeps the
tables in batch order and moves rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from .graphs import Padding, Ranks, query_length
from .shadow.recorder import Recorder
from .versions import compat

Rows = Sequence[Sequence[int]]


class RunnerAdapter:
    """The part that both runners share."""

    def __init__(self, runner: Any, recorder: Recorder) -> None:
        self.runner = runner
        self.recorder = recorder
        self.is_dummy = False
        self.ranks: Ranks = Padding()
        self.inputs: Any = None

    def execute(self, plan: Any, pad_to: int, masks: Any = None) -> Any:
        """Run one planned step beside ranks with `pad_to` rows; return the output, with sampled tokens on the host.
        `masks` are the bitmasks of structured output."""
        if runs := plan.total_num_scheduled_tokens > 0:  # ranks meet in forwards only
            self.ranks.begin(pad_to)
        with self.inputs.running(self.runner, plan) if self.inputs else nullcontext():
            output = self.runner.execute_model(plan)
            if output is None:
                output = self.runner.sample_tokens(masks)
        if runs:
            self.ranks.end()
        return output.get_output() if hasattr(output, "get_output") else output

    def dummy_run(self, rows: int) -> None:
        """Run a step without requests beside ranks with `rows` rows: if they replay a graph, so does this one.

        One decode row, as in `Worker.execute_dummy_batch` on an idle data-parallel rank.
        """
        self.is_dummy = True
        self.ranks.begin(rows)
        try:
            self.runner._dummy_run(query_length(self.runner), uniform_decode=True)
        finally:
            self.is_dummy = False
        self.ranks.end()

    def pass_drafts(self, scheduler: Any) -> None:
        """Pass the runner's proposals to the scheduler (synchronous speculation)."""
        drafts = self.runner.take_draft_token_ids()
        if drafts is not None:
            scheduler.update_draft_token_ids(drafts)

    def reset_encoder_cache(self) -> None:
        """Forget the outputs of the encoder."""
        if self.inputs:
            self.inputs.encoded.clear()
        self.runner.reset_encoder_cache()

    def names(self, count: int) -> Sequence[str | None]:
        """Return the requests of the first `count` rows of the batch, None for padding rows."""
        raise NotImplementedError

    def table(self, group: int, names: Sequence[str | None]) -> Rows:
        """Return a group's block table as the forward reads it, by row of the batch, without padding rows."""
        raise NotImplementedError

    def copy_table(self, context: Any, group: int, slot: int, batch_row: int) -> Sequence[int]:
        """Return the row of the table that a fused align copy reads."""
        raise NotImplementedError

    def leftovers(self) -> dict[str, int]:
        """Return the sizes of the worker's per-request state, by name."""
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Forget a request that ended, whose name is given to another one: vLLM's front end makes ids unique."""


def padded(names: Sequence[str], count: int) -> Sequence[str | None]:
    """Return exactly `count` rows: those of requests, then padding rows (None)."""
    return [*names[:count], *[None] * (count - len(names))]


class RunnerV2(RunnerAdapter):
    """`vllm.v1.worker.gpu.model_runner`."""

    def __init__(self, runner: Any, recorder: Recorder) -> None:
        super().__init__(runner, recorder)
        self._batch: Any = None
        prepare = runner.prepare_inputs

        def prepare_inputs(*arguments: Any, **keywords: Any) -> Any:
            self._batch = prepare(*arguments, **keywords)
            return self._batch

        runner.prepare_inputs = prepare_inputs
        zeroer = getattr(runner, "kv_block_zeroer", None)
        if zeroer is not None:
            zero = zeroer.zero_block_ids

            def zero_block_ids(blocks: Any) -> None:
                zero(blocks)
                recorder.zeroed(blocks)

            zeroer.zero_block_ids = zero_block_ids

    def names(self, count: int) -> Sequence[str | None]:
        """Read the input batch of the step."""
        return padded([] if self.is_dummy else self._batch.req_ids, count)

    def table(self, group: int, names: Sequence[str | None]) -> Rows:
        """Read the batch-ordered copy; valid lengths are kept per slot."""
        if self.is_dummy:
            return ()
        tables = self.runner.block_tables
        slots = self._batch.idx_mapping_np[: len(names)].tolist()
        lengths = tables.num_blocks.np[group]
        rows = tables.input_block_tables[group][: len(slots)].tolist()
        return [row[: lengths.item(slot)] for row, slot in zip(rows, slots, strict=True)]

    def copy_table(self, context: Any, group: int, slot: int, batch_row: int) -> Sequence[int]:
        """Read the table by slot or by batch row, depending on the release."""
        tables = self.runner.block_tables
        by_slot, by_row = tables.block_tables[group].gpu, tables.input_block_tables[group]
        return compat.copy_table(context, group, by_slot, by_row, slot, batch_row)

    def leftovers(self) -> dict[str, int]:
        """Return the number of slots in use."""
        return {"worker rows": len(self.runner.req_states.req_id_to_index)}


class RunnerV1(RunnerAdapter):
    """`vllm.v1.worker.gpu_model_runner`."""

    def __init__(self, runner: Any, recorder: Recorder) -> None:
        super().__init__(runner, recorder)
        if not hasattr(runner, "_zero_block_ids"):  # before PR #35219
            return
        zero = runner._zero_block_ids

        def zero_block_ids(blocks: Any) -> None:
            zero(blocks)
            recorder.zeroed(blocks)

        runner._zero_block_ids = zero_block_ids

    def names(self, count: int) -> Sequence[str | None]:
        """Read the persistent batch."""
        return padded([] if self.is_dummy else self.runner.input_batch.req_ids, count)

    def table(self, group: int, names: Sequence[str | None]) -> Rows:
        """Read the device side of the persistent table."""
        if self.is_dummy:
            return ()
        count = len(names) - names.count(None)
        table = self.runner.input_batch.block_table[group]
        lengths = table.num_blocks_per_row[:count].tolist()
        rows = table.get_device_tensor(count).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def copy_table(self, context: Any, group: int, slot: int, batch_row: int) -> Sequence[int]:
        """Read the table by batch row, as V1 does everywhere."""
        table = self.runner.input_batch.block_table[group]
        columns: list[int] = table.get_device_tensor(batch_row + 1)[batch_row].tolist()
        return columns

    def forget(self, name: str) -> None:
        """Drop the running column, which V1 keeps until the next step with tokens."""
        self.runner.mamba_state_idx.pop(name, None)

    def leftovers(self) -> dict[str, int]:
        """Return the numbers of rows and requests kept. (Running columns are dropped in the next step with tokens.)"""
        return {
            "worker rows": len(self.runner.input_batch.req_id_to_index),
            "worker requests": len(self.runner.requests),
        }
