"""Where torch is missing, only the float64 model is tested."""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("torch")
    else [
        "test_pool.py",
        "test_target.py",
        "test_devices.py",
        "test_vote.py",
        "test_numeric_corpus.py",
        "test_mixers.py",
    ]
)
