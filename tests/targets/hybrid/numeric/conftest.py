"""Without torch, only the float64 model is tested."""

from importlib.util import find_spec

NEED_TORCH = (
    "collective",
    "devices",
    "indices",
    "mixers",
    "numeric_corpus",
    "offloaded_pages",
    "overlap",
    "paging",
    "pool",
    "target",
)

collect_ignore = [] if find_spec("torch") else [f"test_{name}.py" for name in NEED_TORCH]
