"""What the stores of vLLM's own connectors share: which loads vLLM has planned, and how a stored page is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ....reference.prefix_cache import Key
from ...base.observe import Content, Loaded, PlannedRow, SlotContent
from ...base.trace import Config
from ..options import host_chunks, state_parts
from ..shadow.recorder import Recorder
from .no_store import NullStore


class Page(NamedTuple):
    """A block that is loaded: the step that planned it, whose table it is in, and where."""

    step: int
    name: str
    group: int
    column: int


class OwnStore(NullStore):
    """What vLLM itself stores and loads."""

    is_connected = True

    def __init__(self, config: Config, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.chunks = host_chunks(config)
        self._parts = state_parts(config)
        self.steps: dict[str, int] = {}
        """Step that planned the latest load of a request."""
        self.waiting: set[str] = set()
        self.hits: dict[str, int] = {}
        """Tokens of the local hit, of each request that was looked up."""

    @property
    def is_copying(self) -> bool:
        """True while requests wait for copies, one after another (`View.copying`)."""
        return False

    def plan(self, name: str, local: int, external: int, is_sync: bool) -> None:
        """Note a load of `external` tokens behind a local hit."""
        self.steps[name] = self.step
        if is_sync:
            self.joined[name] = external
            return
        self.waiting.add(name)
        self.started.append(PlannedRow(name, local + external, 0, 0, True, local, external=external))

    def ends_wait(self, name: str) -> bool:
        """Note that a request is computed. Return True if it waited for a load until now."""
        waited = name in self.waiting
        self.waiting.discard(name)
        return waited

    def loaded(self, page: Page, block: int) -> Iterator[Loaded]:
        """Yield the record of each layer of a block that was loaded."""
        form = self.layout.groups[page.group]
        for index in range(form.layers):
            where = (page.step, page.name, page.group, index, page.column, block)
            if form.kind == "attention":
                # A hit inside a block loads the page as well, with what was behind the hit when it was stored.
                yield Loaded(*where, slots=form.block_size)
            else:
                yield Loaded(*where, temporal=self._parts.recurrent, conv=self._parts.conv)

    def named(self, key: Key, pages: Sequence[Content]) -> tuple[Content, ...]:
        """Return what a key names of the pages of a block. One that was stored for a hit inside it holds more."""
        size = self.layout.groups[key.group].block_size
        slots = (key.depth - 1) % size + 1
        return tuple(SlotContent(page.tags[:slots]) if isinstance(page, SlotContent) else page for page in pages)


class TellsStore:
    """What vLLM's own connectors, before whose class this one stands, tell their store alike."""

    store: OwnStore

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Keep the tokens of the local hit."""
        self.store.hits[request.request_id] = num_computed_tokens
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        return found

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, Any]:
        """Note that a request does not wait any more."""
        self.store.waiting.discard(request.request_id)
        finished: tuple[bool, Any] = super().request_finished_all_groups(request, block_ids)  # type: ignore[misc]
        return finished
