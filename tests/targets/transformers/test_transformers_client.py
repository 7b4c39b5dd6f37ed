"""The client of the transformers target: columns, padding and rows, without transformers and torch."""

import msgspec
import pytest

from hybridfuzz.reference.batch import choice
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Resume, Step
from hybridfuzz.targets.transformers import operations as do
from hybridfuzz.targets.transformers.client import PAD, Client

PLAIN = Config(
    num_blocks=200,
    groups=(Group("mamba", 4), Group("attention", 1)),
    mamba_cache_mode="none",
    enable_prefix_caching=False,
    max_num_batched_tokens=64,
)
TWO = (Arrive("r0", (("a", 6),), 3), Arrive("r1", (("b", 2),), 3))


def client_with(*arrivals: Arrive, **changes: object) -> Client:
    client = Client(msgspec.structs.replace(PLAIN, **changes))
    for arrival in arrivals:
        client.arrive(arrival)
    return client


def feed(client: Client, event: Step = Step()) -> do.Feed:  # noqa: B008
    """Run one step; every operation is executed."""
    formed = client.form()
    fed, meaning, _, _ = client.plan(event, bool(formed))
    _, finished = client.advance(fed, meaning)
    client.settle(finished)
    return fed


def test_prompts_are_padded_on_the_left_to_the_same_length() -> None:
    fed = feed(client_with(*TWO))
    assert fed.mask == ((1,) * 6, (0, 0, 0, 0, 1, 1))
    assert fed.tokens[1] == (PAD,) * 4 + tuple(Truth((("b", 2),)).tokens)
    assert fed.positions[1] == (0, 0, 0, 0, 0, 1)


def test_a_chunk_may_hold_nothing_but_padding_of_a_row() -> None:
    client = client_with(*TWO)
    client.form()
    fed, meaning, planned, _ = client.plan(Step(chunks={"r0": 3}), fresh=True)
    assert [row.name for row in planned] == ["r0"]
    assert (meaning.count, meaning.samples) == ((3, 0), False)
    assert fed.start == 0


def test_columns_of_an_ended_row_alone_are_not_fed_one_by_one() -> None:
    """Otherwise nothing is scheduled for as many steps as the ended row was longer than the others."""
    client = client_with(Arrive("r0", (("a", 9),), 3), Arrive("r1", (("b", 2),), 3), max_num_batched_tokens=2)
    feed(client)
    client.abort("r0")
    _, _, planned, _ = client.plan(Step(), fresh=False)
    assert [(row.name, row.num_tokens) for row in planned] == [("r1", 1)]


@pytest.mark.parametrize(("chunks", "counts"), [("whole", [6, 1]), ("wide", [2, 2, 1, 1, 1]), ("any", [1] * 6)])
def test_the_option_chunks_limits_how_prompts_are_fed(chunks: str, counts: list[int]) -> None:
    client = client_with(*TWO, options={"chunks": chunks})
    fed = [len(feed(client, Step(chunks={"r0": 1})).tokens[0]) for _ in counts]
    assert fed == counts


@pytest.mark.parametrize(("client", "drafts"), [("generate", 1), ("loop", 3)])
def test_a_request_may_end_in_the_middle_of_right_drafts(client: str, drafts: int) -> None:
    """`generate` drafts no further than the end; a loop crops what it has no use for."""
    one = client_with(Arrive("r0", (("a", 4),), 3), num_speculative_tokens=3, options={"client": client})
    feed(one)
    one.form()
    fed, meaning, _, _ = one.plan(Step(drafts=3, right=3), fresh=False)
    assert (fed.drafts, meaning.right) == (drafts, drafts)
    [(_, tokens)], finished = one.advance(fed, meaning)
    assert (len(tokens), finished) == (2, ["r0"])
    assert one.columns == 6, "the last token is not in the cache"


def test_a_client_may_wait_for_a_larger_batch() -> None:
    client = client_with(TWO[0], options={"wait": "1"}, max_num_seqs=2)
    assert client.form() == []
    assert client.form() == [do.Begin(1)]
    client = client_with(*TWO, options={"wait": "1"}, max_num_seqs=2)
    assert client.form() == [do.Begin(2)], "it is full"


def test_rows_that_have_ended_stay_until_the_batch_ends() -> None:
    client = client_with(Arrive("r0", (("a", 3),), 1), Arrive("r1", (("b", 3),), 2))
    feed(client)
    assert [row.name for row in client.batch] == [None, "r1"]
    assert len(feed(client).tokens) == 2
    assert not client.batch


def test_cropped_columns_are_fed_again() -> None:
    client = client_with(*TWO)
    first = feed(client)
    assert client.crop(1) == [do.Crop(1)]
    client.cropped(1)
    again = feed(client)
    assert [row[0] for row in again.tokens] == [row[-1] for row in first.tokens]
    assert client.crop(3) == [], "r1 has computed no more than that"


def test_a_reordered_row_takes_over_tokens_and_padding_of_its_source() -> None:
    client = client_with(*TWO)
    feed(client)
    operations, after = client.reorder({"r0": "r1", "r1": "r1"})
    assert operations == [do.Reorder((1, 1))]
    assert [(row.name, row.pad) for row in after] == [("r0", 4), ("r1", 4)]
    first, second = (row.tokens(6, 7) for row in after)
    assert first != second, "two rows of one source go on with different tokens"


def test_a_session_keeps_its_cache_and_goes_on_from_it() -> None:
    client = client_with(Arrive("s", (("a", 4),), 2, session=True))
    feed(client)
    client.form()
    fed, meaning, _, _ = client.plan(Step(), fresh=False)
    _, finished = client.advance(fed, meaning)
    assert client.settle(finished) == [do.Store("s")]
    client.resume(Resume("s", (("b", 3),), 1))
    assert client.form() == [do.Load("s")]
    fed, _, [row], _ = client.plan(Step(), fresh=True)
    assert (row.kept, row.num_tokens, fed.start) == (5, 4, 5), "the last token sampled was never fed"


def test_an_emptied_cache_serves_the_next_batch_of_its_size() -> None:
    client = client_with(*TWO, Arrive("r2", (("c", 2),), 1), max_num_seqs=2)
    feed(client)
    assert client.empty() == [do.Reset()]
    assert client.form() == [do.Begin(2, reused=True)]
    assert [row.name for row in client.batch] == ["r0", "r1"]


@pytest.mark.parametrize(("kind", "drafted", "right"), [("generate", 3, 3), ("loop", 3, 3), ("generate", 3, 0)])
def test_an_answer_ends_with_its_stop_token_also_among_drafts(kind: str, drafted: int, right: int) -> None:
    """`generate` drafts as far as the most tokens, and keeps the cache up to the stop token, which is not fed."""
    arrival = Arrive("r0", (("a", 6),), 9, session=True, stop_at=3)
    client = client_with(arrival, num_speculative_tokens=3, options={"client": kind})
    feed(client)
    fed, meaning, _, _ = client.plan(Step(drafts=drafted, right=right), fresh=False)
    assert (fed.drafts, meaning.kept) == (drafted, min(right, 1))
    outputs, finished = client.advance(fed, meaning)
    assert [len(tokens) for _, tokens in outputs] == [min(right, 1) + 1]
    assert finished == (["r0"] if right else [])
    client.settle(finished)
    assert client.kept == ({"r0": 8} if right else {})


def test_a_row_whose_answer_has_ended_stays_and_samples_nothing_for_its_client() -> None:
    client = client_with(Arrive("r0", (("a", 6),), 9, stop_at=1), Arrive("r1", (("b", 2),), 3))
    feed(client)
    assert [row.name for row in client.batch] == [None, "r1"]
    fed, meaning, planned, _ = client.plan(Step(), fresh=False)
    assert len(fed.tokens) == 2
    assert [row.name for row in planned] == ["r1"]
    assert [name for name, _ in client.advance(fed, meaning)[0]] == ["r1"]


def test_a_copy_that_begins_with_the_stop_token_goes_on() -> None:
    [token] = Truth((("a", 6),)).stop_tokens(1)
    token = choice(token, 1)
    client = client_with(Arrive("r0", (("a", 6),), 4))
    feed(client)
    client.batch[0].stops = (token,)
    _, after = client.repeat(2)
    assert after[1].truth.tokens[6] == token
    assert (after[1].stops, after[1].total) == ((), 10)


def test_a_right_draft_is_not_accepted_where_a_stop_token_is_held_back() -> None:
    """The draft is the model's first choice, and the answer goes on with its next one."""
    request = Arrive("r0", (("a", 6),), 9, stop_at=3, min_tokens=5)
    client = client_with(request, num_speculative_tokens=3)
    for _ in range(2):
        feed(client)
    fed, meaning, _, _ = client.plan(Step(drafts=3, right=3), fresh=False)
    truth = client.batch[0].truth
    held = next(place for place in range(5) if truth.holds_back(6 + place))
    assert (held, meaning.right, meaning.kept) == (2, 0, 0), "its third token is held back"
    assert fed.tokens[0][-3] in truth.withheld
    outputs, _ = client.advance(fed, meaning)
    assert outputs == [("r0", (truth.tokens[8],))] and truth.tokens[8] not in truth.withheld
