"""Target strings: which engine, which variant or version of it, and how to start it.

    hybrid              the built-in target
    hybrid:SLUG         one of its mutants
    hybrid@cuda         with a numeric run on a device: cpu, cuda, interpreter
    sequences[:SLUG]    the built-in memory of sequences, or one of its mutants
    vllm                the vLLM installed here
    vllm@0.33.0         a release, in an environment of its own
    vllm@PATH           a checkout or unpacked wheel
    vllm@0.33.0@cuda    one of these with a real model on a device
    python:MODULE:NAME  a `TargetFactory` of your own

An engine is a folder beside this one. Its `factory.py` offers `make_factory(variant)` and, if there
are any, `variants()` (slug -> title). If the engine runs in an environment of its own, only the
worker imports `factory.py` and the coordinator imports `environment.py`, which offers
`prepare(version, progress) -> Launch`, `available() -> {target string: title}` and, if there is an
index of them, `between(first, last, progress)` without importing the engine. `kit_limits.py` may list
what ways of running it cannot do (`limits()`). No other code refers to the engine.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from msgspec import Struct, structs

from .coverage_scope import SCOPE_FILE, Scope, read_scope
from .declarations import check_capabilities
from .deployment import Deployment
from .engine_tests import EngineTest, Python
from .kits import Behind, Limit
from .launch import Launch
from .protocol import Capabilities, TargetError, TargetFactory
from .releases import RELEASE
from .repro import WRONG_TOKENS, Failure, Script, with_other_prompts
from .trace import Trace

PACKAGE = __package__.rpartition(".")[0]
FOLDERS = Path(__file__).parents[1]
NAMES_SHOWN = 12
"""Names of targets in an error."""
_SPEC = re.compile(r"(?P<name>[\w-]+)(?::(?P<variant>[\w.-]+))?(?:@(?P<version>.+))?")


class Spec(Struct, frozen=True):
    """A parsed target string. For `python:MODULE:NAME` the variant is "MODULE:NAME"."""

    name: str
    variant: str = ""
    version: str = ""
    device: str = ""
    """Of an engine with an environment of its own; the others name theirs as their version."""


def parse(spec: str) -> Spec:
    """Parse a target string. TargetError if there is no such engine."""
    if spec.startswith("python:"):
        module, _, attribute = spec.removeprefix("python:").partition(":")
        if not (module and attribute):
            raise TargetError(f"target {spec!r}: expected python:MODULE:NAME, for example python:my_engine:FACTORY")
        return Spec("python", f"{module}:{attribute}")
    match = _SPEC.fullmatch(spec)
    if match is None or match["name"] not in engines():
        raise _unknown(spec, [*engines(), "python:MODULE:NAME"])
    version, _, device = (match["version"] or "").rpartition("@")
    if not (_has(match["name"], "environment") and device in _devices(match["name"])):
        version, device = match["version"] or "", ""
    parsed = Spec(match["name"], match["variant"] or "", version, device)
    if parsed.version and not _has(parsed.name, "environment") and not _devices(parsed.name):
        raise TargetError(f"target {spec!r}: {parsed.name} comes with hybridfuzz and has no versions")
    return parsed


def is_of_index(spec: str) -> bool:
    """Return True for a target whose code comes with hybridfuzz or from the package index.

    A file may name it: no path and no module of whoever wrote the file is imported. TargetError as `parse`.
    """
    parsed = parse(spec)
    return parsed.name != "python" and not (parsed.version and not _is_known_version(parsed))


def _is_known_version(parsed: Spec) -> bool:
    if not _has(parsed.name, "environment"):
        return True  # a device
    return RELEASE.fullmatch(parsed.version) is not None


def on_device(spec: str, device: str) -> str:
    """Return the target string of a target on a device; "symbolic" leaves it as it is."""
    if device == "symbolic":
        return spec
    parsed = parse(spec)
    on_one = parsed.device or (parsed.version and not _has(parsed.name, "environment"))
    if on_one or parsed.name == "python" or not _devices(parsed.name):
        able = ", ".join(name for name in engines() if _devices(name))
        raise TargetError(f"target {spec!r} cannot be put on a device; engines that can: {able}")
    if device not in _devices(parsed.name):
        raise TargetError(f"device {device!r}: known: symbolic, {', '.join(_devices(parsed.name))}")
    return f"{spec}@{device}"


def load_factory(spec: str) -> TargetFactory:
    """Return the factory of a target string. Call it in the interpreter that `prepare` returned."""
    factory = _load(spec, parse(spec))
    check_capabilities(factory.capabilities, spec)
    return factory


def _load(spec: str, parsed: Spec) -> TargetFactory:
    if parsed.name == "python":
        return _from_module(spec, *parsed.variant.split(":"))
    module = _module(parsed.name, "factory")
    _check_variant(spec, parsed)
    # `prepare` has handled the version of an engine with an environment; for other engines it is a device.
    on = parsed.device or (parsed.version if not _has(parsed.name, "environment") else "")
    device = [on] if on else []
    factory: TargetFactory = module.make_factory(parsed.variant, *device)
    return factory


def _check_variant(spec: str, parsed: Spec) -> None:
    """TargetError for a variant that an engine does not have, or a device that its numeric run does not know."""
    module = _module(parsed.name, "factory")
    variants = _variants(module) if parsed.variant else {}
    if parsed.variant and parsed.variant not in variants:
        raise _unknown(spec, [f"{parsed.name}:{slug}" for slug in variants] or [parsed.name])
    devices = () if _has(parsed.name, "environment") else _devices(parsed.name)
    device = parsed.version.removesuffix(getattr(module, "BYTES_ALONE", ""))
    if device and devices and device not in devices:
        raise TargetError(f"target {spec!r}: no such device: known: symbolic, {', '.join(devices)}")


def prepare(spec: str, progress: Callable[[str], None]) -> Launch:
    """Return how to start a worker for a target; make the engine's environment if it is missing."""
    parsed = parse(spec)
    if parsed.name == "python":
        return Launch(sys.executable, {}, tree=_folder_of(parsed.variant.partition(":")[0]))
    if not _has(parsed.name, "environment"):
        _check_variant(spec, parsed)
        return Launch(sys.executable, {})
    device = [parsed.device] if parsed.device else []
    launch: Launch = _module(parsed.name, "environment").prepare(parsed.version, progress, *device)
    return launch


def check_has_releases(spec: str) -> None:
    """Raise TargetError unless `spec` is an engine that has releases, without naming one of them."""
    parsed = parse(spec)
    if not _has(parsed.name, "environment"):
        having = ", ".join(name for name in engines() if _has(name, "environment"))
        raise TargetError(f"target {spec!r} has no releases; engines that have: {having}")
    if parsed.version:
        raise TargetError(
            f"target {spec!r} is one release: give {spec.partition('@')[0]} and name the releases with --versions"
        )


def releases_between(name: str, first: str, last: str, progress: Callable[[str], None]) -> Sequence[str]:
    """Return the releases of an engine, oldest first. TargetError if it has none, or if they cannot be listed."""
    check_has_releases(name)
    parsed = parse(name)
    if not hasattr(_module(parsed.name, "environment"), "between"):
        raise TargetError(f"target {name!r}: its releases cannot be listed; name them with --versions A,B,C")
    listed: Sequence[str] = _module(parsed.name, "environment").between(first, last, progress)
    return listed


def write_scripts(spec: str, trace: Trace, failure: Failure) -> Sequence[Script]:
    """Return stand-alone reproducers, the simplest first. TargetError if the engine has none for this failure."""
    parsed = parse(spec)
    if not _has(parsed.name, "repro"):
        raise TargetError(f"target {spec!r} offers no stand-alone reproducers")
    scripts: Sequence[Script] = _module(parsed.name, "repro").write_scripts(parsed.variant, trace, failure)
    return scripts


def write_attempts(spec: str, trace: Trace, failure: Failure) -> Iterator[Script]:
    """Return stand-alone reproducers, and behind those of wrong tokens the first one with other prompts of the same
    lengths: of a hundred tokens the one that follows from a wrong state may be the right one. That one is written when
    the others are used up. TargetError as above."""
    scripts = write_scripts(spec, trace, failure)

    def with_others() -> Iterator[Script]:
        yield from scripts
        if any(WRONG_TOKENS in one.promise for one in scripts):
            other = structs.replace(trace, events=with_other_prompts(trace.events))
            events = with_other_prompts(failure.events)
            yield write_scripts(spec, other, structs.replace(failure, events=events))[0]

    return with_others()


def write_test(spec: str, trace: Trace, script: Script, name: str) -> EngineTest:
    """Return a script as a test for the engine's own tree. TargetError if the engine has none."""
    parsed = parse(spec)
    if not (_has(parsed.name, "repro") and hasattr(_module(parsed.name, "repro"), "write_test")):
        raise TargetError(f"target {spec!r} has no tests of its own style: use test_repro.py (without --kind)")
    test: EngineTest = _module(parsed.name, "repro").write_test(trace, script, name)
    return test


def write_unit_test(
    spec: str, trace: Trace, script: Script, about: str, name: str, run: Python, run_fixed: Python | None
) -> EngineTest:
    """Return a test of the part of the engine that is wrong. TargetError if the engine has none that shows it.

    `about`: what is wrong, in paragraphs. `run_fixed` runs a program on an engine with the bug fixed, if there is one.
    """
    parsed = parse(spec)
    if not (_has(parsed.name, "repro") and hasattr(_module(parsed.name, "repro"), "write_unit_test")):
        raise TargetError(f"target {spec!r} has no tests of a part of it")
    test: EngineTest = _module(parsed.name, "repro").write_unit_test(trace, script, about, name, run, run_fixed)
    return test


def describe(spec: str, trace: Trace, version: str = "") -> Deployment:
    """Return the server that a trace stands for; little more than the engine's name if the engine offers nothing."""
    parsed = parse(spec)
    if not _has(parsed.name, "deployment"):
        return Deployment(parsed.variant if parsed.name == "python" else parsed.name)
    device = parsed.device or (parsed.version if not _has(parsed.name, "environment") else "")
    described: Deployment = _module(parsed.name, "deployment").deployment(parsed.variant, trace, version, device)
    return described


def kit_limits(spec: str) -> Sequence[Limit]:
    """Return what the kits of an engine cannot do, () if it offers no table (`kits`)."""
    parsed = parse(spec)
    if not _has(parsed.name, "kit_limits"):
        return ()
    limits: Sequence[Limit] = _module(parsed.name, "kit_limits").limits()
    return limits


def front_door(spec: str) -> ModuleType:
    """Return what compares an engine's commands with what ran (`front_door`). TargetError if there is nothing."""
    parsed = parse(spec)
    if not _has(parsed.name, "front_door"):
        raise TargetError(f"target {spec!r} has no front door to compare with; use vllm@RELEASE or sglang@RELEASE")
    return _module(parsed.name, "front_door")


def behind_the_door(spec: str) -> Sequence[Behind]:
    """Return what an adapter sets behind its engine's front door, () if it offers no table (`kits`)."""
    parsed = parse(spec)
    if not _has(parsed.name, "front_door"):
        return ()
    table: Sequence[Behind] = front_door(spec).BEHIND
    return table


def confirmation(spec: str) -> ModuleType:
    """Return what runs failing traces on an engine's real models (`confirmation`). TargetError if there is none."""
    parsed = parse(spec)
    if not _has(parsed.name, "confirmation"):
        raise TargetError(f"target {spec!r} has no real models; use --target vllm@RELEASE --device cuda")
    return _module(parsed.name, "confirmation")


def coverage_scope(spec: str) -> Scope:
    """Return the modules of a target whose lines count, and the functions that do not.

    Raises TargetError if the target declares none, TraceError if its file cannot be used.
    """
    parsed = parse(spec)
    own = parsed.name == "python"
    path = (Path(_folder_of(parsed.variant.partition(":")[0])) if own else FOLDERS / parsed.name) / SCOPE_FILE
    if not path.is_file():
        raise TargetError(f"target {spec!r} declares no modules for coverage: {path} is missing")
    return read_scope(path)


def engines() -> list[str]:
    """Return the names of all engines."""
    return [
        folder.name
        for folder in iter_modules([str(FOLDERS)])
        if folder.ispkg and (FOLDERS / folder.name / "factory.py").exists()
    ]


def known_targets() -> dict[str, str]:
    """Return target string -> one line about it; of an engine with environments also the releases that are ready."""
    known: dict[str, str] = {}
    for name in engines():
        title = (importlib.import_module(f"{PACKAGE}.{name}").__doc__ or "").partition("\n")[0]
        known[name] = title.rstrip(".")
        if _has(name, "environment"):
            known |= _module(name, "environment").available()
        variants = _variants(_module(name, "factory"))
        known |= {f"{name}:{slug}": about for slug, about in variants.items()}
    return known | {"python:MODULE:NAME": "a TargetFactory of your own, importable from here"}


def _has(name: str, part: str) -> bool:
    """Return True if an engine has a module of this name; a user's module ("python:...") has none of ours."""
    return name != "python" and find_spec(f"{PACKAGE}.{name}.{part}") is not None


def _module(name: str, part: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}.{part}")


def _variants(module: ModuleType) -> Mapping[str, str]:
    variants: Mapping[str, str] = module.variants() if hasattr(module, "variants") else {}
    return variants


def _devices(name: str) -> tuple[str, ...]:
    part = "environment" if _has(name, "environment") else "factory"
    devices: tuple[str, ...] = getattr(_module(name, part), "DEVICES", ())
    return devices


def missing_devices(name: str) -> dict[str, str]:
    """Return device -> the reason why it cannot be used here, "" if it can."""
    missing: dict[str, str] = _module(name, "factory").missing_devices()
    return missing


def _from_module(spec: str, module: str, attribute: str) -> TargetFactory:
    """Return a factory from a user's module: an instance, or a class or function that returns one."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise TargetError(f"target {spec!r}: {error}; is PYTHONPATH right? (now: {_path_now()})") from error
    except AttributeError as error:
        raise TargetError(f"target {spec!r}: {error}") from error
    try:
        factory: TargetFactory = found() if isinstance(found, type) or not hasattr(found, "capabilities") else found
    except Exception as error:
        raise TargetError(f"target {spec!r}: calling it raised {type(error).__name__}: {error}") from error
    has = isinstance(getattr(factory, "capabilities", None), Capabilities) and hasattr(factory, "name")
    if not has or not callable(getattr(factory, "open", None)) or not callable(getattr(factory, "supports", None)):
        kind = type(factory).__name__
        raise TargetError(f"target {spec!r}: {kind!r} is no TargetFactory (name, capabilities, supports, open)")
    return factory


def _folder_of(module: str) -> str:
    """Return the folder that a worker imports a user's module from, "" if it is not a plain file or package.

    Nothing is imported here: the module may need what only the worker has.
    """
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = PathFinder.find_spec(module.partition(".")[0], [str(Path.cwd()), *filter(None, inherited), *sys.path])
    if found is None or not found.origin or not found.origin.endswith(".py"):
        return ""
    path = Path(found.origin)
    return str(path.parents[1] if path.name == "__init__.py" else path.parent)


def _path_now() -> str:
    return os.environ.get("PYTHONPATH") or "not set"


def _unknown(spec: str, names: list[str]) -> TargetError:
    name, at, version = spec.partition("@")
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}{at}{version}? " if close else ""
    shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
    return TargetError(f"unknown target {spec!r}: {hint}known: {shown} (`hybridfuzz targets` lists all)")
