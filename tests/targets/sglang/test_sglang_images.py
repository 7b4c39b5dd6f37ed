"""Images on the released SGLang: it embeds the tokens of a chunk itself, and keeps what a vision encoder has made."""

import pytest
from support import of_release

from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Step, Trace

LATEST = "0.5.23"
SPEC = f"sglang@{LATEST}"
CASES = [of_release("sglang", LATEST, budget, mixed) for budget in (11, 4, 7) for mixed in ("no", "yes")]
"""Most prompt tokens of a step, whether decodes join them."""

SKIPS_THE_LAST_TOKEN = """\
--- a/sglang/srt/managers/mm_schedule.py
+++ b/sglang/srt/managers/mm_schedule.py
@@ -249,5 +249,5 @@
     \"\"\"Token count of an item with several runs, or None if none intersects the chunk.\"\"\"
     if len(item.offsets) == 1:
         start, end = item.offsets[0]
-        return end - start + 1 if end >= chunk_start and start < chunk_end else None
+        return end - start + 1 if end > chunk_start and start < chunk_end else None
     if any(end >= chunk_start and start < chunk_end for start, end in item.offsets):
"""
"""A chunk that begins with an image's last token does not have it encoded."""


def chunks(budget: int, mixed: str) -> Trace:
    """Return a trace in which prompts with up to four images are computed in parts, and prefixes of them hit."""
    config = Config(
        80, (Group("mamba", 8), Group("attention", 1)), "slots", max_model_len=64, max_num_batched_tokens=32,
        options={"strategy": "extra_buffer", "inputs": "images", "mixed_chunk": mixed},
    )  # fmt: skip
    step = Step(budget=budget)
    events = (
        Arrive("r0", (("a", 5), ("image.b", 7), ("a", 6)), 4),
        *[step] * 12,
        Arrive("r1", (("c", 5),), 4),
        Arrive("r2", (("a", 5), ("image.b", 12), ("image.c", 9)), 4),
        *[step] * 14,
    )
    return Trace(config, events)


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize(("budget", "mixed"), CASES)
def test_parts_of_images_are_embedded(worker: WorkerClient, budget: int, mixed: str) -> None:
    """More images than the cache of what was encoded holds, beside a prompt without one and rows that decode."""
    outcome = worker.run(chunks(budget, mixed))
    assert outcome.violation is None, outcome.violation.message


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize(("budget", "mixed"), CASES[:1])
def test_an_image_that_is_not_encoded_for_its_last_token_is_seen(budget: int, mixed: str) -> None:
    broken = f"sglang@{patched(prepare(SPEC, print), [parse_patch(SKIPS_THE_LAST_TOKEN, 'skips')]).tree}"
    with WorkerClient(broken, prepare(broken, print), trace_seconds=300) as worker:
        worker.start()
        violation = worker.run(chunks(budget, mixed)).violation
    assert violation is not None and violation.oracle == "S6"
