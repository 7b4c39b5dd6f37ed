"""Puts our sentences about places of a cache into the words of an engine's developers.

Every target has blocks, columns and steps for the harness; an engine has its own names for them (`Deployment.phrases`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Phrases = Sequence[tuple[str, str]]
"""(pattern of our words, template of the engine's), used in this order."""


def in_words(text: str, phrases: Phrases) -> str:
    """Return a sentence in the words of an engine."""
    for ours, words in phrases:
        text = re.sub(ours, words, text)
    return text
