"""A batch's cache, and the client's operations on it: the calls of the public API.

The cache of the tags and that of the real model are handled by the same code. An operation that the library declines
leaves the cache as it was, because it runs on a copy.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from . import operations as do


class Declined(Exception):
    """The library does not support an operation; the message is its own."""


class Batch:
    """The cache of one batch, and the caches that are kept for sessions.

    new  makes a cache; it may return None, if the model makes it in its first forward
    """

    def __init__(self, new: Callable[[], Any]) -> None:
        self._new = new
        self.cache: Any = None
        self.kept: dict[str, Any] = {}

    def apply(self, operation: do.Operation) -> None:
        """Execute an operation that is not a forward. Declined if the library does not support it."""
        match operation:
            case do.Begin(reused=reused):
                if not reused or self.cache is None:
                    self.cache = self._new()
            case do.Crop(tokens=tokens):
                self._change("crop", -tokens)
            case do.Select(rows=rows):
                self._change("batch_select_indices", torch.tensor(rows).to("cpu"))
            case do.Reorder(rows=rows):
                self._change("reorder_cache", torch.tensor(rows))
            case do.Repeat(times=times):
                self._change("batch_repeat_interleave", times)
            case do.Reset():
                self._change("reset")
            case do.Store(name=name):
                self.kept[name], self.cache = self.cache, None
            case do.Load(name=name):
                self.cache = self.kept.pop(name)
            case do.Copy(name=name, parent=parent):
                self.kept[name] = deepcopy(self.kept[parent])
            case do.Forget(name=""):
                self.cache = None
            case do.Forget(name=name):
                self.kept.pop(name, None)

    def _change(self, method: str, *arguments: Any) -> None:
        if self.cache is None:
            return
        changed = deepcopy(self.cache)
        try:
            getattr(changed, method)(*arguments)
        except Exception as error:
            if reason := declined(error, method):
                raise Declined(reason) from error
            raise
        self.cache = changed


def declined(error: Exception, method: str) -> str:
    """Return the reason if the library itself refuses a call, "" if something in it failed.

    It refuses by a `raise` statement of its own, or because a kind of layer does not have the method.
    """
    if isinstance(error, AttributeError) and error.name == method:
        return str(error)
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return ""
    frame = place.tb_frame
    raised = linecache.getline(frame.f_code.co_filename, place.tb_lineno).strip().startswith("raise ")
    inside = frame.f_globals.get("__name__", "").startswith("transformers.")
    return str(error) if raised and inside else ""
