"""The worker's end of the pipe."""

import subprocess
import sys

from hybridfuzz.harness.workers.messages import EventStarted, Forked, decode_reply

SEAL = b"seal"
WORKER = """
import os, sys, time
from hybridfuzz.harness.workers.messages import EventStarted
from hybridfuzz.harness.workers.outbox import Outbox

outbox = Outbox(sys.stdout.buffer, b"seal")
outbox.send(EventStarted(3))
if os.fork():
    outbox.send(EventStarted(4))
    os.wait()
else:
    time.sleep(0.5)
    outbox.send(EventStarted(4))
"""


def test_a_copy_names_the_event_at_which_it_was_made() -> None:
    """It was named after the event that the worker had come to meanwhile: "park" instead of "step"."""
    ran = subprocess.run([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, check=True)
    replies = [decode_reply(line.removeprefix(SEAL)) for line in ran.stdout.splitlines()]
    assert replies == [EventStarted(3), EventStarted(4), Forked(3)]
