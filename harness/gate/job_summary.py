"""The gate's section on the page of a GitHub workflow's run (a "job summary")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..campaign_summary import Changed
from ..quoting import markdown_fence, markdown_text
from ..tell.changed_words import changed_markdown
from ..tell.silence import failing_line
from ..units import plural
from .causes import Cause


def paragraphs(
    causes: Sequence[Cause], states: Counter[str], drawn: Counter[str], changed: Changed | None
) -> Iterator[str]:
    """Yield what ran, an upper bound of the rate of failing traces, the changed lines that ran, and the failures."""
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    yield markdown_text(f"{plural(states.total(), 'trace')}: {counts}")
    yield markdown_text(failing_at_most(drawn))
    yield changed_markdown(changed) if changed else ""
    for cause in causes:
        headline, _, details = cause.text.partition("\n")
        yield f"### {markdown_text(headline)}"
        yield markdown_fence(details.strip())


def failing_at_most(drawn: Counter[str]) -> str:
    """Return the bound that drawn traces give, "" if none ran. A known failure is a failure."""
    failing = drawn["failed"] + drawn["known"]
    traces = failing + drawn["clean"]
    return failing_line(failing, traces) if traces else ""
