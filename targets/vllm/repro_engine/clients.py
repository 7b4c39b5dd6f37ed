"""Clients of an engine in a script: what they ask for, what they receive, and what they should receive.

(This file is inlined into reproducers, behind what they share with the adapter; nothing imports it.)
"""

from functools import partial

from ....reference.tokens import EMPTY, NO_INPUT, chain
from ...base.client_turn import NOT_SENT, ClientTurn, prompt_path
from ...base.observe import (
    Delivered,
    Forward,
    OutOfRange,
    Planned,
    SlotContent,
    SlotRead,
    SlotWrite,
    StateRead,
    StateWrite,
)
from ..shadow.layers import ShadowAttention
from ..target import VllmTarget
from .stand_ins import (
    Abort,
    Arrive,
    DummyRun,
    Evict,
    ExternalLoad,
    Preempt,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Step,
    combine,
)

IDLE_MAX = 8
"""Steps in a row that may schedule nothing while requests wait."""
STEPS_PER_TOKEN = 3
"""Steps that a token may take when nothing but plain steps happens."""


def tag_of(content):
    """Return the tag of the last token that a page holds, or that is read from it."""
    if isinstance(content, SlotContent):
        return content.tags[-1]
    return content.window[-1] if content.temporal is None else content.temporal


def is_misread(layer, read, truth, start):
    """Return True if a row, whose own tokens begin at position `start`, attends to others than those of its request."""
    first = layer.first(start)
    skipped = first - read.first_column * layer.block_size
    return start > first and list(read.tags[skipped : skipped + start - first]) != truth.slots(first, start)


def columns_of(access, size):
    """Return the (index in the block table, block) of an access; `size` is that of a block."""
    if isinstance(access, SlotRead):
        return list(enumerate(access.blocks, access.first_column))
    if isinstance(access, SlotWrite):
        return [(position // size, block) for position, block in enumerate(access.blocks, access.position)]
    return [(access.column, access.block)]


def attend(layer, run, truths, forward, below):
    """Run an attention layer so that its output depends on all that it attends to, as that of a real one does: a row
    that attends to anything but its request's own tokens gets wrong output."""
    before, batch = len(forward.accesses), forward.batch
    tags = list(run(forward, below))
    for read in forward.accesses[before:]:
        truth = truths.get(batch.names[read.row] or "") if isinstance(read, SlotRead) else None
        if truth and is_misread(layer, read, truth, batch.position(read.row)):
            for token in range(batch.starts[read.row], batch.starts[read.row + 1]):
                tags[token] = combine(tags[token], NO_INPUT)
    return tuple(tags)


class Serving:
    """vLLM's scheduler and model runner with their clients, step by step."""

    def __init__(self, config):
        self.target = VllmTarget(config)
        for layer in self.target.engine.layers:
            if isinstance(layer, ShadowAttention):
                layer.run = partial(attend, layer, layer.run, self.truths)
        self.turns, self.last, self.forwards, self.hits, self.without_room = [], {}, {}, {}, []
        self.tables = {}  # of the scheduler, when a step was planned

    @property
    def truths(self):
        """The tokens of each client."""
        return self.target.engine.drafter.truths

    def add(
        self, name, prompt, new_tokens, priority=0, session=False, stop_at=0, prompt_logprobs=False, structured=0,
        bad_grammar=0, min_tokens=0, reasoning=0,
    ):  # fmt: skip
        """Send a request, or the first turn of a session.

        `prompt`: token ids, and (name, tokens) for an image, and for tokens with an adapter or a cache salt.
        `stop_at`: the answer ends with this token, 1 for its first; 0 for no stop token.
        `min_tokens`: no stop token may come before so many tokens; what the model would say there is a stop token, too.
        `prompt_logprobs`: the client wants the log-probabilities of the prompt, too.
        `structured`: a grammar restricts the answer, and is compiled for one step less than this.
        `reasoning`: the answer begins with reasoning up to the token that the model would say at this place, 1 for its
        first. No grammar restricts that.
        `bad_grammar`: its grammar does not compile, which vLLM learns after one step less than this.
        """
        asked = stop_at, prompt_logprobs, structured, bad_grammar, min_tokens, reasoning
        self._apply(Arrive(name, prompt_path(prompt), new_tokens, priority, session, *asked))
        self._begin_turn(name, new_tokens, stop_at, min_tokens, structured, reasoning)
        if bad_grammar:
            self.last[name].expected.clear()

    def resume(self, name, prompt, new_tokens, stop_at=0, structured=0, min_tokens=0, reasoning=0):
        """Send the next turn of a session: `prompt` follows all that vLLM keeps. It is not sent unless that is idle."""
        if name in self.target.sessions.idle:
            self._apply(Resume(name, prompt_path(prompt), new_tokens, stop_at, structured, min_tokens, reasoning))
            self._begin_turn(name, new_tokens, stop_at, min_tokens, structured, reasoning)
        else:
            self.turns.append(ClientTurn(name, prompt, [], NOT_SENT))

    def _begin_turn(self, name, new_tokens, stop_at, min_tokens, structured, reasoning):
        truth = self.truths[name]
        stops = truth.stop_tokens(stop_at, min(min_tokens, new_tokens), 0, structured > 0, reasoning)
        end = truth.prompt_length + truth.answer_length(new_tokens, stops)
        truth.reach(end)
        prompt, expected = truth.tokens[: truth.prompt_length], truth.tokens[truth.prompt_length : end]
        self.last[name] = ClientTurn(name, prompt, expected)
        self.turns.append(self.last[name])

    def step(self, budget=0, drafts=0, right=0, per_request=(), pad_to=0):
        """Schedule and execute one step of at most `budget` tokens; return True if a request was scheduled.

        Of `drafts` proposed tokens the first `right` are right, for single requests as in `per_request`. `pad_to`: rows
        of the largest batch among data-parallel ranks, to whose graph this one is padded.
        """
        return self._apply(Step(budget, drafts, right, dict(per_request), pad_to))

    def preempt(self, name):
        """Preempt a running request, as for lack of memory."""
        self._apply(Preempt(name))

    def abort(self, *names):
        """Abort requests, or close a session."""
        self._apply(Abort(names[0], names[1:]))
        for name in names:
            if name in self.last and self.last[name].end != "ended":
                self.last[name].end = "aborted"

    def dummy_run(self, rows):
        """Run a step without requests, as on an idle data-parallel rank beside ones with `rows` rows."""
        self._apply(DummyRun(rows))

    def reset_prefix_cache(self, preempt_running=False):
        """Reset the prefix cache."""
        self._apply(ResetPrefixCache(preempt_running))

    def reset_encoder_cache(self):
        """Reset the encoder cache."""
        self._apply(ResetEncoderCache())

    def evict(self, blocks):
        """Let up to `blocks` free blocks lose their keys, oldest first."""
        self._apply(Evict(blocks))

    def store(self, name, length, states=True, fails=False, delay=0):
        """Let the KV connector offer the first tokens of a request, as another engine would have computed them.

        A load takes `delay` more steps; with `fails` the request's first one fails.
        """
        self._apply(ExternalLoad(name, length, states, fails, delay))

    def delay_transfers(self, name, delay):
        """Let each copy of a request's blocks between the caches and host memory take `delay` more steps."""
        self._apply(ExternalLoad(name, 0, delay=delay))

    def finish(self):
        """Run until every request has ended, until nothing is scheduled any more, or until it has taken too long."""
        idle, left = 0, STEPS_PER_TOKEN * sum(len(turn.prompt) + len(turn.expected) for turn in self.turns) + IDLE_MAX
        while self.target.has_work() and idle < IDLE_MAX and left:
            idle, left = 0 if self.step() else idle + 1, left - 1

    def _apply(self, event):
        """Let an event happen and give clients their tokens. Return True if a request was scheduled."""
        scheduled = False
        for record in self.target.apply(event).records:
            if isinstance(record, Planned):
                scheduled |= bool(record.rows)
                self.tables[record.step] = record.view.tables
                self.hits |= {row.name: row.hit for row in record.rows if row.admitted}
                counts = [(row.name, row.estimated, row.taken) for row in record.rows]
                self.without_room += [one for one in counts if one[2] > one[1] >= 0]
            elif isinstance(record, Forward):
                self.forwards[record.step] = record
            elif isinstance(record, Delivered):
                self._deliver(record)
        return scheduled

    def _deliver(self, record):
        for name, tokens in record.outputs:
            self.last[name].receive(tokens)
        for names, end in ((record.finished, "ended"), (record.failed, "ended with an error")):
            for name in names:
                self.last[name].end = end
        for turn in self.last.values():
            turn.note(record.step)

    def written(self, step, group):
        """Return the blocks in which the layers of a group store something for no request in a step."""
        size = self.target.layout.groups[group].block_size
        writes = self.accesses(step, None, group, (StateWrite, SlotWrite))
        return [block for one in writes for _, block in columns_of(one, size)]

    def accesses(self, step, name, group, kinds):
        """Return what a row of a request, or those of no request, read and write in a step in the layers of a group;
        nothing if there is no such step, or row."""
        rows = self.rows(step)
        own = [one for one in self.forwards[step].accesses if rows[one.row].request == name] if rows else []
        return [one for one in own if one.group == group and isinstance(one, kinds)]

    def rows(self, step):
        """Return the rows of a step, none if it was not executed."""
        return self.forwards[step].rows if step in self.forwards else ()

    def other_blocks(self, step, name, group):
        """Return (index in the block table, block, the scheduler's block) where a request reads or writes another block
        than the scheduler had there when the step was planned, None for an index behind its end. A block that moved
        inside the table may be read at its old index."""
        size, found = self.target.layout.groups[group].block_size, []
        for one in self.accesses(step, name, group, (StateRead, StateWrite, SlotRead, SlotWrite)):
            table = self.tables[step][name][group]
            for column, block in columns_of(one, size):
                planned = table[column] if column < len(table) else None
                has_moved = isinstance(one, (StateRead, SlotRead)) and planned == 0 and block in table
                if column >= 0 and block != planned and not has_moved:
                    found.append((column, block, planned))
        return found

    def outside(self, step, name, group):
        """Return (what, index, size) where vLLM's metadata point a kernel behind the end of something."""
        accesses = self.accesses(step, name, group, OutOfRange)
        return [(one.what, one.index, one.size) for one in accesses]

    def wrong_reads(self, step, name, group, depth):
        """Return (layer, block) of each initial state of a request in a step that is not its own after `depth` tokens,
        (None, None) if no state is read although there is one."""
        tag, reads = self.truths[name].tag(depth), self.accesses(step, name, group, StateRead)
        wrong = [(one.layer, one.block) for one in reads if not depth or tag_of(one) != tag]
        is_there = any(row.request == name for row in self.rows(step))
        return wrong or [(None, None)] * bool(depth and is_there and not reads)

    def wrong_attention(self, step, name, group):
        """Return the layers of a group in which a request does not attend to its own tokens in a step."""
        rows, layers = self.rows(step), self.target.engine.layers
        shown = {one.index: one for one in layers if one.group == group}
        reads = self.accesses(step, name, group, SlotRead)
        truth = self.truths[name]
        return [one.layer for one in reads if is_misread(shown[one.layer], one, truth, rows[one.row].position)]

    def is_published(self, block):
        """Return True if a lookup can find a block."""
        return any(block in blocks for _, blocks in self.target.host.pool.cached())

    def wrong_states(self, group, block, tokens):
        """Return the layers of a group whose state in a block is not that after `tokens`, if these lead to the block
        and it holds states."""
        tag = (EMPTY, *chain(EMPTY, tuple(tokens)))[-1]
        key = self.target.view().published.get(block)
        layout = self.target.layout.groups[group]
        if key is None or (key.depth, key.tag) != (len(tokens), tag) or layout.kind != "mamba":
            return []
        states = [self.target.read(group, layer, block) for layer in range(layout.layers)]
        return [layer for layer, state in enumerate(states) if tag_of(state) != tag]

    def wrongly_stored(self):
        """Return (tokens, KV cache group) of what the connector stores and is not the content of its key."""
        pages = self.target.store.stored(self.target.keys).items()
        return [(key.depth, key.group) for key, layers in pages if not all(self._is_of(key, page) for page in layers)]

    def _is_of(self, key, page):
        """Return True if a page holds what its key names: a state, or keys and values in each of its slots."""
        layout = self.target.layout
        truths = (one for one in self.truths.values() if one.tag(key.depth + layout.lookahead) == key.tag)
        truth = next(truths, None)
        if truth is None or not isinstance(page, SlotContent):
            return tag_of(page) == (truth.tag(key.depth) if truth else key.tag)
        group = layout.groups[key.group]
        first = (key.depth - 1) // group.block_size * group.block_size
        wanted = truth.slots(first + group.shift, key.depth + min(group.shift, layout.lookahead))
        return list(page.tags[: len(wanted)]) == wanted

    def leaked(self):
        """Return what is left, or counted wrong, when all sessions are closed and nothing runs."""
        for name in self.last:
            self.abort(name)
        self.finish()
        view = self.target.view()
        held = [block for block, count in enumerate(view.references) if count]
        sizes = {**view.leftovers, **view.drained, "blocks": len(held)}
        return {title: size for title, size in sizes.items() if size}
