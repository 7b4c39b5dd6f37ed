"""Clients of a server in a script: what they ask for, what they receive, and what they should receive.

(This file is inlined into reproducers, behind what they share with the adapter; nothing imports it.)
"""

from ....reference.tokens import Truth
from ...base.client_turn import NOT_SENT, ClientTurn, prompt_path
from ..compat import tree_api
from ..compat.engine import ATTENTION, STATES, WINDOW
from ..serving import Server

IDLE_MAX = 8
"""Steps in a row that may schedule nothing while requests wait."""


class Turn(ClientTurn):
    """A turn as SGLang answers it: one whose grammar does not compile gets an error."""

    def __init__(self, name, truth, new_tokens, stops, is_string, fails, scored_from):
        end = truth.prompt_length + truth.answer_length(new_tokens, stops, is_string)
        truth.reach(end)
        super().__init__(name, truth.tokens[: truth.prompt_length], truth.tokens[truth.prompt_length : end])
        self.fails = fails
        self.scored, self.to_score = None, self.prompt[(scored_from or 0) + 1 :]

    def is_right(self):
        """Return True if the client got its tokens, as far as it got any, or the error that it has to get."""
        if self.fails or self.end == "failed":
            return self.fails and not self.received and self.end != "ended"
        return super().is_right() and self.scored in (None, self.to_score)

    def __str__(self):
        if self.scored is None or self.scored == self.to_score:
            return super().__str__()
        pairs = [*zip(self.scored, self.to_score, strict=False), ("no token", "one more")]
        at = next(index for index, (got, wanted) in enumerate(pairs) if got != wanted)
        token = len(self.prompt) - len(self.to_score) + at + 1
        more = f"its log-probability {token} is that of {pairs[at][0]} instead of {pairs[at][1]}"
        return f"{super().__str__()}, but in its prompt {more}"


class Engine:
    """A server and its clients, step by step."""

    def __init__(self, sizes, max_tokens, **classes):
        self.server = Server(sizes, max_tokens, **classes)
        self.turns, self.last = [], {}

    def add(self, name, prompt, new_tokens, **asked):
        """Send a request, or the first turn of a session (`session`). `prompt`: token ids, and (name, tokens) for an
        image, and for tokens with an adapter or a cache salt. What it asks for: `_ask`."""
        self._ask(name, Truth(prompt_path(prompt)), new_tokens, **asked)

    def resume(self, name, prompt, new_tokens, **asked):
        """Send the next turn of a session: `prompt` follows all that its client has. It is not sent unless that is
        idle."""
        if name in self.server.sessions.parked():
            had = self.server.sessions.had(name)
            truth = had.continued(had.prompt_length, prompt_path(prompt))
            self._ask(name, truth, new_tokens, session=True, **asked)
        else:
            self.turns.append(ClientTurn(name, prompt, [], NOT_SENT))

    def _ask(
        self, name, truth, new_tokens, session=False, stops=(), priority=None, is_string=False, min_tokens=0,
        structured=0, closes=0, bad_grammar=0, scored_from=None, reasons_until=0,
    ):  # fmt: skip
        """Send a turn. Its answer ends with its first stop token, and none of these may come before `min_tokens`.

        With `is_string` SGLang gets the text of `stops` as one stop string. With priorities a smaller number is
        more important. `structured`: a grammar restricts the answer, and is compiled for one step less than this; it is
        complete with token `closes` of the answer. It holds behind the first token that is `reasons_until`, if that is
        not 0. `bad_grammar`: it does not compile. `scored_from`: SGLang's
        `logprob_start_len`; the client wants the log-probability of each token of its prompt after that, too.
        """
        first = truth.prompt_length
        truth.withheld, truth.free_from = stops, first + min(min_tokens, new_tokens)
        if structured:
            truth.restrict(closes, reasons_until)
        self.last[name] = Turn(name, truth, new_tokens, stops, is_string, bad_grammar > 0, scored_from)
        self.turns.append(self.last[name])
        asked = stops, priority, is_string, min_tokens, structured, bad_grammar, scored_from
        self.server.add(name, truth, new_tokens, session, *asked)

    def step(self, **asked):
        """Run one turn of the scheduler's loop; return True if a batch was formed."""
        if not self.server.scheduler.busy:
            self.server.tick()
            return False
        number, batch = self.server.steps, self.server.plan(**asked)
        self.receive(*self.server.turn(batch))
        for turn in self.last.values():
            turn.note(number)
        return bool(batch)

    def receive(self, outputs, ended, failed):
        """Note what clients receive."""
        for name, tokens in self.server.scheduler.client.take_scored():
            self.last[name].scored = tokens
        for name, tokens in outputs:
            self.last[name].receive(tokens)
        for name in ended:
            if self.last[name].end != "aborted":
                self.last[name].end = "ended"
        for name in failed:
            if self.last[name].end != "aborted":
                self.last[name].end = "failed"

    def abort(self, name, keeps_session=False):
        """Abort a request, or close a session. With `keeps_session`, abort only its turn: the next one follows what
        came before."""
        if name in self.last and self.last[name].end != "ended":
            self.last[name].end = "aborted"
        self.server.abort(name, keeps_session)

    def retract(self, name):
        """Retract a request, as for lack of memory."""
        self.server.retract(name)

    def idle(self, rows):
        """Take part in a step of other data-parallel ranks."""
        self.server.idle(rows)

    def flush(self):
        """Flush the radix tree, if nothing runs."""
        self.server.flush()

    def pause(self):
        """Pause generation, with everything that runs retracted, and continue."""
        self.receive(*self.server.pause())

    def pause_and_flush(self):
        """Pause generation, with everything that runs retracted, flush the radix tree, and continue."""
        self.receive(*self.server.pause_and_flush())

    def switch_storage(self):
        """Detach the storage, if nothing runs, or attach it again."""
        self.server.switch_storage()

    def evict(self, pages):
        """Evict pages and states from the radix tree."""
        self.server.evict(pages)

    def evict_all(self):
        """Evict everything from the radix tree; with HiCache, copies and what a storage does end first."""
        engine, sizes, tier = self.server.engine, self.server.engine.sizes, self.server.tier
        for _ in range(1 if tier is None else 2):  # a node that is still being copied is locked
            if tier is not None:
                tier.finish()
            if sizes.caching:
                windows = sizes.window_pages * sizes.page
                tree_api.evict(engine.cache, sizes.pages * sizes.page, max(sizes.slots, sizes.checkpoints), windows)

    def finish(self):
        """Run until every request has ended, or until nothing is scheduled any more."""
        idle = 0
        while self.server.scheduler.busy and idle < IDLE_MAX:
            idle = 0 if self.step() else idle + 1

    def leaked(self):
        """Return what is missing from the pools when all sessions are closed and the radix tree is evicted."""
        for name in list(self.last):
            self.server.abort(name)
        self.finish()
        self.evict_all()
        engine, sizes, tier = self.server.engine, self.server.engine.sizes, self.server.tier
        memory = engine.memory
        missing = {
            "request rows": sizes.rows - engine.rows.available_size(),
            "state slots": sizes.num_slots - sizes.reserved_slots - len(memory.free_slots()),
            "KV pages": sizes.num_pages - sizes.reserved_pages - len(memory.free_pages()),
        }
        if engine.checkpoints is not None:
            missing["checkpoints of states"] = sizes.checkpoints - len(engine.checkpoints.free())
        if sizes.sliding:
            windows = sizes.num_window_pages - sizes.reserved_window_pages
            missing["KV pages of windows"] = windows - len(memory.free_window_pages())
        if tier is not None:
            size = {group: pool.size for group, pool in tier.pools.items()}
            tree_api.evict_host(engine.cache, size[ATTENTION], size[STATES], size.get(WINDOW, 0))
            for name, group in (("states", STATES), ("tokens", ATTENTION), ("tokens of windows", WINDOW)):
                if group in size:
                    missing[f"host {name}"] = size[group] - tier.pools[group].available_size()
        return missing
