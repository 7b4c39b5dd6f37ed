"""A server of llama.cpp in a process of its own, as `llama-server` is one.

So a trace does not depend on the servers of the traces before it (`server_start`). A worker shares the fate of its
server's process: where that dies, the worker dies in the same way, and the harness reports it.

With arguments this module is that process. It prints one line of JSON, and lives until its standard input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..base.protocol import EngineError, TargetError
from .server_start import ServerHere

SECONDS = 5
"""A process that dies is gone after this time."""


class ServerProcess:
    """A server of one model, as `server_start.ServerHere` is one, in a new process."""

    def __init__(self, path: Path, draft: Path, folder: Path, options: Mapping[str, str]) -> None:
        arguments = [str(path), str(draft), str(folder), json.dumps(dict(options))]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self.lost()
            raise EngineError("the server's process ends before it serves")
        said = json.loads(line)
        if "address" not in said:
            self.close()
            raise TargetError(said["refused"]) if "refused" in said else EngineError(said["raised"])
        self.address: str = said["address"]

    def lost(self) -> None:
        """Die as the server's process died, if it did."""
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(SECONDS)
            if status < 0:
                os.kill(os.getpid(), -status)
            os._exit(status)

    def close(self) -> None:
        """Stop the server, and wait for the end of its process."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        if self._process.wait():
            self.lost()


def serve(path: str, draft: str, folder: str, options: str) -> None:
    """Start a server, say its address, and stop it when standard input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # llama.cpp may print
    server, said = None, {}
    try:
        server = ServerHere(Path(path), Path(draft), Path(folder), json.loads(options))
        said["address"] = server.address
    except TargetError as error:
        said["refused"] = str(error)
    except Exception as error:
        said["raised"] = f"the server does not start: {error!r}"
    os.write(answers, json.dumps(said).encode() + b"\n")
    if server:
        sys.stdin.buffer.read()
        server.close()
    os._exit(0)  # what a library does at an exit is not under test


if __name__ == "__main__":
    serve(*sys.argv[1:])
