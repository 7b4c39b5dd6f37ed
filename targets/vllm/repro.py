"""Writes stand-alone reproducers for vLLM: what clients ask for, step by step, and what they receive.

The script needs vLLM and torch only. It inlines the engine of this adapter, not a second one. Wrong content of the
prefix cache is shown by a client that sends the same tokens once more; what no client of the script notices, by the
memory that is wrong.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from msgspec import structs

from ...reference.layout import cdiv
from ...reference.tokens import Truth
from ..base.client_script import (
    ABORTED,
    HIDDEN,
    MORE_TOKENS,
    UNENDED,
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
from ..base.engine_tests import ENGINE, RUN_SCENARIO, EngineTest, Python, docstring, scenario
from ..base.inlined import Part, Sources
from ..base.protocol import TargetError
from ..base.repro import Failure, Script, python_format
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    ExternalLoad,
    Group,
    Preempt,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Step,
    Trace,
    Turn,
    fits,
    has_grammar,
    least_tokens,
    stop_tokens_of,
    tag_of,
)
from .deployment import PHRASES
from .engine_test_tree import LICENSE, WIDTH, engine_test
from .kit_limits import CRASH, ENDLESS, HANG, HIT, LATE, LEAK, ROOM, TOKENS, Case, refusal, shown
from .options import (
    DROPPED_TOKENS,
    PLAIN,
    drafts_on_device,
    has_files,
    has_graphs,
    has_peer,
    is_v2,
    offloads,
    offloads_simply,
    options_of,
    reports_all,
    varies_sampling,
)

PLAIN_GROUP = Group("mamba", 1)
FRAME = Frame(
    "vLLM",
    "Needs vLLM and torch, no GPU and no model. A step is one `Scheduler.schedule` and `execute_model`; a state is a "
    "request's recurrent (Mamba, GDN) state, which takes a KV cache block.",
    "vllm, torch",
    """vLLM's own scheduler, cache manager and model runner run on a CPU, without processes and sockets.
# Stand-ins take the place of the model's layers and of the drafter. A state, a key and a value are numbers that stand
# for "exactly these tokens, in this order", kept in vLLM's own tensors.
""",
    """\
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
""",
    "prepare_import",
    PHRASES,
)
NO_ROOM = End(
    "AssertionError: requests are admitted without room for them",
    [
        'print("(request, blocks that its admission checks for, blocks that it takes):", engine.without_room)',
        'assert not engine.without_room, f"requests are admitted without room for them: {engine.without_room}"',
    ],
)


def write_scripts(variant: str, trace: Trace, failure: Failure) -> list[Script]:
    """Return reproducers, those first that show what clients receive. Raises TargetError for a failure that no script
    can show."""
    del variant
    if reason := refusal("script", Case(trace.config, options_of(trace.config), failure=failure)):
        raise TargetError(f"no stand-alone script can show {reason}")
    return [_script(failure, *one) for one in _attempts(failure, trace.config)]


def _attempts(failure: Failure, config: Config) -> Iterator[tuple[_Clients, _Again, End]]:
    """Yield the clients, what they send once more behind the trace, and the end of each script."""
    how, clients, nothing = shown(failure), _Clients(config, failure.events), _Again()
    if how == CRASH:
        yield clients, nothing, End(failure.field.partition("-")[0], [])
    elif how == ENDLESS:  # `finish` takes the plain steps behind the trace
        last = max((index for index, event in enumerate(failure.events, 1) if event != Step()), default=0)
        yield _Clients(config, failure.events[:last]), nothing, UNENDED
    elif how != TOKENS:
        ends = {
            HANG: WAITING,
            LATE: ABORTED,
            LEAK: leaking("when nothing runs"),
            HIT: _short_hit(failure),
            ROOM: NO_ROOM,
        }
        yield clients, nothing, ends[how]
    else:
        if failure.oracle not in HIDDEN:
            yield clients, nothing, WRONG_TOKENS
            # What was computed from a wrong state may lie behind the end of an answer.
            longer = _Clients(_with_room(config, config.max_model_len), failure.events, failure.request)
            yield longer, nothing, WRONG_TOKENS
        if failure.depth and (tokens := clients.prefix(failure.holder, failure.depth)):
            yield clients, _Again([tokens]), WRONG_TOKENS
        everything = [clients.said(name)[:-1] for name in clients.truths]
        yield clients, _Again(everything), WRONG_TOKENS
        if has_connector(config):
            yield clients, _Again(everything, config.num_blocks), WRONG_TOKENS
        if end := _memory(failure, clients):
            yield clients, nothing, end


def _memory(failure: Failure, clients: _Clients) -> End | None:
    """Return the end of a script that shows wrong memory, None where nothing can be said of it."""
    key, block, group = (failure.oracle, failure.field), failure.block, failure.group
    if key == ("M4", "dead-write"):
        promise = f"step {failure.step} stores something for no request"
        found = f"blocks = engine.written({failure.step}, {group})"
        return _fact(promise, found, "not any(blocks)", "in blocks {blocks}")
    if key == ("M2", "key"):
        promise = f"block {block} can be hit, but the content of its key was never computed"
        return _fact(promise, f"hits = engine.is_published({block})", "not hits", "(a lookup finds it)")
    if key == ("S1", "stored"):
        promise = "the KV connector stores content that is not what its key names"
        return _fact(promise, "wrong = engine.wrongly_stored()", "not wrong", "({wrong})")
    if failure.oracle in ("M3", "M4") and failure.field.startswith("outside"):
        promise = f"in step {failure.step} metadata of a kernel point past the end"
        found = f"outside = engine.outside({failure.step}, {failure.request or None!r}, {group})"
        return _fact(promise, found, "not outside", "(what, index, size): {outside}")
    if key == ("M3", "column") and failure.request:
        promise = f"in step {failure.step} {failure.request} uses blocks that are not the scheduler's"
        found = f"blocks = engine.other_blocks({failure.step}, {failure.request!r}, {group})"
        return _fact(promise, found, "not blocks", "(index in the block table, block, the scheduler's): {blocks}")
    attends = clients.config.groups[group].kind == "attention"
    if failure.oracle in ("S2", "S3", "S4") and failure.request and attends:
        promise = f"step {failure.step}: {failure.request} does not attend to its own tokens"
        found = f"wrong = engine.wrong_attention({failure.step}, {failure.request!r}, {group})"
        return _fact(promise, found, "not wrong", "in layers {wrong}")
    if failure.oracle in ("S2", "S3", "S4") and failure.request and failure.depth >= 0:
        # The row of a request that has ended in a step in flight: its tokens are dropped.
        promise = f"step {failure.step} does not continue {failure.request} from its state"
        where = f"{failure.step}, {failure.request!r}, {group}, {failure.depth}"
        return _fact(promise, f"wrong = engine.wrong_reads({where})", "not wrong", "(layers, blocks): {wrong}")
    holder = clients.truths.get(failure.holder)
    if failure.oracle in ("S1", "S5") and holder and holder.is_plain and failure.depth > 0:
        holder.reach(failure.depth)
        tokens = holder.tokens[: failure.depth]
        promise = f"block {block} is cached as the state after {len(tokens)} tokens"
        found = f"wrong = engine.wrong_states({group}, {block}, {tokens})"
        return _fact(promise, found, "not wrong", "but holds {wrong}")
    return None


def _short_hit(failure: Failure) -> End:
    promise = f"{failure.request} finds only {failure.depth} of its tokens in the prefix cache"
    return _fact(promise, f"hit = engine.hits[{failure.request!r}]", f"hit > {failure.depth}", "where more are")


def _fact(promise: str, found: str, holds: str, more: str) -> End:
    return End(f"AssertionError: {promise}", [f'assert {holds}, f"{python_format(promise)} {more}"'], [found])


class _Again(NamedTuple):
    """Prompts that clients send once more, when up to `evicted` free blocks have lost their keys."""

    prompts: Sequence[Prompt] = ()
    evicted: int = 0

    def calls(self) -> Iterator[str]:
        """Yield the calls."""
        if self.evicted:
            yield f"engine.evict({self.evicted})"
        yield from asked_again(self.prompts, "A cache")


class _Clients(Conversations):
    """What clients of a trace have and ask for.

    lines   the calls of all events
    """

    def __init__(self, config: Config, events: Sequence[Event], longer: str = "") -> None:
        """`longer`: a client that asks for `MORE_TOKENS` more than in the trace."""
        super().__init__()
        self.config = config
        self.longer = longer
        self.structured = any(isinstance(event, Arrive | Resume) and has_grammar(event) for event in events)
        self.lines = [line for event in events for line in self._call(event)]

    def _call(self, event: Event) -> Iterator[str]:
        match event:
            case Arrive():
                if event.name not in self.truths and fits(self.config, event):
                    more = f", priority={event.priority}" if event.priority else ""
                    more += ", session=True" if event.session else ""
                    more += ", prompt_logprobs=True" if event.prompt_logprobs else ""
                    more += f", bad_grammar={event.bad_grammar}" if event.bad_grammar else ""
                    call = f"engine.add({event.name!r}, {self._turn(event, Truth(event.prompt), 0)}{more})"
                    yield call + expects(self.truths[event.name], not event.bad_grammar)
            case Resume():
                before = self.truths.get(event.name)
                if before and fits(self.config, event, len(before.tokens)):
                    kept = len(before.tokens) - DROPPED_TOKENS
                    turn = self._turn(event, before.continued(kept, event.prompt), kept)
                    yield f"engine.resume({event.name!r}, {turn})"
            case Step():
                names = ("budget", "drafts", "right", "per_request", "pad_to")
                given = [f"{name}={getattr(event, name)!r}" for name in names if getattr(event, name)]
                yield f"engine.step({', '.join(given)})"
            case Preempt():
                yield f"engine.preempt({event.name!r})"
            case Abort():
                yield f"engine.abort({', '.join(map(repr, (event.name, *event.together)))})"
            case DummyRun() if event.uniform_decode:
                yield f"engine.dummy_run({event.rows})"
            case ResetPrefixCache():
                yield f"engine.reset_prefix_cache({event.preempt_running})"
            case ResetEncoderCache():
                yield "engine.reset_encoder_cache()"
            case ExternalLoad() if offloads(self.config) or offloads_simply(self.config):
                yield f"engine.delay_transfers({event.name!r}, {event.delay})"
            case ExternalLoad() if has_connector(self.config):
                more = "" if event.states else ", states=False"
                more += ", fails=True" if event.breaks_off else ""
                more += f", delay={event.delay}" if event.delay else ""
                yield f"engine.store({event.name!r}, {event.length}{more})"
            case Evict():
                yield f"engine.evict({event.blocks})"
            case _:
                yield f"# {tag_of(event)}: nothing happens"

    def _turn(self, event: Turn, truth: Truth, first: int) -> str:
        """Return the arguments of a turn whose own tokens begin at position `first`."""
        prompt = self.begin(event.name, event.prompt, truth, first)
        most = event.max_new_tokens + MORE_TOKENS * (event.name == self.longer)
        stops = stop_tokens_of(event, truth)
        end = truth.prompt_length + truth.answer_length(most, stops)
        truth.reach(end)
        del truth.tokens[end:], truth.tags[end + 1 :]
        more = f", stop_at={event.stop_at}" if event.stop_at else ""
        more += f", structured={event.structured}" if event.structured else ""
        more += f", reasoning={event.reasoning}" if event.structured and event.reasoning else ""
        least = event.min_tokens if most == event.max_new_tokens else least_tokens(event)
        more += f", min_tokens={least}" if least else ""
        return f"{prompt}, new_tokens={most}{more}"


LIMITS = {name: (name, 0) for name in ("num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens")}
"""`Script.limits`."""


def _script(failure: Failure, clients: _Clients, again: _Again, end: End) -> Script:
    config = _with_room(clients.config, max(map(tokens_in, again.prompts), default=0))
    model = json.loads((files(__package__) / "model" / "config.json").read_text(encoding="utf-8"))
    constants = textwrap.wrap(f"MODEL_CONFIG = {model!r}", 118, break_long_words=False, break_on_hyphens=False)
    calls = clients.lines if end == UNENDED else marked(clients.lines)  # no single call fails
    body = asking(list(_opening(config)), calls, list(again.calls()), end)
    return FRAME.script(failure, body, end, list(_parts(config, clients.structured)), constants, LIMITS)


TEST = '''\
{license}"""{about}"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

pytestmark = pytest.mark.cpu_test


{scenario}


def test_{name}() -> None:
{run}'''


def write_test(trace: Trace, script: Script, name: str) -> EngineTest:
    """Return a test for vLLM's tests of its scheduler and cache manager."""
    del trace
    engine = ENGINE.format(name)
    test = TEST.format(
        license=LICENSE,
        about=docstring(script, WIDTH - 3),
        scenario=scenario(script, f".{engine}", WIDTH),
        name=name,
        run=textwrap.indent(RUN_SCENARIO, "    "),
    )
    machinery = f'{LICENSE}# ruff: noqa: E402, E501\n# fmt: off\n"""The engine of test_{name}.py."""\n\n'
    machinery += f"from __future__ import annotations\n\n{script.machinery}"
    return engine_test(name, test, {engine: machinery})


def write_unit_test(
    trace: Trace, script: Script, about: str, name: str, run: Python, run_fixed: Python | None
) -> EngineTest:
    """Return a test of vLLM's scheduler alone. Raises TargetError if that does not show the failure."""
    from .scheduler_test.writing import write

    return write(trace.config, script, about, name, run, run_fixed)


STAND_INS, CLIENTS = "repro_engine/stand_ins.py", "repro_engine/clients.py"
_OWN = Sources(__package__)
SOURCES = Sources(__package__, _OWN.names(STAND_INS))
INNER = frozenset({
    "../../reference/tokens.py", "../../reference/layout.py", "../../reference/prefix_cache.py", "../base/observe.py",
    "../base/client_turn.py", "target.py", "host_view.py", "pool_reader.py", "shadow/recorder.py", "shadow/forward.py",
    "rows/kernel_reads.py",
})  # fmt: skip
"""Files of whose classes vLLM has no object."""
_MAMBA2 = ("mamba1", "mamba2", "short_conv")
"""Values of `mixer` whose layers read vLLM's metadata in the same way."""
_OPTIONAL: Sequence[tuple[Callable[[Config], bool], Collection[str]]] = (
    (is_v2, {"RunnerV2", "Speculator", "load_v2_model"}),
    (lambda config: not is_v2(config), {"RunnerV1", "ngram_proposer", "v1_runner"}),
    (drafts_on_device, {"device_proposer"}),
    (has_graphs, {"capture", "widen"}),
    (lambda config: _rows(config) == "gdn", {"state_rows"}),
    (lambda config: _rows(config) == "linear", {"linear_rows", "linear_backend"}),
    (lambda config: _rows(config) in _MAMBA2, {"mamba2_rows"}),
    (lambda config: _rows(config) == "all", {"all_rows"}),
    (lambda config: options_of(config).inputs != "tokens", {"Inputs", "capture_with_adapters"}),
    (has_peer, {"Peer", "one_of_two"}),
    (lambda config: any(group.draft for group in config.groups), {"ShadowMtp"}),
    (reports_all, {"Subscriber", "switch_on"}),
    (offloads, {"connect_own"}),
    (has_files, {"TieredStore"}),
    (offloads_simply, {"SimpleStore", "connect_simply"}),
    (lambda config: varies_sampling(config) and is_v2(config), {"budget_of", "reasoning_config"}),
    (lambda config: not (offloads(config) or offloads_simply(config)), {"Store", "TraceConnector"}),
)
"""Definitions that only some configurations need: the others never reach the branch that names them."""


def _rows(config: Config) -> str:
    """Return what reads the metadata of state layers: "all" for mode all, else the mixer."""
    return "all" if config.mamba_cache_mode == "all" else options_of(config).mixer


_CONNECTOR = [("counterparts/kv_connector.py", name) for name in ("connect", "begin_worker")]


def _parts(config: Config, structured: bool) -> Iterator[Part]:
    """Yield what is copied, first what runs before vLLM is imported: what the script shares with the adapter, and its
    own. `structured`: a request has structured output."""
    unused = {name for needs, names in _OPTIONAL if not needs(config) for name in names}
    unused |= {"FrontEnd", "stopped_by"}  # `kit_limits`: no script has a stop string
    unused |= set() if structured else {"StructuredOutputs", "constraints"}
    sources = Sources(__package__, SOURCES.left_out | unused, INNER)
    more = _CONNECTOR if has_connector(config) else []
    group = ("../../reference/layout.py", "Group")
    prepare = ("versions/old_releases.py", FRAME.prepare)
    first, *shared = sources.definitions(prepare, *sources.uses(STAND_INS), group, *sources.uses(CLIENTS), *more)
    yield from (first, sources.whole(STAND_INS), *shared, sources.whole(CLIENTS))


def has_connector(config: Config) -> bool:
    """Return True if an engine has a KV connector."""
    return options_of(config).connector != "none"


def _with_room(config: Config, longest: int) -> Config:
    """Return a configuration with room for a client that sends `longest` tokens once more."""
    lacking = longest + MORE_TOKENS - config.max_model_len if longest else 0
    if lacking <= 0:
        return config
    blocks = sum(cdiv(lacking, group.block_size) + 1 for group in config.groups)
    return structs.replace(config, max_model_len=config.max_model_len + lacking, num_blocks=config.num_blocks + blocks)


def _opening(config: Config) -> Iterator[str]:
    """Yield the lines that make the engine."""
    yield "engine = Serving("
    yield "    Config("
    yield f"        num_blocks={config.num_blocks},"
    yield "        groups=("
    for group in config.groups:
        more = {name: getattr(group, name) for name in ("layers", "draft", "window", "chunk")}
        given = [f"{name}={value!r}" for name, value in more.items() if value != getattr(PLAIN_GROUP, name)]
        yield f"            {', '.join([f'Group({group.kind!r}, {group.block_size}', *given])}),"
    yield "        ),"
    plain = Config(config.num_blocks, config.groups)
    usual = structs.asdict(PLAIN)
    changed = {name: value for name, value in config.options.items() if value != str(usual.get(name, value))}
    sizes = plain.graph_sizes if options_of(config).graphs == "none" else config.graph_sizes
    config = structs.replace(config, options=changed, graph_sizes=sizes)
    for name in Config.__struct_fields__[2:]:
        value = getattr(config, name)
        if value != getattr(plain, name):
            yield f"        {name}={value!r},"
    yield "    )"
    yield ")"
