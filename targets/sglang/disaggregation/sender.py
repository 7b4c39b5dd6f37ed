"""What a prefill server sends to: the network, and the memory of the decode servers behind it.

A manager and a sender for each request in place of a transfer backend (mooncake, nixl, ...). A sender is told page by
page and slot by slot what to send, and reads it, turns later or at once, as a network card would: from the addresses
that SGLang registered for its pools (`KVArgs`). What it has read is then in the memory of a decode server, where it
must be the content of the prompt that the two servers were asked for. How long a peer takes follows from the request.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from sglang.srt.disaggregation.base.conn import BaseKVManager, BaseKVSender, KVPoll, KVTransferMetric, StateType

from ....reference.layout import cdiv
from ....reference.prefix_cache import Key
from ....reference.tokens import Truth
from ...base.observe import Content, SlotContent, StateContent
from ...base.protocol import EngineError
from ..compat.engine import ATTENTION, STATES, WINDOW, SglangEngine

HANDSHAKES = (0, 0, 1, 3)
"""Turns until a decode server has answered to the first message of a request."""
DELAYS = (0, 1, 2, 4)
"""Turns after which the network reads what it was told to send."""
NOTHING = -1
"""In the memory of a decode server where nothing has arrived."""
WORD = 8
"""Bytes of a key, a value, or a number of a state."""
AUX_TOKEN, AUX_ROOM = 0, -1
"""Places of the first token and of the room among the buffers of metadata (`MetadataBuffers.get_buf_infos`)."""


class Pace(NamedTuple):
    """How long the peer of a request takes, and what it does.

    handshake  turns until its decode server has answered
    delay      turns after which what is sent is read
    withdraws  True if an abort of its client reaches the prefill server by its peer: the transfer fails
    cached     True if its decode server keeps prefixes, and wants only what is behind them
    """

    handshake: int
    delay: int
    withdraws: bool
    cached: bool


def pace_of(name: str, truth: Truth) -> Pace:
    """Return the pace of a request's peer."""
    number = truth.tag(truth.prompt_length) ^ zlib.crc32(name.encode())
    number, handshake = divmod(number, len(HANDSHAKES))
    number, delay = divmod(number, len(DELAYS))
    return Pace(HANDSHAKES[handshake], DELAYS[delay], number % 2 == 1, number // 2 % 4 == 1)


class Peer(NamedTuple):
    """The decode server of a request: what it was asked for, by the same client."""

    name: str
    truth: Truth
    pace: Pace


class Part(NamedTuple):
    """Something to send: pages of keys and values with the index of the first in the prompt's, and with the last of
    them a state.

    due    turn in which it is read
    after  what the read waits for, None for nothing
    """

    due: int
    first: int
    pages: Sequence[int]
    states: Mapping[StateType, Sequence[int]]
    is_last: bool
    after: Any


class Received:
    """What was read of the buffers of a pool: bytes by their addresses at the prefill server. A decode server, whose
    pools are laid out alike, has them at the addresses of its own pages."""

    def __init__(self, pointers: Sequence[int], sizes: Sequence[int], items: Sequence[int], index: int) -> None:
        """Read item `index` of each buffer. EngineError if it is outside of one."""
        self.parts: list[tuple[int, bytes]] = []
        for pointer, size, item in zip(pointers, sizes, items, strict=True):
            if not 0 <= index < size // item:
                raise EngineError(f"a transfer reads item {index} of a buffer that has {size // item}")
            begin = pointer + index * item
            self.parts.append((begin, ctypes.string_at(begin, item)))

    def word(self, array: Any, *index: int) -> int:
        """Return what an element of an array of the prefill server has become, `NOTHING` if it was not read."""
        where = array.ctypes.data + sum(map(mul, index, array.strides))
        for begin, part in self.parts:
            if begin <= where < begin + len(part):
                return int.from_bytes(part[where - begin :][:WORD], sys.byteorder, signed=True)
        return NOTHING


class Manager(BaseKVManager):
    """The connections of a prefill server. `turn` is that of its event loop."""

    is_dummy_cp_rank = enable_all_cp_ranks_for_transfer = False

    def __init__(self, args: Any, disaggregation_mode: Any, server_args: Any, is_mla_backend: Any = False) -> None:
        self.kv_args = args
        self.turn = 0
        self.engine: SglangEngine
        self.peers: dict[int, Peer] = {}
        """By the room of a request."""
        self.senders: list[Sender] = []
        """In order of their requests' arrival; those that are over are removed."""
        self.cached: set[int] = set()
        """Tags of the prefixes, whole pages, that decode servers keep of requests that they got."""
        self.arrived: list[tuple[Key, Sequence[Content]]] = []
        """What was read and has not been in a view yet."""
        self.fresh: dict[Key, Sequence[Content]] = {}
        """What was read last."""

    def register_to_bootstrap(self) -> None:
        """Do nothing: there is no other process."""

    def tick(self) -> None:
        """End a turn: what is due is read. If several contents arrive under one key, each is shown in its own turn."""
        for sender in self.senders:
            sender.advance()
        self.turn += 1
        arrived, self.arrived, self.fresh = self.arrived, [], {}
        for key, content in arrived:
            if self.fresh.setdefault(key, content) != content:
                self.arrived.append((key, content))

    def received(self) -> dict[Key, Sequence[Content]]:
        """Return what decode servers hold of requests that are not over, and what they got last."""
        found: dict[Key, Sequence[Content]] = {}
        for sender in self.senders:
            found |= sender.memory
        return found | self.fresh

    def page(self, group: int, number: int, tokens: int) -> list[Content]:
        """Return the content of the first tokens of a page, by layer. Keys and values are the same."""
        args, states = self.kv_args, self.engine.states
        if group == WINDOW:
            received, pools = self._state_item(StateType.SWA, number), (states.window_keys, states.window_values)
        else:
            received = Received(args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens, number)
            pools = states.keys, states.values
        first = number * self.engine.sizes.page
        found: list[Content] = []
        for keys, values in zip(*pools, strict=True):
            places = range(first, first + tokens)
            pairs = [(received.word(keys, place), received.word(values, place)) for place in places]
            found.append(SlotContent([key if key == value else NOTHING for key, value in pairs]))
        return found

    def state(self, slot: int) -> list[Content]:
        """Return the content of a state slot, by layer."""
        received, states = self._state_item(StateType.MAMBA, slot), self.engine.states
        taps = range(self.engine.sizes.window)
        return [
            StateContent(
                received.word(states.temporal, layer, slot),
                tuple([received.word(states.window, layer, slot, tap) for tap in taps]),
            )
            for layer in range(self.engine.sizes.state_layers)
        ]

    def _state_item(self, kind: StateType, index: int) -> Received:
        args = self.kv_args
        [place] = [number for number, one in enumerate(args.state_types) if one == kind]
        return Received(args.state_data_ptrs[place], args.state_data_lens[place], args.state_item_lens[place], index)

    def metadata(self, buffer: int, index: int, kind: Any) -> int:
        """Return the first number of an item of a buffer of metadata."""
        args = self.kv_args
        registered = [args.aux_data_ptrs[buffer]], [args.aux_data_lens[buffer]], [args.aux_item_lens[buffer]]
        [(_, part)] = Received(*registered, index).parts
        return int(np.frombuffer(part, dtype=kind)[0])


class Sender(BaseKVSender):
    """Sends one request, as a `CommonKVSender` without threads."""

    def __init__(
        self, mgr: Manager, bootstrap_addr: str, bootstrap_room: int, req_has_disagg_prefill_dp_rank: bool = False
    ) -> None:
        self.kv_mgr, self.room = mgr, bootstrap_room
        self.name, self.truth, self.pace = mgr.peers[bootstrap_room]
        self.begun = mgr.turn
        self.wanted: int | None = None
        """Pages to send, None before the decode server has answered and SGLang has taken note."""
        self.aux: int | None = None
        self.prefix = 0
        self.told = 0
        """Pages that were to be sent so far."""
        self.parts: list[Part] = []
        self.memory: dict[Key, Sequence[Content]] = {}
        self.has_all = self.is_done = False
        """True if all was read, and if a turn has ended since."""
        self.status: Any = None
        """How the transfer ended, once that was told."""
        self.token: int | None = None
        """The first token of the answer, as the decode server has it."""
        self._early_send_wait_event: Any = None
        mgr.senders.append(self)

    def pop_decode_prefix_len(self) -> int:
        """Return how many tokens of the prompt the decode server has: whole pages, and not all."""
        page = self.kv_mgr.engine.sizes.page
        if self.pace.cached:
            ends = range(page, self.truth.prompt_length, page)
            self.prefix = max((end for end in ends if self.truth.tag(end) in self.kv_mgr.cached), default=0)
        return self.prefix

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        """Note how many pages there will be, and where the metadata of the request are."""
        self.wanted, self.aux = num_kv_indices, aux_index

    def should_send_kv_chunk(self, num_pages: int, last_chunk: bool) -> bool:
        """Return True if `send` is to be called."""
        return num_pages > 0 or last_chunk

    def send(self, kv_indices: Any, state_indices: Any = None, num_kv_tokens: int | None = None) -> None:
        """Send pages, and with the last of them a state and the metadata. The network may read at once."""
        if self.status is not None:
            return
        first, self.told = self.told, self.told + len(kv_indices)
        after, self._early_send_wait_event = self._early_send_wait_event, None
        is_last = self.told == self.wanted
        kinds = self.kv_mgr.kv_args.state_types if is_last and state_indices is not None else ()
        states = {kind: list(map(int, indices)) for kind, indices in zip(kinds, state_indices or (), strict=False)}
        due = self.kv_mgr.turn + self.pace.delay
        self.parts.append(Part(due, first, list(map(int, kv_indices)), states, is_last, after))
        self._read_due()

    def advance(self) -> None:
        """Read what is due; at the end of a turn."""
        self._read_due()
        self.is_done |= self.has_all

    def _read_due(self) -> None:
        while self.parts and self.parts[0].due <= self.kv_mgr.turn:
            part = self.parts[0]
            if part.after is not None and not part.after.query():
                break
            found = list(self._read(part))
            self.kv_mgr.arrived += found
            self.memory |= dict(found)
            self.parts.pop(0)
            self.has_all |= part.is_last

    def _read(self, part: Part) -> Any:
        page = self.kv_mgr.engine.sizes.page
        yield from self._pages(ATTENTION, part.pages, self.prefix // page + part.first)
        if not part.is_last:
            return
        length, sliding = self.truth.prompt_length, self.kv_mgr.engine.sizes.sliding
        slots: Sequence[int | None] = part.states.get(StateType.MAMBA) or [None]
        for slot in slots:
            yield Key(STATES, length, self.truth.tag(length)), self._state(slot)
        if sliding:
            # What the token behind the prompt attends to, and the decode server does not have.
            first = max(self.prefix, length - (sliding - 1)) // page
            pages = part.states.get(StateType.SWA) or []
            yield from self._pages(WINDOW, [*pages, *[None] * (cdiv(length, page) - first - len(pages))], first)
        assert self.aux is not None
        room = self.kv_mgr.metadata(AUX_ROOM, self.aux, np.uint64)
        # A decode server drops metadata of another room.
        self.token = self.kv_mgr.metadata(AUX_TOKEN, self.aux, np.int32) if room == self.room else None

    def _pages(self, group: int, numbers: Iterable[int | None], first: int) -> Any:
        """Yield the contents of pages, the first of which is that of the prompt with this index; a decode server has no
        place for more than the prompt's, and computes with what it finds in those that never came."""
        sizes, length = self.kv_mgr.engine.sizes, self.truth.prompt_length
        for index, number in enumerate(numbers, first):
            begin, end = index * sizes.page, min((index + 1) * sizes.page, length)
            if begin < end:
                key, tokens = Key(group, end, self.truth.tag(end)), end - begin
                layers = sizes.window_layers if group == WINDOW else sizes.attention_layers
                nothing: list[Content] = [SlotContent([NOTHING] * tokens)] * layers
                yield key, nothing if number is None else self.kv_mgr.page(group, number, tokens)

    def _state(self, slot: int | None) -> Sequence[Content]:
        """Return a state that was sent, or what a decode server computes with if none was."""
        sizes = self.kv_mgr.engine.sizes
        nothing = StateContent(NOTHING, (NOTHING,) * sizes.window)
        return [nothing] * sizes.state_layers if slot is None else self.kv_mgr.state(slot)

    def get_transfer_metric(self) -> KVTransferMetric:
        """Return nothing that is measured."""
        return KVTransferMetric()

    def poll(self) -> Any:
        """Return the state of the transfer."""
        if self.status is not None:
            return self.status
        if self.wanted is None:
            answered = self.kv_mgr.turn >= self.begun + self.pace.handshake
            return KVPoll.WaitingForInput if answered else KVPoll.Bootstrapping
        if not self.is_done:
            return KVPoll.Transferring if self.told else KVPoll.WaitingForInput
        self.status = KVPoll.Success
        page = self.kv_mgr.engine.sizes.page
        self.kv_mgr.cached |= {self.truth.tag(end) for end in range(page, self.truth.prompt_length + 1, page)}
        return self.status

    @property
    def is_sending(self) -> bool:
        """Return True while content of the pools is sent."""
        return self.told > 0 and self.status is None

    def failure_exception(self) -> None:
        """Raise the reason of a failure."""
        self._end(KVPoll.Failed)
        raise ConnectionError("the decode server has aborted the request")

    def clear(self) -> None:
        """Forget the request."""
        self._end(self.status if self.status is not None else KVPoll.Failed)

    def abort(self) -> None:
        """End the transfer."""
        self._end(KVPoll.Failed)

    def withdraw(self) -> None:
        """Let the decode server end the transfer, as its client has asked it to: SGLang learns it from a poll."""
        self.status = KVPoll.Failed
        self.parts.clear()

    def _end(self, status: Any) -> None:
        """End: nothing is read any more, and the decode server's memory is its own matter."""
        self.status = status
        self.parts.clear()
        self.memory.clear()
        if self in self.kv_mgr.senders:
            self.kv_mgr.senders.remove(self)
            self.kv_mgr.peers.pop(self.room)
