"""The model runner: executes one planned step on the simulated device (zero, copy, forward, verify, copy, draft)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs
from mypy_extensions import mypyc_attr

from ....reference.layout import Layout, cdiv, first_attended
from ....reference.tokens import EMPTY, chain, draft_tokens, mix, other_token
from ...base.observe import Forward, ForwardRow, Record, Zeroed
from ...base.shadow import join, sample
from ...base.trace import Config, Step
from ..offload.connector import Connector
from ..plan import Plan, ScheduledRow
from ..tag_memory import TagMemory
from .drafter import Drafter
from .input_batch import NULL_INDICES, InputBatch, StateIndices
from .state_slots import DeviceRequest, StateSlots
from .tag_kernels import RowInput, TagKernels


class Executed(Struct, gc=False):
    """Outcome of one executed step: sampled tokens and the number of new drafts, by request."""

    plan: Plan
    sampled: dict[str, list[int]]
    drafts: dict[str, int]


@mypyc_attr(allow_interpreted_subclasses=True)
class ModelRunner:
    """The model runner of one worker."""

    def __init__(
        self,
        layout: Layout,
        config: Config,
        batch: InputBatch,
        memory: TagMemory,
        kernels: TagKernels,
        states: StateSlots,
        drafter: Drafter,
        connector: Connector,
    ) -> None:
        self.layout = layout
        self.config = config
        self.batch = batch
        self.memory = memory
        self.kernels = kernels
        self.states = states
        self.drafter = drafter
        self.connector = connector
        self.requests: dict[str, DeviceRequest] = {}
        self.attention = [index for index, group in enumerate(layout.groups) if group.kind == "attention"]

    def execute(self, plan: Plan, event: Step, records: list[Record]) -> Executed:
        """Run one step and append records of the device work to `records`."""
        self.batch.accepted.wait()
        self.update_batch(plan)
        self.batch.accepted.gather(self.batch.names)
        self.prepare_blocks(plan, records)
        rows = [row for name in self.batch.names if (row := plan.rows.get(name))]
        inputs = [self.row_input(index, row) for index, row in enumerate(rows)]
        names = [row.name for row in rows]
        indices = {group: self.states.prepare(plan.step, group, names, inputs, records) for group in self.states.groups}
        if not rows:
            return Executed(plan, {}, {})
        graph = self.fits_graph(rows, inputs)
        padded = self.padded_rows(len(rows), event.pad_to) if graph else len(rows)
        outputs = self.forward(plan, inputs, indices, padded, graph)
        sampled = {
            row.name: self.verify(row, output, one) for row, output, one in zip(rows, outputs, inputs, strict=True)
        }
        drafts = {row.name: self.draft(index, row, sampled[row.name], event) for index, row in enumerate(rows)}
        log, self.kernels.log = self.kernels.log, []
        observed = [
            ForwardRow(row.name, one.position, one.tokens, one.drafts, sampled[row.name])
            for row, one in zip(rows, inputs, strict=True)
        ]
        observed += [ForwardRow(None, 0, (), 0, ())] * (padded - len(rows))
        records.append(Forward(plan.step, observed, log, graph=graph))
        for name, one in zip(names, inputs, strict=True):
            request = self.requests[name]
            self.states.settle(plan.step, name, request, one, len(sampled[name]), records)
            self.batch.computed[one.table_row] = request.computed
            self.connector.save(name, request.tokens, one.position, request.computed)
        self.batch.accepted.send()
        return Executed(plan, sampled, drafts)

    def update_batch(self, plan: Plan) -> None:
        """Apply a plan to the batch: remove, add and extend rows."""
        for name in plan.parked:
            self.batch.accepted.keep(name)
        for name in plan.removed:
            self.batch.remove(name)
            self.drafter.remove(name)
            self.connector.remove(name)
            self.requests.pop(name, None)
        self.states.forget(plan)
        for row in plan.rows.values():
            self.connector.update_mirror(row)
            if row.fresh is None:
                self.batch.append(row.name, row.appended)
                self.drafter.append(row.name, row.appended)
                continue
            tokens, table, prompt_length = row.fresh
            self.batch.add(row.name, table, prompt_length)
            self.drafter.add(row.name, table)
            self.states.admit(row.name, row.start)
            self.requests[row.name] = DeviceRequest(
                list(tokens), chain(EMPTY, tuple(tokens))[-1], row.start, prompt_length
            )

    def prepare_blocks(self, plan: Plan, records: list[Record]) -> None:
        """Prepare the pool for the forward: zero blocks, then copy and load pages, which must not be zeroed after."""
        self.zero_blocks(plan, records)
        for row in plan.rows.values():
            for copy in row.copies:
                self.states.copy_page(plan.step, row.name, copy, records)
            self.connector.load(plan.step, row, records)

    def zero_blocks(self, plan: Plan, records: list[Record]) -> None:
        """Zero the blocks newly allocated to attention groups."""
        if plan.zero:
            for block in plan.zero:
                self.memory.zero(block)
            records.append(Zeroed(plan.step, plan.zero))

    def row_input(self, index: int, row: ScheduledRow) -> RowInput:
        """Return the input tokens of a row: known ones from its true position on, then drafts."""
        request = self.requests[row.name]
        known = row.count - row.drafts
        tokens = request.tokens[request.computed : request.computed + known]
        filler = other_token(tokens[-1])
        drafts = (request.drafts + [filler] * row.drafts)[: row.drafts]
        return RowInput(
            index,
            self.batch.names.index(row.name),
            request.computed,
            tuple(tokens + drafts),
            row.drafts,
        )

    def fits_graph(self, rows: Sequence[ScheduledRow], inputs: Sequence[RowInput]) -> bool:
        """Return True if a captured decode graph can run the step: one known token and as many drafts in each row."""
        if len(rows) > max(self.config.graph_sizes, default=0) or len({row.count for row in rows}) > 1:
            return False
        return all(
            row.count == row.drafts + 1
            and one.position + 1 == len(self.requests[row.name].tokens)
            and not self.batch.is_prefill(one.table_row)
            for row, one in zip(rows, inputs, strict=True)
        )

    def padded_rows(self, rows: int, pad_to: int) -> int:
        """Return the number of rows of the graph to replay."""
        sizes = [size for size in self.config.graph_sizes if size >= max(rows, pad_to)]
        return min(min(sizes, default=rows), self.batch.max_rows)

    def forward(
        self,
        plan: Plan,
        inputs: list[RowInput],
        indices: dict[int, list[StateIndices]],
        padded: int,
        graph: bool,
    ) -> list[tuple[int, ...]]:
        """Run all layers of the model and return the hidden tags of each live row."""
        joined: list[tuple[int, ...] | None] = [None] * len(inputs)
        groups = self.layout.groups
        padding = [RowInput(len(inputs) + extra, -1, 0, (), 0) for extra in range(padded - len(inputs))]
        mask = self.live_mask(len(inputs), padded) if graph else ()
        prefilling = self.prefilling_rows(inputs, padded) if graph else ()
        for group in self.states.groups:
            seen: Sequence[StateIndices] = indices[group]
            if graph:
                at = indices[group] + [self.dead_indices(group, one.row) for one in padding]
                at = [one if live else NULL_INDICES for one, live in zip(at, mask, strict=True)]
                seen = self.batch.capture(group, at, prefilling)
            for layer in range(self.layout.groups[group].layers):
                for index, one in enumerate(inputs):
                    joined[index] = join(joined[index], self.kernels.state_row(group, layer, one, seen[index]))
                for extra, one in enumerate(padding):
                    self.run_dead_row(group, layer, one, seen[len(inputs) + extra])
        # A prefix hit in the same step reads KV that another row writes: store in the order of planning.
        rows = {self.batch.names[one.table_row]: index for index, one in enumerate(inputs)}
        writing = [rows[name] for name in plan.rows]
        for group in self.attention:
            spec = groups[group]
            size = spec.block_size
            tables = [
                self.batch.row_blocks(group, one.table_row, cdiv(one.position + len(one.tokens), size))
                for one in inputs
            ]
            firsts = [first_attended(spec, one.position) // size if spec.window else 0 for one in inputs]
            for layer in range(spec.layers):
                own = {
                    index: self.kernels.write_slots(group, layer, inputs[index], tables[index], size)
                    for index in writing
                }
                for index, one in enumerate(inputs):
                    read = self.kernels.read_slots(group, layer, one, tables[index], size, own[index], firsts[index])
                    joined[index] = join(joined[index], read)
        return [tags or () for tags in joined]

    def live_mask(self, live: int, padded: int) -> list[bool]:
        """Return True for each live row of the `padded` rows; the others get null indices."""
        return [row < live for row in range(padded)]

    def prefilling_rows(self, inputs: Sequence[RowInput], padded: int) -> list[bool]:
        """Return True for each row that computes its prompt; False for padding, whatever a vacated row counts."""
        return [self.batch.is_prefill(one.table_row) for one in inputs] + [False] * (padded - len(inputs))

    def run_dead_row(self, group: int, layer: int, row: RowInput, at: StateIndices) -> None:
        """Run a state kernel for a padding or dummy row, with one token."""
        self.kernels.state_row(group, layer, structs.replace(row, tokens=(1,)), at)

    def verify(self, row: ScheduledRow, tags: tuple[int, ...], inputs: RowInput) -> list[int]:
        """Verify drafts greedily. Return the accepted drafts and one more token; nothing for an unfinished prefill."""
        known = len(inputs.tokens) - row.drafts
        if inputs.position + known < len(self.requests[row.name].tokens):
            return []
        first = inputs.position + known
        request = self.requests[row.name]
        tag = request.tag
        sampled = [row.choice(first, tag, sample(tags[known - 1]))]
        for index in range(row.drafts):
            if inputs.tokens[known + index] != sampled[-1]:
                break
            tag = mix(tag, sampled[-1])
            sampled.append(self.behind_draft(row, first + index + 1, tag, sample(tags[known + index])))
        if row.end:
            del sampled[row.end - len(request.tokens) :]
        end = next((count for count, token in enumerate(sampled, 1) if token in row.stops), len(sampled))
        del sampled[end:]
        request.tokens += sampled
        request.tag = chain(request.tag, tuple(sampled))[-1]
        return sampled

    def behind_draft(self, row: ScheduledRow, position: int, tag: int, token: int) -> int:
        """Return what is sampled behind an accepted draft, where `token` is the model's first choice."""
        return row.choice(position, tag, token)

    def draft(self, row: int, planned: ScheduledRow, sampled: list[int], event: Step) -> int:
        """Propose as many drafts, and as many right ones, as the event asks for. Return how many."""
        name = planned.name
        request = self.requests[name]
        request.drafts = []
        if not sampled or not self.config.num_speculative_tokens:
            return 0
        count, right = event.per_request.get(name, (event.drafts, event.right))
        count = min(count, self.config.num_speculative_tokens)
        right = min(right, count)
        if planned.grammar and len(request.tokens) % 2:  # as a drafter does that repeats what was said
            request.drafts = self.draft_by_grammar(planned, count, right)
        else:
            request.drafts = draft_tokens(request.tag, count, right)
        if count:
            self.drafter.propose(row, name, len(request.tokens) - 1, (request.tokens[-1], *request.drafts[:-1]))
        return count

    def draft_by_grammar(self, row: ScheduledRow, count: int, right: int) -> list[int]:
        """Return drafts of which the first ones are the answer's, as its grammar leaves it."""
        request = self.requests[row.name]
        tag, drafts = request.tag, list[int]()
        for position in range(len(request.tokens), len(request.tokens) + right):
            drafts.append(row.choice(position, tag, sample(tag)))
            tag = mix(tag, drafts[-1])
        return drafts + draft_tokens(tag, count - right, 0)

    def dummy_run(self, step: int, rows: int, records: list[Record]) -> None:
        """Run a decode graph over rows without requests, as an idle data-parallel rank does."""
        rows = min(rows, self.batch.max_rows)
        inputs = [RowInput(row, row, 0, (), 0) for row in range(rows)]
        for group in self.states.groups:
            at = [self.dead_indices(group, row) for row in range(rows)]
            seen = self.batch.capture(group, at, self.prefilling_dummies(rows))
            for layer in range(self.layout.groups[group].layers):
                for one, indices in zip(inputs, seen, strict=True):
                    self.run_dead_row(group, layer, one, indices)
        self.drafter.dummy_run(rows, self.config.num_speculative_tokens - 1)
        log, self.kernels.log = self.kernels.log, []
        records.append(Forward(step, [ForwardRow(None, 0, (), 0, ())] * rows, log, dummy=True, graph=True))

    def prefilling_dummies(self, rows: int) -> list[bool]:
        """Return False for each row of a dummy run: none computes a prompt."""
        return [False] * rows

    def dead_indices(self, group: int, row: int) -> StateIndices:
        """Return the indices of a padding or dummy row: column 0 of its table row, since it has at most one token."""
        return self.batch.look_up(group, row, (0, 0, 0), 0, 0)
