"""Where torch is missing, only the float64 model is tested."""

from importlib.util import find_spec

NEED_TORCH = (
    "devices",
    "indices",
    "mixers",
    "numeric_corpus",
    "outside",
    "overlap",
    "paging",
    "pool",
    "target",
    "vote",
)

collect_ignore = [] if find_spec("torch") else [f"test_{name}.py" for name in NEED_TORCH]
