"""The client of a memory of sequences: which sequences requests have, and what happens to them."""

import random

import msgspec
import pytest

from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Resume, Step
from hybridfuzz.targets.sequences import operations as do
from hybridfuzz.targets.sequences.client import Client, sequences_of

STEP = Step()
CONFIG = Config(
    num_blocks=200,
    groups=(Group("mamba", 8), Group("attention", 1)),
    mamba_cache_mode="none",
    enable_prefix_caching=False,
    num_speculative_tokens=3,
    max_num_seqs=2,
    options={"logits": "last", "idle": "kept"},
)


def step(client: Client, event: Step = STEP) -> tuple[list[do.Operation], list[str]]:
    """Run a step; return its operations and who ends."""
    done, fed, _, _ = client.plan(event)
    if not fed:
        return done, []
    done = [*done, *client.batch(fed)]
    rejected, _, finished = client.advance(fed)
    return [*done, *rejected, *client.settle(finished)], finished


def batch_of(operations: list[do.Operation]) -> do.Decode:
    [batch] = [one for one in operations if isinstance(one, do.Decode)]
    return batch


def client_with(*names: str, planes: int = 0, tokens: int = 6, session: bool = False, **options: str) -> Client:
    config = msgspec.structs.replace(CONFIG, options=CONFIG.options | options)
    client = Client(config, planes)
    for name in names:
        client.arrive(Arrive(name, (("a", 3),), tokens, session=session))
    return client


def test_prompts_and_decodes_share_a_batch_and_each_request_has_a_sequence() -> None:
    client = client_with("r0")
    step(client)
    client.arrive(Arrive("r1", (("b", 5),), 2))
    rows = batch_of(step(client)[0]).rows
    assert [(row.sequence, row.start, len(row.tokens), row.wanted) for row in rows] == [(0, 3, 1, 1), (1, 0, 5, 1)]
    assert list(rows[1].tokens) == Truth((("b", 5),)).tokens[:5]


def test_a_budget_cuts_a_prompt_and_only_its_end_asks_for_logits() -> None:
    client = client_with("r0")
    first, second = (batch_of(step(client, Step(budget=2))[0]).rows[0] for _ in range(2))
    assert (first.start, len(first.tokens), first.wanted) == (0, 2, 0)
    assert (second.start, len(second.tokens), second.wanted) == (2, 1, 1)


@pytest.mark.parametrize("planes", [0, 3])
def test_rejected_drafts_are_taken_back_by_snapshots_or_by_a_checkpoint(planes: int) -> None:
    client = client_with("r0", planes=planes)
    step(client)
    done, _ = step(client, Step(drafts=2, right=1))
    row = batch_of(done).rows[0]
    assert (row.start, len(row.tokens), row.wanted) == (3, 3, 3)
    kept = tuple(client.running[0].truth.tokens[:5])
    if planes:
        assert done[-1] == do.RollBack(0, 5, kept)
    else:
        assert done[0] == do.Checkpoint(0)
        assert done[-1] == do.GoBack(0, 3, kept[3:])
    assert client.running[0].known == client.running[0].computed + 1 == 6


def test_accepted_drafts_need_nothing_to_be_taken_back() -> None:
    client = client_with("r0", planes=3)
    step(client)
    assert [type(one) for one in step(client, Step(drafts=1, right=1))[0]] == [do.Decode]


def test_a_request_never_drafts_past_its_last_token() -> None:
    client = client_with("r0", planes=3, tokens=3)
    step(client)
    row = batch_of(step(client, Step(drafts=3, right=3))[0]).rows[0]
    assert len(row.tokens) == 2, "the newest token and one draft: the third token is sampled"


def test_a_parked_session_keeps_its_sequence_or_saves_its_state() -> None:
    for idle, wanted in (("kept", []), ("saved", [do.Save("r0", 0), do.Remove(0)])):
        client = client_with("r0", tokens=1, session=True, idle=idle)
        done, finished = step(client)
        assert finished == ["r0"]
        assert [one for one in done if not isinstance(one, do.Decode)] == wanted
        client.resume(Resume("r0", (("c", 4),), 1))
        done, _ = step(client)
        assert (do.Restore("r0", 0) in done) == (idle == "saved")
        row = batch_of(done).rows[0]
        assert (row.start, len(row.tokens)) == (3, 5), "the sampled token, then the new prompt"


def test_the_session_that_was_parked_first_gives_up_its_sequence_when_none_is_free() -> None:
    client = client_with(*(f"s{index}" for index in range(sequences_of(CONFIG))), tokens=1, session=True)
    for _ in range(2):
        step(client)
    assert client.free == []
    client.arrive(Arrive("r0", (("b", 2),), 1))
    done, finished = step(client)
    assert done[:2] == [do.Save("s0", 0), do.Remove(0)]
    assert finished == ["r0"]
    assert client.fork("s9", "s0") == [do.CopySaved("s9", "s0")]


def test_beams_are_copied_before_their_old_sequences_are_removed() -> None:
    client = client_with("r0", "r1")
    step(client)
    first = tuple(client.running[0].truth.tokens)
    assert client.reorder({"r0": "r1", "r1": "r0"}) == [
        do.Copy(1, 2), do.Copy(0, 3), do.Remove(0), do.Remove(1),
    ]  # fmt: skip
    assert [one.sequence for one in client.running] == [2, 3]
    assert tuple(client.running[1].truth.tokens) == first


def test_one_request_that_is_left_keeps_its_sequence_and_all_others_go() -> None:
    config = msgspec.structs.replace(CONFIG, max_num_seqs=3)
    client = Client(config, 0)
    for name in ("r0", "r1", "r2"):
        client.arrive(Arrive(name, (("a", 3),), 4))
    step(client)
    assert client.select(["r1"]) == [do.Keep(1)]
    assert client.free == [0, 2, 3, 4, 5]


def test_a_reset_clears_the_memory_unless_a_session_holds_some() -> None:
    client = client_with("r0", "r1")
    step(client)
    assert client.reset() == [do.Clear()]
    assert [one.computed for one in client.waiting] == [0, 0]
    client = client_with("s0", tokens=1, session=True)
    step(client)
    client.arrive(Arrive("r0", (("b", 2),), 4))
    step(client)
    assert client.reset() == [do.Remove(1)]


def test_a_crop_takes_back_tokens_of_all_rows_or_of_none() -> None:
    client = client_with("r0", "r1", planes=3)
    step(client)
    kept = tuple(client.running[0].truth.tokens[:2])
    assert client.crop(1) == [do.RollBack(0, 2, kept), do.RollBack(1, 2, kept)]
    assert client.crop(2) == []


def test_no_sequence_is_lost_or_shared_by_random_events() -> None:
    chance = random.Random(3)
    for _ in range(60):
        client = client_with(idle=chance.choice(["kept", "saved"]), planes=chance.choice([0, 3]))
        for index in range(40):
            names = [one.name for one in (*client.running, *client.parked.values())] or ["r0"]
            match chance.randrange(9):
                case 0 | 1:
                    client.arrive(
                        Arrive(f"r{index}", (("a", chance.randrange(1, 9)),), 3, session=chance.random() < 0.5)
                    )
                case 2:
                    client.abort(chance.choice(names))
                case 3:
                    client.preempt(chance.choice(names))
                case 4 if client.parked:
                    parent = chance.choice([*client.parked])
                    client.fork(f"f{index}", parent)
                case 5 if client.parked:
                    client.resume(Resume(chance.choice([*client.parked]), (("b", 2),), 2))
                case 6:
                    client.repeat(2)
                case 7:
                    client.reorder({names[0]: names[-1]})
                case _:
                    step(client, Step(budget=chance.randrange(1, 12), drafts=2, right=chance.randrange(3)))
            held = [one.sequence for one in client.holders()]
            assert sorted([*held, *client.free]) == list(range(sequences_of(CONFIG)))
            assert not any(one.saved and one.sequence is not None for one in client.holders())


def test_a_copy_is_saved_at_once_where_copies_are_put_away() -> None:
    client = client_with("r0", session=True, idle="copies")
    step(client)
    assert client.repeat(2) == [do.Copy(0, 1), do.Save("r0.1", 1), do.Remove(1), do.Restore("r0.1", 1)]
    client.abort("r0.1")
    client.park("r0")
    assert client.fork("r1", "r0") == [do.Copy(0, 1), do.Save("r1", 1), do.Remove(1)]
    assert client.parked["r1"].saved
