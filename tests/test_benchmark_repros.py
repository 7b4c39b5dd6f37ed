"""The count of reproducers: which traces are counted, and with which fixes they pass."""

from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
OWN, OTHER = object(), object()
NAME = "1--cause--S1-step.json"


@pytest.fixture
def repros(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("repros")


def test_a_variant_with_traces_of_its_own_is_counted_on_these(repros: ModuleType) -> None:
    server = repros.packaged_traces("llamacpp:server@2026.10.11549")
    library = repros.packaged_traces("llamacpp@2026.10.11549")
    assert server and library
    assert all(name.startswith("server/") and path.parent.name == "server" for name, path in server.items())
    assert not any("/" in name for name in library)
    assert repros.packaged_traces("llamacpp:lfm2@2026.10.11549") == library
    assert repros.packaged_traces("sglang:sessions@0.5.23") == repros.packaged_traces("sglang@0.5.23")


def test_names_of_counted_traces_are_those_of_the_known_bugs(repros: ModuleType) -> None:
    """Else no cause has a trace, and no fix is found."""
    entries = repros.read_fixes(repros.BUILTIN, "llamacpp:server@2026.10.11549")
    named = {trace for entry in entries for trace in entry.traces}
    assert named & repros.packaged_traces("llamacpp:server@2026.10.11549").keys()
    assert list(repros.packaged_traces("llamacpp:server@2026.10.11549", "drafting*ABRT")) == [
        "server/2026.10.11549--drafting-context-not-restored--CRASH-step-SIGABRT.json"
    ]


def test_traces_of_earlier_releases_count_where_their_bug_is_listed(repros: ModuleType) -> None:
    """A release for which no trace was made had no row, although all its known bugs had scripts."""
    found = repros.packaged_traces("transformers@5.24.0")
    entries = [one for one in repros.read_fixes(repros.BUILTIN, "transformers@5.24.0") if "5.24.0" in one.releases]
    assert found.keys() == {name for entry in entries for name in entry.traces}
    assert found.keys() < repros.packaged_traces("transformers@5.23.0").keys()
    assert repros.packaged_traces("transformers@5.24.0", "lfm2*").keys() < found.keys()


@pytest.mark.parametrize(
    ("passing", "expected"),
    [
        ([[OWN], [OWN, OTHER]], (True, True, False)),
        ([[OWN, OTHER]], (True, True, True)),
        ([], (True, False, False)),
    ],
)
def test_a_script_that_passes_only_with_all_fixes_is_counted_as_such(
    repros: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    passing: list[list[object]],
    expected: tuple[bool, bool, bool],
) -> None:
    bench = object.__new__(repros.Bench)
    bench.spec, bench.launch, bench.folder, bench.as_tests, bench.start = "vllm", None, tmp_path, False, None
    bench.entries = [SimpleNamespace(title="own", patch="own.patch", traces=[NAME])]
    bench.patches = {"own": OWN, "other": OTHER}
    script = SimpleNamespace(text="", promise="wrong tokens")
    bad = SimpleNamespace(promised=True, seconds=1.0, status=1, tail="", elsewhere="")
    monkeypatch.setattr(repros, "tried", lambda *_: (script, bad))
    monkeypatch.setattr(repros, "patched", lambda launch, fixes: fixes)
    monkeypatch.setattr(
        repros, "run_script",
        lambda path, script, fixed, run: SimpleNamespace(status=int(fixed not in passing), tail=""),
    )  # fmt: skip
    assert bench.run(NAME, repros.Written(None, [script])) == expected
