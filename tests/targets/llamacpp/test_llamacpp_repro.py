"""Reproducers for llama.cpp: what a script asks of the library, without llama.cpp."""

import pytest

from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.repro import DEVIATION, Failure, Script
from hybridfuzz.targets.base.trace import Arrive, Config, Event, Group, Repeat, Select, Shift, Step, Trace, Truncate
from hybridfuzz.targets.llamacpp.c_program import c_program
from hybridfuzz.targets.llamacpp.context_sizes import Sizes
from hybridfuzz.targets.llamacpp.deployment import BUILD, deployment
from hybridfuzz.targets.llamacpp.repro import write_scripts

CONFIG = Config(
    num_blocks=200,
    groups=(Group("mamba", 8), Group("attention", 1)),
    mamba_cache_mode="none",
    enable_prefix_caching=False,
    num_speculative_tokens=1,
    options={"family": "lfm2", "planes": "1", "kv": "split", "ubatch": "64", "idle": "kept", "logits": "last"},
)
EVENTS: tuple[Event, ...] = (Arrive("r0", (("a", 3),), 4, session=True), Step(), Step(drafts=1), Repeat(2), Step())


def scripts(failure: Failure, config: Config = CONFIG) -> list[Script]:
    written = write_scripts("", Trace(config, failure.events), failure)
    for script in written:
        compile(script.text, "repro.py", "exec")
        assert "hybridfuzz." not in script.text
    return written


def test_a_script_has_the_calls_of_the_trace_first() -> None:
    [script] = scripts(Failure("S6", "logprobs", "wrong", EVENTS, 2, "r0.1"))
    assert script.promise == "wrong logits"
    calls = [line.strip() for line in script.scenario.splitlines()]
    assert "hybridfuzz" not in script.text
    draft = next(index for index, line in enumerate(calls) if "drafts: 1 of sequence 0" in line)
    assert calls[draft + 1 : draft + 3] == ["llama.roll_back(0, 4)", "llama.seq_cp(0, 1)"]
    marked = calls.index(DEVIATION)
    assert calls[marked - 1] == "llama.seq_cp(0, 1)" and calls[marked + 1].startswith("llama.decode(")


def test_wrong_positions_are_shown_by_positions() -> None:
    events = (*EVENTS[:2], Arrive("r1", (("a", 3),), 4), Step(), Select(("r1",)))
    [script] = scripts(Failure("M9", "sequences-at-a-wrong-position", "wrong", events, 2))
    assert script.promise == "wrong positions"
    assert script.scenario.endswith("llama.check_positions()")


def test_a_cut_that_llama_cpp_may_refuse_has_a_script_for_either_answer() -> None:
    events = (Arrive("r0", (("a", 3),), 2, session=True), Step(), Step(), Truncate("r0", 3))
    agrees, refuses = scripts(Failure("S6", "logprobs", "wrong", events, 2, "r0"))
    assert "llama.seq_rm(0, 3)" in agrees.scenario
    assert "llama.seq_rm(0, 3)" in refuses.scenario


def test_a_shift_is_a_call_of_the_sequence_and_nothing_without_tokens() -> None:
    events = (EVENTS[0], Shift("r0", 4), *EVENTS[1:3], Shift("r0", 4), Repeat(2), Shift("r0.1", 5))
    [script] = scripts(Failure("M9", "sequences-at-a-wrong-position", "wrong", events, 2))
    calls = [line.strip() for line in script.scenario.splitlines() if "seq_add" in line]
    assert calls == ["llama.seq_add(0, 4)", "llama.seq_add(1, 5)"]


def test_a_process_that_died_is_a_script_of_the_whole_trace() -> None:
    failure = Failure("CRASH", "SIGABRT", "the target died", (), 0, sentence="died")
    [script] = write_scripts("", Trace(CONFIG, EVENTS), failure)
    compile(script.text, "repro.py", "exec")
    assert script.promise == "the process died"
    assert DEVIATION not in script.text, "where it died is not known"
    assert "llama.seq_cp(0, 1)" in script.text
    assert "the process died of signal {-status}" in script.text


def test_a_failure_without_numbers_has_no_script() -> None:
    with pytest.raises(TargetError, match="a failure of M8"):
        write_scripts("", Trace(CONFIG, EVENTS), Failure("M8", "stall", "nothing runs", EVENTS, 2))


def test_a_c_program_sets_the_parameters_that_its_build_has() -> None:
    """A build without snapshots has no field for them."""
    sizes = Sizes(n_ctx=512, n_batch=4096, n_ubatch=16, n_seq_max=2, n_rs_seq=0, kv_unified=True)
    program = c_program(sizes, ["llama_memory_seq_keep(mem, 1);"])
    assert "@" not in program and "params.n_rs_seq" not in program
    assert "params.kv_unified = true;" in program and "    llama_memory_seq_keep(mem, 1);\n" in program
    assert "params.n_rs_seq = SNAPSHOTS;" in c_program(sizes._replace(n_rs_seq=3), [])


def test_a_report_names_the_build_of_llama_cpp_and_of_what_it_is_the_library() -> None:
    """It said "llama.cpp 2026.10.11549", which no tracker knows, and sizes of pools that llama.cpp has not."""
    told = deployment("", Trace(CONFIG, EVENTS), "2026.10.11549")
    assert told.release == "llama.cpp build 11549 (tag b11549), the library in xllamacpp 2026.10.11549"
    assert not told.has_sizes and any("n_seq_max = " in clause for clause in told.scaled)
    compile(BUILD, "build", "exec")
    assert deployment("", Trace(CONFIG, EVENTS), "").release == ""
