"""The environment that a report on llama.cpp describes. Importable without llama.cpp.

The library has no serve command: the report's script is the usage, a tiny model and calls of the C API. What a
bug form asks for besides (system, versions) is in the report's environment.
"""

from __future__ import annotations

import re

from ..base.deployment import Deployment, Implementation
from ..base.issue_form import Form, Section
from ..base.trace import Trace
from .context_sizes import planes_of, sizes_of
from .factory import SERVER
from .families import FAMILIES

OWN = (
    "the memory of hybrid models: recurrent cells and their snapshots, attention cells, states that are saved",
    "the whole computation of the model, on a CPU: a tiny model with random weights",
)
SERVER_OWN = ("the server: slots, prompt cache, context checkpoints, its HTTP interface", *OWN)
REPLACED = ("the server: the same batches and calls of the C API, one by one",)
KV = {"split": "kv_unified = false", "unified": "kv_unified = true"}
"""Value of the option `kv` -> its title."""
CALLS = {
    "repeat": "llama_memory_seq_cp",
    "select": "llama_memory_seq_keep",
    "shift": "llama_memory_seq_add",
    "truncate": "llama_memory_seq_rm",
    "reset": "llama_memory_clear",
}
"""Tag of an event -> the call that it is."""
FORM = Form(
    (
        Section("Name and Version", ("environment",)),
        Section("Operating systems", text="Linux"),
        Section("GGML backends", text="CPU"),
        Section("Hardware", text="See above: any CPU."),
        Section("Models", text="Generated, with random weights: the script makes it."),
        Section("Problem description & steps to reproduce", ("bug", "cause", "reproduction")),
        Section("First Bad Commit", text="Not looked for."),
        Section("Relevant log output", ("expected", "more")),
    ),
    title="Eval bug: ",
    collects="llama-cli --version",
)
"""`.github/ISSUE_TEMPLATE/011-bug-results.yml`."""
BUILD = """\
import platform
from ctypes import CDLL, c_char_p, c_int
from importlib.metadata import version
from importlib.util import find_spec
from os import environ
from pathlib import Path
folders = find_spec("xllamacpp").submodule_search_locations
path = environ.get("HYBRIDFUZZ_LLAMACPP_LIBRARY") or [*Path(folders[0]).glob("xllamacpp*.so")][0]
library = CDLL(str(path))
def text(name):
    try:
        return c_char_p.in_dll(library, name).value.decode()
    except ValueError:
        return "not exported"
try:
    number = c_int.in_dll(library, "LLAMA_BUILD_NUMBER").value
except ValueError:
    number = "not exported"
print(f"version: {number} ({text('LLAMA_COMMIT')}), as the library has it")
print(f"built with {text('LLAMA_COMPILER')} for {text('LLAMA_BUILD_TARGET')}")
library.llama_print_system_info.restype = c_char_p
print("system_info:", library.llama_print_system_info().decode())
print("GGML backends: CPU")
names = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
print("Hardware:", names[0] if names else platform.machine())
"""
"""Prints what `llama-cli --version` does, from the library, and what else the form asks for."""


def deployment(variant: str, trace: Trace, version: str, device: str = "") -> Deployment:
    """Return what a report says about a trace of a release."""
    del device
    server, build = variant == SERVER, re.fullmatch(r"\d+\.\d+\.(\d+)", version)
    cells = tuple(Implementation(title, {"kv": value}, value == "split") for value, title in KV.items())
    family = FAMILIES.get(trace.config.options.get("family", ""))
    given: tuple[str, ...] = ()
    if family:
        given += (f"a generated model of architecture {family.arch}, with random weights",)
    if family and not server:
        sizes = sizes_of(trace.config, planes_of(trace.config, has_planes=True))
        given += (f"a context with {', '.join(f'{name} = {_c(value)}' for name, value in sizes._asdict().items())}",)
    return Deployment(
        title="llama-server" if server else "llama.cpp",
        release=f"llama.cpp build {build[1]} (tag b{build[1]}), the library in xllamacpp {version}" if build else "",
        form=FORM,
        implementations=() if server else cells,
        own=SERVER_OWN if server else OWN,
        replaced=() if server else REPLACED,
        packages=("xllamacpp", "numpy", "gguf"),
        environment=("-c", BUILD),
        tracker="https://github.com/ggml-org/llama.cpp/issues",
        scaled=given,
        model=f"architecture {family.arch}" if family else "",
        search=(family.arch,) if family else (),
        has_sizes=False,
        calls={} if server else CALLS,
    )


def _c(value: object) -> str:
    """Return a parameter as C writes it."""
    return str(value).lower()
