"""The pytest plugin, loaded wherever hybridfuzz is installed: the command-line options of the gate.

    pytest --hybridfuzz-target vllm@. --hybridfuzz-budget 60s

Inert unless `--hybridfuzz-target` names a target or `--hybridfuzz` selects the one in the configuration: otherwise
nothing else of hybridfuzz is imported and no file is read.
"""

from __future__ import annotations

import os

import pytest

PROFILE_VARIABLE = "HYBRIDFUZZ_PROFILE"
PROFILES = ("gate", "nightly")
"""Those that tests with Hypothesis know as well."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options. Defaults come from hybridfuzz.toml or [tool.hybridfuzz]."""
    group = parser.getgroup("hybridfuzz", "hybridfuzz: corpus and fixed search against a hybrid cache manager")
    add = group.addoption
    add("--hybridfuzz", action="store_true", help="run the gate with the configured target")
    add("--hybridfuzz-target", metavar="T", help="run the gate on this target: vllm@. for the vLLM checked out here")
    add("--hybridfuzz-budget", metavar="TIME", help="for the search, at the target's nominal rate (60s)")
    add("--hybridfuzz-seed", metavar="S", type=int, help="of the search (profile gate: 0; nightly: a random one)")
    add("--hybridfuzz-profile", metavar="P", help="gate: the same traces every time; nightly: new ones; or your own")
    add("--hybridfuzz-config", metavar="K=V,...", action="append", help="fix what is drawn otherwise")
    add("--hybridfuzz-known", metavar="FILE", help="acknowledged bugs, which do not fail (known.toml)")
    add("--hybridfuzz-fixes", metavar="DIR", action="append", help="patches of known bugs: a folder, builtin, or none")
    add("--hybridfuzz-out", metavar="DIR", help="where reduced traces of failures go (a folder in the user's cache)")
    add("--hybridfuzz-changed-since", metavar="REF", help="say which lines changed since then ran, and aim at them")
    add("--hybridfuzz-strict", action="store_true", default=None, help="fail if hybridfuzz does not fit the engine")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the gate if it was requested."""
    if config.option.hybridfuzz_profile in PROFILES:
        os.environ[PROFILE_VARIABLE] = config.option.hybridfuzz_profile
    if config.option.hybridfuzz or config.option.hybridfuzz_target:
        from .pytest_session import GateSession, keep_out

        keep_out(config)
        config.pluginmanager.register(GateSession(config), "hybridfuzz-gate")
