"""Names of tags: the prefix whose state a tag stands for.

A tag identifies a prefix, so every tag that some request of the trace can legally hold has a name. Any other tag is
named by its first writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...reference.tokens import NO_INPUT, Truth
from ...targets.base.trace import Arrive, Event, Resume, stop_tokens_of


class Names:
    """Names for the tags of one trace. `note` and `name` must be called in the order of device work."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._holders: dict[int, list[tuple[str, int]]] = {}
        self._arrivals: dict[str, Arrive] = {}
        self._truths: dict[str, Truth] = {}
        """Tokens of each request in its latest turn."""
        self._known: dict[str, int] = {}
        """Number of tokens that each request's client has seen."""
        self._origins: dict[int, str] = {}
        """Tag of no prefix -> its first write."""
        for event in events:
            if isinstance(event, Arrive) and event.name not in self._arrivals:
                self._arrivals[event.name] = event
                truth = Truth(event.prompt)
                stop_tokens_of(event, truth)
                truth.reach(truth.prompt_length + event.max_new_tokens)
                self._hold(event.name, truth)

    def _hold(self, name: str, truth: Truth) -> None:
        self._truths[name], self._known[name] = truth, truth.prompt_length
        for depth, tag in enumerate(truth.tags):
            holders = self._holders.setdefault(tag, [])
            if (name, depth) not in holders:
                holders.append((name, depth))

    def deliver(self, request: str, tokens: int) -> None:
        """Count tokens that a request's client received."""
        self._known[request] = self._known.get(request, 0) + tokens

    def knows(self, request: str) -> bool:
        """Return True if a request of this name arrived."""
        return request in self._truths

    def fork(self, name: str, parent: str) -> None:
        """Make `name` a copy of a session."""
        self._truths[name], self._known[name] = self._truths[parent], self._known[parent]
        self._arrivals[name] = self._arrivals[parent]

    def truncate(self, request: str, length: int) -> None:
        """Remove a session's tokens from `length` on."""
        self._known[request] = min(self._known[request], length) or self._known[request]

    def resume(self, event: Resume, dropped: int = 0) -> None:
        """Start a session's next turn: what its client has seen, less `dropped` tokens at its end, then the prompt."""
        truth = self._truths[event.name].continued(self._known[event.name] - dropped, event.prompt)
        stop_tokens_of(event, truth)
        truth.reach(truth.prompt_length + event.max_new_tokens)
        self._hold(event.name, truth)

    def note(self, tag: int, writer: str) -> None:
        """Remember `writer` ("r0 wrote in step 3") as the origin of a tag that is of no prefix."""
        if tag not in self._holders:
            self._origins.setdefault(tag, writer)

    def of(self, request: str, depth: int) -> str:
        """Return the name of a request's state after `depth` tokens; "" for an unknown request."""
        truth = self._truths.get(request)
        return "" if truth is None else self.name(truth.tag(depth))

    def holder(self, state: str) -> tuple[int, str]:
        """Return (depth, the request that arrives first) of a state, given by its name; (-1, "") for no request's."""
        for request, truth in self._truths.items():
            for depth, tag in enumerate(truth.tags):
                if depth and self.name(tag) == state:
                    return depth, request
        return -1, ""

    def name(self, tag: int, unknown: str = "") -> str:
        """Return "state@16 of document a", "state@7 of r0", "what padding row 0 wrote in step 5", ...

        For a tag of no prefix, return `unknown` if it is given.
        """
        if holders := self._holders.get(tag):
            name, depth = holders[0]
            if not depth:
                return "the empty state"
            return f"state@{depth} of {name if len(holders) == 1 else self._document(name, depth)}"
        if tag == NO_INPUT:
            return "zeroed memory"
        if tag < 0:
            return "bytes of another dtype"
        origin = self._origins.get(tag)
        return unknown or (f"what {origin}" if origin else "bytes that were never written")

    def key(self, tag: int, lookahead: int) -> str:
        """Return the name of what a key with this tag stands for: the tag is that of `lookahead` tokens more."""
        if lookahead and (holders := self._holders.get(tag)):
            name, depth = holders[0]
            tag = self._truths[name].tag(max(depth - lookahead, 0))
        return self.name(tag)

    def span(self, position: int, tags: Sequence[int], unknown: str = "") -> str:
        """Return the name of attention slots of consecutive positions, the first at `position`."""
        last = position + len(tags) - 1
        where = f"KV of position {position}" if last == position else f"KV of positions {position} to {last}"
        for index, tag in enumerate(tags):
            if not any(depth == position + index + 1 for _, depth in self._holders.get(tag, ())):
                at = f"position {position + index}: " if len(tags) > 1 else ""
                return f"{where} ({at}{self._slot(tag, unknown)})"
        name = self.name(tags[-1]).partition(" of ")[2]
        return f"{where} of {name}"

    def _slot(self, tag: int, unknown: str) -> str:
        """Return the name of the content of one attention slot."""
        name, (_, depth) = self.name(tag, unknown), self._holders.get(tag, [("", 0)])[0]
        return f"KV of position {depth - 1} of {name.partition(' of ')[2]}" if depth else name

    def _document(self, name: str, depth: int) -> str:
        """Return the documents of a prompt down to `depth`, or the request if `depth` is beyond its prompt."""
        path = []
        for document, length in self._arrivals[name].prompt:
            path.append(document)
            depth -= length
            if depth <= 0:
                return f"document {'+'.join(path)}"
        return name
