"""Stand-ins for what SGLang needs only off a CPU: modules at import, switched-off features at run time.

`OFF` returns itself for every attribute, call and item, and is false and empty. A stub module provides classes and
`OFF`. Modules that are installed are never replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

STUBBED = (
    "av", "cutlass", "datasets", "decord", "fastapi", "interegular", "llguidance", "modelscope", "outlines", "pandas",
    "prometheus_client", "py_spy", "python_multipart", "quack", "setproctitle", "setuptools", "sgl_kernel",
    "sgl_kernel_npu", "smg_grpc_servicer", "soundfile", "tilelang", "torchao", "torchvision", "uvicorn", "uvloop",
    "vllm", "xgrammar", "zstandard",
)  # fmt: skip


class Off:
    """A feature that is switched off."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return OFF

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return OFF

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, item: Any) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        return OFF

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __mod__(self, other: Any) -> Any:
        return OFF

    def __enter__(self) -> Any:
        return OFF

    def __exit__(self, *reason: Any) -> None:
        pass

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


OFF = Off()


class _Stub(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[:1].isupper():
            return OFF
        schema = classmethod(lambda cls, source, handler: __import__("pydantic_core").core_schema.any_schema())
        return type(name, (Off,), {"__get_pydantic_core_schema__": schema})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] in self.roots:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    def unpinned(*data: Any, pin_memory: bool = False, **keywords: Any) -> Any:
        return make(*data, **keywords)

    return unpinned


def install() -> None:
    """Provide stubs for missing modules, once per process. Transformers looks for optional modules first."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    from transformers.models.auto import configuration_auto
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()
    mapping = configuration_auto._LazyConfigMapping
    register = mapping.register
    # SGLang registers configurations that a newer Transformers knows already.
    mapping.register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)
    import torch

    # Without an accelerator there is nothing to pin memory for, and Torch refuses.
    torch.tensor, torch.zeros = _unpinned(torch.tensor), _unpinned(torch.zeros)
    torch.Tensor.pin_memory = lambda self, *arguments, **keywords: self  # type: ignore[method-assign]
    sys.meta_path.append(_Finder(frozenset(root for root in STUBBED if find_spec(root) is None)))
