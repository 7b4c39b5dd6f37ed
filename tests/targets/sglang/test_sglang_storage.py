"""The threads of HiCache's storage run one operation at a time, when their turn has come."""

import threading
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.sglang.compat.sizes import ROOM, sizes_of, storage_config
from hybridfuzz.targets.sglang.storage import EACH, THREADS, Fault, FileStorage, Thread, Turns, fail


def sizes(**options: str) -> Any:
    return sizes_of(
        Config(
            num_blocks=20,
            groups=(Group("mamba", 4), Group("attention", 2)),
            mamba_cache_mode="slots",
            options={"strategy": "extra_buffer", "hicache": "write_back", "storage": "file", **options},
        )
    )


def serve(turns: Turns, waiting: Any, name: str, log: list[str]) -> None:
    """Serve a queue as SGLang's threads do."""
    while not turns.is_set() or not waiting.empty():
        try:
            log.append(f"{name} {waiting.get(block=True, timeout=1)}")
        except Empty:
            continue


def controller(turns: Turns, log: list[str]) -> Any:
    """Return a controller whose threads log what they take."""
    made: Any = SimpleNamespace(enable_storage=True)
    for thread, queue in THREADS:
        waiting = turns.queues()()
        setattr(made, queue, waiting)
        setattr(made, thread, Thread(target=partial(serve, turns, waiting, thread, log)))
    return made


def storage(pace: str, log: list[str], waiting: int) -> FileStorage:
    made = FileStorage(sizes(storage_pace=pace))
    made.controller = controller(made.turns, log)
    for _, queue in THREADS:
        for item in range(waiting):
            getattr(made.controller, queue).put(item)
    return made


def test_a_turn_takes_one_operation() -> None:
    """Also of a loop that goes on until its queue is empty; the scheduler may still take all that is there."""
    turns, log = Turns(), list[str]()
    one = controller(turns, log)
    for item in range(3):
        one.prefetch_queue.put(item)
    turns.run(one.prefetch_thread)
    assert log == ["prefetch_thread 0"]
    assert [one.prefetch_queue.get() for _ in range(2)] == [1, 2] and one.prefetch_queue.empty()


@pytest.mark.parametrize(("pace", "idle", "operations"), [("all", False, 8), ("each", False, 4), ("one", False, 1)])
def test_the_pace_is_the_number_of_operations_of_a_turn(pace: str, idle: bool, operations: int) -> None:
    log: list[str] = []
    storage(pace, log, 2).tick(idle)
    assert len(log) == operations


def test_a_scheduler_without_work_waits_for_the_storage() -> None:
    log: list[str] = []
    storage("one", log, 2).tick(idle=True)
    assert len(log) == 8


def test_one_by_one_no_thread_starves() -> None:
    log: list[str] = []
    slow = storage("one", log, 9)
    for _ in range(8):
        slow.tick(idle=False)
    assert {line.split()[0] for line in log} == {thread for thread, _ in THREADS}


def test_an_exception_that_the_engine_only_logs_is_raised() -> None:
    """Without that, an adapter whose reads all fail looks like a storage without content."""
    turns = Turns()

    def operation() -> None:
        try:
            raise ValueError("no such page")
        except ValueError:
            turns.note("logged")

    with pytest.raises(ValueError, match="no such page"):
        turns.run(Thread(target=operation))


def test_a_fault_of_the_storage_is_not_raised() -> None:
    turns = Turns()

    def operation() -> None:
        try:
            raise Fault
        except Fault:
            turns.note("logged")

    turns.run(Thread(target=operation))
    assert not turns.raised


def test_a_faulty_storage_fails_in_each_way(tmp_path: Path) -> None:
    """A page of which only half was written stays so, and a read of it fails as SGLang's does."""
    page = tmp_path / "key.bin"

    def read(*_: object) -> str:
        if page.stat().st_size < 8:
            raise OSError("short read")
        return "page"

    backend = SimpleNamespace(get=read, set=lambda *_: True, file_path=str(tmp_path), _get_suffixed_key=lambda key: key)
    page.write_bytes(bytes(8))
    fail(backend, 0)
    answers: list[object] = []
    for _ in range(5 * 7):
        try:
            answers.append(backend.get("key", None))
        except Fault as error:
            answers.append(str(error))
            page.write_bytes(bytes(8))
    assert set(answers) == {"page", None, "the storage does not answer", "short read"}
    assert answers.count("the storage does not answer") == 5 and answers.count(None) == 6
    written = [backend.set("key") for _ in range(12)]
    assert written.count(False) == 12 // EACH["writes that fail"]


def test_storages_of_other_sizes_fail_at_other_operations(tmp_path: Path) -> None:
    def answers(first: int) -> list[bool]:
        backend = SimpleNamespace(get=None, set=lambda *_: True, file_path=str(tmp_path))
        fail(backend, first)
        return [backend.set("key") for _ in range(EACH["writes that fail"])]

    assert answers(0) != answers(1) and answers(0).count(False) == answers(1).count(False) == 1


@pytest.mark.parametrize(("counted", "wrong"), [(8, 0), (12, 4), (0, 8)])
def test_a_limit_of_room_that_counts_other_bytes_than_the_files_have_shows(
    tmp_path: Path, counted: int, wrong: int
) -> None:
    (tmp_path / "key.bin").write_bytes(bytes(8))
    made = FileStorage(sizes(storage_limits="room"))
    evictor = SimpleNamespace(enabled=True, _total_bytes=counted)
    made.controller = SimpleNamespace(storage_backend=SimpleNamespace(_evictor=evictor, file_path=str(tmp_path)))
    assert made.miscounted() == wrong
    evictor.enabled = False
    assert not made.miscounted()


def test_what_waits_in_the_queues_of_a_storage_that_is_detached_is_gone() -> None:
    """Its threads have ended: nothing runs, and no place of the host comes back from there."""
    log: list[str] = []
    made = storage("all", log, waiting=1)
    made.controller.enable_storage, made.controller.storage_backend = False, None
    made.tick(idle=True)
    made.after_switch()
    assert not log and not list(made.places()) and not made.miscounted()
    assert made.has_gaps, "the host may get pages that it never sees"


def test_a_storage_that_is_attached_again_fails_as_before(tmp_path: Path) -> None:
    made = FileStorage(sizes(storage_limits="faults"))
    backend = SimpleNamespace(get=None, set=lambda *_: True, file_path=str(tmp_path))
    made.controller = SimpleNamespace(enable_storage=True, storage_backend=backend)
    made.after_switch()
    assert [backend.set("key") for _ in range(EACH["writes that fail"])].count(False) == 1


def test_an_error_while_a_storage_is_switched_is_raised() -> None:
    made = storage("all", [], waiting=0)
    made.turns.raised.append(ValueError("no such folder"))
    with pytest.raises(ValueError, match="no such folder"):
        made.after_switch()


def test_a_storage_with_little_room_says_how_much_it_takes() -> None:
    """A page has a key and a value for each token and layer, a state its recurrent part and its window."""
    small = sizes(storage_limits="room")
    assert storage_config(small)["max_size"] == 8 * ROOM * (2 * 2 + 1 + small.window)
    assert "max_size" not in storage_config(sizes())


def test_nothing_runs_in_a_thread() -> None:
    before = threading.active_count()
    thread = Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert threading.active_count() == before and not thread.is_alive()
    assert isinstance(Turns().queues()(), Queue)
