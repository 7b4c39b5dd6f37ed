"""S2, S3 and S1 on hand-made observations: reads before the first token, through a window, and by dead rows."""

from collections.abc import Sequence

import pytest
from handmade import context_of, life_of, plan, view_of

from hybridfuzz.harness.judge.oracles.content import Checkpoint, Continuation
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.request import Life
from hybridfuzz.reference.tokens import EMPTY
from hybridfuzz.targets.base.observe import Content, Forward, PlannedRow, SlotContent, SlotRead, StateContent, StateRead

WIDTH = 4
ZEROS = (0,) * (WIDTH - 1)
STATES = Layout((Group("mamba", 8),), 9, WIDTH, "align", True)
ZEROED = Layout((Group("mamba", 8),), 9, WIDTH, "slots", True, zeroed_start=True)
MAMBA, ATTENTION = Group("mamba", 8, 2), Group("attention", 8, 2)
WINDOWED = Layout((Group("attention", 4, window=6),), 9, WIDTH, "align", True)


def field_of(layout: Layout, life: Life | None, read: StateRead | SlotRead) -> str:
    """Return the oracle's verdict on one read of a row; "" if none."""
    context = context_of(layout)
    context.lives = [life]
    judge = Continuation().on_state_read if isinstance(read, StateRead) else Continuation().on_slot_read
    violation = judge(context, read)  # type: ignore[arg-type]
    return violation.field if violation else ""


@pytest.mark.parametrize(
    ("temporal", "window", "silent"),
    [
        (0, ZEROS, True),
        (0, None, True),
        (None, ZEROS, True),
        (7, ZEROS, False),
        (0, (0, 0, 7), False),
        (0, (7, 0, 0), False),
        (None, (0, 7, 0), False),
        (EMPTY, None, False),
    ],
)
def test_a_first_step_may_read_a_zeroed_state_where_that_means_none(
    temporal: int | None, window: tuple[int, ...] | None, silent: bool
) -> None:
    """Nothing but zeros, and only on targets that say so: elsewhere any state before the first token is a phantom."""
    read = StateRead(0, 0, 0, 0, 3, temporal, window)
    assert field_of(ZEROED, life_of("r0", 9), read) == ("" if silent else "phantom-state")
    assert field_of(STATES, life_of("r0", 9), read) == "phantom-state"


@pytest.mark.parametrize("layout", [ZEROED, STATES])
def test_zeros_are_no_state_of_a_request_that_has_one(layout: Layout) -> None:
    life = life_of("r0", 9, settled=5)
    assert field_of(layout, life, StateRead(0, 0, 0, 0, 3, 0, ZEROS)) == "temporal"
    assert field_of(layout, life, StateRead(0, 0, 0, 0, 3, None, ZEROS)) == "conv"
    right = StateRead(0, 0, 0, 0, 3, life.truth.tag(5), life.truth.window(5, WIDTH))
    assert field_of(layout, life, right) == ""


def test_a_window_of_too_few_inputs_is_wrong() -> None:
    life = life_of("r0", 9, settled=5)
    context = context_of(STATES)
    context.lives = [life]
    short = StateRead(0, 0, 0, 0, 3, None, life.truth.window(5, WIDTH)[:-1])
    violation = Continuation().on_state_read(context, short)
    assert violation is not None
    assert "a window whose input 2 is missing" in violation.message


@pytest.mark.parametrize(("settled", "first_column", "field"), [
    (9, 0, ""), (9, 1, ""), (9, 2, "slot"), (10, 1, ""), (12, 1, ""), (13, 2, ""), (13, 3, "slot"),
])  # fmt: skip
def test_a_window_leaves_out_only_what_is_never_attended_to(settled: int, first_column: int, field: str) -> None:
    """With a window of six the token after nine others attends to positions 4 and on: column 1 may not be left out."""
    life = life_of("r0", 20, settled=settled)
    tags: Sequence[int] = life.truth.slots(first_column * 4, settled)
    assert field_of(WINDOWED, life, SlotRead(0, 0, 0, (1, 2, 3, 4), tags, first_column)) == field


@pytest.mark.parametrize("read", [StateRead(0, 0, 0, 0, 3, 7, ZEROS), SlotRead(0, 0, 0, (1,), (7,))])
def test_reads_of_a_padding_row_are_not_checked(read: StateRead | SlotRead) -> None:
    assert field_of(STATES, None, read) == ""


@pytest.mark.parametrize(
    ("tags", "blocks", "says"),
    [
        (4, (1, 2), "position 4 in block 2 and reads nothing"),
        (4, (1,), "position 4 in block -1 and reads nothing"),
        (0, (1, 2), "position 0 in block 1 and reads nothing"),
    ],
)
def test_a_context_that_is_too_short_is_wrong(tags: int, blocks: Sequence[int], says: str) -> None:
    """Attention that leaves out the end of its context reads nothing there, even if its table has the blocks."""
    life = life_of("r0", 20, settled=6)
    context = context_of(WINDOWED)
    context.lives = [life]
    violation = Continuation().on_slot_read(context, SlotRead(0, 0, 0, blocks, life.truth.slots(0, tags)))
    assert violation is not None
    assert says in violation.message


@pytest.mark.parametrize("groups", [(ATTENTION, MAMBA), (MAMBA, ATTENTION), (MAMBA, MAMBA)])
def test_every_state_that_exists_is_read_in_every_forward(groups: tuple[Group, ...]) -> None:
    """Whatever the order of groups; rows with nothing computed, and padding rows, need none."""
    layout = Layout(groups, 9, WIDTH, "align", True)
    context, oracle = context_of(layout), Continuation()
    life = life_of("r0", 9, settled=5)
    context.lives = [None, life_of("r1", 9), life]
    forward = Forward(0, (), ())
    pages = [(index, layer) for index, group in enumerate(groups) if group.kind == "mamba" for layer in (0, 1)]
    window = life.truth.window(5, WIDTH)
    reads = [StateRead(2, index, layer, 0, 3, life.truth.tag(5), None) for index, layer in pages]
    reads += [StateRead(2, index, layer, 0, 3, None, window) for index, layer in pages]
    slots = [index for index, group in enumerate(groups) if group.kind == "attention"]
    accesses: list[StateRead | SlotRead] = [*reads]
    accesses += [SlotRead(2, index, layer, (3,), life.truth.slots(0, 5)) for index in slots for layer in (0, 1)]

    def check(access: StateRead | SlotRead) -> None:
        seen = oracle.on_state_read if isinstance(access, StateRead) else oracle.on_slot_read
        assert seen(context, access) is None  # type: ignore[arg-type]

    for access in accesses:
        check(access)
    assert oracle.on_forward(context, forward) is None
    for left_out in accesses:
        for access in accesses:
            if access is not left_out:
                check(access)
        violation = oracle.on_forward(context, forward)
        assert violation is not None
        field = "slots-ignored"
        if isinstance(left_out, StateRead):
            field = "window-ignored" if left_out.temporal is None else "state-ignored"
        assert (violation.field, violation.request, violation.group) == (field, "r0", left_out.group)


@pytest.mark.parametrize(
    ("group", "read"),
    [
        (Group("mamba", 8, conv=False), StateRead(0, 0, 0, 0, 3, life_of("r0", 9).truth.tag(5), None)),
        (Group("mamba", 8, recurrent=False), StateRead(0, 0, 0, 0, 3, None, life_of("r0", 9).truth.window(5, WIDTH))),
    ],
)
def test_layers_with_one_part_read_that_part(group: Group, read: StateRead) -> None:
    """A group without a recurrent state, or without a convolution, needs no read of it; of the other part it does."""
    context, oracle = context_of(Layout((group,), 9, WIDTH, "none", False)), Continuation()
    context.lives = [life_of("r0", 9, settled=5)]
    assert oracle.on_state_read(context, read) is None
    assert oracle.on_forward(context, Forward(0, (), ())) is None
    assert oracle.on_forward(context, Forward(0, (), ())) is not None


def test_what_was_found_instead_is_named() -> None:
    """By whose state it is: a wrong window by its first wrong input, a wrong slot by its content."""
    mine, other = life_of("r0", 20, settled=6), Life("r1", (("b", 20),), 1)
    context = context_of(WINDOWED, r0=mine, r1=other)
    context.lives = [mine]
    window = (*mine.truth.window(6, WIDTH)[:-1], other.truth.tag(6))
    violation = Continuation().on_state_read(context, StateRead(0, 0, 0, 0, 3, None, window))
    assert violation is not None
    assert "a window whose input 2 is the input of position 5 of r1" in violation.message
    tags = [*mine.truth.slots(0, 5), other.truth.tag(6)]
    violation = Continuation().on_slot_read(context, SlotRead(0, 0, 0, (1, 2), tags))
    assert violation is not None
    assert "position 5 in block 2 and reads the KV of position 5 of r1" in violation.message


TRUTH = life_of("r0", 20).truth
WRONG_STATE, WRONG_PAGE = StateContent(7, ZEROS), SlotContent((7,) * 8)
STATE = StateContent(TRUTH.tag(8), TRUTH.window(8, WIDTH))
PAGE = SlotContent(TRUTH.slots(0, 8))
KEYS = {3: Key(0, 8, TRUTH.tag(8)), 4: Key(1, 8, TRUTH.tag(8))}
BOTH = Layout((Group("mamba", 8), Group("attention", 8)), 9, WIDTH, "align", True)


def test_a_checkpoint_is_due_when_the_steps_before_it_have_run() -> None:
    """Whatever is in flight behind them: until then nothing is judged, from then on everything."""
    context = context_of(BOTH, lambda group, layer, block: (WRONG_STATE, WRONG_PAGE)[group], r0=life_of("r0", 20))
    row = PlannedRow("r0", 0, 1, 0, False, 0)
    first = plan(context, row, published=KEYS)
    plan(context, row, step=1, published=KEYS)
    assert Checkpoint().on_view(context, first.view) is None
    context.reference.executed(0)
    for _ in ("while step 1 is in flight", "at rest"):
        violation = Checkpoint().on_view(context, first.view)
        assert violation is not None
        assert (violation.oracle, violation.field, violation.block) == ("S1", "temporal", 3)
        context.reference.executed(1)


@pytest.mark.parametrize(("depth", "content", "field"), [
    (8, PAGE, ""), (8, SlotContent((*TRUTH.slots(0, 7), 7)), "slot"), (5, PAGE, ""),
    (5, SlotContent((*TRUTH.slots(0, 5), 7, 7, 7)), ""), (5, SlotContent((*TRUTH.slots(0, 4), 7, 7, 7, 7)), "slot"),
    (8, STATE, "kind"), (5, STATE, "kind"), (13, SlotContent(TRUTH.slots(8, 16)), ""), (13, PAGE, "slot"),
])  # fmt: skip
def test_a_page_holds_its_prefix_up_to_the_depth_of_its_key(depth: int, content: Content, field: str) -> None:
    """A partial key names only the slots below its depth."""
    context = context_of(BOTH, lambda group, layer, block: content, r0=life_of("r0", 20))
    planned = plan(context, published={4: Key(1, depth, TRUTH.tag(depth))})
    oracle = Checkpoint()
    violation = oracle.on_view(context, planned.view)
    assert (violation.field if violation else "") == field
    assert oracle.exercised["S1"] == (not field)


def test_a_page_of_another_kind_is_named_so() -> None:
    for name, content in ((KEYS[3], PAGE), (KEYS[4], STATE)):
        context = context_of(BOTH, lambda group, layer, block, page=content: page, r0=life_of("r0", 20))
        violation = Checkpoint().on_view(context, plan(context, published={3: name}).view)
        assert violation is not None
        assert (violation.field, violation.group) == ("kind", name.group)


def test_every_layer_of_every_known_prefix_is_judged() -> None:
    """A key of a prefix that no request had (M2's business) is skipped, and those after it are checked."""
    layout = Layout((Group("mamba", 8, 2), Group("attention", 8)), 9, WIDTH, "align", True)
    for wrong in ((0, 0), (0, 1), (1, 0)):
        right = {(0, 0): STATE, (0, 1): STATE, (1, 0): PAGE}
        pages = {**right, wrong: (WRONG_STATE, WRONG_PAGE)[wrong[0]]}
        context = context_of(layout, lambda group, layer, block, of=pages: of[group, layer], r0=life_of("r0", 20))
        view = plan(context, published={2: Key(0, 8, 7), **KEYS}).view
        violation = Checkpoint().on_view(context, view)
        assert violation is not None
        assert violation.group == wrong[0]


def test_a_published_block_that_was_never_written_is_s5() -> None:
    """Handed out and published without a write: S5. What is not in the ledger (loaded, say) is just wrong: S1."""
    for handed_out, oracle in ((True, "S5"), (False, "S1")):
        context = context_of(BOTH, lambda group, layer, block: WRONG_STATE, r0=life_of("r0", 20))
        if handed_out:
            context.reference.ledger.hand_out(3, "r0", 0, 0)
        violation = Checkpoint().on_view(context, plan(context, published={3: KEYS[3]}).view)
        assert violation is not None
        assert (violation.oracle, violation.field) == (oracle, "never-written" if handed_out else "temporal")


@pytest.mark.parametrize(("key", "pages", "field"), [
    (KEYS[3], (STATE, STATE), ""), (KEYS[3], (STATE, WRONG_STATE), "stored"), (KEYS[3], (STATE,), "stored"),
    (KEYS[4], (PAGE, PAGE), ""), (KEYS[4], (PAGE, STATE), "stored"), (Key(0, 8, 7), (WRONG_STATE, STATE), ""),
])  # fmt: skip
def test_what_is_stored_outside_the_pool_is_judged_once(key: Key, pages: Sequence[Content], field: str) -> None:
    """All layers, whether it was ever published in the pool or not; again when it is stored again."""
    layout = Layout((Group("mamba", 8, 2), Group("attention", 8, 2)), 9, WIDTH, "align", True)
    context, oracle = context_of(layout, r0=life_of("r0", 20)), Checkpoint()
    right = {Key(0, 16, TRUTH.tag(16)): (StateContent(TRUTH.tag(16), TRUTH.window(16, WIDTH)),) * 2}
    assert oracle.on_view(context, view_of(layout, stored=right)) is None
    violation = oracle.on_view(context, view_of(layout, stored={**right, key: pages}))
    assert (violation.field if violation else "") == field
    known = key.tag != 7
    assert oracle.exercised["S1"] == 1 + known
    assert oracle.on_view(context, view_of(layout, stored={**right, key: (WRONG_PAGE,)})) is None or known
    assert oracle.exercised["S1"] == 1 + 2 * known


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(("key", "page", "field"), [(KEYS[3], STATE, ""), (KEYS[3], WRONG_STATE, "sent")])
def test_what_was_sent_is_judged_even_if_its_request_is_over(
    key: Key, page: Content, field: str, is_over: bool
) -> None:
    layout = Layout((Group("mamba", 8), Group("attention", 8)), 9, WIDTH, "align", True)
    context, oracle = context_of(layout, r0=life_of("r0", 20)), Checkpoint()
    if is_over:
        context.reference.end("r0")
    violation = oracle.on_view(context, view_of(layout, sent={key: (page,)}))
    assert (violation.field if violation else "") == field
    assert oracle.exercised["S1"] == 1


SHIFTED = Layout((Group("attention", 4, draft=True, shift=1),), 9, WIDTH, "align", True)


@pytest.mark.parametrize(("last", "field"), [(6, ""), (5, "slot"), (7, "slot")])
def test_a_slot_of_an_eagle_drafter_depends_on_the_next_token(last: int, field: str) -> None:
    """Five tokens computed: the slot of position 4 has the tag after six."""
    life = life_of("r0", 9, settled=5)
    tags = [life.truth.tag(depth) for depth in (2, 3, 4, 5, last)]
    assert field_of(SHIFTED, life, SlotRead(0, 0, 0, (3, 4), tags)) == field


@pytest.mark.parametrize(("tags", "silent"), [((2, 3, 4, 5), True), ((2, 3, 4, 9), True), ((1, 2, 3, 4), False)])
def test_the_last_slot_of_a_published_block_of_the_drafter_is_its_writers(tags: tuple[int, ...], silent: bool) -> None:
    """Another request may go on with another token, which is why EAGLE drops the last matched block."""
    life = life_of("r0", 12, settled=8)
    content = SlotContent([life.truth.tag(depth) for depth in tags])
    context = context_of(SHIFTED, lambda *_: content, r0=life)
    key = Key(0, 4, life.truth.tag(4))
    view = view_of(SHIFTED, {"r0": ((3, 4),)}, {3: key})
    context.reference.note_published(view.published, 0)
    assert (Checkpoint().on_view(context, view) is None) == silent


@pytest.mark.parametrize(("owner", "tag", "field"), [
    ("r0", 5, ""), ("r0", 9, "slot"), ("r1", 9, ""),
])  # fmt: skip
def test_the_last_slot_of_a_block_that_another_request_wrote_is_not_checked(owner: str, tag: int, field: str) -> None:
    """Of two blocks with one key a hit may use the one whose request went on with another token."""
    life = life_of("r0", 9, settled=5)
    context = context_of(SHIFTED, r0=life)
    context.lives = [life]
    context.reference.ledger.hand_out(3, owner, 0, 0)
    context.reference.ledger.hand_out(4, "r0", 0, 0)
    tags = [life.truth.tag(depth) for depth in (2, 3, 4, tag, 6)]
    violation = Continuation().on_slot_read(context, SlotRead(0, 0, 0, (3, 4), tags))
    assert (violation.field if violation else "") == field


@pytest.mark.parametrize(("hit", "loaded", "field"), [(4, 0, ""), (0, 4, ""), (0, 0, "slot")])
def test_nor_is_that_of_a_block_which_was_hit_or_loaded(hit: int, loaded: int, field: str) -> None:
    """A preempted session hits its own block, whose last slot depends on the token that the next turn dropped. (Seen on
    vLLM's MTP speculator.) What another request has stored is loaded into a block of the request's own. A block that
    was neither is the request's own of this turn."""
    life = life_of("r0", 9, settled=5, session=True)
    context, oracle = context_of(SHIFTED, r0=life), Continuation()
    context.lives = [life]
    row = PlannedRow("r0", hit + loaded, 5 - hit - loaded, 0, True, hit, external=loaded)
    planned = plan(context, row, tables={"r0": ((3, 4),)})
    assert oracle.on_planned(context, planned) is None
    for block in (3, 4):
        context.reference.ledger.hand_out(block, "r0", 0, 0)
    tags = [life.truth.tag(depth) for depth in (2, 3, 4, 9, 6)]
    violation = oracle.on_slot_read(context, SlotRead(0, 0, 0, (3, 4), tags))
    assert (violation.field if violation else "") == field


@pytest.mark.parametrize(("tags", "silent"), [((2, 3, 4, 9), True), ((2, 3, 9, 5), False)])
def test_what_is_stored_of_a_drafter_may_end_in_its_writers_token(tags: tuple[int, ...], silent: bool) -> None:
    life = life_of("r0", 12, settled=8)
    content = SlotContent([life.truth.tag(depth) for depth in tags])
    context = context_of(SHIFTED, lambda *_: content, r0=life)
    view = view_of(SHIFTED, {"r0": ((3, 4),)}, stored={Key(0, 4, life.truth.tag(4)): [content]})
    assert (Checkpoint().on_view(context, view) is None) == silent
