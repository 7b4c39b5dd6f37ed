"""One oracle alone, on observations made by hand: for rules that no trace of the embedded target rests on."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from hybridfuzz.harness.judge.oracles.base import Context
from hybridfuzz.reference.block_partition import count_owners
from hybridfuzz.reference.layout import Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.request import Life
from hybridfuzz.targets.base.observe import Planned, PlannedRow, Table, View

Tables = Mapping[str, Table]


def view_of(
    layout: Layout, tables: Tables | None = None, published: Mapping[int, Key] | None = None, **fields: Any
) -> View:
    """A sound pool with these tables: every other block is free, and counted as often as it is held."""
    owners = count_owners((tables or {}).values(), layout)
    free = sorted(layout.ids - layout.unowned - owners.keys())
    references = [owners.get(block, 0) for block in range(layout.num_blocks)]
    defaults: dict[str, Any] = {"free": free, "references": references, "labels": None, "waiting": (), "running": ()}
    return View(published=published or {}, tables=tables or {}, **{**defaults, **fields})


def context_of(layout: Layout, read: Any = None, **requests: Life) -> Context:
    """Nothing has happened yet; these requests have arrived. `read` stands for the target's storage."""
    target: Any = SimpleNamespace(layout=layout, read=read)
    context = Context(target, view_of(layout))
    context.reference.lives |= requests
    context.step, context.event_index, context.event_kind = 0, 0, "step"
    return context


def life_of(name: str, tokens: int, new: int = 8, *, settled: int = 0, session: bool = False) -> Life:
    """A request for `tokens` tokens of document "a", so many of them computed."""
    life = Life(name, (("a", tokens),), new, session)
    life.settled = settled
    return life


def plan(context: Context, *rows: PlannedRow, step: int = 0, budget: int = 99, **view: Any) -> Planned:
    """A step is planned, as the lockstep tells the reference; `view` as in `view_of`."""
    now = view_of(context.layout, **view)
    given = [
        (row.name, row.kept or row.hit + row.external if row.admitted else None, row.hit if row.anew else None)
        for row in rows
    ]
    context.reference.plan(step, given, now.tables, now.references, now.published)
    context.reference.note_published(now.published, step)
    context.step = step
    return Planned(step, rows, (), budget, now)


def enter(context: Context, planned: Planned) -> None:
    """The device begins a planned step; its rows are those of the batch."""
    context.facts = context.reference.enter(planned.step)
    context.set_batch_rows([row.name for row in planned.rows])
