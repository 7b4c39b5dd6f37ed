"""Marks of a history as clauses of a sentence."""

from __future__ import annotations

from msgspec import Struct, field

from ..record.history import History, Mark, RequestStep
from ..units import listed, plural


class Status(Struct):
    """One block: the requests that hold it, the key that it is published under, the state that was last written."""

    holders: dict[str, None] = field(default_factory=dict)
    key: str = ""
    content: str = ""

    def describe(self) -> str:
        """Return a relative clause: ", which is free and is published as state@16 of document a"."""
        held = f"belongs to {listed([*self.holders])}" if self.holders else "is free"
        return f", which {held}" + (f" and is published as {self.key}" if self.key else "")


class Blocks:
    """The status of every block; `take` each mark in order."""

    def __init__(self, history: History) -> None:
        self._blocks: dict[int, Status] = {}
        self._kinds = [kind for kind, _ in history.groups]

    def of(self, block: int) -> Status:
        """Return the status of a block now."""
        return self._blocks.setdefault(block, Status())

    def take(self, mark: Mark) -> Status:
        """Apply a mark and return the status of its block after it."""
        status = self.of(mark.block)
        match mark.what:
            case "alloc" | "hit":
                status.holders[mark.who] = None
            case "release":
                status.holders.pop(mark.who, None)
            case "hash":
                status.key = mark.content
            case "drop":
                status.key = ""
            case "write" | "dead write" if self._kinds[mark.group] == "mamba":
                status.content = mark.content
        return status


def step_clause(turn: RequestStep) -> str:
    """Return what a request computed in a step, or would have."""
    if not turn.num_tokens:
        return _without_tokens(turn)
    last = turn.start + turn.num_tokens - 1
    where = f"position {turn.start}" if last == turn.start else f"positions {turn.start} to {last}"
    done = turn.accepted >= 0
    drafts = (
        f", the last {turn.drafts} of them drafts" if turn.drafts > 1 else ", the last a draft" if turn.drafts else ""
    )
    if turn.drafts and done:
        drafts += f", {max(turn.accepted - 1, 0)} accepted"
    if not turn.admitted:
        return f"{turn.request} {'computes' if done else 'is scheduled to compute'} {where}{drafts}"
    hit = f" with a hit of {plural(turn.hit, 'token')}" if turn.hit else ""
    if turn.kept:
        hit = f" with {plural(turn.kept, 'token')} kept from its session's last turn"
    return f"{turn.request} is admitted{hit}{' and computes' if done else ' to compute'} {where}{drafts}"


def _without_tokens(turn: RequestStep) -> str:
    """Return the clause of a request that a step admits without computing a token, as for a load."""
    if not turn.admitted:
        return f"{turn.request} computes nothing"
    hit = f" with a hit of {plural(turn.hit, 'token')}" if turn.hit else ""
    load = f" and waits for a load of {plural(turn.external, 'token')}" if turn.external else ""
    return f"{turn.request} is admitted{hit}{load}; nothing of it is computed"


def clause(mark: Mark, status: Status, history: History) -> str:
    """Return a mark in words, "" if it adds nothing. `status` is the block's status after the mark."""
    block, who = f"{'block' if history.num_blocks else 'cache'} {mark.block}", mark.who
    kind = history.groups[mark.group][0] if mark.group >= 0 else ""
    column = f"column {mark.column} of {kind} group {mark.group}"
    known = who in status.holders or mark.block == history.null_block or not history.num_blocks
    foreign = "" if known else status.describe()
    content, whose = _own(mark.content, who), f"{who}'s" if who else "the"
    differs = status.key and status.content and status.content != status.key
    holds = f" (it holds {status.content})" if differs else ""
    match mark.what:
        case "alloc":
            return f"{who} gets {block} ({column})"
        case "hit":
            return f"{who} resumes from {block}" + (f", {status.key}" if status.key else "") + f" ({column})"
        case "release":
            return f"{who} releases {block}"
        case "free":
            return f"{block} is free" + (f", still published as {status.key}{holds}" if status.key else "")
        case "hash":
            return f"{block} is published as {mark.content}{holds}"
        case "drop":
            return f"{block} loses its key ({mark.content})"
        case "zero":
            return f"{block} is zeroed"
        case "write" | "dead write":
            return f"{who} writes {content} into {block}{foreign}"
        case "read":
            return f"{who} reads {content} from {block} (column {mark.column}){foreign}"
        case "load":
            return f"{whose} {mark.content} is loaded into {block} from outside the pool"
        case "copy":
            return f"{whose} {mark.content} is copied from block {mark.other} to {block}"
        case _:
            return ""


def _own(content: str, who: str) -> str:
    if content.endswith(f" of {who}"):
        return f"its own {content.removesuffix(f' of {who}')}"
    return f"the {content}" if content.startswith(("window", "KV")) else content
