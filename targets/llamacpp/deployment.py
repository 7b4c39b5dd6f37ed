"""The environment that a report on llama.cpp describes. Importable without llama.cpp.

There is no server and no serve command: the report's script is the usage, a tiny model and calls of the C API. What a
bug form asks for besides (system, versions) is in the report's environment.
"""

from __future__ import annotations

from ..base.deployment import Deployment, Implementation
from ..base.trace import Trace

OWN = (
    "the memory of hybrid models: recurrent cells and their snapshots, attention cells, states that are saved",
    "the whole computation of the model, on a CPU: a tiny model with random weights",
)
REPLACED = ("the server: the same batches and calls of the C API, one by one",)
KV = {"split": "attention cells of each sequence by itself", "unified": "attention cells of all sequences together"}
"""Value of the option `kv` -> its title."""


def deployment(variant: str, trace: Trace, version: str, device: str = "") -> Deployment:
    """Return what a report says about a trace of a release."""
    del variant, trace, version, device
    return Deployment(
        title="llama.cpp",
        implementations=tuple(Implementation(title, {"kv": value}, value == "split") for value, title in KV.items()),
        own=OWN,
        replaced=REPLACED,
        packages=("xllamacpp", "numpy", "gguf"),
        tracker="https://github.com/ggml-org/llama.cpp/issues",
    )
