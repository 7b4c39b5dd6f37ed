"""Writes stand-alone reproducers for SGLang: what clients ask for, step by step, and what they receive.

The script needs SGLang and torch only. It inlines the engine of this adapter, not a second one. Wrong content of the
radix tree is shown by a client that sends the same tokens once more.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import NamedTuple

from msgspec import structs

from ...reference.layout import cdiv
from ...reference.tokens import Truth
from ..base.client_script import (
    ABORTED,
    HIDDEN,
    MORE_TOKENS,
    WAITING,
    WRONG_TOKENS,
    Conversations,
    End,
    Frame,
    Prompt,
    asked_again,
    asking,
    expects,
    leaking,
    marked,
    tokens_in,
)
from ..base.engine_tests import ENGINE, NOTE, RUN_SCENARIO, EngineTest, class_name, docstring, scenario
from ..base.inlined import Part, Sources
from ..base.protocol import TargetError
from ..base.repro import Failure, Script
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Step,
    SwitchStorage,
    Trace,
    Turn,
    fits,
    has_grammar,
    has_stop_string,
    least_tokens,
    logprob_start,
    stop_tokens_of,
)
from .compat.sizes import Sizes, sizes_of
from .deployment import CORES, PHRASES
from .kit_limits import HANG, LATE, LEAK, TOKENS, Case, options_of, refusal, shown

FRAME = Frame(
    "SGLang",
    "Needs SGLang and torch, no GPU and no model. A step is one turn of the scheduler's event loop; a state is a "
    "request's recurrent (Mamba, GDN) state, in a slot of the Mamba pool.",
    "sglang, torch",
    """SGLang's own scheduler, radix tree, pools and allocators run on a CPU, without processes and sockets.
# Stand-ins take the place of modules that are not installed, of the model's layers and of index kernels. A state, a key
# and a value are numbers that stand for "exactly these tokens, in this order", kept in SGLang's own tensors.
""",
    """\
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
os.environ |= {"SGLANG_NATIVE_MOVE_KV_CACHE": "1", "SGLANG_RUST_BUILD_MODE": "never", "PYTHONWARNINGS": "ignore"}
os.environ |= {"TORCH_COMPILE_DISABLE": "1"}
""",
    "install",
    PHRASES,
)
ENDS = {
    TOKENS: WRONG_TOKENS,
    HANG: WAITING,
    LATE: ABORTED,
    LEAK: leaking("when nothing runs and the radix tree is evicted"),
}
"""How a failure is shown -> the end of the script; a crash has none."""


def write_scripts(variant: str, trace: Trace, failure: Failure) -> list[Script]:
    """Return reproducers, the simplest first. Raises TargetError for a failure that no script can show."""
    if reason := refusal("script", Case(trace.config, options_of(trace.config), failure=failure)):
        raise TargetError(f"no stand-alone script can show {reason}")
    options = {**trace.config.options, **({"tree_core": variant} if variant in CORES else {})}
    config = structs.replace(trace.config, options=options)
    # Few failures need a captured graph, and older releases have no runner that a script could copy.
    configs = [structs.replace(config, graph_sizes=()), *([config] if config.graph_sizes else [])]
    return [_script(failure, *attempt) for one in configs for attempt in _attempts(failure, one)]


class _Again(NamedTuple):
    """Prompts that clients send once more, when all others have ended.

    evicts   when the radix tree has been evicted, so that hits are on the host
    at_once  while the others run: what the tree holds too early is right when they have ended
    """

    prompts: Sequence[Prompt] = ()
    evicts: bool = False
    at_once: bool = False

    def calls(self) -> Iterator[str]:
        """Yield the calls."""
        if self.evicts:
            yield "# What is hit from here on is on the host."
            yield "engine.evict_all()"
        yield from asked_again(self.prompts, "The radix tree")


def _attempts(failure: Failure, config: Config) -> Iterator[tuple[_Clients, _Again]]:
    """Yield the clients and what they send once more of each script."""
    clients, nothing, events = _Clients(config, failure.events), _Again(), failure.events
    is_wrong, is_hidden = shown(failure) == TOKENS, failure.oracle in HIDDEN
    places = (False, True) if is_wrong and sizes_of(config).hicache != "no" else (False,)
    if not is_hidden:
        yield clients, nothing
    if is_hidden and (tokens := clients.prefix(failure.holder, failure.depth)):
        yield from ((clients, _Again([tokens], evicts)) for evicts in places)
        yield clients, _Again([tokens], at_once=True)
    if is_wrong:
        everything = [clients.said(name)[:-1] for name in clients.truths]
        yield from ((clients, _Again(everything, evicts)) for evicts in places)
    turns = [event for event in events if isinstance(event, Turn) and event.name == failure.request]
    if is_wrong and not is_hidden and turns:
        # What was computed from a wrong state may lie behind the end of an answer.
        yield _Clients(_with_room(config, config.max_model_len), events, turns[-1]), nothing


class _Clients(Conversations):
    """What clients of a trace have and ask for.

    lines   the calls of all events
    """

    def __init__(self, config: Config, events: Sequence[Event], longer: Turn | None = None) -> None:
        """`longer`: a turn that asks for `MORE_TOKENS` more than in the trace."""
        super().__init__()
        self.config = config
        self.longer = longer
        self._earlier: dict[str, tuple[Truth, list[int | tuple[str, int]]]] = {}
        """What each client had before its last turn."""
        self.sessions = any(isinstance(event, Arrive) and event.session for event in events)
        self.grammars = any(isinstance(event, Turn) and has_grammar(event) for event in events)
        self.lines = [line for event in events for line in self._call(event)]

    def _call(self, event: Event) -> Iterator[str]:
        match event:
            case Arrive():
                if event.name not in self.truths and fits(self.config, event):
                    more = ", session=True" if event.session else ""
                    more += f", priority={event.priority}" if self.config.policy == "priority" else ""
                    call = f"engine.add({event.name!r}, {self._turn(event, Truth(event.prompt), 0)}{more})"
                    yield call + expects(self.truths[event.name])
            case Resume():
                before = self.truths.get(event.name)
                if before and fits(self.config, event, known := len(before.tokens)):
                    turn = self._turn(event, before.continued(known, event.prompt), known)
                    yield f"engine.resume({event.name!r}, {turn})"
            case Step():
                names = ("budget", "drafts", "right", "per_request", "pad_to")
                given = [f"{name}={getattr(event, name)!r}" for name in names if getattr(event, name)]
                yield f"engine.step({', '.join(given)})"
            case Preempt():
                yield f"engine.retract({event.name!r})"
            case Abort():
                if event.keeps_session and event.name in self._earlier:
                    self.truths[event.name], self._prompts[event.name] = self._earlier[event.name]
                yield f"engine.abort({event.name!r}{', keeps_session=True' * event.keeps_session})"
            case DummyRun():
                yield f"engine.idle({event.rows})"
            case ResetPrefixCache() if event.preempt_running:
                yield "engine.pause_and_flush()"
            case ResetPrefixCache():
                yield "engine.flush()"
            case Pause():
                yield "engine.pause()"
            case SwitchStorage():
                yield "engine.switch_storage()"
            case Evict():
                yield f"engine.evict({event.blocks})"
            case _:
                yield f"# {event.__struct_config__.tag}: nothing happens"

    def _turn(self, event: Turn, truth: Truth, first: int) -> str:
        """Return the arguments of a turn whose own tokens begin at position `first`."""
        self._earlier[event.name] = self.truths.get(event.name, Truth(())), self._prompts.get(event.name, [])
        prompt = self.begin(event.name, event.prompt, truth, first)
        most = event.max_new_tokens + MORE_TOKENS * (event is self.longer)
        stops = stop_tokens_of(event, truth)
        end = truth.prompt_length + truth.answer_length(most, stops, event.string_before > 0)
        truth.reach(end)
        del truth.tokens[end:], truth.tags[end + 1 :]
        more = f", stops={stops}" if stops else ""
        more += ", is_string=True" if stops and has_stop_string(event) else ""
        more += f", min_tokens={least_tokens(event)}" if least_tokens(event) else ""
        if event.structured:
            more += f", structured={event.structured}" + (f", closes={event.stop_at}" if event.stop_at else "")
            more += f", reasons_until={truth.reasons_until}" if truth.reasons_until else ""
        if isinstance(event, Arrive) and event.bad_grammar:
            more += f", bad_grammar={event.bad_grammar}"
        if isinstance(event, Arrive) and event.prompt_logprobs:
            more += f", scored_from={logprob_start(event)}"
        return f"{prompt}, new_tokens={most}{more}"


def _with_room(config: Config, longest: int) -> Config:
    """Return a configuration with room for a client that has `longest` tokens and asks for `MORE_TOKENS` more."""
    lacking = longest + MORE_TOKENS - config.max_model_len if longest else 0
    if lacking <= 0:
        return config
    page = min(group.block_size for group in config.groups if group.kind == "attention")
    blocks = config.num_blocks + cdiv(lacking, page)
    return structs.replace(config, max_model_len=config.max_model_len + lacking, num_blocks=blocks)


def _script(failure: Failure, clients: _Clients, again: _Again) -> Script:
    end = ENDS.get(shown(failure), End(failure.field.partition("-")[0], []))
    config = _with_room(clients.config, max(map(tokens_in, again.prompts), default=0))
    sizes = sizes_of(config)
    calls, last = marked(clients.lines), list(again.calls())
    if again.at_once:
        calls, last = [*calls, *last], []
    body = asking(list(_opening(sizes, config, clients)), calls, last, end)
    limits = {
        "num_blocks": ("pages", sizes.pages - config.num_blocks),
        "max_model_len": ("context", sizes.context - config.max_model_len),
        "max_num_seqs": ("rows", sizes.rows - config.max_num_seqs),
        "max_num_batched_tokens": ("max_tokens", 0),
    }
    return FRAME.script(failure, body, end, list(_parts(sizes, clients)), limits=limits)


TEST = '''\
"""{about}

Usage:
    python -m pytest {path} -v
"""

from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=30, suite="base-a-test-cpu")

import unittest
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


{scenario}


class {class_name}(unittest.TestCase):
    def test_{name}(self):
{run}

if __name__ == "__main__":
    unittest.main()
'''
WIDTH = 88
FOLDER = "test/registered/unit/mem_cache"


def write_test(trace: Trace, script: Script, name: str) -> EngineTest:
    """Return a test for SGLang's unit tests of its caches, whose folder is no package."""
    del trace
    path, engine = f"{FOLDER}/test_{name}.py", ENGINE.format(name)
    test = TEST.format(
        about=docstring(script, WIDTH - 3),
        path=path,
        scenario=scenario(script, engine, WIDTH),
        class_name=class_name(name),
        name=name,
        run=textwrap.indent(RUN_SCENARIO, "        "),
    )
    machinery = (
        f'# fmt: off\n"""The engine of test_{name}.py."""\n\nfrom __future__ import annotations\n\n{script.machinery}'
    )
    return EngineTest({path: test, f"{FOLDER}/{engine}.py": machinery}, [path])


STAND_INS, CLIENTS = "repro_engine/stand_ins.py", "repro_engine/clients.py"
_OWN = Sources(__package__)
INNER = frozenset({
    "../../reference/tokens.py", "../../reference/layout.py", "../base/client_turn.py", "compat/sizes.py", "serving.py",
})  # fmt: skip
"""Files of whose classes SGLang has no object."""
SOURCES = Sources(__package__, _OWN.names(STAND_INS) | _OWN.names(CLIENTS), INNER)


WORKERS = {"ngram": ("speculation.py", "Worker"), "eagle": ("eagle.py", "EagleWorker")}


def _parts(sizes: Sizes, clients: _Clients) -> Iterator[Part]:
    """Yield what is copied: what the script shares with the adapter, stand-ins for missing modules first."""
    more = [("sessions.py", "Sessions")] * clients.sessions + [("grammars.py", "Grammars")] * clients.grammars
    more += [WORKERS[sizes.drafter]] * bool(sizes.drafts)
    more += [("logit_shapes.py", "LogitShapes")] * (sizes.logits != "plain")
    more += [("graphs.py", "Graphs")] * bool(sizes.graphs) + [("host_tier.py", "HostTier")] * (sizes.hicache != "no")
    more += [("storage.py", "FileStorage")] * (sizes.storage != "no")
    inputs = ("compat/sizes.py", "Sizes")
    stubs, *shared = SOURCES.definitions(("stubs.py", FRAME.prepare), inputs, *SOURCES.uses(CLIENTS), *more)
    yield from (stubs, SOURCES.whole(STAND_INS), *shared, SOURCES.whole(CLIENTS))


def _opening(sizes: Sizes, config: Config, clients: _Clients) -> Iterator[str]:
    """Yield the lines that make the engine."""
    every = [(field.name, getattr(sizes, field.name), field.default) for field in fields(Sizes)]
    unused = {"host_ratio", "host_layout", "copies"} if sizes.hicache == "no" else set()
    unused |= (
        {"host_mode", "context_given", "prefetch", "storage_pace", "storage_limits", "storage_cleared"}
        if sizes.storage == "no"
        else set()
    )
    unused |= set() if sizes.sliding else {"window_ratio", "early_unlock"}
    given = [(name, value) for name, value, default in every if value != default and name not in unused]
    yield "engine = Engine("
    yield "    Sizes("
    notes = _field_notes(Sizes.__doc__ or "")
    for name, value in given:
        yield f"        {name}={value!r}," + (f"{NOTE}{notes[name]}" if name in notes else "")
    yield "    ),"
    yield f"    max_tokens={config.max_num_batched_tokens},"
    if clients.sessions:
        yield "    sessions=Sessions,"
    if clients.grammars:
        yield "    grammars=Grammars,"
    if sizes.logits != "plain":
        yield "    shapes=LogitShapes,"
    if sizes.drafts:
        yield f"    worker={WORKERS[sizes.drafter][1]},"
    if sizes.graphs:
        yield "    graphs=Graphs,"
    if sizes.hicache != "no":
        yield "    tier=partial(HostTier, storage=FileStorage)," if sizes.storage != "no" else "    tier=HostTier,"
    yield ")"


def _field_notes(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each field: a name, two spaces or more, and a text that ends at the next name."""
    found = re.findall(r"^    (\w+)  +(\S.*(?:\n {8,}\S.*)*)", docstring, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
