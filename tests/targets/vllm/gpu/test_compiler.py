"""The compiler is watched, and compiles what it would have."""

from types import SimpleNamespace
from typing import Any

from hybridfuzz.targets.vllm.gpu.compiler import watch_compiler


def test_each_kernel_is_said_before_it_is_compiled() -> None:
    said: list[str] = []
    asked: list[dict[str, Any]] = []
    runtime = SimpleNamespace(jit_cache_hook=None)
    watch_compiler(runtime, said.append)
    assert runtime.jit_cache_hook(key="k", fn=SimpleNamespace(name="copy")) is None  # else Triton skips the kernel
    watched = SimpleNamespace(jit_cache_hook=lambda **keywords: asked.append(keywords) or True)
    watch_compiler(watched, said.append)
    assert watched.jit_cache_hook(fn=SimpleNamespace(name="scan")) is True
    assert said == ["compiling kernel 1, copy", "compiling kernel 1, scan"]
    assert len(asked) == 1
