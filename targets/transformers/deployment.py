"""The environment that a report on transformers describes. Importable without transformers.

There is no server and no serve command: the report's script is the usage, a model made by `from_config` and calls of
public API. What the bug form asks for besides (system, versions) is in the report's environment.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..base.deployment import Deployment, Implementation
from ..base.issue_form import Form, Section
from ..base.trace import Step, Trace, tag_of
from .families import FAMILIES

OWN = (
    "cache classes and their layers, mask functions",
    "the whole forward of the model, on PyTorch kernels: a tiny model with random weights",
)
REPLACED = (
    "in the run behind this report, and in the script unless it calls generate(): the loop of generate(), whose "
    "forwards and cache operations are called one by one",
)
TAGS = (
    "in the run behind this report, not in the script: the layers of the model, which make the same calls on a cache "
    "of digests, and read what the masks show",
)
DEVICES = ("for offload: an accelerator, the host's memory and two streams, simulated on a CPU",)
ENVIRONMENT = """\
import contextlib, io, sys
from types import SimpleNamespace
sys.modules.setdefault("typer", SimpleNamespace(Argument=lambda **_: None))
from transformers.cli.system import env
with contextlib.redirect_stdout(io.StringIO()) as told:
    env()
lines = [line for line in told.getvalue().splitlines() if not line.startswith("Copy-and-paste")]
print("\\n".join(lines).strip().replace("<fill in>", "no"))
"""
"""`transformers env`, whose command line wants typer; the environments made here have none. It asks whether the script
uses a GPU, or several processes: ours does neither."""
FORM = Form(
    (
        Section("System Info", ("environment",)),
        Section("Who can help?", text="@ArthurZucker @Cyrilvallez"),
        Section("Information", text="- [ ] The official example scripts\n- [x] My own modified scripts"),
        Section(
            "Tasks",
            text="- [ ] An officially supported task in the `examples` folder (such as GLUE/SQuAD, ...)\n"
            "- [x] My own task or dataset (give details below)",
        ),
        Section("Reproduction", ("bug", "reproduction", "cause")),
        Section("Expected behavior", ("expected", "more")),
    ),
    collects="transformers env",
)
"""`.github/ISSUE_TEMPLATE/bug-report.yml`, which has no field for a description."""
PHRASES = (
    (r" in block \d+ \(column \d+\)", " in its row of the cache"),
    (r"; the block was .*?(?= \(step |$)", ""),
    (r"layer (\d+) of mamba group \d+ in its cache \(id \d+\) holds at its recurrent state:",
     r"the recurrent state of its row in the cache (state layer \1) is"),
    (r"layer (\d+) of (mamba|attention) group \d+ in its cache \(id \d+\) holds at",
     r"its row in the cache (\2 layer \1) holds at"),
    (r"\bblock \d+\b", "its row of the cache"),
    (r"\(step (?=\d+\))", "(forward "),
)  # fmt: skip
"""`Deployment.phrases`: a cache has rows, and neither blocks nor columns."""
CALLS = {
    "crop": "Cache.crop",
    "select": "Cache.batch_select_indices",
    "reorder": "Cache.reorder_cache",
    "repeat": "Cache.batch_repeat_interleave",
    "reset": "Cache.reset",
    "fork": "copy.deepcopy of a cache",
}
"""Tag of an event -> the call that it is."""
OWN_LOOP = "nothing in `generation/`, so a caller's own loop"
CALLERS = {
    "reorder": "`generate(num_beams=...)`, after each token",
    "crop": "`generate(assistant_model=...)` or `generate(prompt_lookup_num_tokens=...)`, which refuse models that are "
    "`_is_stateful`, or a caller's own loop",
    "select": OWN_LOOP,
    "repeat": OWN_LOOP,
    "reset": OWN_LOOP,
    "fork": "a caller that goes on from one cached prefix in several ways",
}
"""Tag of an event -> who calls it, by the source of 5.24."""
CLIENTS = {
    "generate": "position ids passed, as generate() does",
    "loop": "forwards without position ids",
}
"""Value of the option `client` -> its title."""
WITHOUT_POSITIONS = {
    "generate": "called as generate() does",
    "loop": "called as by a loop written by hand",
}
"""Those for a model whose forward takes no position ids."""


def deployment(variant: str, trace: Trace, version: str, device: str = "") -> Deployment:
    """Return what a report says about a trace of a release."""
    del variant, version, device
    options = trace.config.options
    family = FAMILIES.get(options.get("family", ""))
    clients = CLIENTS if family is None or family.positions else WITHOUT_POSITIONS
    return Deployment(
        title="transformers",
        implementations=tuple(
            Implementation(title, {"client": client}, client == "generate") for client, title in clients.items()
        ),
        own=OWN,
        replaced=(
            *REPLACED,
            *(() if options.get("forward") == "model" else TAGS),
            *(DEVICES if options.get("offload") == "yes" else ()),
        ),
        packages=("torch", "tokenizers", "huggingface_hub", "numpy"),
        tracker="https://github.com/huggingface/transformers/issues",
        sources="src",
        model=f"model type {family.model_type}" if family else "",
        search=(family.model_type, "cache") if family else (),
        has_sizes=False,
        calls=CALLS,
        reached=tuple(_reached(trace)),
        phrases=PHRASES,
        environment=("-c", ENVIRONMENT),
        form=FORM,
    )


def _reached(trace: Trace) -> Iterator[str]:
    """Yield who calls what a trace calls."""
    options = trace.config.options
    for tag in dict.fromkeys(map(tag_of, trace.events)):
        if tag in CALLERS:
            yield f"`{CALLS[tag].partition(' ')[0]}`: {CALLERS[tag]}"
    if any(isinstance(event, Step) and event.chunks for event in trace.events) and options.get("chunks") != "whole":
        yield "a prompt in chunks: `generate(prefill_chunk_size=...)`"
    if options.get("offload") == "yes":
        kind = "offloaded_static" if options.get("cache") == "static" else "offloaded"
        yield f'offload: `generate(cache_implementation="{kind}")`'
