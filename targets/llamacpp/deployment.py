"""The environment that a report on llama.cpp describes. Importable without llama.cpp.

The library has no serve command: the report's script is the usage, a tiny model and calls of the C API. What a
bug form asks for besides (system, versions) is in the report's environment.
"""

from __future__ import annotations

from ..base.deployment import Deployment, Implementation
from ..base.trace import Trace
from .factory import SERVER

OWN = (
    "the memory of hybrid models: recurrent cells and their snapshots, attention cells, states that are saved",
    "the whole computation of the model, on a CPU: a tiny model with random weights",
)
SERVER_OWN = ("the server: slots, prompt cache, context checkpoints, its HTTP interface", *OWN)
REPLACED = ("the server: the same batches and calls of the C API, one by one",)
KV = {"split": "attention cells of each sequence by itself", "unified": "attention cells of all sequences together"}
"""Value of the option `kv` -> its title."""


def deployment(variant: str, trace: Trace, version: str, device: str = "") -> Deployment:
    """Return what a report says about a trace of a release."""
    del trace, version, device
    server = variant == SERVER
    cells = tuple(Implementation(title, {"kv": value}, value == "split") for value, title in KV.items())
    return Deployment(
        title="llama-server" if server else "llama.cpp",
        implementations=() if server else cells,
        own=SERVER_OWN if server else OWN,
        replaced=() if server else REPLACED,
        packages=("xllamacpp", "numpy", "gguf"),
        tracker="https://github.com/ggml-org/llama.cpp/issues",
    )
