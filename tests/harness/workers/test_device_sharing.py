"""Property: what the workers of a machine share runs as long as they do, and no longer."""

import os
import subprocess
import sys
import time
from pathlib import Path

from hybridfuzz.harness.workers.device_sharing import served
from hybridfuzz.targets.base.launch import SHARED_DEVICE, Launch, Service, unshared

SCRIPT = 'echo $$ > "$PLACE/pid"; touch "$PLACE/ready"; while read -r _; do :; done'
SERVING = Launch(sys.executable, {"KEPT": "1"}, service=Service(("sh", "-c", SCRIPT), ("PLACE", "LOGS"), "ready"))


def test_workers_use_a_service_that_ends_with_them() -> None:
    with served(SERVING, 2) as launch:
        folder = Path(launch.env["PLACE"])
        process = Path("/proc", (folder / "pid").read_text().strip())
        assert launch.env == {"KEPT": "1", "PLACE": str(folder), "LOGS": str(folder), SHARED_DEVICE: "1"}
        assert unshared(launch).env == {"KEPT": "1"}
        assert process.exists()
    assert not process.exists()
    assert not folder.exists()


def test_one_worker_shares_nothing() -> None:
    with served(SERVING, 1) as launch:
        assert launch == SERVING


def test_a_service_that_does_not_start_is_not_used() -> None:
    broken = Launch(sys.executable, {}, service=Service(("sh", "-c", "exit 3"), ("PLACE",), "ready"))
    with served(broken, 2) as launch:
        assert launch == broken


def test_a_service_ends_with_a_process_that_was_killed() -> None:
    code = (
        "import sys, time; from hybridfuzz.harness.workers.device_sharing import served;"
        "from hybridfuzz.targets.base.launch import Launch, Service;"
        f"service = Service(('sh', '-c', {SCRIPT!r}), ('PLACE',), 'ready')\n"
        "with served(Launch(sys.executable, {}, service=service), 2) as launch:\n"
        "    print(open(launch.env['PLACE'] + '/pid').read(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ) as one:
        assert one.stdout
        service = Path("/proc", one.stdout.readline().strip())
        assert service.exists()
        one.kill()
        deadline = time.monotonic() + 10
        while service.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert not service.exists()
