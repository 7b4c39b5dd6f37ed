"""The compiler is watched, and compiles what it would have."""

from time import sleep
from types import SimpleNamespace
from typing import Any

from hybridfuzz.targets.vllm.gpu.compiler import watch_compiler


def test_each_kernel_is_said_before_it_is_compiled() -> None:
    said: list[str] = []
    asked: list[dict[str, Any]] = []
    runtime = SimpleNamespace(jit_cache_hook=None, jit_post_compile_hook=None)
    watch_compiler(runtime, said.append, {})
    assert runtime.jit_cache_hook(key="k", fn=SimpleNamespace(name="copy")) is None  # else Triton skips the kernel
    watched = SimpleNamespace(
        jit_cache_hook=lambda **keywords: asked.append(keywords) or True, jit_post_compile_hook=None
    )
    watch_compiler(watched, said.append, {})
    assert watched.jit_cache_hook(fn=SimpleNamespace(name="scan")) is True
    assert said == ["compiling kernel 1, copy", "compiling kernel 1, scan"]
    assert len(asked) == 1


def test_its_time_is_counted_apart() -> None:
    asked: list[dict[str, Any]] = []
    runtime = SimpleNamespace(jit_cache_hook=None, jit_post_compile_hook=lambda **keywords: asked.append(keywords))
    waited: dict[str, float] = {}
    watch_compiler(runtime, lambda what: None, waited)
    for name in ("copy", "scan"):
        before = waited.get("compiling", 0.0)
        runtime.jit_cache_hook(fn=SimpleNamespace(name=name))
        sleep(0.01)
        runtime.jit_post_compile_hook(fn=SimpleNamespace(name=name))
        assert 0.01 <= waited["compiling"] - before < 1
    assert [keywords["fn"].name for keywords in asked] == ["copy", "scan"]
