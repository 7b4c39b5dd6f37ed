"""Runs scripts of an engine in processes that are forked behind the imports of other packages.

Most of a script's time goes into the import of torch, transformers and a hundred other packages: of vLLM's, 16 of 20 s.
Here a server imports them once. Each script runs in a fork of it, with the environment and the folders that it has
elsewhere; the engine itself is imported there, from its own tree.

Which packages: the first script runs twice, and what it has imported in the end, the engine's own modules left out, is
imported by the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import TracebackType

from hybridfuzz.harness.tell.script import RUN_SECONDS, Ended, ended_with, environment_of
from hybridfuzz.harness.workers.worker_environment import Home
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.repro import Script

SERVER = """\
import atexit, contextlib, importlib, json, os, signal, sys

def places():
    found = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()))
    return {name: place for name, place in found if place}

def note_imported(tree, own):
    with open(own, "w") as file:
        file.write(" ".join(name for name, place in places().items() if not place.startswith(tree)))

replies, first = os.fdopen(os.dup(1), "w"), os.environ.get("PYTHONPATH", "").split(os.pathsep)
for line in sys.stdin:
    ask = json.loads(line)
    if "modules" in ask:
        for name in ask["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        status = sum(place.startswith(ask["tree"]) for place in places().values())
    elif child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        break
    print(status, file=replies, flush=True)
else:
    sys.exit()
signal.alarm(ask["seconds"])
for stream, path in enumerate([os.devnull, ask["out"], ask["err"]]):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), stream)
os.environ.clear()
os.environ.update(ask["env"])
sys.path[: len(first)] = os.environ["PYTHONPATH"].split(os.pathsep)
importlib.invalidate_caches()
if ask["own"]:
    atexit.register(note_imported, ask["tree"], ask["own"])
sys.argv = [ask["script"]]
__file__ = ask["script"]
exec(compile(open(__file__).read(), __file__, "exec", dont_inherit=True))
"""


class ForkedScripts:
    """Runs the scripts of one engine (`harness.tell.script.Run`), one at a time. Use as a context manager."""

    def __init__(self, launch: Launch) -> None:
        if launch.tree is None:
            raise SystemExit("--forked needs an engine that runs from a folder of its own, as a release does")
        self._launch = launch
        self._tree = f"{launch.tree}{os.sep}"
        self._stack, self._lock = ExitStack(), Lock()
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> ForkedScripts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server and self._server.stdin:
            self._server.stdin.close()
            self._server.wait()
        self._stack.close()

    def __call__(self, path: Path, script: Script, launch: Launch) -> Ended:
        """Run a script."""
        with self._lock, Home() as home:
            if self._server is None:
                self._start(path, script)
            began = time.monotonic()
            status = self._ask(path, {**environment_of(launch, script.needs, home, finds_folder=False)})
            seconds = time.monotonic() - began
        return ended_with(status, seconds, *((path.parent / name).read_bytes() for name in ("out", "err")))

    def _start(self, path: Path, script: Script) -> None:
        home = self._stack.enter_context(Home())
        environment = {**environment_of(self._launch, script.needs, home, finds_folder=False)}
        self._server = subprocess.Popen(
            [self._launch.python, "-c", SERVER],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        own = path.parent / "imported"
        self._ask(path, environment, str(own))
        modules = own.read_text(encoding="utf-8").split()
        if count := self._tell({"modules": modules, "tree": self._tree}):
            raise SystemExit(f"{count} modules of the engine itself were imported before a script")

    def _ask(self, path: Path, environment: dict[str, str], own: str = "") -> int:
        """Run a script in a fork; return its exit status. Its output is in the files `out` and `err` beside it."""
        out, err = (str(path.parent / name) for name in ("out", "err"))
        asked = {"script": str(path.absolute()), "env": environment, "out": out, "err": err}
        return self._tell({**asked, "own": own, "tree": self._tree, "seconds": int(RUN_SECONDS)})

    def _tell(self, asked: dict[str, object]) -> int:
        assert self._server and self._server.stdin and self._server.stdout
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())
