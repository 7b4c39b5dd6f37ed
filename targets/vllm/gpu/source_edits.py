"""Leaves assertions out of a function of vLLM's, in place."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any


def leave_out(function: Any, unwanted: Callable[[str], bool]) -> None:
    """Leave assertions out of a function, in place, for all modules that have imported it."""
    tree = ast.parse(inspect.getsource(function))
    [definition] = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    _Assertions(unwanted).visit(definition)
    made: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec"), function.__globals__, made)
    function.__code__ = made[definition.name].__code__


class _Assertions(ast.NodeTransformer):
    def __init__(self, unwanted: Callable[[str], bool]) -> None:
        self._unwanted = unwanted

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return ast.Pass() if self._unwanted(ast.unparse(node)) else node
