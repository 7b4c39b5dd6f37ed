"""llama.cpp's server behind the `Target` protocol: what its clients get, against the same tokens alone.

In each step every running request sends all of its tokens so far, as chat clients do, and gets one token or a few. All
of a step arrive together, or each while the one before it is computed; then a request that was aborted as it ran comes
before them, and its client leaves while they wait or are computed. The reference's own token is what a request goes on
with, so a slot that generated other ones has to go back: to a context checkpoint, or to the beginning of the prompt. A
session that is saved has its slot saved to a file, and the file restored into a slot before its next turn. A request
that loses what it has computed has its slot erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..base.observe import Content, Effect, Forward, ForwardRow, RealForward, RealRow, Record
from ..base.trace import Config, Event
from ..sequences import operations as do
from ..sequences.client import Fed
from ..sequences.client_target import ClientTarget
from .model import MARGIN_MIN, Model
from .server import Server, completed
from .server_process import ServerProcess
from .server_requests import sent
from .target import make_layout


class ServerTarget(ClientTarget):
    """One server and its clients for one trace. A client is a sequence of the library's client."""

    def __init__(self, config: Config, model: Model) -> None:
        super().__init__(config, make_layout(config), (), planes=0)
        self.model = model
        self._folder = TemporaryDirectory(prefix="hybridfuzz-slots-")
        folder = Path(self._folder.name)
        running = ServerProcess(model.path, model.draft, folder, config.options)
        self.server = Server(running, folder, config.options)

    def decode(self, step: int, fed: Sequence[Fed], batch: do.Decode) -> Sequence[Record]:
        """Send the requests of a step; compare each answer with the same tokens alone."""
        prompts = {one.row.sequence: one.request.tokens(0, one.row.start + one.count) for one in fed}
        server = self.server
        answers = server.ask(prompts, 1 + int(self.config.options["ahead"]), self.client.take_left())
        rows, tolerance = [], MARGIN_MIN
        for one, prompt, answer in zip(fed, prompts.values(), answers, strict=True):
            alone = self.model.alone((*prompt, *answer.tokens[:-1]))
            tolerance = max(tolerance, alone.tolerance)
            expected = alone.logprobs[len(prompt) - 1 :]
            found = completed(answer, expected)
            distance = np.nan_to_num(np.abs(found - expected).max(axis=1), nan=np.inf)
            worst = int(distance.argmax())
            place = len(prompt) - 1 + worst
            rows.append(RealRow(one.request.name, place, found[worst], expected[worst], True))
        forward = [ForwardRow(one.request.name, one.row.start, one.row.tokens, 0, one.sampled) for one in fed]
        forward_of_model = RealForward(step, rows, tolerance, arrived=server.arrived, cancelled=server.cancelled)
        return [forward_of_model, Forward(step, forward, ())]

    def execute(self, event: Event, operations: Sequence[do.Operation]) -> Effect:
        """Send what the operations are to the server."""
        for method, arguments in sent(event, operations):
            getattr(self.server, method)(*arguments)
        return Effect()

    def read(self, group: int, layer: int, block: int) -> Content:
        """Refuse: a server shows no states."""
        raise NotImplementedError("a server shows no states, and the target does not observe any")

    def close(self) -> None:
        """Stop the server and delete what it saved."""
        self.server.close()
        self._folder.cleanup()
