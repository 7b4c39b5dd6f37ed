"""The packages of the tree: who may import whom, and that no docstring names a module that is gone.

The graph is grimp's: local imports and those under TYPE_CHECKING count like any other.
"""

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import grimp
import pytest

from hybridfuzz.targets.base.registry import engines

ROOT = Path(__file__).parents[1]
PACKAGES = ("harness", "reference", "targets", "reports", "corpus")

# Each package may import those behind it. Packages in one layer do not import each other. "/x" is a top-level package.
LAYERS: dict[str, tuple[str, ...]] = {
    "": (
        "reports",
        "harness",
        " | ".join(f"targets.{engine}" for engine in engines() if engine != "sequences"),
        "targets.sequences",
        "targets.base",
        "corpus",
        "reference | targets.triton_interpreter",
    ),
    "harness": (
        "/reports",
        "cli",
        "face | gate | library | hypothesis_machine",
        "campaign",
        "measure",
        "tell",
        "group",
        "workers",
        "explore",
        "record",
        "judge | options_file | risk",
        "draw",
        "campaign_events",
        "campaign_summary | defaults | exit_status | suggestions | units",
        "markup | standard_streams",
        "quoting",
    ),
    "harness.group": ("merge", "bug_history", "known", "findings", "causes", "reduction"),
    "targets.hybrid": (
        "factory | repro | deployment",
        "mutants",
        "numeric",
        "target",
        "session_events",
        "host | worker",
        "offload",
        "tag_memory | plan",
        "layout | inspection",
    ),
    "targets.vllm": (
        "confirmation | environment | factory | front_door | repro | repro_engine",
        "gpu | deployment | scheduler_test",
        "engine_test_tree",
        "capabilities",
        "kit_limits | stock",
        "models | release",
        "target",
        "shadow_kit",
        "engine",
        "counterparts",
        "runner_adapter",
        "graphs | layout",
        "shadow",
        "shadow_config",
        "rows",
        "host_view | cache_events",
        "pool_reader | versions | vllm_config",
        "sizes",
        "options",
        "interpreted_kernels",
    ),
}

WALLS: dict[str, tuple[str, ...]] = {
    "harness.judge.oracles.numeric": ("harness.judge.oracles",),
    "harness.workers.cluster": ("harness.face.commands.where",),
    "reference.numeric": ("harness.judge.oracles.numeric.*", "targets.hybrid.numeric.*"),
    "targets.hybrid.numeric": ("targets.hybrid.factory",),
    "targets.triton_interpreter": ("targets.vllm.interpreted_kernels",),
}
"""What not every reader needs: package -> its doors, the only modules outside of it that import it."""
ALONE = {"reference": {"numpy"}, "targets/triton_interpreter": {"numpy", "torch", "triton"}}
"""Packages that import nothing of ours outside of themselves -> what they import besides the standard library."""


@cache
def graph() -> grimp.ImportGraph:
    """The imports of the whole project."""
    return grimp.build_graph("hybridfuzz", cache_dir=None)


def modules() -> list[str]:
    return sorted(graph().modules)


def imports() -> Iterator[tuple[str, str]]:
    """Every (importer, imported)."""
    for module in modules():
        for imported in graph().find_modules_directly_imported_by(module):
            yield module, imported


def within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"hybridfuzz.{package}.")


def layer_of(module: str, tree: str) -> tuple[int, str] | None:
    """Layer and package of a module in one tree, None outside of it and for its own `__init__`."""
    for layer, packages in enumerate(LAYERS[tree]):
        for package in packages.split(" | "):
            if within(module, package[1:] if package[0] == "/" else f"{tree}.{package}".lstrip(".")):
                return layer, package
    return None


def test_there_is_no_import_circle() -> None:
    arrows = {module: graph().find_modules_directly_imported_by(module) for module in modules()}
    assert set(TopologicalSorter(arrows).static_order()) == set(modules())  # CycleError names the circle


@pytest.mark.parametrize("tree", LAYERS)
def test_packages_import_only_packages_below_them(tree: str) -> None:
    wrong = []
    for importer, imported in imports():
        above, below = layer_of(importer, tree), layer_of(imported, tree)
        if above and below and above != below and above[0] >= below[0]:
            wrong.append(f"{importer} imports {imported}")
    assert not wrong


@pytest.mark.parametrize("tree", [tree for tree in LAYERS if tree])
def test_every_package_has_a_layer(tree: str) -> None:
    children = graph().find_children(f"hybridfuzz.{tree}")
    assert [child for child in sorted(children) if not layer_of(child, tree)] == []


def test_harness_knows_targets_only_by_protocol_and_registry() -> None:
    adapters = [f"targets.{engine}" for engine in engines()]
    ours = [pair for pair in imports() if within(pair[0], "harness")]
    concrete = [pair for pair in ours if any(within(pair[1], adapter) for adapter in adapters)]
    assert not concrete


@pytest.mark.parametrize("package", WALLS)
def test_a_wall_has_few_doors(package: str) -> None:
    outside = {pair[0] for pair in imports() if within(pair[1], package) and not within(pair[0], package)}
    through = {door: fnmatch.filter(outside, f"hybridfuzz.{door}") for door in WALLS[package]}
    assert all(through.values())
    assert outside == set().union(*through.values())


def absolute_imports(file: Path) -> set[str]:
    """The top-level packages that a file imports by name."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_only_one_module_imports_ray() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    assert [file for file in files if "ray" in absolute_imports(file)] == [
        ROOT / "harness/workers/cluster/ray_workers.py"
    ]


@pytest.mark.parametrize("package", ALONE)
def test_a_package_of_its_own_imports_nothing_of_ours(package: str) -> None:
    allowed = ALONE[package] | {"__future__", *sys.stdlib_module_names}
    name = package.replace("/", ".")
    assert [pair for pair in imports() if within(pair[0], name) and not within(pair[1], name)] == []
    for file in sorted((ROOT / package).rglob("*.py")):
        assert absolute_imports(file) <= allowed, file


def docstrings() -> Iterator[tuple[Path, str]]:
    """Every docstring, with its file."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    yield file, ast.get_docstring(node) or ""


def test_docstrings_name_only_files_and_modules_that_exist() -> None:
    known = {path.name for folder in (*PACKAGES, "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*")}
    written = {"repro.py", "test_repro.py", "_version.py"}  # by the product, and by a build of an engine
    missing = []
    defined = identifiers_of_modules()
    for file, text in docstrings():
        for name in re.findall(r"[\w/]+\.py\b", text):
            if name.rpartition("/")[2] not in known | written:
                missing.append(f"{file.relative_to(ROOT)}: {name}")
        for name in re.findall(r"\bhybridfuzz\.(?:harness|reference|targets|reports)[\w.]*\w", text):
            if name not in graph().modules and name.rpartition(".")[2] not in defined.get(name.rpartition(".")[0], ()):
                missing.append(f"{file.relative_to(ROOT)}: {name}")
    assert not missing


def identifiers(tree: ast.AST) -> set[str]:
    """All names that a file defines or uses."""
    found: set[str] = set()
    for node in ast.walk(tree):
        kept = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "asname", "module")]
        found.update(part for name in kept if isinstance(name, str) for part in name.split("."))
    return found


def test_pointers_in_docstrings_lead_somewhere() -> None:
    """A word in brackets, as in "who decides that (`same_cause`)", is a module, a name in one (`judge.run.run_trace`),
    or a name in the file. In adapters it may be one of the engine's, so these are left out."""
    names = identifiers_of_modules()

    def leads(word: str) -> bool:
        parts = word.split(".")
        return any(
            module.endswith("." + ".".join(parts[:cut])) and names[module].issuperset(parts[cut:])
            for cut in range(1, len(parts) + 1)
            for module in names
        )

    missing = []
    for module in modules():
        if any(within(module, package) for package in ("harness", "reports", "targets.base")):
            texts = [node.value for node in ast.walk(tree_of(module)) if isinstance(node, ast.Constant)]
            words = re.findall(r"\(`([a-z_]+(?:\.(?!py\b)\w+)*)`\)", "\n".join(str(text) for text in texts))
            missing += [
                f"{module}: {word}" for word in words if word.split(".")[0] not in names[module] and not leads(word)
            ]
    assert not missing


@cache
def tree_of(module: str) -> ast.Module:
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def identifiers_of_modules() -> dict[str, set[str]]:
    return {module: identifiers(tree_of(module)) for module in modules()}


def packages() -> list[Path]:
    """All packages of the product but the corpus, which has no modules."""
    return sorted(
        file.parent
        for folder in PACKAGES
        for file in (ROOT / folder).rglob("__init__.py")
        if folder != "corpus" and "skeleton" not in file.parts
    )


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.relative_to(ROOT).as_posix())
def test_a_package_lists_its_modules(package: Path) -> None:
    """Each package's docstring has one line for each module and sub-package: `name  what it is`."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    listed = set(re.findall(r"^ *(\w+)/? {2,}\S", text, flags=re.MULTILINE))
    there = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert listed == there - {"__init__"}


def test_modules_that_are_imported_exist() -> None:
    """Also in targets, where mypy does not report a missing module, since engines are missing here."""
    there = set(modules())
    missing = []
    for path in sorted((ROOT / "targets").rglob("*.py")):
        package = ["hybridfuzz", *path.parent.relative_to(ROOT).parts]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
                name = ".".join(part for part in base if part)
                missing += [f"{path}: {name}"] * (name not in there)
    assert not missing


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_module_can_be_imported_alone() -> None:
    """No module relies on another one having been imported first. Engines' own modules need their engine."""
    outside = [f"targets.{engine}" for engine in engines() if (ROOT / "targets" / engine / "environment.py").exists()]
    if not all(map(find_spec, ("torch", "triton"))):
        outside += ["targets.hybrid.numeric", "targets.triton_interpreter"]
    alone = [module for module in modules() if not any(within(module, one) for one in outside)]
    code = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [module for module in sys.modules if module.startswith("hybridfuzz")]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""
    ran = subprocess.run([sys.executable, "-c", code, *alone], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
