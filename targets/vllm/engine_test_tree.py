"""Where tests stand in vLLM's own tree, and how they begin there."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..base.engine_tests import EngineTest

LICENSE = """\
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""
WIDTH = 88
TESTS = ("tests", "v1", "core")
FOLDER = "/".join(TESTS)
NOTHING: Mapping[str, str] = {}


def engine_test(
    name: str, text: str, beside: Mapping[str, str] = NOTHING, promise: str = "", part: str = ""
) -> EngineTest:
    """Return a test with a name among those of the scheduler and the cache manager. `beside`: further modules."""
    packages = {"/".join([*TESTS[: depth + 1], "__init__.py"]): "" for depth in range(len(TESTS))}
    path = f"{FOLDER}/test_{name}.py"
    # -vv: an assertion shows both values whole.
    run = ["-m", "pytest", "-vv", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", path]
    modules = {f"{FOLDER}/{module}.py": one for module, one in beside.items()}
    return EngineTest({path: text, **modules, **packages}, run, promise, part)
