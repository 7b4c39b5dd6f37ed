"""The first code of a worker process: `python -m hybridfuzz.harness.workers.worker_main TARGET`.

Gives up rights before anything heavy is imported (`worker_environment`), then serves requests (`request_loop`).
"""

from __future__ import annotations

import os
import sys

from .descendants import adopt_orphans
from .worker_environment import enter_namespaces, wants_network

if __name__ == "__main__":
    adopt_orphans()
    if not wants_network(os.environ):  # set by the coordinator where namespaces are not permitted
        enter_namespaces()
    from .request_loop import main

    sys.exit(main())
