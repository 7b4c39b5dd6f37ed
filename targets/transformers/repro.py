"""Writes stand-alone reproducers for transformers: calls of its public API on a tiny random model, one after the other.

What beam search does to a cache is shown by `generate(num_beams=...)` with and without a cache, if it shows there: no
other operation of a trace is made by `generate` alone. Otherwise each forward is compared with one of the same tokens
alone, without a cache. A failure of tags is shown by the numbers that follow from it, some steps later; one that never
reaches a number has no script.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from ...reference.tokens import Truth
from ..base.engine_tests import EngineTest, class_name, docstring, indented
from ..base.engine_words import in_words
from ..base.inlined import Sources, import_block
from ..base.protocol import EngineError, TargetError
from ..base.repro import DEVIATION, Failure, Place, Script, python_comment
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    Crop,
    Event,
    Fork,
    Reorder,
    Repeat,
    Reset,
    Resume,
    Select,
    Step,
    Trace,
    fits,
)
from . import operations as do
from .client import Client
from .deployment import PHRASES
from .families import FAMILIES, WEIGHTS, Family
from .kit_limits import Case, refusal

STEPS_AFTER = 8
"""Steps after the violation, in which wrong content in a cache becomes a wrong number."""
PROMISE = "the same tokens alone"
MAY_DECLINE = "with may_decline():"
ENDED = "# the batch has ended"
IMPORTS = """\
{standard}

import torch
{torch}from transformers import AutoConfig, AutoModelForCausalLM{imports}
"""
MODEL = '''\
def tiny_model():
    """Return a model with random weights."""
    config = AutoConfig.for_model(
        "{model_type}",
{sizes}
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() >= 2 and "A_log" not in name:
                inputs = weights.shape[-1] if weights.dim() == 2 else weights[0].numel()
                weights.copy_(torch.randn_like(weights) * {weights} / inputs**0.5)
    return model
'''
FORWARD = '''\
def forward(model, cache, tokens, rows, mask=None, positions=None, wrong=None):
    """Run one forward; `rows`: row -> (its tokens so far, how many of them are new). Return the cache.

    What differs from the same tokens alone is added to `wrong`; without such a list it is an error.
    """
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "{cache_name}"  # up to 5.23
    given = {{"input_ids": torch.tensor(tokens), name: cache, "use_cache": True}}
    if mask is not None:
        given["attention_mask"] = torch.tensor(mask)
    if positions is not None:
        given["position_ids"] = torch.tensor(positions)
    with torch.no_grad(){alone}:
        alone = {{
            row: model(input_ids=torch.tensor([known]), use_cache=False).logits[0, -new:].log_softmax(-1)
            for row, (known, new) in rows.items()
        }}
    with torch.no_grad():
        try:
            output = model(**given)
        except (RuntimeError, IndexError, ValueError) as error:
            raise AssertionError(f"the model raises {{error!r}}, but takes {promise}") from error
        for row, right in alone.items():
            found = output.logits[row, -len(right) :].log_softmax(-1)
            distance = (found - right).abs().max().item()
            worst = (found - right).abs().argmax().item()
            number, alone_number = found.flatten()[worst].item(), right.flatten()[worst].item()
            told = (
                f"row {{row}}, after {{len(rows[row][0])}} tokens: greedy tokens {{found.argmax(-1).tolist()}}, "
                f"alone {{right.argmax(-1).tolist()}}; "
                f"log-probabilities differ from {promise} by {{distance:.2g}}"
            )
            print(told)
            if distance > {tolerance}:
                told += f": token {{worst % found.shape[-1]}} has {{number:.5g}}, alone {{alone_number:.5g}}"
                assert wrong is not None, told
                wrong.append(told)
    return output[name]
'''
SCRIPT = '''\
"""{message}

Needs transformers and torch, no GPU, no downloads. Fails with {error} where the bug is.
{about}"""

{machinery}

{body}
print("passed: the bug is not here")
'''
TOLERANCE = 0.01
"""Largest difference of log-probabilities that is none, where the failure is not one of numbers."""
OFFLOADS = """\
An accelerator, a host and two streams are simulated, so that the library's own offload runs on a CPU.
"""
SOURCES = Sources(__package__, {EngineError.__name__})
REFUSED = '''

class EngineError(RuntimeError):
    """A GPU would refuse this, or would read memory whose copy is not complete."""
'''
DECLINING = '''

@contextlib.contextmanager
def may_decline():
    """End the script if the library itself refuses what is asked: then nothing can be wrong."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.filename == __file__ or not last.line.startswith("raise "):
            raise
        print("passed: the library declines it:", error)
        raise SystemExit(0) from None
'''
"""For operations that a fixed library may decline."""


BEAMS = 4
BEAM_TOKENS = 8
"""Beams and new tokens with which `generate` is called."""
WRONG_BEAMS = "generate() returns wrong tokens"


def write_scripts(variant: str, trace: Trace, failure: Failure) -> list[Script]:
    """Return reproducers, that of `generate` first if one can show this. Raises TargetError for a trace of another
    target."""
    del variant
    case = Case(trace.config)
    if reason := refusal("script", case):
        raise TargetError(f"no stand-alone script can show {reason}")
    config, family = trace.config, FAMILIES[trace.config.options["family"]]
    offloads = case.offloads
    reorders = bool(failure.events) and isinstance(failure.events[-1], Reorder)
    beams = [_of_beams(family, failure)] if reorders and not (offloads or case.static) else []
    raised = failure.field.partition("-")[0] if failure.oracle == "CRASH" else ""
    # What our layers find to be impossible is an error or a wrong number of the model.
    promise = raised if raised and (offloads or raised != EngineError.__name__) else PROMISE
    names = [name for name in ("DynamicCache", "StaticCache") if f" {name}(" in _begin(config)]
    script = _Script(config, family, declines=not raised)
    after = [_one_token(failure.events)] * (STEPS_AFTER if promise == PROMISE else 0)
    calls = [*script.lines(failure.events[:-1]), DEVIATION]
    script.notes = promise == PROMISE
    calls += script.lines([*failure.events[-1:], *after])
    if script.notes:
        calls = ["wrong = []", *calls, "assert not wrong, wrong[0]"]
    calls = [line for line in calls if line != ENDED]
    parked = any("kept[" in line for line in calls)
    declines = MAY_DECLINE in calls
    if offloads:
        calls = ["with simulated():", *textwrap.indent("\n".join(calls), "    ").split("\n")]
    body = ["model = tiny_model()", *["kept = {}"] * parked, *calls]
    devices = SOURCES.definitions(("devices.py", "simulated")) if offloads else []
    needed = {"import contextlib", "import traceback"} if declines else set()
    needed |= {"import copy"} if "copy.deepcopy" in "\n".join(calls) else set()
    lines = import_block(devices, "import inspect", *needed)
    torch = [line for line in lines if line.startswith("from torch.")]
    standard = [line for line in lines if line not in (*torch, "import torch")]
    future = ["from __future__ import annotations", ""] if offloads else []
    imports = IMPORTS.format(
        standard="\n".join([*future, *standard]),
        torch="".join(f"{line}\n" for line in torch),
        imports="".join(f", {name}" for name in names),
    )
    definitions = f"{_model(family)}\n\n" + FORWARD.format(
        cache_name=family.cache_name,
        promise=PROMISE,
        tolerance=failure.tolerance or TOLERANCE,
        alone=", torch._C.DisableTorchFunction()" if offloads else "",  # without a cache nothing is moved
    )
    stood_in = REFUSED * offloads + "".join(f"\n\n{part.text}\n" for part in devices)
    machinery = f"{imports.lstrip()}\n\n{definitions}" + DECLINING * declines + stood_in
    text = SCRIPT.format(
        message=python_comment(in_words(failure.sentence, PHRASES)),
        about=OFFLOADS if offloads else "",
        error="an AssertionError" if promise == PROMISE else f"an AssertionError or {raised}",
        machinery=machinery,
        body="\n".join(indented(body, 0, WIDTH)),
    )
    place = Place(function="" if promise == PROMISE else failure.field.partition("-")[2])
    return [*beams, Script(text, promise, "transformers, torch", body, machinery, place)]


def _model(family: Family) -> str:
    """Return the definition that makes the model."""
    sizes = "\n".join(f"        {name}={value!r}," for name, value in family.sizes.items())
    return MODEL.format(model_type=family.model_type, sizes=sizes, weights=WEIGHTS)


def _of_beams(family: Family, failure: Failure) -> Script:
    """Return a script that compares beams with a cache and without one, for the prompts of the trace."""
    truths = [Truth(event.prompt) for event in failure.events if isinstance(event, Arrive)]
    prompts = [truth.tokens[: truth.prompt_length] for truth in truths]
    pads = [max(map(len, prompts)) - len(prompt) for prompt in prompts]
    rows = [[0] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
    body = [
        "model = tiny_model()",
        f"prompts = {prompts}",
        f"tokens = torch.tensor({rows})",
        f"mask = torch.tensor({mask})",
        f'asked = {{"attention_mask": mask, "num_beams": {BEAMS}, "max_new_tokens": {BEAM_TOKENS}}}',
        "alone = model.generate(tokens, **asked, use_cache=False)[:, tokens.shape[1] :].tolist()",
        DEVIATION,
        "cached = model.generate(tokens, **asked, use_cache=True)[:, tokens.shape[1] :].tolist()",
        "for number, (prompt, found, right) in enumerate(zip(prompts, cached, alone)):",
        '    verdict = "right" if found == right else f"expected {right}"',
        '    print(f"prompt {number}: prompt {prompt}, received {found}, {verdict}; ended")',
        f'assert cached == alone, "{WRONG_BEAMS}: with a cache others than without one"',
    ]
    imports = IMPORTS.format(standard="", torch="", imports="")
    machinery = f"{imports.lstrip()}\n\n{_model(family)}"
    text = SCRIPT.format(
        message=python_comment(in_words(failure.sentence, PHRASES)),
        about="",
        error="an AssertionError",
        machinery=machinery,
        body="\n".join(indented(body, 0, WIDTH)),
    )
    return Script(text, f"AssertionError: {WRONG_BEAMS}", "transformers, torch", body, machinery)


def _one_token(events: Sequence[Event]) -> Step:
    """Return a step that feeds one token of each row, as a decode does: what a chunk behind a cache does is another
    matter, and not the same for all models."""
    return Step(chunks={event.name: 1 for event in events if isinstance(event, Arrive | Fork)})


WIDTH = 119
LICENSE = """\
# Copyright 2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""
TEST = '''\
{license}"""{about}"""

{machinery}

@require_torch
class {class_name}(unittest.TestCase):
    def test_{name}(self):
{body}
'''
HEAD = re.compile(
    r"\A((?:from __future__ import annotations\n\n)?(?:(?:import|from) (?!torch).*\n)*)\n?"
    r"import torch\n((?:from torch\..*\n)*from transformers import .*\n)"
)
TEST_HEAD = r"\1import unittest\n\nimport torch\n\2from transformers.testing_utils import require_torch\n"


def write_test(trace: Trace, script: Script, name: str) -> EngineTest:
    """Return a test for transformers' tests of the trace's model."""
    model_type = FAMILIES[trace.config.options["family"]].model_type
    packages = ["tests", "tests/models", f"tests/models/{model_type}"]
    test = TEST.format(
        license=LICENSE,
        about=docstring(script, WIDTH - 3),
        machinery=re.sub(HEAD, TEST_HEAD, script.machinery),
        class_name=class_name(f"{model_type}_{name}"),
        name=name,
        body="\n".join(indented(script.body, 8, WIDTH)),
    )
    path = f"{packages[-1]}/test_{name}.py"
    files = {path: test, **{f"{package}/__init__.py": "" for package in packages}}
    return EngineTest(files, ["-m", "unittest", path])


class _Script:
    """The operations of a trace, as lines of Python."""

    def __init__(self, config: Config, family: Family, declines: bool) -> None:
        """`declines`: a fixed library may decline what the trace asks of it."""
        self.config = config
        self.family = family
        self.declines = declines
        self.notes = False
        """The lines that follow note wrong numbers and go on."""
        self.client = Client(config)

    def lines(self, events: Sequence[Event]) -> Iterator[str]:
        """Yield the calls of all events."""
        for event in events:
            yield from self._event(event)

    def _event(self, event: Event) -> Iterator[str]:
        client = self.client
        match event:
            case Arrive() if event.name not in client.names and fits(self.config, event):
                client.arrive(event)
            case Resume() if row := client.parked.get(event.name):
                if fits(self.config, event, row.known):
                    client.resume(event)
            case Abort():
                yield from map(self._line, client.abort(event.name))
            case Fork() if event.parent in client.parked and event.name not in client.names:
                yield from map(self._line, client.fork(event.name, event.parent))
            case Step():
                yield from self._step(event)
            case Reset():
                yield from map(self._line, client.empty())
            case Crop():
                done = [one for one in client.crop(event.tokens) if self._supported(one)]
                yield from self._asked(done)
                if done:
                    client.cropped(event.tokens)
            case Select():
                for one in client.select(event.names):
                    if isinstance(one, do.Select) and self._supported(one):
                        yield from self._asked([one])
                        client.batch = [client.batch[row] for row in one.rows]
            case Reorder() | Repeat():
                done, after = (
                    client.reorder(event.sources) if isinstance(event, Reorder) else client.repeat(event.times)
                )
                if done and all(map(self._supported, done)):
                    yield from self._asked(done)
                    client.batch = after
                client.names |= {row.name for row in client.live() if row.name}

    def _asked(self, operations: Sequence[do.Operation]) -> Iterator[str]:
        """Yield the lines of operations that the trace asks for."""
        lines = list(map(self._line, operations))
        if self.declines and any(not line.startswith("#") for line in lines):
            yield MAY_DECLINE
            yield from (f"    {line}" for line in lines)
        else:
            yield from lines

    def _step(self, event: Step) -> Iterator[str]:
        client = self.client
        formed = client.form()
        yield from map(self._line, formed)
        if not client.batch:
            return
        feed, fed, _, _ = client.plan(event, bool(formed))
        rows = {}
        for index, row in enumerate(client.batch):
            if row.name is not None and fed.count[index]:
                tokens = feed.tokens[index][len(feed.tokens[index]) - fed.count[index] :]
                rows[index] = ([*row.truth.tokens[: fed.before[index]], *tokens], fed.count[index])
        yield self._forward(feed, rows)
        _, finished = client.advance(feed, fed)
        if self.config.num_speculative_tokens:
            yield self._line(do.Crop(fed.drafts - fed.kept))
        yield from map(self._line, client.settle(finished))

    def _forward(self, feed: do.Feed, rows: dict[int, tuple[list[int], int]]) -> str:
        plain = self.config.options.get("client") == "loop"
        mask = None if self.family.masks_itself and not plain and feed.start else [list(row) for row in feed.mask]
        positions = None if plain or not self.family.positions else [list(row) for row in feed.positions]
        given = {"tokens": [list(row) for row in feed.tokens], "mask": mask, "positions": positions, "rows": rows}
        words = [f"{name}={value}" for name, value in given.items() if value is not None]
        noted = "wrong=wrong, " if self.notes else ""
        return f"cache = forward(model, cache, {noted}{', '.join(words)})"

    def _supported(self, operation: do.Operation) -> bool:
        """Return False if the library (5.23) declines an operation."""
        static = Case(self.config).static
        match operation:
            case do.Select() | do.Repeat():
                return not static and not (self.family.conv and "state" in self.family.layers)
            case do.Crop(tokens=tokens):
                records = Case(self.config).records
                return not static and self.family.conv and records and tokens <= self.client.recorded
        return True

    def _line(self, operation: do.Operation) -> str:
        match operation:
            case do.Begin(reused=reused):
                return "# the next batch uses the emptied cache" if reused else _begin(self.config)
            case do.Crop(tokens=tokens):
                return f"cache.crop({-tokens})"
            case do.Select(rows=chosen):
                on_host = '.to("cpu")' if Case(self.config).offloads else ""
                return f"cache.batch_select_indices(torch.tensor({list(chosen)}){on_host})"
            case do.Reorder(rows=chosen):
                return f"cache.reorder_cache(torch.tensor({list(chosen)}))"
            case do.Repeat(times=times):
                return f"cache.batch_repeat_interleave({times})"
            case do.Reset():
                return "cache.reset()"
            case do.Store(name=name):
                return f"kept[{name!r}] = cache"
            case do.Load(name=name):
                return f"cache = kept.pop({name!r})"
            case do.Copy(name=name, parent=parent):
                return f"kept[{name!r}] = copy.deepcopy(kept[{parent!r}])"
        return ENDED


def _begin(config: Config) -> str:
    """Return the line that makes a new cache."""
    case = Case(config)
    more = ", offloading=True" if case.offloads else ""
    if case.static:
        length = 2 * config.max_model_len + config.num_speculative_tokens
        return f"cache = StaticCache(config=model.config, max_cache_len={length}{more})"
    if case.records or case.offloads:
        recording = "\ncache.activate_past_recording()" if case.records else ""
        return f"cache = DynamicCache(config=model.config{more}){recording}"
    return "cache = None  # the model makes it"
