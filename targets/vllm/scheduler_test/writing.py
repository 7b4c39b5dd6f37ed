"""Puts a test of vLLM's scheduler together from the calls of a script."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from ...base.engine_tests import EngineTest, Python, double_quoted, indented
from ...base.protocol import TargetError
from ...base.repro import Script
from ...base.trace import Config
from ..engine_test_tree import LICENSE, WIDTH, engine_test
from ..options import is_v2, stages
from ..sizes import Sizes, sizes_of
from .calls import PRINTED, SCHEDULE, SIZES, UPDATE, WAITING

NOT_ALONE = "vLLM's scheduler alone does not show it"
FIRST = "from __future__ import annotations\n\n"
RECORD = "from hybridfuzz.targets.vllm.scheduler_test.recorder import record\n"
REPEAT = "from hybridfuzz.targets.vllm.scheduler_test.calls import repeat\n"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
MODEL = files(__package__.rpartition(".")[0]) / "model"
"""The folder of the model that scripts have, too."""


class End(NamedTuple):
    """Where a test ends: behind the call with this number, in an assertion, or in the call itself if that raises.

    expression  what is asserted, "" for a call that raises
    received    its value on the engine with the bug; the exception of a call that raises; without a fix, the line that
                pytest prints
    fixed       its value on the fixed engine, "" if there is none
    """

    call: int
    expression: str
    received: str
    fixed: str = ""


class Recorded(NamedTuple):
    """What a script asked of its scheduler (`recorder.Recorder.told`)."""

    opening: Mapping[str, str]
    calls: Sequence[tuple[str, str, Sequence[str], Sequence[tuple[str, str]]]]
    raised: str
    imports: Sequence[tuple[str, str]]


def write(config: Config, script: Script, about: str, name: str, run: Python, run_fixed: Python | None) -> EngineTest:
    """Return a test of the scheduler alone in which a script's failure shows.

    `run` and `run_fixed` run a program on the engine and on one with the bug fixed, if there is one. Without one only
    what the scheduler raises is shown, and a scheduler that stands still. Raises TargetError if a scheduler alone does
    not show the failure.
    """
    recorded = _recorded(run, script)
    test = _Test(config, recorded, about, name)
    fixed = _told(run_fixed, test.module + _repeating(recorded, config)) if run_fixed else None
    end = first_difference(recorded, fixed) if fixed else without_a_fix(recorded)
    if end is None:
        raise TargetError(f"{NOT_ALONE}: no answer of it is wrong")
    promise = f"assert {end.received} != {end.received}" if end.fixed else end.received
    return engine_test(name, test.text(end), promise=promise, part="scheduler")


def _recorded(run: Python, script: Script) -> Recorded:
    body = textwrap.indent("\n".join(script.body), "    ")
    told = _told(run, f"{FIRST}{script.machinery}\n{RECORD}\ndef reproduce():\n{body}\n\nrecord(reproduce)\n")
    if told["reason"]:
        raise TargetError(f"{NOT_ALONE}: {told['reason']}")
    calls = [(kind, step, lines, [tuple(one) for one in found]) for kind, step, lines, found in told["calls"]]
    return Recorded(told["opening"], calls, told["raised"], [tuple(one) for one in told["imports"]])


def _told(run: Python, program: str) -> dict[str, Any]:
    lines = [line for line in run(program).splitlines() if line.startswith(PRINTED)]
    if not lines:
        raise TargetError(f"{NOT_ALONE}: its calls could not be recorded")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(PRINTED))
    return found


def _repeating(recorded: Recorded, config: Config) -> str:
    runner = f"import os\nos.environ['{RUNNER}'] = '{int(is_v2(config))}'\n"
    return (
        f"\n{REPEAT}{runner}import tempfile\nscheduler = create_scheduler(Path(tempfile.mkdtemp()))\n"
        f"repeat({list(recorded.calls)!r}, globals())\n"
    )


def first_difference(recorded: Recorded, fixed: Mapping[str, Any]) -> End | None:
    """Return the first answer in which the fixed engine differs, None if none does.

    Behind it what the worker sampled no longer belongs to the steps.
    """
    for number, ((_, _, _, before), now) in enumerate(zip(recorded.calls, fixed["answers"], strict=False)):
        if recorded.raised and number == len(recorded.calls) - 1:
            return End(number, "", recorded.raised)
        values = dict(now)
        for expression, value in before:
            if expression != WAITING and values.get(expression, value) != value:
                return End(number, expression, value, values[expression])
    return None


def without_a_fix(recorded: Recorded) -> End | None:
    """Return the end of a test for what is wrong whatever a fix does."""
    last = len(recorded.calls) - 1
    if recorded.raised:
        return End(last, "", recorded.raised)
    scheduled = [(number, found) for number, (kind, _, _, found) in enumerate(recorded.calls) if kind == SCHEDULE]
    number, found = scheduled[-1] if scheduled else (last, ())
    (expression, value), waiting = next(iter(found), ("", "")), dict(found).get(WAITING, "[]")
    return End(number, expression, f"assert {value}") if value == "{}" and waiting != "[]" else None


class _Test:
    """The text of a test.

    module  all but the test function
    """

    def __init__(self, config: Config, recorded: Recorded, about: str, name: str) -> None:
        self._config, self._recorded, self._about, self._name = config, recorded, about, name
        self._sizes = sizes_of(config)
        self.module = self._module(range(len(recorded.calls)))

    @property
    def _has_connector(self) -> bool:
        return "matched" in self._recorded.opening

    def text(self, end: End) -> str:
        """Return the test up to its end."""
        calls = self._recorded.calls[: end.call + 1]
        body = [line for call in calls[:-1] for line in _without_result(call)]
        kind, _, lines, _ = calls[-1]
        names_result = kind == UPDATE and "outputs" in end.expression
        body += lines if names_result or kind == SCHEDULE else _without_result(calls[-1])
        received, fixed = double_quoted(end.received), double_quoted(end.fixed)
        if not end.expression:
            body[-1:] = [f"# Raises {end.received} as long as the bug is there.", body[-1]]
        elif end.fixed:
            body += [f"# The value below is wrong. With the patch it is {fixed}."]
            body += [f"assert {end.expression} != {received}"]
        else:
            body += ["# Requests wait, so something must be scheduled.", f"assert {end.expression}"]
        head = f"@pytest.mark.cpu_test\ndef test_{self._name}(tmp_path: Path, monkeypatch) -> None:"
        runner = [f'monkeypatch.setenv("{RUNNER}", "{int(is_v2(self._config))}")']
        made = [*runner, "scheduler = create_scheduler(tmp_path)", *body]
        return "\n".join([self._module(range(end.call + 1), head), head, *indented(made, 4, WIDTH), ""])

    def _module(self, calls: range, head: str = "") -> str:
        used = "\n".join([head, *(line for number in calls for line in self._recorded.calls[number][2])])
        given = CONNECTOR.format(**self._recorded.opening) if self._has_connector else ""
        connector = ["\n".join(indented(given.split("\n"), 0, WIDTH))] if given else []
        parts = [
            *connector,
            self._create_scheduler(),
            CREATE_REQUEST.format(hasher=self._recorded.opening["hash_unit"]),
        ]
        parts += [helper for name, helper in HELPERS.items() if f"{name}(" in used]
        text = "\n\n\n".join(["\n".join(self._model()), *parts])
        return f'{LICENSE}"""{self._docstring()}\n"""\n\n{self._imports(text + used)}\n\n{text}\n\n'

    def _docstring(self) -> str:
        paragraphs = [*self._about.split("\n\n"), GIVEN]
        told = "\n\n".join(textwrap.fill(" ".join(one.split()), WIDTH - 3) for one in paragraphs)
        return told.replace("\\", "\\\\").replace('"""', "'''")

    def _model(self) -> list[str]:
        model = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
        return textwrap.wrap(double_quoted(f"MODEL = {model!r}"), WIDTH, subsequent_indent="    ")

    def _imports(self, text: str) -> str:
        modules: dict[str, set[str]] = {}
        for module, name in {*IMPORTS, *self._recorded.imports}:
            if re.search(rf"\b{module}\." if not name else rf"\b{name}\b", text):
                modules.setdefault(module, set()).update([name] if name else [])
        lines: dict[int, list[str]] = {0: [], 1: [], 2: []}
        for module, names in sorted(modules.items(), key=lambda one: (bool(one[1]), one[0])):
            origin = 0 if module in STANDARD else 2 if module.startswith("vllm") else 1
            line = f"from {module} import {', '.join(sorted(names))}" if names else f"import {module}"
            lines[origin] += indented([line], 0, WIDTH)
        return "\n\n".join("\n".join(block) for block in lines.values() if block)

    def _create_scheduler(self) -> str:
        opening = self._recorded.opening
        made = [
            '(folder / "config.json").write_text(json.dumps(MODEL))',
            _call("model_config = ModelConfig", model="str(folder)", skip_tokenizer_init=True, dtype='"float32"',
                  max_model_len=self._sizes.max_model_len, enforce_eager=True),
            _call("cache_config = CacheConfig", block_size=self._sizes.block_size,
                  enable_prefix_caching=self._sizes.prefix_caching),
            *_scheduler_config(self._sizes),
            *_speculation(self._sizes),
            _call("vllm_config = VllmConfig", model_config="model_config", cache_config="cache_config",
                  scheduler_config="scheduler_config", device_config='DeviceConfig("cpu")',
                  **({"speculative_config": "speculative_config"} if self._sizes.num_drafts else {}),
                  **({"kv_transfer_config": _connected(opening)} if self._has_connector else {})),
            "# What vLLM derives from the platform, and from the sizes of a model's states.",
            *(["scheduler_config.async_scheduling = True"] if self._sizes.asynchronous else []),
            *_derived(self._sizes),
            _call("kv_cache_config = KVCacheConfig", num_blocks=self._sizes.num_blocks, kv_cache_tensors=[],
                  kv_cache_groups=opening["groups"],
                  **{name: opening[name] for name in SIZES if name in opening}),
            f"cache_config.num_gpu_blocks = {self._sizes.num_blocks}",
            *([f"vllm_config.parallel_config.pipeline_parallel_size = {stages(self._config)}"]
              if stages(self._config) > 1 else []),
            _call(f"scheduler = {opening['class']}", vllm_config="vllm_config", kv_cache_config="kv_cache_config",
                  structured_output_manager="StructuredOutputManager(vllm_config)",
                  block_size=opening["block_size"], hash_block_size=opening["hash_unit"]),
            *_inputs(opening),
            "return scheduler",
        ]  # fmt: skip
        head = f"def create_scheduler(folder: Path) -> {opening['class']}:"
        about = '    """Return a scheduler of a hybrid model, without a worker."""'
        return "\n".join([head, about, *indented(made, 4, WIDTH)])


GIVEN = "What the worker sampled is given."
KV_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1"
STANDARD = ("json", "pathlib", "types")
IMPORTS = frozenset({
    ("json", ""),
    ("pathlib", "Path"),
    ("pytest", ""),
    ("types", "SimpleNamespace"),
    ("vllm.v1.core.encoder_cache_manager", "EncoderCacheManager"),
    *(("vllm.config", name) for name in ("CacheConfig", "DeviceConfig", "KVTransferConfig", "ModelConfig",
                                         "ParallelConfig", "SchedulerConfig", "SpeculativeConfig", "VllmConfig")),
    *((KV_CONNECTOR, name) for name in ("KVConnectorBase_V1", "SupportsHMA")),
    (f"{KV_CONNECTOR}.base", "KVConnectorMetadata"),
    ("vllm.sampling_params", "SamplingParams"),
    ("vllm.utils.hashing", "sha256"),
    *(("vllm.v1.core.kv_cache_utils", name) for name in ("get_request_block_hasher", "init_none_hash")),
    *(("vllm.v1.kv_cache_interface", name) for name in ("KVCacheConfig", "KVCacheGroupSpec")),
    ("vllm.v1.outputs", "ModelRunnerOutput"),
    ("vllm.v1.request", "Request"),
    ("vllm.v1.structured_output", "StructuredOutputManager"),
})  # fmt: skip
CREATE_REQUEST = '''\
def create_request(
    name: str, prompt: list[int], sampling: SamplingParams, **more
) -> Request:
    """Return a request whose blocks have keys in the prefix cache."""
    init_none_hash(sha256)
    hasher = get_request_block_hasher({hasher}, sha256)
    return Request(name, prompt, sampling, None, block_hasher=hasher, **more)'''
CONNECTOR = '''\
class GivenConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's side of a KV connector, with the answers of one run."""

    requires_kv_delivery = {requires_kv_delivery}
    supports_divergent_local_hybrid_hits = {supports_divergent_local_hybrid_hits}
    # (request, its local hit) -> tokens to load, None to be asked again; whether it waits
    matched = {matched}
    held = {held}  # requests whose blocks are kept until they are sent

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.left = {{key: list(answers) for key, answers in self.matched.items()}}
        self.sending = set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        answers = self.left.get((request.request_id, num_computed_tokens), [(0, False)])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def request_finished_all_groups(self, request, block_ids):
        self.sending |= {{request.request_id}} & self.held
        return request.request_id in self.held, None

    def update_connector_output(self, connector_output):
        self.sending -= connector_output.finished_sending or set()

    def has_pending_block_frees(self):
        return bool(self.sending)

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def update_state_after_alloc(self, request, blocks, num_external_tokens): ...

    def start_load_kv(self, forward_context, **more): ...

    def wait_for_layer_load(self, layer_name): ...

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **more): ...

    def wait_for_save(self): ...'''
HELPERS = {
    "update": '''\
def update(scheduler, step, sampled: dict[str, list[int]], **more):
    """Pass to the scheduler what the worker sampled in a step."""
    output = ModelRunnerOutput(
        req_ids=list(sampled),
        req_id_to_index={name: index for index, name in enumerate(sampled)},
        sampled_token_ids=[list(tokens) for tokens in sampled.values()],
        **more,
    )
    return scheduler.update_from_output(step, output)''',
    "preempt": '''\
def preempt(scheduler, name: str, **more) -> None:
    """Preempt a running request, as `schedule` does for lack of blocks."""
    request = scheduler.requests[name]
    scheduler.prev_step_scheduled_req_ids.discard(name)
    scheduler.running.remove(request)
    scheduler._preempt_request(request, 0.0, **more)''',
}
"""Functions of a test that only some calls need."""


def _without_result(call: tuple[str, str, Sequence[str], Any]) -> list[str]:
    """Return the lines of a call whose result nothing reads."""
    return [line.removeprefix("outputs = ") for line in call[2]]


def _call(function: str, **named: Any) -> str:
    return f"{function}({', '.join(f'{name}={value}' for name, value in named.items())})"


def _scheduler_config(sizes: Sizes) -> Iterator[str]:
    more: dict[str, Any] = {}
    if sizes.long_prefill:
        more["long_prefill_token_threshold"] = min(sizes.long_prefill, sizes.max_model_len)
    if sizes.prefill_interval:
        more |= {"prefill_schedule_interval": sizes.prefill_interval, "long_prefill_token_threshold_adaptive": True}
    if not sizes.reserve_full_isl:
        more["scheduler_reserve_full_isl"] = False
    if sizes.policy != "fcfs":
        more["policy"] = repr(sizes.policy)
    yield _call(
        "scheduler_config = SchedulerConfig",
        max_num_batched_tokens=max(sizes.max_num_batched_tokens, sizes.max_num_seqs * (sizes.num_drafts + 1)),
        max_num_seqs=sizes.max_num_seqs, max_model_len=sizes.max_model_len, enable_chunked_prefill=True,
        is_encoder_decoder=False, async_scheduling=sizes.asynchronous, **more,
    )  # fmt: skip


def _speculation(sizes: Sizes) -> Iterator[str]:
    if sizes.num_drafts:
        hashes = {"disable_lookahead_block_hashes": True} if sizes.plain_hashes else {}
        yield _call(
            "speculative_config = SpeculativeConfig", method=repr(sizes.method),
            num_speculative_tokens=sizes.num_drafts, prompt_lookup_max=3, prompt_lookup_min=1,
            target_model_config="model_config", target_parallel_config="ParallelConfig()", **hashes,
        )  # fmt: skip


def _derived(sizes: Sizes) -> Iterator[str]:
    yield f"cache_config.block_size = {sizes.hit_block_size}"
    yield f"cache_config.mamba_block_size = {sizes.mamba_block_size}"
    yield f"cache_config.mamba_cache_mode = {sizes.mode!r}"
    if sizes.prefix_match_unit:
        yield f"cache_config.prefix_match_unit = {sizes.prefix_match_unit}"
    if sizes.every_boundary:
        yield "cache_config.prefix_cache_retention_interval = None"
    if sizes.junctions:
        yield "cache_config.enable_mamba_shared_prefix_checkpoint = True"


def _inputs(opening: Mapping[str, str]) -> Iterator[str]:
    """Yield the limits of a model with images or adapters, which the one here is not."""
    if tokens := opening.get("encoder_tokens"):
        yield f"scheduler.max_num_encoder_input_tokens = {tokens}"
        yield f"scheduler.encoder_cache_manager = EncoderCacheManager(cache_size={tokens})"
    if adapters := opening.get("adapters"):
        yield f"scheduler.lora_config = SimpleNamespace(max_loras={adapters})"


def _connected(opening: Mapping[str, str]) -> str:
    """Return the configuration of the connector that the test defines."""
    named = {"kv_connector": '"GivenConnector"', "kv_connector_module_path": "__name__", "kv_role": '"kv_both"'}
    return _call("KVTransferConfig", **named, kv_load_failure_policy=opening["load_failure"])
