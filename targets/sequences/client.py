"""The client's side: which requests run, which sequences they have, and which tokens a batch gets.

A memory of sequences has no scheduler. This client does what llama.cpp's server and examples do. A running request has
a sequence, and a batch has tokens of many: prompts in chunks, a token for each that decodes, drafts behind some. A
parked session keeps its sequence, or its state is saved and its sequence removed; that also happens to the session that
was parked first when a request finds no sequence free, and at once to a copy where `idle` is copies.

Everything here follows from the trace alone, so that a script can be written without an engine: the tokens that rows
sample are those of `Truth`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ...reference.batch import reordered, repeated, selected, truth_of_copy
from ...reference.tokens import Truth, draft_tokens
from ..base.observe import PlannedRow
from ..base.trace import Arrive, Config, Resume, Step
from . import operations as do


class Request:
    """A request, or a session, from its arrival to its end."""

    def __init__(self, name: str, truth: Truth, max_new_tokens: int, session: bool) -> None:
        self.name = name
        self.truth = truth
        self.max_new_tokens = max_new_tokens
        self.session = session
        self.known = truth.prompt_length
        """Tokens whose ids the client knows."""
        self.computed = 0
        """Tokens in its sequence, or in its saved state."""
        self.sequence: int | None = None
        self.saved = False

    @property
    def total(self) -> int:
        """Tokens with which the request, or the turn, ends."""
        return self.truth.prompt_length + self.max_new_tokens

    @property
    def delivered(self) -> int:
        """Tokens sampled in this turn."""
        return self.known - self.truth.prompt_length

    def copy_of(self, source: Request, rank: int) -> Request:
        """Return a request of this name with the tokens of `source`, as its copy of this rank (`reference.batch`)."""
        truth = truth_of_copy(source.truth, source.known, rank)
        request = Request(self.name, truth, source.max_new_tokens, self.session)
        request.known, request.computed = source.known, source.computed
        return request

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Return its own tokens start..stop-1."""
        self.truth.reach(stop)
        return tuple(self.truth.tokens[start:stop])


class Fed(Struct, frozen=True):
    """What a row of a batch means.

    count    tokens of the request, those that are no drafts
    samples  True if they are all that it has: the row samples
    drafts   how many drafts follow
    right    how many of them are right
    """

    request: Request
    row: do.Tokens
    count: int
    samples: bool
    drafts: int
    right: int

    @property
    def sampled(self) -> tuple[int, ...]:
        """The tokens that the row's verification accepts, and the next one."""
        known = self.request.known
        return self.request.tokens(known, known + self.right + 1) if self.samples else ()


class Client:
    """Requests, sequences and queues along one trace. Methods return the operations that follow."""

    def __init__(self, config: Config, planes: int) -> None:
        """`planes`: snapshots with which the context can roll back (`n_rs_seq`)."""
        self.config = config
        self.planes = planes
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.parked: dict[str, Request] = {}
        self.names: set[str] = set()
        self.left: list[tuple[int, tuple[int, ...]]] = []
        """Sequence and tokens of the requests that were aborted as they ran, since `take_left`."""
        self.free = list(range(sequences_of(config)))
        """Sequences that nobody has, the next to be taken first."""

    def holders(self) -> list[Request]:
        """Return the requests that have a sequence."""
        return [one for one in (*self.running, *self.waiting, *self.parked.values()) if one.sequence is not None]

    # requests

    def arrive(self, event: Arrive) -> None:
        """Queue a request."""
        self.names.add(event.name)
        self.waiting.append(Request(event.name, Truth(event.prompt), event.max_new_tokens, event.session))

    def resume(self, event: Resume) -> None:
        """Queue the next turn of a parked session."""
        request = self.parked.pop(event.name)
        request.truth = request.truth.continued(request.known, event.prompt)
        request.known, request.max_new_tokens = request.truth.prompt_length, event.max_new_tokens
        self.waiting.append(request)

    def abort(self, name: str) -> list[do.Operation]:
        """End a request or a session."""
        ended = [one for one in (*self.running, *self.waiting, *self.parked.values()) if one.name == name]
        self.left += [
            (one.sequence, one.tokens(0, one.known))
            for one in self.running
            if one.name == name and one.sequence is not None
        ]
        self.parked.pop(name, None)
        self.waiting = deque(one for one in self.waiting if one.name != name)
        self.running = [one for one in self.running if one.name != name]
        return self._removed(ended)

    def take_left(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return what is in `left`, once."""
        left, self.left = self.left, []
        return left

    def preempt(self, name: str) -> list[do.Operation]:
        """Let a running request, or a parked session, lose its sequence."""
        lost = [one for one in (*self.running, *self.parked.values()) if one.name == name]
        self.waiting.extendleft(one for one in lost if one in self.running)
        self.running = [one for one in self.running if one.name != name]
        return self._lost(lost)

    def park(self, name: str) -> list[do.Operation]:
        """End the running turn of a session."""
        return self._parked([one for one in self.running if one.name == name and one.session])

    def fork(self, name: str, parent: str) -> list[do.Operation]:
        """Copy a parked session; its saved state if no sequence is free."""
        self.names.add(name)
        source = self.parked[parent]
        copy = self.parked[name] = Request(name, source.truth, source.max_new_tokens, session=True)
        copy.known, copy.computed = source.known, source.computed
        done: list[do.Operation] = []
        if source.sequence is not None and not self.free:
            done += self._saved(source)
        if source.saved:
            copy.saved = True
            return [*done, do.CopySaved(name, parent)]
        if source.sequence is not None:
            copy.sequence = self.free.pop(0)
            done.append(do.Copy(source.sequence, copy.sequence))
            if self.config.options.get("idle") == "copies":
                done += self._saved(copy)
        return done

    def cut(self, name: str, length: int) -> do.Cut | None:
        """Return what truncates a parked session, None if its sequence has no more than that."""
        request = self.parked[name]
        if request.sequence is None or request.computed <= length:
            return None
        return do.Cut(request.sequence, length)

    def truncated(self, name: str, length: int) -> None:
        """Count a truncation."""
        request = self.parked[name]
        request.truth = request.truth.continued(length, ())
        request.known, request.computed = length, min(request.computed, length)

    # a step

    def plan(self, event: Step) -> tuple[list[do.Operation], list[Fed], list[PlannedRow], int]:
        """Admit requests; return what that takes, the next batch, its rows, and the step's budget of tokens."""
        config = self.config
        budget = left = min(event.budget or config.max_num_batched_tokens, config.max_num_batched_tokens)
        done: list[do.Operation] = []
        fed: list[Fed] = []
        planned: list[PlannedRow] = []
        for request in self.running:
            left -= self._feed(request, event, left, fed, planned)
        while self.waiting and left > 0 and len(self.running) < config.max_num_seqs:
            request = self.waiting[0]
            if request.sequence is None:
                done += self._make_room()
                if not self.free:
                    break
                request.sequence = self.free.pop(0)
            if request.saved:
                request.saved = False
                done.append(do.Restore(request.name, request.sequence))
            self.running.append(self.waiting.popleft())
            left -= self._feed(request, event, left, fed, planned, admitted=True)
        return done, fed, planned, budget

    def _feed(
        self, request: Request, event: Step, left: int, fed: list[Fed], planned: list[PlannedRow], *,
        admitted: bool = False,
    ) -> int:  # fmt: skip
        """Add the next tokens of a request to a batch; return how many."""
        missing = request.known - request.computed
        limits = [missing, left, event.chunks.get(request.name, missing)]
        count = min([*limits, self.config.long_prefill_token_threshold or missing])
        if count <= 0:
            return 0
        drafts = right = 0
        if count == missing == 1 and request.delivered:
            drafts, right = event.per_request.get(request.name, (event.drafts, event.right))
            most = min(self.config.num_speculative_tokens, request.total - request.known - 1, left - count)
            drafts = min(drafts, most)
            right = min(right, drafts)
        start = request.computed
        tokens = request.tokens(start, start + count)
        if drafts:
            tokens += tuple(draft_tokens(request.truth.tag(request.known), drafts, right))
        samples = count == missing
        wanted = len(tokens) if self.config.options.get("logits") == "all" else (drafts + 1) * samples
        assert request.sequence is not None
        fed.append(Fed(request, do.Tokens(request.sequence, start, tokens, wanted), count, samples, drafts, right))
        kept = start if admitted else 0
        planned.append(PlannedRow(request.name, start, len(tokens), drafts, admitted, 0, kept=kept))
        return len(tokens)

    def batch(self, fed: Sequence[Fed]) -> list[do.Operation]:
        """Return what executes a batch: checkpoints where snapshots do not reach back behind the drafts, then it."""
        checkpoints = [do.Checkpoint(one.row.sequence) for one in fed if one.drafts > self.planes]
        return [*checkpoints, do.Decode(tuple(one.row for one in fed))]

    def advance(self, fed: Sequence[Fed]) -> tuple[list[do.Operation], list[tuple[str, Sequence[int]]], list[str]]:
        """Count an executed batch; return what takes rejected drafts back, what is delivered, and who ends."""
        done: list[do.Operation] = []
        outputs: list[tuple[str, Sequence[int]]] = []
        finished: list[str] = []
        for one in fed:
            request, sampled = one.request, one.sampled
            request.computed += one.count + one.right
            if one.right < one.drafts:
                done.append(self._rejected(one))
            if sampled:
                request.known += len(sampled)
                outputs.append((request.name, sampled))
                if request.known == request.total:
                    finished.append(request.name)
        return done, outputs, finished

    def _rejected(self, one: Fed) -> do.Operation:
        length = one.row.start + one.count + one.right
        if one.drafts > self.planes:
            return do.GoBack(one.row.sequence, one.row.start, one.request.tokens(one.row.start, length))
        return do.RollBack(one.row.sequence, length, one.request.tokens(0, length))

    def settle(self, finished: Sequence[str]) -> list[do.Operation]:
        """End requests and turns."""
        ended = [one for one in self.running if one.name in finished]
        self.running = [one for one in self.running if one.session or one.name not in finished]
        turns = [one for one in ended if one.session]
        return [*self._removed([one for one in ended if not one.session]), *self._parked(turns)]

    # events of the batch

    def crop(self, tokens: int) -> list[do.Operation]:
        """Take back the last tokens of the running requests, if each has computed more than that."""
        if not self.running or any(one.computed <= tokens for one in self.running):
            return []
        done: list[do.Operation] = []
        for one in self.running:
            one.computed -= tokens
            assert one.sequence is not None
            done.append(do.RollBack(one.sequence, one.computed, one.tokens(0, one.computed)))
        return done

    def select(self, names: Sequence[str]) -> list[do.Operation]:
        """Keep these of the running requests."""
        rows = {one.name: one for one in self.running}
        if not rows:
            return []
        kept = [rows[name] for name in selected(list(rows), names)]
        ended = [one for one in self.running if one not in kept]
        self.running = kept
        alone = [one for one in self.holders() if one not in ended]
        if len(alone) == 1 and alone[0].sequence is not None and len(ended) > 1:
            self._removed(ended)
            return [do.Keep(alone[0].sequence)]
        return self._removed(ended)

    def reorder(self, sources: Mapping[str, str]) -> list[do.Operation]:
        """Let running requests take over the sequences and the tokens of others."""
        rows = {one.name: one for one in self.running}
        batch = reordered([*rows], sources)
        return self._copied({name: (rows[source], rank) for name, (source, rank) in batch.items()})

    def repeat(self, times: int) -> list[do.Operation]:
        """Repeat the running requests."""
        rows = {one.name: one for one in self.running}
        batch = repeated([*rows], times, self.config.max_num_seqs, self.names)
        self.names |= batch.keys()
        return self._copied({name: (rows[source], rank) for name, (source, rank) in batch.items()})

    def reset(self) -> list[do.Operation]:
        """Remove all that running requests have computed: they wait again."""
        running, self.running = self.running, []
        if not running:
            return []
        self.waiting.extendleft(reversed(running))
        alone = all(one in running for one in self.holders())
        removed = self._lost(running)
        return [do.Clear()] if alone and removed else removed

    # sequences

    def _copied(self, batch: Mapping[str, tuple[Request, int]]) -> list[do.Operation]:
        """Let the batch consist of copies: name -> (source, rank). A request that stays itself keeps its sequence."""
        if not batch:
            return []
        before = {one.name: one for one in self.running}
        done: list[do.Operation] = []
        after = []
        for name, (source, rank) in batch.items():
            copy = before.get(name, Request(name, source.truth, 0, session=False)).copy_of(source, rank)
            after.append(copy)
            if source.name == name:
                copy.sequence = source.sequence
            elif source.sequence is not None:
                done += self._make_room()
                copy.sequence = self.free.pop(0)
                done.append(do.Copy(source.sequence, copy.sequence))
                if self.config.options.get("idle") == "copies":
                    place = copy.sequence
                    done += [do.Save(name, place), do.Remove(place), do.Restore(name, place)]
        taken_over = [one for one in self.running if batch[one.name][0] is not one]
        self.running = after
        return done + self._removed(taken_over)

    def _make_room(self) -> list[do.Operation]:
        """Save the session that was parked first, or waits, if no sequence is free."""
        if self.free:
            return []
        kept = [one for one in (*self.parked.values(), *self.waiting) if one.sequence is not None]
        return self._saved(kept[0]) if kept else []

    def _saved(self, request: Request) -> list[do.Operation]:
        """Save the state of a request and remove its sequence."""
        assert request.sequence is not None
        done: list[do.Operation] = [do.Save(request.name, request.sequence), do.Remove(request.sequence)]
        self._give_back(request)
        request.saved = True
        return done

    def _parked(self, requests: Iterable[Request]) -> list[do.Operation]:
        done: list[do.Operation] = []
        for request in requests:
            self.running = [one for one in self.running if one is not request]
            self.parked[request.name] = request
            if self.config.options.get("idle") in ("saved", "moved") and request.sequence is not None:
                done += self._saved(request)
        return done

    def _lost(self, requests: Iterable[Request]) -> list[do.Operation]:
        requests = list(requests)
        done = self._removed(requests)
        for request in requests:
            request.computed = 0
        return done

    def _removed(self, requests: Iterable[Request]) -> list[do.Operation]:
        """Remove the sequences and saved states of requests."""
        done: list[do.Operation] = []
        for request in requests:
            if request.sequence is not None:
                done.append(do.Remove(request.sequence))
                self._give_back(request)
            if request.saved:
                done.append(do.Forget(request.name))
                request.saved = False
        return done

    def _give_back(self, request: Request) -> None:
        assert request.sequence is not None
        self.free = sorted([*self.free, request.sequence])
        request.sequence = None


def sequences_of(config: Config) -> int:
    """Return how many sequences a context has: twice the batch, so that all of it can be copied."""
    return 2 * config.max_num_seqs
