"""The packaged fixes of SGLang apply together, and silence the traces of their causes.

A trace of the corpus fails on its release as it is (test_sglang_release.py).
"""

import datetime
from pathlib import Path

import pytest
from support import of_release

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.known.fixes import BUILTIN, apply_fixes, read_fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

REPEATED = {"sglang-nodes-of-a-released-tag.json", "sglang-requests-preempted-together.json"}
"""Half of all pairs of runs of them in one process differed: SGLang evicts the nodes of a released tag, and puts
requests that are preempted together back into the queue, in the order of a set, by address."""
RUNS = 4
"""Tries, of two runs each."""
OURS = {
    "sglang:sessions@0.5.23": [
        "sglang-load-of-a-later-number.json",
        "sglang-verification-behind-an-end.json",
        "sglang-stop-inside-a-verification.json",
        "sglang-grammar-cuts-a-verification.json",
        "sglang-flush-while-paused-beside-a-fetch.json",
        "sglang-turn-behind-a-pause-without-room.json",
        "sglang-turn-looked-up-again-before-a-flush.json",
        "sglang-aborted-turn-in-a-pause.json",
        "sglang-grammar-that-fails-holds-tokens-back.json",
        "sglang-first-decode-behind-a-window.json",
        "sglang-decode-alone-beside-a-storage.json",
        "sglang-forward-before-its-grammar.json",
        "sglang-chunk-with-less-than-a-token.json",
        *sorted(REPEATED),
        "sglang-checkpoint-behind-a-declined-write-back.json",
        "sglang-grammar-that-fails-behind-an-abort.json",
        "sglang-prefill-keeps-its-window.json",
        "sglang-staging-that-is-not-ready.json",
        "sglang-load-behind-pages-of-the-device.json",
        "sglang-chunk-behind-a-declined-write-back.json",
        "sglang-first-token-behind-a-chunk-that-waits.json",
        "sglang-checkpoint-of-a-turn-without-a-slot.json",
        "sglang-load-behind-a-load-without-a-slot.json",
        "sglang-hit-behind-pages-that-need-no-computing.json",
        "sglang-load-beside-slots-for-tracking.json",
        "sglang-window-loaded-to-a-place.json",
        "sglang-chunk-alone-beside-writes.json",
    ],
}
"""Traces on which an earlier fix of two-crossings-in-flight was wrong: it let a verification behind a request's end
write to the slot of a snapshot at its last token, one behind a stop token to a snapshot that was kept, or one that a
grammar cuts to the slot that was the next one before the results were processed that it waited for. Behind them: a
storage had fetched for a request that waits, and a flush while the server is paused was taken for a hang; a turn came
back in a pause, behind a request that has no room beside its session; and a request whose grammar does not compile held
the model's token back in a step in flight; and the blocks to the left of a window that SGLang gives back with the
second decode were asked for at the first. The fix of loaded-state-stays-locked ended the last request while a storage
wrote what had to go first. A forward that a copy to the host waited for sampled before its grammar had seen the result
before it. The fix of chunk-without-room took a part of a token for room, and let the last request that decodes be
aborted. The fix of write-back-that-is-declined made room for pages alone, and none for the state of a checkpoint.
The token that an aborted request computes instead of its prompt has the stop tokens of its answer held back, too. A
prompt in chunks that joins no tree keeps all of its window until it decodes. The fix of copy-of-an-earlier-match left
waiting requests whose fetch begins again with the slots of their matches. The fix of write-back-that-is-declined asked
for room for a whole hit of the host, also for its pages that are on the device still, and the prompt was never
admitted; and it left out prompts that go on by chunks. Behind the fix of chunk-without-room a prompt whose chunk waits
lost its first token: a request was admitted meanwhile, and the chunk was counted as one in flight. A turn of a session
whose checkpoint got no slot fails for another cause on the release alone, and so does a load that got no slot behind
another one. The fix of write-back-that-is-declined asked for room for tokens that are not computed behind such a hit;
and it left out the state slots that a batch takes of a unified memory. A window that is loaded into such a memory was
recorded under its place, not under the name of its page. The fix of loaded-state-stays-locked let a chunk go on without
room while copies to a buffer locked what could be evicted."""
DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("target", "count"),
    [
        of_release("sglang", "0.5.20", "sglang@0.5.20", 2),
        of_release("sglang", "0.5.23", "sglang:sessions@0.5.23", 47),
    ],
)
def test_all_apply_together_and_silence_all_traces(target: str, count: int) -> None:
    fixes = apply_fixes(prepare(target, print), read_fixes(BUILTIN, target), target, datetime.date.today())
    assert fixes.problems == {} and len(fixes.in_effect) == count
    traces = [
        (name, trace) for one in fixes.in_effect for name, trace in zip(one.traces, one.read_traces(), strict=True)
    ]
    traces += [(name, load_trace(DATA / name)) for name in OURS.get(target, ())]
    with WorkerClient(target, fixes.launch, 300.0) as worker:
        worker.start()
        for name, trace in traces:
            for _ in range(RUNS if name in REPEATED else 1):
                violation = worker.run(trace, twice=name in REPEATED).violation
                assert violation is None, f"{name}: {violation.message}"
