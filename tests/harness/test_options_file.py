"""hybridfuzz.toml: one file with the options of all verbs and of the gate."""

import argparse
import re
from pathlib import Path

import pytest
from cli_process import Cli

from hybridfuzz.harness import options_file
from hybridfuzz.harness.cli import COMMANDS, _parsers
from hybridfuzz.harness.options_file import OPTIONS, VERBS, make_defaults, own_options, profile_entries, read_options
from hybridfuzz.targets.base.trace import TraceError

FILE = """
target = "hybrid"
fresh = true
budget = "60s"

[known]
expires = "2030-01-01"

[fuzz]
time = "10m"
no_canary = true
config = { mamba_cache_mode = "align", num_blocks = 30 }

[gate]
strict = true

[profiles.nightly]
time = "8h"
fixes = ["builtin", "mine"]

[profiles.nightly.fuzz]
seed = 7
"""


def own(verb: str) -> frozenset[str]:
    _, command = _parsers(verb)
    assert command
    return own_options(command)


def values(folder: Path, verb: str, profile: str = "") -> dict[str, object]:
    return {name: entry.value for name, entry in profile_entries(folder, verb, own(verb), profile).items()}


def test_the_names_are_those_of_all_commands() -> None:
    """They stand in a list, so that no command has to import the others."""
    assert set(VERBS) == COMMANDS.keys()
    found = {name for verb in COMMANDS for name in own(verb)}
    assert {name for name in found if not name.startswith("no-no-")} == OPTIONS


def test_layers(tmp_path: Path) -> None:
    """A profile wins over the rest, a verb's table over keys for all verbs; what a verb does not have is left out."""
    (tmp_path / "hybridfuzz.toml").write_text(FILE)
    config = {"mamba_cache_mode": "align", "num_blocks": 30}
    fuzz = {"target": "hybrid", "fresh": True, "time": "10m", "no-canary": True, "config": config}
    assert values(tmp_path, "fuzz") == fuzz
    assert values(tmp_path, "fuzz", "nightly") == {**fuzz, "time": "8h", "fixes": ["builtin", "mine"], "seed": 7}
    assert values(tmp_path, "known") == {"target": "hybrid", "expires": "2030-01-01"}
    assert values(tmp_path, "reduce") == {"target": "hybrid"}


def test_pyproject(tmp_path: Path) -> None:
    """Its table counts where there is no hybridfuzz.toml."""
    (tmp_path / "pyproject.toml").write_text('[tool.hybridfuzz]\ntarget = "a"\n[tool.hybridfuzz.fuzz]\nseed = 1\n')
    assert values(tmp_path, "fuzz") == {"target": "a", "seed": 1}
    (tmp_path / "hybridfuzz.toml").write_text('target = "b"\n')
    assert values(tmp_path, "fuzz") == {"target": "b"}


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "tool = 3\n"])
def test_a_pyproject_without_the_table_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert values(tmp_path, "fuzz") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("taget = 1", "hybridfuzz.toml: taget: there is no such option; did you mean target?"),
        ("[fuzz]\ntmie = '1s'", "hybridfuzz.toml: [fuzz] tmie: there is no such option; did you mean time?"),
        ("[fuz]\ntime = '1s'", "did you mean fuzz?"),
        ("[gate]\nbugdet = 1", "[gate] bugdet: there is no such option; did you mean budget?"),
        ("[replay]\nportt = true", "[replay] portt: there is no such option; did you mean port?"),
        ("[profiles.desk]\njbos = 1", "[profiles.desk] jbos: there is no such option; did you mean jobs?"),
        ("out = 'x'", "out: it differs from verb to verb: write it in [fuzz], [gate], ..."),
        ("profiles = 3", "profiles: expected a table"),
        ("x = ", "hybridfuzz.toml: "),
        ("a" + ".a" * 40_000 + " = 1", "a key of more than 16 parts"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    """One line, also if another verb is asked for, or another profile."""
    (tmp_path / "hybridfuzz.toml").write_text(text)
    with pytest.raises(TraceError) as raised:
        values(tmp_path, "fuzz")
    assert words in str(raised.value)


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"--profile nightly: no such profile \(hybridfuzz\.toml here has none\)"):
        values(tmp_path, "fuzz", "nightly")
    (tmp_path / "hybridfuzz.toml").write_text(FILE)
    with pytest.raises(TraceError, match=r"nightl: no such profile; did you mean nightly\? \(there are nightly\)"):
        values(tmp_path, "fuzz", "nightl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'profile = "nihgtly"\n',
            "profile = 'nihgtly': no such profile; did you mean nightly? (there are gate, nightly)",
        ),
        ("[profile.desk]\nseed = 1\n", "profile is a table: profiles stand in [profiles.NAME]"),
        ("profile = 3\n", "profile = '3': no such profile (there are gate, nightly)"),
        ('[profiles.a]\nprofile = "b"\n[profiles.b]\n', "[profiles.a] profile: a profile does not choose one"),
        ('[profiles.a.gate]\nprofile = "gate"\n', "[profiles.a.gate] profile: a profile does not choose one"),
    ],
)
def test_a_profile_that_the_file_chooses_and_does_not_have(
    hybridfuzz: Cli, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "hybridfuzz.toml").write_text(text)
    ran = hybridfuzz("doctor")
    assert ran.status == 2
    assert ran.error == f"hybridfuzz: error: hybridfuzz.toml: {words}"


def test_a_profile_that_the_file_chooses(tmp_path: Path) -> None:
    """One of the gate's own says nothing to a command; the gate may have another one than the commands."""
    (tmp_path / "hybridfuzz.toml").write_text('profile = "nightly"\nseed = 1\n[gate]\nprofile = "desk"\n')
    with pytest.raises(TraceError, match=r"\[gate\] profile = 'desk': no such profile"):
        read_options(tmp_path).profile_of("gate", "")
    assert values(tmp_path, "fuzz") == {"seed": 1}
    (tmp_path / "hybridfuzz.toml").open("a").write("[profiles.desk]\nseed = 2\n[profiles.nightly]\nseed = 3\n")
    assert values(tmp_path, "fuzz") == {"seed": 3}
    assert read_options(tmp_path).profile_of("gate", "") == "desk"


def test_other_folders_do_not_count(tmp_path: Path) -> None:
    """Only the folder in which somebody works says how."""
    (tmp_path / "hybridfuzz.toml").write_text(FILE)
    (tmp_path / "below").mkdir()
    assert values(tmp_path / "below", "fuzz") == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("time", "soon", "fuzz time: 'soon': write 90s"),
        ("no-canary", "yes", "expected true or false"),
        ("source", "hypothesi", "choose from seeded, hypothesis; did you mean hypothesis?"),
        ("time", [1], "expected a text or a number"),
    ],
)
def test_values_that_an_option_does_not_take(name: str, value: object, words: str) -> None:
    _, command = _parsers("fuzz")
    assert command
    with pytest.raises(TraceError) as raised:
        make_defaults(command, {name: options_file.Entry(value, f"hybridfuzz.toml: fuzz {name}")})
    assert words in str(raised.value)


def test_a_switch_has_both_forms() -> None:
    for name, value, wanted in (("explain", True, True), ("explain", False, False), ("no-explain", True, False)):
        _, command = _parsers("replay")
        assert command
        make_defaults(command, {name: options_file.Entry(value, "")})
        assert isinstance(command, argparse.ArgumentParser)
        assert command.parse_args(["a.json"]).explain is wanted


def test_the_command_line_wins(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Also over options that may be given several times: what stands in the file is not added to them."""
    (tmp_path / "hybridfuzz.toml").write_text(
        'seed = 5\n[fuzz]\ntraces = 3\nno-canary = true\njson = true\nconfig = { mamba_cache_mode = "all" }\n'
        "[profiles.desk]\nseed = 6\n"
    )
    ran = hybridfuzz("fuzz", "-o", "a").json
    assert (ran["seed"], ran["traces"], ran["overrides"]) == (5, 3, {"mamba_cache_mode": "all"})
    (tmp_path / "hybridfuzz.toml").open("a").write('fixes = ["gone"]\n')
    assert "gone: cannot be read" in hybridfuzz("fuzz", "--profile", "desk", "-o", "b").error
    ran = hybridfuzz(
        "fuzz", "--profile", "desk", "--fixes", "none", "--traces", "2", "--config", "num_blocks=40", "-o", "b"
    ).json
    assert (ran["seed"], ran["traces"], ran["overrides"]) == (6, 2, {"num_blocks": "40"})


def test_a_file_that_is_wrong_is_one_line(hybridfuzz: Cli, tmp_path: Path) -> None:
    (tmp_path / "hybridfuzz.toml").write_text("taget = 1\n")
    ran = hybridfuzz("doctor")
    assert ran.status == 2
    assert ran.error == "hybridfuzz: error: hybridfuzz.toml: taget: there is no such option; did you mean target?"


def test_a_command_that_is_not_there(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuz")
    assert ran.status == 2
    assert "there is no command 'fuz'; did you mean fuzz?" in ran.error


def test_the_example_of_the_page_is_one(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/reference/command-line.md"
    [example] = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "hybridfuzz.toml").write_text(example)
    for verb in VERBS:
        _, command = _parsers(verb)
        assert command
        make_defaults(command, profile_entries(tmp_path, verb, own(verb), "nightly"))
    assert values(tmp_path, "fuzz", "nightly")["sarif"] == "night.sarif"
